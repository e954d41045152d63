//! Keeping jobs that were claimed, and taking them back.

use std::collections::HashMap;

use queuert::adapter::{ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal};
use queuert::{AbortReason, AttemptError, Fence, JobId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::change::{Change, Destination};
use crate::core::{Core, count, micros};
use crate::presence;
use crate::row::{self, JOB_COLUMNS};
use crate::sabotage::Bug;
use crate::session::{Session, query};

pub(crate) async fn renew(
    session: &mut Session<'_>,
    core: &Core,
    renewals: &[RenewLease],
) -> Result<Vec<Renewal>, StateError> {
    let mut ordered: Vec<&RenewLease> = renewals.iter().collect();
    ordered.sort_unstable_by_key(|renewal| renewal.job);
    let renew = query(&core.sql.renew)
        .bind(ordered.iter().map(|renewal| renewal.job.as_uuid()).collect::<Vec<_>>())
        .bind(
            ordered
                .iter()
                .map(|renewal| renewal.fence.as_uuid())
                .collect::<Vec<_>>(),
        )
        .bind(ordered.iter().map(|renewal| micros(renewal.lease)).collect::<Vec<_>>());
    let mut renewed: HashMap<(Uuid, Uuid), Timestamp> = HashMap::new();
    for found in session.fetch(renew).await? {
        let until = Timestamp::from_micros(row::get(&found, 2)?);
        renewed.insert((row::get(&found, 0)?, row::get(&found, 1)?), until);
    }
    let until = |renewal: &RenewLease| renewed.get(&(renewal.job.as_uuid(), renewal.fence.as_uuid()));
    let missing = renewals.iter().filter(|renewal| until(renewal).is_none());
    let standings = standings(session, core, missing.map(|renewal| renewal.job)).await?;
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
    core: &Core,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, Standing>, StateError> {
    let ids: Vec<Uuid> = jobs.map(|job| job.as_uuid()).collect();
    let mut standings = HashMap::with_capacity(ids.len());
    if ids.is_empty() {
        return Ok(standings);
    }
    for found in session.fetch(query(&core.sql.standing).bind(ids)).await? {
        let job = JobId::from_uuid(row::get(&found, 0)?);
        let status = row::status(row::get(&found, 1)?);
        let standing = Standing {
            status: status.ok_or_else(|| crate::error::corrupt(format!("job {job} has an unknown status")))?,
            fence: row::get(&found, 2)?,
            settled_fence: row::get(&found, 3)?,
            awaited: row::get(&found, 4)?,
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
    core: &Core,
    job: JobId,
    fence: Fence,
) -> Result<Result<(), AbortReason>, StateError> {
    let hold = || query(&core.sql.hold).bind(job.as_uuid()).bind(fence.as_uuid());
    if !session.fetch(hold()).await?.is_empty() {
        return Ok(Ok(()));
    }
    // A statement of its own, which sees what made the first one fail. A fence does not come back.
    let standings = standings(session, core, std::iter::once(job)).await?;
    match held(standings.get(&job), fence) {
        Err(reason) => Ok(Err(reason)),
        // The transaction of the claim committed in between.
        Ok(()) => {
            let held = !session.fetch(hold()).await?.is_empty();
            Ok(held.then_some(()).ok_or(AbortReason::TakenByAnotherWorker))
        }
    }
}

/// Whether some lease has expired, without locking anything.
pub(crate) async fn has_expired(session: &mut Session<'_>, core: &Core, reap: &ReapLeases) -> Result<bool, StateError> {
    let text = "SELECT 1 FROM {schema}.running AS r WHERE r.leased_until <= {now} AND r.type_id = ANY ($1::integer[]) \
                AND r.id <> ALL ($2::uuid[]) LIMIT 1";
    core.find_types(session, reap.types.iter().map(|reaped| &reaped.name))
        .await?;
    let search = query(&core.render(text))
        .bind(reaped_types(core, reap))
        .bind(excepted(reap));
    Ok(!session.fetch(search).await?.is_empty())
}

fn reaped_types(core: &Core, reap: &ReapLeases) -> Vec<i32> {
    let types = reap.types.iter().filter_map(|reaped| core.types.number(&reaped.name));
    types.collect()
}

fn excepted(reap: &ReapLeases) -> Vec<Uuid> {
    reap.except.iter().map(|job| job.as_uuid()).collect()
}

/// Takes expired leases, oldest first, and those of the processes that are taken for dead. In a transaction: the rows are
/// taken away first and put elsewhere after.
pub(crate) async fn reap(
    session: &mut Session<'_>,
    core: &Core,
    reap: &ReapLeases,
    dead: &[i64],
) -> Result<Vec<ReapedJob>, StateError> {
    let confirmed = presence::confirm(session, core, dead).await?;
    let text = "WITH d AS (DELETE FROM {schema}.running WHERE ctid = ANY (ARRAY(\
         SELECT r.ctid FROM {schema}.running AS r WHERE (r.leased_until <= {now} OR r.owner = ANY ($4::text[])) \
         AND r.type_id = ANY ($1::integer[]) AND r.id <> ALL ($2::uuid[]) ORDER BY r.leased_until, r.id LIMIT $3::bigint FOR UPDATE SKIP LOCKED)) RETURNING *) \
         SELECT j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, NULL::text, 2, j.priority, \
         d.attempt, d.claims, j.max_attempts, j.created_at, d.scheduled_at, d.started_at, NULL::bigint, NULL::text, \
         NULL::integer, NULL::bigint, NULL::text, d.owner, d.leased_until, d.fence, j.dedup_key, j.trace_context, \
         j.keyed, j.blockers, 3, d.awaited, d.settled_fence, j.chain_created_at, NULL::integer, {now} \
         FROM d JOIN {schema}.job AS j ON j.id = d.id ORDER BY d.leased_until, d.id";
    let search = query(&core.render(text))
        .bind(reaped_types(core, reap))
        .bind(excepted(reap))
        .bind(count(reap.limit))
        .bind(confirmed.workers.clone());
    let rows = session.fetch(search).await?;
    presence::forget(session, core, &confirmed).await?;
    let Some(now) = rows.last().map(|last| row::get(last, JOB_COLUMNS)).transpose()? else {
        return Ok(Vec::new());
    };
    let now = Timestamp::from_micros(now);
    let mut reaped = Vec::with_capacity(rows.len());
    let mut changes = Vec::with_capacity(rows.len());
    for mut stored in row::jobs(session, core, &rows).await? {
        let Some(lease) = stored.job.lease.take() else {
            continue;
        };
        let cause = match lease.until <= now {
            true => ReapCause::LeaseExpired,
            false => ReapCause::OwnerDied,
        };
        let job = &mut stored.job;
        let allowed = reap.types.iter().find(|reaped| reaped.name == job.type_name);
        let allowed = job.max_attempts.or(allowed.map(|reaped| reaped.max_attempts));
        let to = if allowed.is_some_and(|allowed| job.attempt >= allowed) {
            job.status = JobStatus::Dead;
            job.ended_at = Some(now);
            Destination::Stopped {
                status: JobStatus::Dead,
                ended_at: now,
            }
        } else {
            job.status = JobStatus::Pending;
            job.scheduled_at = now;
            Destination::Pending
        };
        let error = AttemptError {
            attempt: job.attempt,
            at: now,
            message: cause.error(&lease),
        };
        job.last_error = Some(error.clone());
        changes.push(Change {
            from: None,
            error: Some(error),
            ..Change::of(&stored, to)
        });
        reaped.push(ReapedJob {
            owner: lease.owner,
            expired_at: lease.until,
            cause,
            job: stored.job,
        });
    }
    core.change(session, &changes, now).await?;
    Ok(reaped)
}
