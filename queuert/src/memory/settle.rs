//! The ends of attempts: what they write, what they create and whom they unblock.

use std::collections::BTreeSet;

use super::claim::{held, lost};
use super::create::{check, new_job_keys, new_row};
use super::locks::{Key, Locks};
use super::sabotage::{Fencing, StaleCompletions};
use super::store::Row;
use super::view::View;
use crate::adapter::{
    Applied, Authority, NewJob, Outcome, Refusal, Repeated, Settled, Settlement, UnblockedJob, closing_blocker,
};
use crate::id::{ChainId, JobId, WorkerId};
use crate::job::{AttemptError, JobStatus, Lease};
use crate::time::{Schedule, Timestamp};

/// The locks of all items, from the view: computed again after every wait, because what waits for a chain may have
/// changed meanwhile.
pub(super) fn keys(
    view: &View<'_>,
    fencing: Fencing,
    settlements: &[Settlement],
    stale: Option<&StaleCompletions>,
) -> Vec<Key> {
    let mut keys = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        // What is lost stays lost, because fences do not come back: no reason to wait.
        let Ok(row) = authorise(view, fencing, settlement) else {
            continue;
        };
        let chain = row.job.chain_id;
        keys.push(Key::Chain(chain));
        match &settlement.outcome {
            Outcome::Finish { .. } => {
                let dependants = blocked_by(view, chain);
                let decided = dependants.filter(|row| stale.is_none_or(|stale| stale.soon_ready(row)));
                keys.extend(decided.map(|row| Key::Chain(row.job.chain_id)));
            }
            Outcome::Continue { next } => {
                new_job_keys(view, next, &mut keys);
                // Two continuations that close a circle together would not see each other unless each locks the
                // whole way that it has looked at.
                keys.extend(way(view, &next.blockers).into_iter().map(Key::Chain));
            }
            Outcome::Retry { .. } | Outcome::Bury { .. } | Outcome::Release | Outcome::Snooze { .. } => {}
        }
    }
    keys
}

pub(super) fn apply(
    view: &mut View<'_>,
    fencing: Fencing,
    settlements: &[Settlement],
    mut stale: Option<&mut StaleCompletions>,
) -> Vec<Settled> {
    let settle_one = |settlement| settle(view, fencing, settlement, stale.as_deref_mut());
    settlements.iter().map(settle_one).collect()
}

/// Settles what no transaction has locked, and says of the rest that it is busy.
pub(super) fn apply_unlocked(
    view: &mut View<'_>,
    locks: &Locks,
    fencing: Fencing,
    settlements: &[Settlement],
) -> Vec<Settled> {
    let settle_one = |settlement: &Settlement| {
        let busy = !locks.is_empty() && {
            let keys = keys(view, fencing, std::slice::from_ref(settlement), None);
            locks.holder(&keys, None).is_some()
        };
        if busy {
            return Settled::Busy;
        }
        settle(view, fencing, settlement, None)
    };
    settlements.iter().map(settle_one).collect()
}

/// What a sabotaged settlement sees before it takes its locks.
pub(super) fn look_too_early(view: &View<'_>, settlements: &[Settlement]) -> StaleCompletions {
    let mut stale = StaleCompletions::default();
    for settlement in settlements {
        if let Some(row) = view.row(settlement.job)
            && matches!(settlement.outcome, Outcome::Finish { .. })
        {
            stale.finishing.insert(row.job.chain_id);
            let blockers = blocked_by(view, row.job.chain_id).flat_map(|row| row.blockers.iter().copied());
            stale
                .completed
                .extend(blockers.filter(|chain| view.is_completed(*chain)));
        }
    }
    stale
}

impl StaleCompletions {
    fn ready(&self, row: &Row) -> bool {
        row.blockers.iter().all(|chain| self.completed.contains(chain))
    }

    fn soon_ready(&self, row: &Row) -> bool {
        let mut blockers = row.blockers.iter();
        blockers.all(|chain| self.completed.contains(chain) || self.finishing.contains(chain))
    }
}

/// The row if the caller may settle it, else the answer.
fn authorise<'a>(view: &'a View<'_>, fencing: Fencing, settlement: &Settlement) -> Result<&'a Row, Settled> {
    match &settlement.authority {
        Authority::Fence { fence, .. } => {
            held(view, fencing, settlement.job, *fence).map_err(|reason| match view.row(settlement.job) {
                Some(row) if row.settled == Some(*fence) => Settled::Repeated(recall(view, row)),
                _ => Settled::Lost(reason),
            })
        }
        // An open job is always the latest of its chain.
        Authority::Outside => match view.row(settlement.job) {
            None => Err(Settled::Lost(crate::worker::AbortReason::NotFound)),
            Some(row) if row.job.status.is_open() => Ok(row),
            Some(row) => Err(Settled::Lost(lost(row))),
        },
    }
}

