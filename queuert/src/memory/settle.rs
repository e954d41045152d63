//! The ends of attempts: what they write, what they create and whom they unblock.

use std::collections::BTreeSet;

use super::create::{new_job_keys, new_row};
use super::locks::{Key, Locks};
use super::sabotage::{Fencing, StaleCompletions};
use super::store::Row;
use super::view::View;
use crate::adapter::{
    Applied, Authority, NewJob, Outcome, Refusal, Repeated, Settled, Settlement, UnblockedJob, rules,
};
use crate::id::ChainId;
use crate::job::JobStatus;
use crate::worker::AbortReason;

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
    fn soon_ready(&self, row: &Row) -> bool {
        let mut blockers = row.blockers.iter();
        blockers.all(|chain| self.completed.contains(chain) || self.finishing.contains(chain))
    }
}

/// The row if the caller may settle it, else the answer.
fn authorise<'a>(view: &'a View<'_>, fencing: Fencing, settlement: &Settlement) -> Result<&'a Row, Settled> {
    let row = view.row(settlement.job);
    let head = row.map(|row| match &settlement.authority {
        Authority::Fence { fence, .. } => fencing.head(row, *fence),
        Authority::Outside => row.head(),
    });
    match (rules::authorise(&settlement.authority, head.as_ref()), row) {
        (Ok(()), Some(row)) => Ok(row),
        (Err(Settled::Repeated(_)), Some(row)) => Err(Settled::Repeated(recall(view, row))),
        (Err(answer), _) => Err(answer),
        (Ok(()), None) => Err(Settled::Lost(AbortReason::NotFound)),
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
    let head = row.head();
    let chain = row.job.chain_id;
    let mut applied = Applied {
        interrupted: rules::interrupts(&settlement.authority, &head),
        ..Applied::default()
    };
    let next = match &settlement.outcome {
        Outcome::Continue { next } => match next_row(view, settlement, next) {
            Ok(next) => Some(next),
            Err(refusal) => return Settled::Refused(refusal),
        },
        _ => None,
    };
    let now = view.now;
    let change = rules::settle(settlement, &head, now);
    view.update(settlement.job, |row| row.apply(change));
    if let Some(next) = next {
        applied.next = Some(next.job.status);
        applied.handed_over = (next.job.status == JobStatus::Running).then_some(now);
        let id = next.job.id;
        view.insert(next);
        view.update(chain.first_job(), |row| row.later.push(id));
    }
    if matches!(settlement.outcome, Outcome::Finish { .. }) {
        applied.unblocked = unblock(view, chain, stale);
    }
    Settled::Applied(applied)
}

/// The next job of the chain, or why it cannot be created.
fn next_row(view: &mut View<'_>, settlement: &Settlement, next: &NewJob) -> Result<Row, Refusal> {
    let (chain, chain_type, index) = match view.row(settlement.job) {
        Some(row) => (row.job.chain_id, row.job.chain_type.clone(), row.job.chain_index + 1),
        None => return Err(Refusal::JobNotFound(settlement.job)),
    };
    rules::check_new_job(next, view.row(next.id).is_some(), |chain| view.first(chain).is_some())?;
    rules::check_circle(next, chain, |chain| ahead_of(view, chain))?;
    let status = view.waiting_status(&next.blockers);
    let mut row = new_row(view, next, chain, chain_type, index, status);
    if let Some(lease) = rules::hand_over(&settlement.authority, next, status, view.now) {
        rules::claim(&mut row.job, lease, view.now);
    }
    Ok(row)
}

/// The chains that a chain waits for, or would wait for if it were retried.
fn ahead_of<'a>(view: &'a View<'_>, chain: ChainId) -> impl Iterator<Item = ChainId> + 'a {
    let latest = view
        .latest(chain)
        .filter(|row| rules::waits_for_blockers(row.job.status));
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
    let now = view.now;
    let change = |row: &Row| {
        let completed = |blocker| match &stale {
            Some(stale) => stale.completed.contains(&blocker),
            None => view.is_completed(blocker),
        };
        let change = rules::unblock(&row.head(), &row.blockers, completed, now)?;
        Some((unblocked_job(row), change))
    };
    let changes: Vec<_> = blocked_by(view, chain).filter_map(change).collect();
    let mut unblocked = Vec::with_capacity(changes.len());
    for (one, change) in changes {
        view.update(one.job, |row| {
            row.apply(change);
            row.unblocked_by = Some(chain);
        });
        unblocked.push(one);
    }
    unblocked
}
