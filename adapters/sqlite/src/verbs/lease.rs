//! Extending leases, checking them, and taking jobs back from attempts that are over.

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::{self, JobHead};
use queuert::adapter::{ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal};
use queuert::{Fence, JobId, JobStatus, StateError, Timestamp};

use crate::clock;
use crate::connection::{Connection, query};
use crate::liveness;
use crate::notify::notices;
use crate::row;
use crate::sabotage;
use crate::statements::json_rows::JsonRows;
use crate::store::{Store, count};
use crate::verbs::transition::{self, Transition};

pub(crate) async fn renew(
    connection: &mut Connection<'_>,
    store: &Store,
    renewals: &[RenewLease],
) -> Result<Vec<Renewal>, StateError> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let now = clock::now();
    let mut rows = JsonRows::new();
    for renewal in renewals {
        let until = now.saturating_add(renewal.lease);
        rows.row(|row| {
            row.id(renewal.job.as_uuid())
                .id(renewal.fence.as_uuid())
                .number(until.as_micros());
        });
    }
    let renewed = connection.fetch(query(&store.statements.renew).bind(rows.finish()), |found| {
        Ok((
            JobId::from_uuid(found.get("id")?),
            Fence::from_uuid(found.get("fence")?),
        ))
    });
    let renewed: HashSet<_> = renewed.await?.into_iter().collect();
    let is_renewed = |renewal: &RenewLease| renewed.contains(&(renewal.job, renewal.fence));
    let heads = if renewals.iter().all(is_renewed) {
        HashMap::new()
    } else {
        heads(connection, store, renewals.iter().map(|renewal| renewal.job)).await?
    };
    let answers = renewals.iter().map(|renewal| {
        if is_renewed(renewal) {
            return Renewal::Renewed(now.saturating_add(renewal.lease));
        }
        let head = heads
            .get(&renewal.job)
            .map(|head| sabotage::seen_by(*head, renewal.fence));
        match rules::held(head.as_ref(), renewal.fence) {
            Ok(()) => Renewal::Busy,
            Err(reason) => Renewal::Lost(reason),
        }
    });
    Ok(answers.collect())
}

/// Status and fence of jobs; the other facts of a head are not read.
pub(crate) async fn heads(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, JobHead>, StateError> {
    let ids = JsonRows::of_ids(jobs.map(|job| job.as_uuid()));
    let found = connection.fetch(query(&store.statements.job_fences).bind(ids), |found| {
        let head = JobHead {
            status: row::status(found.get("status")?).unwrap_or(JobStatus::Dead),
            fence: found.get::<Option<_>>("fence")?.map(Fence::from_uuid),
            settled_fence: None,
            attempt: 0,
            scheduled_at: Timestamp::from_micros(0),
        };
        Ok((JobId::from_uuid(found.get("id")?), head))
    });
    Ok(found.await?.into_iter().collect())
}

/// Takes back jobs whose leases have expired, and jobs whose workers have died.
pub(crate) async fn reap(
    connection: &mut Connection<'_>,
    store: &Store,
    reap: &ReapLeases,
) -> Result<Vec<ReapedJob>, StateError> {
    let now = clock::now();
    let types = JsonRows::of_texts(reap.types.iter().map(|reaped| reaped.name.as_str()));
    let except = JsonRows::of_ids(reap.except.iter().map(|job| job.as_uuid()));
    let search = |text, limit| {
        let search = query(text).bind(now.as_micros());
        search.bind(types.as_str()).bind(except.as_str()).bind(count(limit))
    };
    let mut found = Vec::new();
    for text in [&store.statements.expired, &store.statements.missing] {
        let limit = reap.limit.saturating_sub(found.len());
        for stored in connection.fetch(search(text, limit), row::job).await? {
            found.push((ReapCause::LeaseExpired, stored));
        }
    }
    let dead = liveness::dead_processes(connection, store).await?;
    if !dead.workers.is_empty() && found.len() < reap.limit {
        let workers = JsonRows::of_texts(dead.workers.iter().map(String::as_str));
        let orphaned = search(&store.statements.orphaned, reap.limit - found.len()).bind(workers);
        for stored in connection.fetch(orphaned, row::job).await? {
            found.push((ReapCause::OwnerDied, stored));
        }
    }
    let mut reaped = Vec::new();
    let mut transitions = Vec::new();
    for (cause, mut stored) in found {
        let Some(taken) = reap.take_back(&mut stored.job, cause, now) else {
            continue;
        };
        transitions.push(Transition::of_job(&stored, taken.change));
        reaped.push(ReapedJob {
            owner: taken.lease.owner,
            expired_at: taken.lease.until,
            cause,
            job: stored.job,
        });
    }
    transition::apply(connection, store, &transitions, now).await?;
    notices::insert_lost_leases(connection, store, reaped.iter().map(|reaped| reaped.job.id)).await?;
    liveness::remove_dead(connection, store, &dead).await?;
    Ok(reaped)
}
