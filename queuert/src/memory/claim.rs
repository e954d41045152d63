//! Taking jobs, keeping them, and taking them back: the verbs that never wait for a lock.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use super::locks::{Locks, LocksOfOthers};
use super::query;
use super::sabotage::Fencing;
use super::store::{IdHasher, Row};
use super::view::View;
use crate::adapter::{ClaimJobs, Claimed, ClaimedJob, ReapCause, ReapLeases, ReapedJob, RenewLease, Renewal, rules};
use crate::id::{Fence, JobId};
use crate::job::Lease;
use crate::worker::AbortReason;

/// When to look again for a due job that was locked: soon, but not in a hot loop.
const LOCKED_JOB_DELAY: Duration = Duration::from_millis(50);

pub(super) fn claim(view: &mut View<'_>, locks: &Locks, claim: &ClaimJobs) -> Claimed {
    let now = view.now;
    let store = &mut *view.store;
    let types = store.queues.known(claim.types.iter().map(|claimed| &claimed.name));
    let locked = |row: &Row| locks.holds_chain(row.job.chain_id);
    let (mut admitted, mut bytes, mut full) = (0, 0_usize, false);
    let admit = |row: &Row| {
        bytes = bytes.saturating_add(row.job.input.as_str().len());
        if !row.blockers.is_empty() {
            bytes = bytes.saturating_add(claim.outputs.expected(row.job.type_name.as_str()));
        }
        full = !claim.admits(admitted, bytes);
        admitted += 1;
        !full
    };
    let taken = store
        .queues
        .take_due(&types, &store.rows, claim.limit, now, locked, admit);
    let next_due = if full {
        Some(Duration::ZERO)
    } else if taken.len() < claim.limit {
        store.queues.next_due(&types, now, LOCKED_JOB_DELAY)
    } else {
        None
    };
    let mut jobs = Vec::with_capacity(taken.len());
    for (id, place) in taken {
        let lease = Lease {
            owner: claim.worker.clone(),
            until: now.saturating_add(claim.types[place].lease),
            fence: claim.fence,
        };
        let claim = |row: &mut Row| rules::claim(&mut row.job, lease, now);
        let claimed = view.store.update_taken(id, now, claim);
        if let Some(row) = claimed {
            let job = row.job.clone();
            let blockers = if row.blockers.is_empty() {
                Vec::new()
            } else {
                query::list_blockers(view, id)
            };
            jobs.push(ClaimedJob { job, blockers });
        }
    }
    Claimed { jobs, next_due }
}

/// What runs under a fence. Reads all rows: it is asked for only after an answer was lost, which does not happen here.
pub(super) fn claimed(view: &View<'_>, fence: Fence) -> Vec<ClaimedJob> {
    let under = |row: &Row| row.job.lease.as_ref().is_some_and(|lease| lease.fence == fence);
    let rows = view.store.rows.values().filter(|row| under(row));
    let claimed = rows.map(|row| ClaimedJob {
        job: row.job.clone(),
        blockers: query::list_blockers(view, row.job.id),
    });
    claimed.collect()
}

pub(super) fn renew(
    view: &mut View<'_>,
    locks: LocksOfOthers<'_>,
    fencing: Fencing,
    renewals: &[RenewLease],
) -> Vec<Renewal> {
    let renew = |renewal: &RenewLease| {
        let row = match held(view, fencing, renewal.job, renewal.fence) {
            Ok(row) => row,
            Err(reason) => return Renewal::Lost(reason),
        };
        if locks.hold_chain(row.job.chain_id) {
            return Renewal::Busy;
        }
        let until = view.now.saturating_add(renewal.lease);
        view.update(renewal.job, |row| {
            if let Some(lease) = &mut row.job.lease {
                lease.until = until;
            }
        });
        Renewal::Renewed(until)
    };
    renewals.iter().map(renew).collect()
}

pub(super) fn reap(view: &mut View<'_>, locks: &Locks, reap: &ReapLeases) -> Vec<ReapedJob> {
    let now = view.now;
    let own: HashSet<JobId, BuildHasherDefault<IdHasher>> = reap.except.iter().copied().collect();
    let types = view.store.queues.known(reap.types.iter().map(|reaped| &reaped.name));
    let skip = |id: JobId| own.contains(&id) || view.row(id).is_none_or(|row| locks.holds_chain(row.job.chain_id));
    let expired = view.store.queues.expired(&types, reap.limit, now, skip);
    let mut reaped = Vec::with_capacity(expired.len());
    for (id, _) in expired {
        let Some(mut job) = view.job(id) else {
            continue;
        };
        if let Some(taken) = reap.take_back(&mut job, ReapCause::LeaseExpired, now) {
            view.update(id, |row| row.apply(taken.change));
            reaped.push(ReapedJob {
                job,
                owner: taken.lease.owner,
                expired_at: taken.lease.until,
                cause: ReapCause::LeaseExpired,
            });
        }
    }
    reaped
}

/// The row if the job runs under the fence, else why it does not.
pub(super) fn held<'a>(view: &'a View<'_>, fencing: Fencing, job: JobId, fence: Fence) -> Result<&'a Row, AbortReason> {
    let row = view.row(job).ok_or(AbortReason::NotFound)?;
    rules::held(Some(&fencing.head(row, fence)), fence)?;
    Ok(row)
}
