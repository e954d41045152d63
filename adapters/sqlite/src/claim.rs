//! Taking jobs, keeping them, and taking them back.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use queuert::adapter::{
    ClaimJobs, ClaimType, Claimed, ClaimedJob, QueueSample, ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal,
    SampleQueues,
};
use queuert::{AbortReason, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, StateError, Timestamp, TypeName};
use uuid::Uuid;

use crate::clock;
use crate::core::{Change, Core, ErrorChange, count};
use crate::db::{Db, Row, query};
use crate::json::Batch;
use crate::presence;
use crate::row::{self, CHAIN_COLUMNS};
use crate::sabotage;
use crate::sql::ARMS;

pub(crate) async fn claim(db: &mut Db<'_>, core: &Core, claim: &ClaimJobs) -> Result<Claimed, StateError> {
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
    let names = Batch::of_texts(types.iter().map(|claimed| claimed.name.as_str()));
    let promote = query(&core.sql.promote).bind(names.as_str()).bind(now.as_micros());
    db.execute(promote).await?;
    let mut round = Round {
        claim,
        leases: types.iter().map(|claimed| (claimed.name.as_str(), *claimed)).collect(),
        now,
        read: 0,
        bytes: 0,
        full: false,
    };
    let taken = match types.len() {
        ..=ARMS => {
            let names: Vec<&str> = types.iter().map(|claimed| claimed.name.as_str()).collect();
            round.take(db, core, &names, names.len(), claim.limit).await?
        }
        _ => round.take_of_many(db, core, &names).await?,
    };
    if !taken.is_empty() {
        presence::enlist(db, core, claim.worker.as_str()).await?;
    }
    let next_due = match taken.len() < claim.limit {
        true if round.full => Some(Duration::ZERO),
        true => next_due(db, core, &names, now).await?,
        false => None,
    };
    let taken = taken.into_iter().map(|taken| (taken.job, taken.blockers > 0)).collect();
    Ok(Claimed {
        jobs: with_blockers(db, core, taken).await?,
        next_due,
    })
}

/// How many of more types than a statement merges are merged at once.
const HEADS: usize = 512;

/// A claim under way.
struct Round<'a> {
    claim: &'a ClaimJobs,
    /// The types that are claimed, by name.
    leases: HashMap<&'a str, &'a ClaimType>,
    now: Timestamp,
    /// How many jobs were read, and how many bytes their inputs have.
    read: usize,
    bytes: usize,
    /// The last of them was not admitted.
    full: bool,
}