/// What the settlement did under whose fence the job ended last.
fn recall(view: &View<'_>, row: &Row) -> Repeated {
    let mut repeated = Repeated::new(row.job.status);
    if row.job.status != JobStatus::Completed {
        return repeated;
    }
    let chain = row.job.chain_id;
    let later = |first: &Row| first.later.get(row.job.chain_index as usize).copied();
    let next = view.row(chain.first_job()).and_then(later);
    match next.and_then(|next| view.row(next)) {
        Some(next) => {
            repeated.next_blocked = next.job.status == JobStatus::Blocked || next.unblocked_by.is_some();
        }
        None => {
            let dependants = view.dependants(chain).into_iter().filter_map(|job| view.row(job));
            let unblocked = dependants.filter(|row| row.unblocked_by == Some(chain));
            repeated.unblocked = unblocked.map(unblocked_job).collect();
        }
    }
    repeated
}

fn unblocked_job(row: &Row) -> UnblockedJob {
    UnblockedJob {
        job: row.job.id,
        chain: row.job.chain_id,
        type_name: row.job.type_name.clone(),
    }
}

fn settle(
    view: &mut View<'_>,
    fencing: Fencing,
    settlement: &Settlement,
    stale: Option<&mut StaleCompletions>,
) -> Settled {
    let row = match authorise(view, fencing, settlement) {
        Ok(row) => row,
        Err(answer) => return answer,
    };
    let chain = row.job.chain_id;
    let was_running = row.job.lease.is_some();
    let outside = settlement.authority == Authority::Outside;
    let mut applied = Applied {
        interrupted: outside && was_running,
        ..Applied::default()
    };
    match &settlement.outcome {
        Outcome::Finish { output } => {
            close(view, settlement, |row| row.job.output = Some(output.clone()));
            applied.unblocked = unblock(view, chain, stale);
        }
        Outcome::Continue { next } => match continue_with(view, settlement, chain, next) {
            Ok(status) => {
                applied.next = Some(status);
                applied.handed_over = (status == JobStatus::Running).then_some(view.now);
            }
            Err(refusal) => return Settled::Refused(refusal),
        },
        Outcome::Retry { schedule, error } => {
            let error = fail(view, settlement.job, error);
            give_back(view, settlement, Some(*schedule), |row| row.job.last_error = error);
        }
        Outcome::Bury { error } => {
            let error = fail(view, settlement.job, error);
            let now = view.now;
            change(view, settlement, |row| {
                row.job.status = JobStatus::Dead;
                row.job.ended_at = Some(now);
                row.job.last_error = error;
            });
        }
        Outcome::Release => give_back(view, settlement, None, |row| unspend(row, was_running)),
        Outcome::Snooze { schedule } => {
            give_back(view, settlement, Some(*schedule), |row| unspend(row, was_running));
        }
    }
    Settled::Applied(applied)
}

/// Ends the attempt: the lease goes and the fence is remembered.
fn change(view: &mut View<'_>, settlement: &Settlement, write: impl FnOnce(&mut Row)) {
    view.update(settlement.job, |row| {
        row.job.lease = None;
        if let Authority::Fence { fence, .. } = settlement.authority {
            row.settled = Some(fence);
        }
        write(row);
    });
}

/// Completes the job.
fn close(view: &mut View<'_>, settlement: &Settlement, write: impl FnOnce(&mut Row)) {
    let now = view.now;
    change(view, settlement, |row| {
        row.job.status = JobStatus::Completed;
        row.job.ended_at = Some(now);
        row.job.completed_by = worker(&settlement.authority);
        row.job.last_error = None;
        write(row);
    });
}

fn worker(authority: &Authority) -> Option<WorkerId> {
    match authority {
        Authority::Fence { worker, .. } => Some(worker.clone()),
        Authority::Outside => None,
    }
}

/// Makes the job wait again. One that was blocked, and is settled from outside, stays blocked.
fn give_back(view: &mut View<'_>, settlement: &Settlement, schedule: Option<Schedule>, write: impl FnOnce(&mut Row)) {
    let now = view.now;
    let blocked = view
        .row(settlement.job)
        .is_some_and(|row| row.job.status == JobStatus::Blocked);
    change(view, settlement, |row| {
        if !blocked {
            row.job.status = JobStatus::Pending;
        }
        if let Some(schedule) = schedule {
            row.job.scheduled_at = schedule.resolve(now);
            row.place = None;
        }
        write(row);
    });
}

