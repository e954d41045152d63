//! Keeping jobs that were claimed, and taking them back.

use std::collections::HashMap;

use queuert::adapter::{ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal, rank};
use queuert::{AbortReason, Fence, JobId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::liveness::{self, Missed};
use crate::row;
use crate::sabotage::Bug;
use crate::store::{Store, count, micros};
use crate::verbs::snapshot;
use crate::verbs::transition::{Destination, Transition};

pub(crate) async fn renew(
    session: &mut Session<'_>,
    store: &Store,
    renewals: &[RenewLease],
    process: Option<i64>,
) -> Result<Vec<Renewal>, StateError> {
    let mut ordered: Vec<&RenewLease> = renewals.iter().collect();
    ordered.sort_unstable_by_key(|renewal| renewal.job);
    let renew = query(&store.sql.renew)
        .bind(ordered.iter().map(|renewal| renewal.job.as_uuid()).collect::<Vec<_>>())
        .bind(
            ordered
                .iter()
                .map(|renewal| renewal.fence.as_uuid())
                .collect::<Vec<_>>(),
        )
        .bind(ordered.iter().map(|renewal| micros(renewal.lease)).collect::<Vec<_>>())
        .bind(process);
    let mut renewed: HashMap<(Uuid, Uuid), Timestamp> = HashMap::new();
    for found in session.fetch(renew).await? {
        let until = Timestamp::from_micros(row::get(&found, "leased_until")?);
        renewed.insert((row::get(&found, "id")?, row::get(&found, "fence")?), until);
    }
    let until = |renewal: &RenewLease| renewed.get(&(renewal.job.as_uuid(), renewal.fence.as_uuid()));
    let missing = renewals.iter().filter(|renewal| until(renewal).is_none());
    let standings = standings(session, store, missing.map(|renewal| renewal.job)).await?;
    let answers = renewals.iter().map(|renewal| match until(renewal) {
        Some(until) => Renewal::Renewed(*until),
        None => match held(standings.get(&renewal.job), renewal.fence) {
            Ok(()) => Renewal::Busy,
            Err(reason) => Renewal::Lost(reason),
        },
    });
    Ok(answers.collect())
}

/// Where a job stands, for those who thought that it was theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) status: JobStatus,
    pub(crate) fence: Option<Uuid>,
    pub(crate) settled_fence: Option<Uuid>,
    /// Whether some job has its chain as blocker.
    pub(crate) awaited: bool,
}

