//! Taking jobs for attempts.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, Claimed, ClaimedJob, QueueSample, SampleQueues};
use queuert::{Fence, JobId, JobRecord, Lease, StateError, Timestamp, TypeName};

use crate::clock;
use crate::connection::{Connection, Row, query};
use crate::liveness;
use crate::row::{self, ClaimedRow};
use crate::statements::MERGED_TYPES;
use crate::statements::json_rows::JsonRows;
use crate::store::{Store, count};
use crate::verbs::query::blockers_of;

pub(crate) async fn claim(
    connection: &mut Connection<'_>,
    store: &Store,
    claim: &ClaimJobs,
) -> Result<Claimed, StateError> {
    let mut seen = HashSet::new();
    let types: Vec<_> = claim
        .types
        .iter()
        .filter(|claimed| seen.insert(&claimed.name))
        .collect();
    if types.is_empty() {
        return Ok(Claimed::default());
    }
    let now = clock::now();
    let names = JsonRows::of_texts(types.iter().map(|claimed| claimed.name.as_str()));
    let promote = query(&store.statements.promote)
        .bind(names.as_str())
        .bind(now.as_micros());
    connection.execute(promote).await?;
    let mut round = ClaimRound {
        claim,
        types: types.iter().map(|claimed| (claimed.name.as_str(), *claimed)).collect(),
        now,
        jobs_read: 0,
        bytes_read: 0,
        full: false,
    };
    let taken = if types.len() <= MERGED_TYPES {
        let names: Vec<&str> = types.iter().map(|claimed| claimed.name.as_str()).collect();
        round.take(connection, store, &names, names.len(), claim.limit).await?
    } else {
        round.take_of_many(connection, store, &names).await?
    };
    if !taken.is_empty() {
        liveness::register(connection, store, claim.worker.as_str()).await?;
    }
    let next_due = if taken.len() >= claim.limit {
        None
    } else if round.full {
        Some(Duration::ZERO)
    } else {
        next_due(connection, store, &names, now).await?
    };
    let taken = taken.into_iter().map(|taken| (taken.job, taken.blockers > 0)).collect();
    Ok(Claimed {
        jobs: with_blockers(connection, store, taken).await?,
        next_due,
    })
}

/// How many types one query merges if there are more types than [`MERGED_TYPES`].
const FIRST_TYPES: usize = 512;

/// The state of one claim.
struct ClaimRound<'a> {
    claim: &'a ClaimJobs,
    /// The types that are claimed, by name.
    types: HashMap<&'a str, &'a ClaimType>,
    now: Timestamp,
    jobs_read: usize,
    /// The bytes of the inputs that were read.
    bytes_read: usize,
    /// Whether the claim did not admit the last job that was read.
    full: bool,
}

impl ClaimRound<'_> {
    /// Takes the first jobs of these types, with a query that merges `merged` types, at least as many.
    async fn take(
        &mut self,
        connection: &mut Connection<'_>,
        store: &Store,
        names: &[&str],
        merged: usize,
        limit: usize,
    ) -> Result<Vec<ClaimedRow>, StateError> {
        let Self {
            claim,
            types,
            now,
            jobs_read,
            bytes_read,
            full,
        } = self;
        let mut select = query(&store.statements.claim(merged)).bind(count(limit));
        for place in 0..merged {
            select = select.bind(names.get(place).copied());
        }
        let lease = |name: &str| {
            let claimed = types.get(name)?;
            let lease = Lease {
                owner: claim.worker.clone(),
                until: now.saturating_add(claimed.lease),
                fence: claim.fence,
            };
            Some((claimed.name.clone(), lease))
        };
        let admitted = |found: &Row<'_>| {
            let job = row::claimed(found, *now, lease)?;
            *bytes_read = bytes_read.saturating_add(job.job.input.as_str().len());
            if job.blockers > 0 {
                *bytes_read = bytes_read.saturating_add(claim.outputs.expected(job.job.type_name.as_str()));
            }
            *full = !claim.admits(*jobs_read, *bytes_read);
            *jobs_read += 1;
            Ok((!*full).then_some(job))
        };
        let taken = connection.fetch_while(select, admitted).await?;
        // The transaction has the write lock, so the jobs are still pending.
        let update = store
            .statements
            .claim_jobs
            .execute(connection, &taken, |values, taken| {
                let until = taken.job.lease.as_ref().map(|lease| lease.until.as_micros());
                values
                    .number(taken.seq)
                    .number(now.as_micros())
                    .add(claim.worker.as_str())
                    .add(claim.fence.as_uuid())
                    .add(until);
            });
        update.await?;
        Ok(taken)
    }

    /// The same for any number of types. The first `n` jobs of all types belong to the `n` types whose first jobs come first,
    /// so it finds these types, and merges only them.
    async fn take_of_many(
        &mut self,
        connection: &mut Connection<'_>,
        store: &Store,
        names: &str,
    ) -> Result<Vec<ClaimedRow>, StateError> {
        let mut taken = Vec::new();
        while taken.len() < self.claim.limit {
            let wanted = FIRST_TYPES.min(self.claim.limit - taken.len());
            let first = query(&store.statements.first_types).bind(names).bind(count(wanted));
            let first = connection.fetch(first, |found| found.get::<String>("type")).await?;
            if first.is_empty() {
                break;
            }
            let first: Vec<&str> = first.iter().map(String::as_str).collect();
            // A power of two, so that there are few different statements.
            let merged = first.len().next_power_of_two();
            let mut round = self.take(connection, store, &first, merged, wanted).await?;
            let more = round.len() == wanted;
            taken.append(&mut round);
            if !more {
                break;
            }
        }
        Ok(taken)
    }
}