impl Round<'_> {
    /// Takes the first jobs of these types, with a statement for at least as many.
    async fn take(
        &mut self,
        db: &mut Db<'_>,
        core: &Core,
        names: &[&str],
        arms: usize,
        limit: usize,
    ) -> Result<Vec<row::Claimed>, StateError> {
        let Self {
            claim,
            leases,
            now,
            read,
            bytes,
            full,
        } = self;
        let mut first = query(&core.claim_statement(arms)).bind(count(limit));
        for place in 0..arms {
            first = first.bind(names.get(place).copied());
        }
        let lease = |name: &str| {
            let claimed = leases.get(name)?;
            let lease = Lease {
                owner: claim.worker.clone(),
                until: now.saturating_add(claimed.lease),
                fence: claim.fence,
            };
            Some((claimed.name.clone(), lease))
        };
        let admitted = |found: &Row<'_>| {
            let job = row::claimed(found, *now, lease)?;
            *bytes = bytes.saturating_add(job.job.input.as_str().len());
            if job.blockers > 0 {
                *bytes = bytes.saturating_add(claim.outputs.expected(job.job.type_name.as_str()));
            }
            *full = !claim.admits(*read, *bytes);
            *read += 1;
            Ok((!*full).then_some(job))
        };
        let taken = db.fetch_while(first, admitted).await?;
        // The transaction has the write lock, so they are still there.
        let take = core.sql.take.execute(db, &taken, |values, taken| {
            let until = taken.job.lease.as_ref().map(|lease| lease.until.as_micros());
            values
                .number(taken.seq)
                .number(now.as_micros())
                .add(claim.worker.as_str());
            values.add(claim.fence.as_uuid()).add(until);
        });
        take.await?;
        Ok(taken)
    }

    /// The same of any number of types. The first so many jobs of all types are jobs of the types with the first so many
    /// heads, so these are looked for first, and only they are merged.
    async fn take_of_many(
        &mut self,
        db: &mut Db<'_>,
        core: &Core,
        names: &str,
    ) -> Result<Vec<row::Claimed>, StateError> {
        let mut taken = Vec::new();
        while taken.len() < self.claim.limit {
            let wanted = HEADS.min(self.claim.limit - taken.len());
            let heads = query(&core.sql.heads_of_types).bind(names).bind(count(wanted));
            let heads = db.fetch(heads, |found| found.get::<String>(0)).await?;
            if heads.is_empty() {
                break;
            }
            let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
            // One of few numbers, so that there are few different statements.
            let arms = heads.len().next_power_of_two();
            let mut round = self.take(db, core, &heads, arms, wanted).await?;
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
async fn next_due(db: &mut Db<'_>, core: &Core, names: &str, now: Timestamp) -> Result<Option<Duration>, StateError> {
    let next = query(&core.sql.next_due).bind(names);
    let next = db.first(next, |found| found.get::<Option<i64>>(0)).await?.flatten();
    // What could not be moved over in one go is due now: soon, and never in a hot loop.
    Ok(next.map(|time| {
        Timestamp::from_micros(time)
            .saturating_duration_since(now)
            .max(Duration::from_millis(1))
    }))
}

/// How much is ready, type by type.
pub(crate) async fn sample(
    db: &mut Db<'_>,
    core: &Core,
    sample: &SampleQueues,
) -> Result<Vec<QueueSample>, StateError> {
    let now = clock::now();
    let names = Batch::of_texts(sample.types.iter().map(TypeName::as_str));
    let ready = query(&core.sql.ready)
        .bind(names)
        .bind(now.as_micros())
        .bind(count(sample.limit));
    let found = db.fetch(ready, |found| {
        let due: Option<i64> = found.get(1)?;
        let apart: Option<i64> = found.get(2)?;
        Ok((found.get::<i64>(0)?, due.into_iter().chain(apart).min()))
    });
    let found = found.await?;
    let samples = sample
        .types
        .iter()
        .zip(found)
        .map(|(name, (ready, earliest))| QueueSample {
            type_name: name.clone(),
            ready: usize::try_from(ready).unwrap_or(0).min(sample.limit),
            oldest: earliest.map(|earliest| now.saturating_duration_since(Timestamp::from_micros(earliest))),
        });
    Ok(samples.collect())
}

/// What runs under a fence.
pub(crate) async fn claimed(db: &mut Db<'_>, core: &Core, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
    let claimed = query(&core.sql.claimed).bind(fence.as_uuid());
    let taken = db.fetch(claimed, |found| {
        let stored = row::job(found)?;
        Ok((stored.job, stored.blockers > 0))
    });
    let taken = taken.await?;
    with_blockers(db, core, taken).await
}

/// Jobs with the chains that they have waited for, if they have.
async fn with_blockers(
    db: &mut Db<'_>,
    core: &Core,
    jobs: Vec<(JobRecord, bool)>,
) -> Result<Vec<ClaimedJob>, StateError> {
    let waited: Vec<JobId> = jobs
        .iter()
        .filter(|(_, waited)| *waited)
        .map(|(job, _)| job.id)
        .collect();
    let mut blockers = blockers_of(db, core, &waited).await?;
    let jobs = jobs.into_iter().map(|(job, _)| ClaimedJob {
        blockers: blockers.remove(&job.id).unwrap_or_default(),
        job,
    });
    Ok(jobs.collect())
}

/// The blocker chains of jobs, in the declared order.
pub(crate) async fn blockers_of(
    db: &mut Db<'_>,
    core: &Core,
    jobs: &[JobId],
) -> Result<HashMap<JobId, Vec<ChainRecord>>, StateError> {
    let mut blockers: HashMap<JobId, Vec<ChainRecord>> = HashMap::new();
    if jobs.is_empty() {
        return Ok(blockers);
    }
    let ids = Batch::of_ids(jobs.iter().map(|job| job.as_uuid()));
    let found = db.fetch(query(&core.sql.blockers_of).bind(ids), |found| {
        Ok((JobId::from_uuid(found.get(CHAIN_COLUMNS)?), row::chain(found)?))
    });
    for (job, chain) in found.await? {
        blockers.entry(job).or_default().push(chain);
    }
    Ok(blockers)
}

pub(crate) async fn renew(db: &mut Db<'_>, core: &Core, renewals: &[RenewLease]) -> Result<Vec<Renewal>, StateError> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let now = clock::now();
    let mut batch = Batch::new();
    for renewal in renewals {
        let until = now.saturating_add(renewal.lease);
        batch.row(|row| {
            row.id(renewal.job.as_uuid())
                .id(renewal.fence.as_uuid())
                .number(until.as_micros());
        });
    }
    let renewed = db.fetch(query(&core.sql.renew).bind(batch.finish()), |found| {
        Ok((JobId::from_uuid(found.get(0)?), Fence::from_uuid(found.get(1)?)))
    });
    let renewed: HashSet<_> = renewed.await?.into_iter().collect();
    let held = |renewal: &RenewLease| renewed.contains(&(renewal.job, renewal.fence));
    let rows = match renewals.iter().all(held) {
        true => HashMap::new(),
        false => why_lost(db, core, renewals.iter().map(|renewal| renewal.job)).await?,
    };
    let answers = renewals.iter().map(|renewal| {
        if held(renewal) {
            return Renewal::Renewed(now.saturating_add(renewal.lease));
        }
        match self::held(rows.get(&renewal.job), renewal.fence) {
            Ok(()) => Renewal::Busy,
            Err(reason) => Renewal::Lost(reason),
        }
    });
    Ok(answers.collect())
}

/// Status and fence of jobs.
async fn why_lost(
    db: &mut Db<'_>,
    core: &Core,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, (Option<JobStatus>, Option<Uuid>)>, StateError> {
    let ids = Batch::of_ids(jobs.map(|job| job.as_uuid()));
    let rows = db.fetch(query(&core.sql.why_lost).bind(ids), |found| {
        Ok((JobId::from_uuid(found.get(0)?), status_and_fence(found)?))
    });
    Ok(rows.await?.into_iter().collect())
}

fn status_and_fence(found: &Row<'_>) -> Result<(Option<JobStatus>, Option<Uuid>), StateError> {
    Ok((row::status(found.get(1)?), found.get(2)?))
}

fn held(found: Option<&(Option<JobStatus>, Option<Uuid>)>, fence: Fence) -> Result<(), AbortReason> {
    match found {
        Some((Some(JobStatus::Running), Some(held))) if *held == fence.as_uuid() || sabotage::fencing_is_off() => {
            Ok(())
        }
        found => Err(lost(found.and_then(|(status, _)| *status))),
    }
}

/// Why a job is not the caller's, from its status; `None` if the row is gone.
pub(crate) fn lost(status: Option<JobStatus>) -> AbortReason {
    match status {
        None => AbortReason::NotFound,
        Some(JobStatus::Completed) => AbortReason::AlreadyCompleted,
        Some(JobStatus::Cancelled) => AbortReason::Cancelled,
        Some(_) => AbortReason::TakenByAnotherWorker,
    }
}

/// Whether the job runs under the fence. The caller's transaction has the write lock, so it stays true.
pub(crate) async fn hold(
    db: &mut Db<'_>,
    core: &Core,
    job: JobId,
    fence: Fence,
) -> Result<Result<(), AbortReason>, StateError> {
    let rows = why_lost(db, core, std::iter::once(job)).await?;
    Ok(held(rows.get(&job), fence))
}

pub(crate) async fn reap(db: &mut Db<'_>, core: &Core, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
    let now = clock::now();
    let types = Batch::of_texts(reap.types.iter().map(|reaped| reaped.name.as_str()));
    let except = Batch::of_ids(reap.except.iter().map(|job| job.as_uuid()));
    let search = |text, limit| {
        let search = query(text).bind(now.as_micros());
        search.bind(types.as_str()).bind(except.as_str()).bind(count(limit))
    };
    let mut found = Vec::new();
    for text in [&core.sql.expired, &core.sql.leaseless] {
        let limit = reap.limit.saturating_sub(found.len());
        for stored in db.fetch(search(text, limit), row::job).await? {
            found.push((ReapCause::LeaseExpired, stored));
        }
    }
    let dead = presence::dead(db, core).await?;
    if !dead.workers.is_empty() && found.len() < reap.limit {
        let workers = Batch::of_texts(dead.workers.iter().map(String::as_str));
        let orphaned = search(&core.sql.orphaned, reap.limit - found.len()).bind(workers);
        for stored in db.fetch(orphaned, row::job).await? {
            found.push((ReapCause::OwnerDied, stored));
        }
    }
    let mut reaped = Vec::new();
    let mut changes = Vec::new();
    for (cause, mut stored) in found {
        let Some(taken) = reap.take_back(&mut stored.job, cause, now) else {
            continue;
        };
        changes.push(Change {
            rank: Some(stored.rank),
            error: ErrorChange::Set {
                attempt: taken.error.attempt,
                at: taken.error.at,
                message: taken.error.message,
            },
            ..Change::of_job(&stored)
        });
        reaped.push(ReapedJob {
            owner: taken.lease.owner,
            expired_at: taken.lease.until,
            cause,
            job: stored.job,
        });
    }
    core.change(db, &changes, now).await?;
    core.note_lost_leases(db, reaped.iter().map(|reaped| reaped.job.id))
        .await?;
    presence::bury(db, core, &dead).await?;
    Ok(reaped)
}