pub(crate) async fn standings(
    session: &mut Session<'_>,
    store: &Store,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, Standing>, StateError> {
    let ids: Vec<Uuid> = jobs.map(|job| job.as_uuid()).collect();
    let mut standings = HashMap::with_capacity(ids.len());
    if ids.is_empty() {
        return Ok(standings);
    }
    for found in session.fetch(query(&store.sql.standing).bind(ids)).await? {
        let job = JobId::from_uuid(row::get(&found, "id")?);
        // A row with a status that is none is in the table of the dead and the cancelled.
        let status = row::status(row::get(&found, "status")?).unwrap_or(JobStatus::Dead);
        let standing = Standing {
            status,
            fence: row::get(&found, "fence")?,
            settled_fence: row::get(&found, "settled_fence")?,
            awaited: row::get(&found, "awaited")?,
        };
        standings.insert(job, standing);
    }
    Ok(standings)
}

/// Whether the job runs under the fence, and why not.
pub(crate) fn held(standing: Option<&Standing>, fence: Fence) -> Result<(), AbortReason> {
    match standing {
        Some(standing) if standing.fence == Some(fence.as_uuid()) => Ok(()),
        Some(standing) if standing.fence.is_some() && Bug::Fencing.is_on() => Ok(()),
        standing => Err(lost(standing.map(|standing| standing.status))),
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

/// Whether the job runs under the fence. Its row is locked, so it stays true.
pub(crate) async fn hold(
    session: &mut Session<'_>,
    store: &Store,
    job: JobId,
    fence: Fence,
) -> Result<Result<(), AbortReason>, StateError> {
    let hold = || query(&store.sql.hold).bind(job.as_uuid()).bind(fence.as_uuid());
    if !session.fetch(hold()).await?.is_empty() {
        return Ok(Ok(()));
    }
    // A statement of its own, which sees what made the first one fail. A fence does not come back.
    let standings = standings(session, store, std::iter::once(job)).await?;
    match held(standings.get(&job), fence) {
        Err(reason) => {
            snapshot::confirm(session, store, vec![job.as_uuid()]).await?;
            Ok(Err(reason))
        }
        // The transaction of the claim committed in between.
        Ok(()) => {
            let held = !session.fetch(hold()).await?.is_empty();
            Ok(held.then_some(()).ok_or(AbortReason::TakenByAnotherWorker))
        }
    }
}

/// Whether some lease has expired, without locking anything.
pub(crate) async fn has_expired(
    session: &mut Session<'_>,
    store: &Store,
    reap: &ReapLeases,
) -> Result<bool, StateError> {
    store
        .find_types(session, reap.types.iter().map(|reaped| &reaped.name))
        .await?;
    let search = query(&store.sql.has_expired)
        .bind(reaped_types(store, reap))
        .bind(excepted(reap));
    Ok(!session.fetch(search).await?.is_empty())
}

fn reaped_types(store: &Store, reap: &ReapLeases) -> Vec<i32> {
    let types = reap
        .types
        .iter()
        .filter_map(|reaped| store.type_ids.number(&reaped.name));
    types.collect()
}

fn excepted(reap: &ReapLeases) -> Vec<Uuid> {
    reap.except.iter().map(|job| job.as_uuid()).collect()
}

/// What a sweep took back.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) jobs: Vec<ReapedJob>,
    /// Type and rank of those that are due at once.
    due: Vec<(i32, i64)>,
}

impl Swept {
    /// Tells the claims of this process where the jobs are, after the commit: they have kept their places, which lie before
    /// the point where claims may begin to look.
    pub(crate) fn tell(self, store: &Store) -> Vec<ReapedJob> {
        for (type_id, rank) in self.due {
            store.scan_starts.put_ready(type_id, rank);
        }
        self.jobs
    }
}

/// Takes expired leases, oldest first, and those of the processes that are taken for dead. In a transaction: the rows are
/// taken away first and put elsewhere after.
pub(crate) async fn reap(
    session: &mut Session<'_>,
    store: &Store,
    reap: &ReapLeases,
    dead: &[Missed],
) -> Result<Swept, StateError> {
    let confirmed = liveness::confirm(session, store, dead).await?;
    let search = query(&store.sql.reap)
        .bind(reaped_types(store, reap))
        .bind(excepted(reap))
        .bind(count(reap.limit))
        .bind(confirmed.workers.clone());
    let rows = session.fetch(search).await?;
    liveness::forget(session, store, &confirmed).await?;
    let Some(now) = rows.last().map(|last| row::get(last, "now")).transpose()? else {
        return Ok(Swept::default());
    };
    let now = Timestamp::from_micros(now);
    let mut swept = Swept::default();
    let mut changes = Vec::with_capacity(rows.len());
    for (mut stored, found) in row::jobs(session, store, &rows).await?.into_iter().zip(&rows) {
        let of_schedule = || rank(stored.job.scheduled_at, stored.job.priority, store.ageing_step);
        let rank = row::get::<Option<i64>>(found, "rank")?.unwrap_or_else(of_schedule);
        let cause = match &stored.job.lease {
            Some(lease) if lease.until > now => ReapCause::OwnerDied,
            _ => ReapCause::LeaseExpired,
        };
        let Some(taken) = reap.take_back(&mut stored.job, cause, now) else {
            continue;
        };
        let to = match stored.job.status {
            JobStatus::Dead => Destination::Stopped {
                status: JobStatus::Dead,
                ended_at: now,
            },
            _ => Destination::Pending,
        };
        if matches!(to, Destination::Pending) && stored.job.scheduled_at <= now {
            swept.due.push((stored.type_id, rank));
        }
        changes.push(Transition {
            from: None,
            rank: Some(rank),
            error: Some(taken.error),
            ..Transition::of(&stored, to)
        });
        swept.jobs.push(ReapedJob {
            owner: taken.lease.owner,
            expired_at: taken.lease.until,
            cause,
            job: stored.job,
        });
    }
    store.apply(session, &changes, now).await?;
    Ok(swept)
}