/// How long it is until the next job of these types is due.
async fn next_due(
    connection: &mut Connection<'_>,
    store: &Store,
    names: &str,
    now: Timestamp,
) -> Result<Option<Duration>, StateError> {
    let next = query(&store.statements.next_due).bind(names);
    let next = connection
        .first(next, |found| found.get::<Option<i64>>("scheduled_at"))
        .await?;
    // Jobs that one statement could not promote are due already. The claimer asks again soon, but not in a busy loop.
    Ok(next.flatten().map(|time| {
        Timestamp::from_micros(time)
            .saturating_duration_since(now)
            .max(Duration::from_millis(1))
    }))
}

/// How many jobs of each type are ready.
pub(crate) async fn sample(
    connection: &mut Connection<'_>,
    store: &Store,
    sample: &SampleQueues,
) -> Result<Vec<QueueSample>, StateError> {
    let now = clock::now();
    let names = JsonRows::of_texts(sample.types.iter().map(TypeName::as_str));
    let samples = query(&store.statements.sample_queues)
        .bind(names)
        .bind(now.as_micros())
        .bind(count(sample.limit));
    let found = connection.fetch(samples, |found| {
        let promoted: Option<i64> = found.get("oldest_promoted")?;
        let later: Option<i64> = found.get("oldest_later")?;
        Ok((found.get::<i64>("ready")?, promoted.into_iter().chain(later).min()))
    });
    let found = found.await?;
    let samples = sample
        .types
        .iter()
        .zip(found)
        .map(|(name, (ready, oldest))| QueueSample {
            type_name: name.clone(),
            ready: usize::try_from(ready).unwrap_or(0).min(sample.limit),
            oldest: oldest.map(|oldest| now.saturating_duration_since(Timestamp::from_micros(oldest))),
        });
    Ok(samples.collect())
}

/// The jobs that run under a fence.
pub(crate) async fn claimed(
    connection: &mut Connection<'_>,
    store: &Store,
    fence: Fence,
) -> Result<Vec<ClaimedJob>, StateError> {
    let claimed = query(&store.statements.claimed_jobs).bind(fence.as_uuid());
    let taken = connection.fetch(claimed, |found| {
        let stored = row::job(found)?;
        Ok((stored.job, stored.blockers > 0))
    });
    let taken = taken.await?;
    with_blockers(connection, store, taken).await
}

/// Adds the blockers to jobs that have any.
async fn with_blockers(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: Vec<(JobRecord, bool)>,
) -> Result<Vec<ClaimedJob>, StateError> {
    let blocked: Vec<JobId> = jobs
        .iter()
        .filter(|(_, has_blockers)| *has_blockers)
        .map(|(job, _)| job.id)
        .collect();
    let mut blockers = blockers_of(connection, store, &blocked).await?;
    let jobs = jobs.into_iter().map(|(job, _)| ClaimedJob {
        blockers: blockers.remove(&job.id).unwrap_or_default(),
        job,
    });
    Ok(jobs.collect())
}