fn unspend(row: &mut Row, was_running: bool) {
    row.job.attempt = row.job.attempt.saturating_sub(u32::from(was_running));
}

fn fail(view: &View<'_>, job: JobId, message: &str) -> Option<AttemptError> {
    view.row(job).map(|row| AttemptError {
        attempt: row.job.attempt,
        at: view.now,
        message: message.to_owned(),
    })
}

fn continue_with(
    view: &mut View<'_>,
    settlement: &Settlement,
    chain: ChainId,
    next: &NewJob,
) -> Result<JobStatus, Refusal> {
    check(view, next)?;
    if let Some(blocker) = closing_blocker(&next.blockers, chain, |chain| ahead_of(view, chain)) {
        return Err(Refusal::BlockerCycle {
            job: next.id,
            chain: blocker,
        });
    }
    close(view, settlement, |_| {});
    let (chain_type, index) = match view.row(settlement.job) {
        Some(row) => (row.job.chain_type.clone(), row.job.chain_index + 1),
        None => return Err(Refusal::JobNotFound(settlement.job)),
    };
    let mut row = new_row(view, next, chain, chain_type, index);
    hand_over(&mut row, settlement, next, view.now);
    let status = row.job.status;
    view.insert(row);
    view.update(chain.first_job(), |row| row.later.push(next.id));
    Ok(status)
}

/// Claims a new job for the worker that creates it, if it asks for that and the job is due.
fn hand_over(row: &mut Row, settlement: &Settlement, next: &NewJob, now: Timestamp) {
    let job = &mut row.job;
    if let (Some(hand_over), Some(owner)) = (next.hand_over, worker(&settlement.authority))
        && job.status == JobStatus::Pending
        && job.scheduled_at <= now
    {
        job.status = JobStatus::Running;
        (job.attempt, job.claims) = (1, 1);
        job.started_at = Some(now);
        job.lease = Some(Lease {
            owner,
            until: now.saturating_add(hand_over.lease),
            fence: hand_over.fence,
        });
    }
}

/// The chains that a chain waits for. A dead or cancelled job counts as waiting too: a retry would make it so.
fn ahead_of<'a>(view: &'a View<'_>, chain: ChainId) -> impl Iterator<Item = ChainId> + 'a {
    let waiting = |row: &&Row| row.job.status == JobStatus::Blocked || row.job.status.is_retryable();
    let latest = view.latest(chain).filter(waiting);
    let blockers = latest.into_iter().flat_map(|row| row.blockers.iter().copied());
    blockers.filter(|chain| !view.is_completed(*chain))
}

/// The chains that exist of these and of all that they wait for, directly or through others.
fn way(view: &View<'_>, chains: &[ChainId]) -> BTreeSet<ChainId> {
    let mut seen = BTreeSet::new();
    let mut ahead = chains.to_vec();
    while let Some(chain) = ahead.pop() {
        if view.first(chain).is_some() && seen.insert(chain) {
            ahead.extend(ahead_of(view, chain));
        }
    }
    seen
}

/// The jobs that the end of the chain may unblock.
fn blocked_by<'a>(view: &'a View<'_>, chain: ChainId) -> impl Iterator<Item = &'a Row> {
    let jobs = view.dependants(chain).into_iter();
    jobs.filter_map(|job| view.row(job))
        .filter(|row| row.job.status == JobStatus::Blocked)
}

/// Makes the jobs pending whose last blocker this was. All of them are locked, so nobody else decides about them.
fn unblock(view: &mut View<'_>, chain: ChainId, mut stale: Option<&mut StaleCompletions>) -> Vec<UnblockedJob> {
    if let Some(stale) = &mut stale {
        stale.completed.insert(chain);
    }
    let ready = |row: &Row| match &stale {
        Some(stale) => stale.ready(row),
        None => view.waiting_status(&row.blockers) == JobStatus::Pending,
    };
    let unblocked: Vec<_> = blocked_by(view, chain)
        .filter(|row| ready(row))
        .map(unblocked_job)
        .collect();
    let now = view.now;
    for one in &unblocked {
        view.update(one.job, |row| {
            row.job.status = JobStatus::Pending;
            row.job.scheduled_at = row.job.scheduled_at.max(now);
            row.unblocked_by = Some(chain);
        });
    }
    unblocked
}
