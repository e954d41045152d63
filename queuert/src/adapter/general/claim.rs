//! Taking jobs, keeping them, and taking them back: the verbs that never wait for a lock.

use std::time::Duration;

use super::query::with_blockers;
use super::work::{Lock, Work};
use crate::adapter::records::{Find, LockKey, Records, StoredJob};
use crate::adapter::rules::reap::{ReapCause, ReapLeases, ReapedJob};
use crate::adapter::rules::{self, held};
use crate::adapter::state::{ClaimJobs, ClaimType, Claimed, RenewLease, Renewal, rank};
use crate::error::StateError;
use crate::id::{Fence, JobId};
use crate::job::{JobStatus, Lease, TypeName};
use crate::worker::AbortReason;

/// When to look again for a due job that was locked: soon, but not in a hot loop.
const LOCKED_JOB_DELAY: Duration = Duration::from_millis(50);

pub(super) async fn claim<R: Records>(work: &mut Work<'_, R>, claim: &ClaimJobs) -> Result<Claimed, StateError> {
    let mut waiting = work.read(Find::Status(JobStatus::Pending)).await?;
    waiting.retain(|stored| claim_type(claim, &stored.job.type_name).is_some());
    let step = work.records.ageing_step();
    waiting.sort_by_cached_key(|stored| (rank(stored.ranked_at, stored.job.priority, step), stored.job.id));
    let (mut jobs, mut bytes, mut next_due) = (Vec::new(), 0_usize, None::<Duration>);
    for stored in waiting {
        let due_in = stored.job.scheduled_at.saturating_duration_since(work.now);
        if jobs.len() == claim.limit {
            break;
        }
        let mut soon = |due_in: Duration| next_due = Some(next_due.map_or(due_in, |next| next.min(due_in)));
        if stored.job.scheduled_at > work.now {
            soon(due_in);
            continue;
        }
        let Some(mut stored) = try_lock(work, stored.job.id).await? else {
            soon(LOCKED_JOB_DELAY);
            continue;
        };
        let (Some(claimed), JobStatus::Pending) = (claim_type(claim, &stored.job.type_name), stored.job.status) else {
            continue;
        };
        bytes = bytes.saturating_add(stored.job.input.as_str().len());
        if !stored.blockers.is_empty() {
            bytes = bytes.saturating_add(claim.outputs.expected(stored.job.type_name.as_str()));
        }
        if !claim.admits(jobs.len(), bytes) {
            next_due = Some(Duration::ZERO);
            break;
        }
        let lease = Lease {
            owner: claim.worker.clone(),
            until: work.now.saturating_add(claimed.lease),
            fence: claim.fence,
        };
        rules::claim(&mut stored.job, lease, work.now);
        jobs.push(stored.clone());
        work.put(stored);
    }
    if jobs.len() == claim.limit {
        next_due = None;
    }
    let named: Vec<_> = jobs.iter().flat_map(|stored| stored.blockers.clone()).collect();
    let chains = work.chains(&named).await?;
    Ok(Claimed {
        jobs: with_blockers(jobs, &chains),
        next_due,
    })
}

fn claim_type<'a>(claim: &'a ClaimJobs, name: &TypeName) -> Option<&'a ClaimType> {
    claim.types.iter().find(|claimed| claimed.name == *name)
}

/// The job as it is once its chain is locked; `None` if another transaction has the chain locked.
async fn try_lock<R: Records>(work: &mut Work<'_, R>, job: JobId) -> Result<Option<StoredJob>, StateError> {
    let Some(stored) = work.job(job).await? else {
        return Ok(None);
    };
    match work.lock(vec![LockKey::Chain(stored.job.chain_id)], false).await? {
        Lock::Busy => Ok(None),
        Lock::Held => Ok(Some(stored)),
        Lock::New => work.job(job).await,
    }
}

pub(super) async fn renew<R: Records>(
    work: &mut Work<'_, R>,
    renewals: &[RenewLease],
) -> Result<Vec<Renewal>, StateError> {
    let mut answers = Vec::with_capacity(renewals.len());
    for renewal in renewals {
        let stored = work.job(renewal.job).await?;
        if let Err(reason) = held(stored.as_ref().map(StoredJob::head).as_ref(), renewal.fence) {
            answers.push(Renewal::Lost(reason));
            continue;
        }
        let Some(mut stored) = try_lock(work, renewal.job).await? else {
            answers.push(Renewal::Busy);
            continue;
        };
        if let Err(reason) = held(Some(&stored.head()), renewal.fence) {
            answers.push(Renewal::Lost(reason));
            continue;
        }
        let until = work.now.saturating_add(renewal.lease);
        if let Some(lease) = &mut stored.job.lease {
            lease.until = until;
        }
        work.put(stored);
        answers.push(Renewal::Renewed(until));
    }
    Ok(answers)
}

pub(super) async fn reap<R: Records>(work: &mut Work<'_, R>, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
    let mut expired = Vec::new();
    for stored in work.read(Find::Status(JobStatus::Running)).await? {
        let job = &stored.job;
        let wanted = reap.types.iter().any(|reaped| reaped.name == job.type_name) && !reap.except.contains(&job.id);
        if let Some(lease) = job.lease.as_ref().filter(|lease| wanted && lease.until <= work.now) {
            expired.push((lease.until, job.id, lease.fence));
        }
    }
    expired.sort_unstable_by_key(|(until, job, _)| (*until, *job));
    let mut reaped = Vec::new();
    for (_, job, fence) in expired {
        if reaped.len() == reap.limit {
            break;
        }
        let Some(mut stored) = try_lock(work, job).await? else {
            continue;
        };
        let lease = stored.job.lease.as_ref();
        if lease.is_none_or(|lease| lease.fence != fence || lease.until > work.now) {
            continue;
        }
        let mut job = stored.job.clone();
        if let Some(taken) = reap.take_back(&mut job, ReapCause::LeaseExpired, work.now) {
            stored.apply(taken.change);
            work.put(stored);
            reaped.push(ReapedJob {
                job,
                owner: taken.lease.owner,
                expired_at: taken.lease.until,
                cause: ReapCause::LeaseExpired,
            });
        }
    }
    Ok(reaped)
}

pub(super) async fn hold<R: Records>(
    work: &mut Work<'_, R>,
    job: JobId,
    fence: Fence,
) -> Result<Result<(), AbortReason>, StateError> {
    loop {
        let stored = work.job(job).await?;
        if let Err(reason) = held(stored.as_ref().map(StoredJob::head).as_ref(), fence) {
            return Ok(Err(reason));
        }
        let chain = stored.iter().map(|stored| LockKey::Chain(stored.job.chain_id));
        if work.lock(chain.collect(), true).await? == Lock::Held {
            return Ok(Ok(()));
        }
    }
}
