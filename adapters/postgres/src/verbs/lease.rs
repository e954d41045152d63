//! Leases: renewing them, holding them in a transaction, and reaping them.

use std::collections::HashMap;

use queuert::adapter::rules::{self, JobHead};
use queuert::adapter::{Authority, ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal, Settled, rank};
use queuert::{AbortReason, Fence, JobId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::liveness::{self, DeadProcess};
use crate::row;
use crate::sabotage::Bug;
use crate::store::{Store, count, micros};
use crate::verbs::snapshot;
use crate::verbs::transition::Transition;

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

/// Where a job stands, for callers that take it for theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) head: JobHead,
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
        // A row with a status that is none is in the table of the dead and the cancelled jobs.
        let status = row::status(row::get(&found, "status")?).unwrap_or(JobStatus::Dead);
        let fence = |column: &str| Ok::<_, StateError>(row::get::<Option<Uuid>>(&found, column)?.map(Fence::from_uuid));
        let standing = Standing {
            head: JobHead {
                status,
                fence: fence("fence")?,
                settled_fence: fence("settled_fence")?,
                attempt: u32::try_from(row::get::<i32>(&found, "attempt")?).unwrap_or_default(),
                scheduled_at: Timestamp::from_micros(row::get(&found, "scheduled_at")?),
            },
            awaited: row::get(&found, "awaited")?,
        };
        standings.insert(job, standing);
    }
    Ok(standings)
}

/// Whether the job runs under the fence, and why not.
fn held(standing: Option<&Standing>, fence: Fence) -> Result<(), AbortReason> {
    let head = standing.map(|standing| believed(&standing.head, fence));
    rules::held(head.as_ref(), fence)
}

/// Whether the caller may settle the job, and the answer if not.
pub(crate) fn authorise(authority: &Authority, head: Option<&JobHead>) -> Result<(), Settled> {
    match (authority, head) {
        (Authority::Fence { fence, .. }, Some(head)) => rules::authorise(authority, Some(&believed(head, *fence))),
        _ => rules::authorise(authority, head),
    }
}

/// The head of a job as the rules see it. With the bug switched on, any fence is good for a running job.
fn believed(head: &JobHead, fence: Fence) -> JobHead {
    let is_believed = Bug::Fencing.is_on() && head.fence.is_some();
    JobHead {
        fence: if is_believed { Some(fence) } else { head.fence },
        ..*head
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
    // A statement of its own, which sees why the first one found nothing. A fence does not come back.
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
    /// Type and rank of the jobs that are due at once.
    due: Vec<(i32, i64)>,
}

impl Swept {
    /// Tells the claims of this process of the jobs, after the commit: the jobs have kept their ranks, which lie before the key
    /// where claims may begin to read.
    pub(crate) fn tell(self, store: &Store) -> Vec<ReapedJob> {
        for (type_id, rank) in self.due {
            store.scan_starts.put_ready(type_id, rank);
        }
        self.jobs
    }
}

/// Takes expired leases, the oldest first, and the leases of processes that are taken for dead. In a transaction: the rows are
/// deleted first, and inserted into another table afterwards.
pub(crate) async fn reap(
    session: &mut Session<'_>,
    store: &Store,
    reap: &ReapLeases,
    dead: &[DeadProcess],
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
    let mut transitions = Vec::with_capacity(rows.len());
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
        let is_due = stored.job.status == JobStatus::Pending && stored.job.scheduled_at <= now;
        if is_due {
            swept.due.push((stored.type_id, rank));
        }
        transitions.push(Transition {
            from: None,
            rank: Some(rank),
            ..Transition::of_change(&stored, taken.change)
        });
        swept.jobs.push(ReapedJob {
            owner: taken.lease.owner,
            expired_at: taken.lease.until,
            cause,
            job: stored.job,
        });
    }
    store.apply(session, &transitions, now).await?;
    Ok(swept)
}
