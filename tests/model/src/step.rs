//! What the parties do, one statement at a time.

use crate::state::{
    Attempt, By, CHAIN_OF, CHAIN_OF_DEPENDANT, CHAINS, DEPENDANT, End, FIRST, JOBS, Lease, MOST_ATTEMPTS, Party,
    SECOND, Stage, Start, State, Status,
};
use crate::{Creation, Fencing, Protocol, Unblocking};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A worker claims a job.
    Claim(usize, usize),
    /// The processor of an attempt is done, and the transaction that ends the job begins.
    Finish(Attempt),
    /// The processor of an attempt has failed.
    Fail(Attempt),
    /// The lease of an attempt is extended.
    Renew(Attempt),
    /// A worker's process crashes.
    Crash(usize),
    /// A lease runs out, whatever its worker is doing.
    Expire(usize),
    /// The reaper takes a job whose lease has run out or whose worker has crashed.
    Reap(usize),
    /// The next statement of a transaction that ends a job.
    Next(Party),
    /// Its commit, whose answer arrives or not.
    Commit(Party, Answer),
    /// The next statement of the transaction that starts the dependant.
    StartDependant,
    /// Somebody begins to complete the latest job of a chain from outside.
    CompleteFromOutside(usize),
    /// An operator cancels a chain.
    Cancel(usize),
    /// An operator retries a chain.
    Retry(usize),
}

/// What becomes of the answer to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is there.
    Arrives,
    /// It never comes.
    IsLost,
}

/// All that may be tried; [`take`] says which of it can happen.
pub(crate) fn all(protocol: &Protocol, state: &State, actions: &mut Vec<Action>) {
    for (number, worker) in state.workers.iter().enumerate() {
        actions.extend((0..JOBS).map(|job| Action::Claim(number, job)));
        for attempt in &worker.attempts {
            actions.extend([
                Action::Fail(*attempt),
                Action::Renew(*attempt),
                Action::Finish(*attempt),
            ]);
        }
        actions.push(Action::Crash(number));
    }
    for job in 0..JOBS {
        actions.extend([Action::Expire(job), Action::Reap(job)]);
    }
    for party in [Party::Worker(0), Party::Worker(1), Party::Outside] {
        let commits = [Answer::Arrives, Answer::IsLost].map(|answer| Action::Commit(party, answer));
        actions.extend([Action::Next(party)].into_iter().chain(commits));
    }
    actions.push(Action::StartDependant);
    for chain in 0..CHAINS {
        if protocol.bounds.outside {
            actions.push(Action::CompleteFromOutside(chain));
        }
        actions.extend([Action::Cancel(chain), Action::Retry(chain)]);
    }
    if state.disturbances >= protocol.bounds.disturbances {
        actions.retain(|action| !action.disturbs());
    }
}

impl Action {
    /// Whether something goes wrong.
    fn disturbs(self) -> bool {
        matches!(
            self,
            Self::Fail(_)
                | Self::Crash(_)
                | Self::Expire(_)
                | Self::Cancel(_)
                | Self::Retry(_)
                | Self::Commit(_, Answer::IsLost)
        )
    }
}

/// Does it, if it can be done.
pub(crate) fn take(protocol: &Protocol, state: &mut State, action: Action) -> bool {
    if action.disturbs() {
        state.disturbances += 1;
    }
    match action {
        Action::Claim(worker, job) => claim(protocol, state, worker, job),
        Action::Finish(attempt) => begin(
            protocol,
            state,
            Party::Worker(attempt.worker),
            attempt.job,
            By::Attempt(attempt),
        ),
        Action::Fail(attempt) => fail(protocol, state, attempt),
        Action::Renew(attempt) => renew(protocol, state, attempt),
        Action::Crash(worker) => crash(state, worker),
        Action::Expire(job) => match &mut state.jobs[job].lease {
            Some((_, lease @ Lease::Valid)) => {
                *lease = Lease::Expired;
                true
            }
            _ => false,
        },
        Action::Reap(job) => reap(state, job),
        Action::Next(party) => next(protocol, state, party),
        Action::Commit(party, answer) => commit(state, party, answer),
        Action::StartDependant => start_dependant(protocol, state),
        Action::CompleteFromOutside(chain) => {
            let Some(job) = state.latest(chain).filter(|_| !state.outside_done) else {
                return false;
            };
            state.outside_done = true;
            begin(protocol, state, Party::Outside, job, By::Outside)
        }
        Action::Cancel(chain) => cancel(state, chain),
        Action::Retry(chain) => retry(state, chain),
    }
}

/// Whether the job is the attempt's, as the store checks it.
fn admits(fencing: Fencing, state: &State, attempt: Attempt) -> bool {
    let held = state.jobs[attempt.job].lease.map(|(held, _)| held);
    match fencing {
        Fencing::Token => held.is_some_and(|held| held.fence == attempt.fence),
        Fencing::AttemptNumber => held.is_some_and(|held| held.number == attempt.number),
        Fencing::WorkerName => held.is_some_and(|held| held.worker == attempt.worker),
        Fencing::None => true,
    }
}

fn claim(protocol: &Protocol, state: &mut State, worker: usize, job: usize) -> bool {
    let possible = state.jobs[job].status == Status::Pending
        && state.jobs[job].claims < protocol.bounds.claims
        // What is locked is skipped.
        && state.is_unlocked(CHAIN_OF[job])
        && state.workers[worker].attempts.len() < protocol.bounds.memory;
    if possible {
        let attempt = Attempt {
            job,
            fence: state.jobs[job].claims + 1,
            number: state.jobs[job].attempt + 1,
            worker,
            life: state.workers[worker].life,
        };
        let claimed = &mut state.jobs[job];
        claimed.status = Status::Running;
        claimed.attempt += 1;
        claimed.claims += 1;
        claimed.lease = Some((attempt, Lease::Valid));
        state.workers[worker].attempts.push(attempt);
    }
    possible
}

/// The attempt is over for its process.
fn drop_attempt(state: &mut State, attempt: Attempt) {
    state.workers[attempt.worker].attempts.retain(|other| *other != attempt);
}

/// A job goes back, or is dead if that was its last attempt.
fn give_back(state: &mut State, job: usize) {
    if state.jobs[job].status == Status::Completed {
        state.wrongs.completed_changed = true;
    }
    let job = &mut state.jobs[job];
    job.lease = None;
    job.status = match job.attempt >= MOST_ATTEMPTS {
        true => Status::Dead,
        false => Status::Pending,
    };
}

/// One statement, which waits for the chain's lock.
fn fail(protocol: &Protocol, state: &mut State, attempt: Attempt) -> bool {
    let possible = state.is_unlocked(CHAIN_OF[attempt.job]) && !is_ending(state, attempt);
    if possible {
        if admits(protocol.fencing, state, attempt) {
            note_staleness(state, attempt);
            give_back(state, attempt.job);
        }
        drop_attempt(state, attempt);
    }
    possible
}

/// Whether the end of this attempt is on its way.
fn is_ending(state: &State, attempt: Attempt) -> bool {
    let end = state.workers[attempt.worker].end;
    end.is_some_and(|end| end.by == By::Attempt(attempt))
}

/// A write was admitted: it had better be that of the attempt that has the job.
fn note_staleness(state: &mut State, attempt: Attempt) {
    let held = state.jobs[attempt.job].lease.map(|(held, _)| held);
    if held != Some(attempt) {
        state.wrongs.stale_write = true;
    }
}

fn renew(protocol: &Protocol, state: &mut State, attempt: Attempt) -> bool {
    let admitted = state.is_unlocked(CHAIN_OF[attempt.job]) && admits(protocol.fencing, state, attempt);
    match &mut state.jobs[attempt.job].lease {
        Some((_, lease @ Lease::Expired)) if admitted => {
            *lease = Lease::Valid;
            true
        }
        _ => false,
    }
}

/// Attempts and transactions are gone, and what is stored stays.
fn crash(state: &mut State, worker: usize) -> bool {
    let crashed = &mut state.workers[worker];
    let possible = !crashed.attempts.is_empty() || crashed.end.is_some();
    if possible {
        crashed.attempts.clear();
        crashed.end = None;
        crashed.life += 1;
        state.unlock_all(Party::Worker(worker));
    }
    possible
}

fn reap(state: &mut State, job: usize) -> bool {
    let Some((held, lease)) = state.jobs[job].lease else {
        return false;
    };
    let died = held.life < state.workers[held.worker].life;
    let possible = (lease == Lease::Expired || died) && state.is_unlocked(CHAIN_OF[job]);
    if possible {
        give_back(state, job);
    }
    possible
}

/// Begins a transaction that ends a job.
fn begin(protocol: &Protocol, state: &mut State, party: Party, job: usize, by: By) -> bool {
    let folded = protocol.unblocking == Unblocking::InTheCompletingStatement;
    let other = 1 - CHAIN_OF[job].min(1);
    let end = End {
        job,
        by,
        stage: Stage::Begun,
        dependant: folded && state.jobs[DEPENDANT].status != Status::Absent,
        others_completed: folded && state.has_completed(other),
    };
    match state.end_of(party) {
        Some(none @ None) => {
            *none = Some(end);
            true
        }
        _ => false,
    }
}

/// The next statement of a transaction that ends a job, up to its commit.
fn next(protocol: &Protocol, state: &mut State, party: Party) -> bool {
    let Some(mut end) = state.end_of(party).and_then(|end| *end) else {
        return false;
    };
    let chain = CHAIN_OF[end.job];
    let ends_chain = end.job != FIRST;
    let folded = protocol.unblocking == Unblocking::InTheCompletingStatement;
    end.stage = match end.stage {
        Stage::Begun => {
            if !state.lock(chain, party) {
                return false;
            }
            if !has_right(protocol, state, end) {
                refuse(state, party, end);
                return true;
            }
            Stage::Locked
        }
        Stage::Locked => {
            if !folded {
                end.dependant = state.jobs[DEPENDANT].status != Status::Absent;
            }
            Stage::Looked
        }
        Stage::Looked if ends_chain && end.dependant && chain != CHAIN_OF_DEPENDANT => {
            if !state.lock(CHAIN_OF_DEPENDANT, party) {
                return false;
            }
            Stage::DependantLocked
        }
        Stage::Looked => Stage::Decided,
        Stage::DependantLocked => {
            if !folded {
                end.others_completed = state.has_completed(1 - chain);
            }
            Stage::Decided
        }
        Stage::Decided => return false,
    };
    if let Some(current) = state.end_of(party) {
        *current = Some(end);
    }
    true
}

/// Whether whoever ends the job may: looked at under the lock.
fn has_right(protocol: &Protocol, state: &State, end: End) -> bool {
    match end.by {
        By::Attempt(attempt) => admits(protocol.fencing, state, attempt),
        By::Outside => state.latest(CHAIN_OF[end.job]) == Some(end.job) && state.jobs[end.job].status.is_open(),
    }
}

fn refuse(state: &mut State, party: Party, end: End) {
    state.unlock_all(party);
    if let Some(current) = state.end_of(party) {
        *current = None;
    }
    if let By::Attempt(attempt) = end.by {
        drop_attempt(state, attempt);
    }
}

fn commit(state: &mut State, party: Party, answer: Answer) -> bool {
    let Some(end) = state.end_of(party).and_then(|end| *end) else {
        return false;
    };
    if end.stage != Stage::Decided || (answer == Answer::IsLost && party == Party::Outside) {
        return false;
    }
    if let By::Attempt(attempt) = end.by {
        note_staleness(state, attempt);
    }
    if state.jobs[end.job].status == Status::Completed {
        state.wrongs.completed_changed = true;
    }
    let job = &mut state.jobs[end.job];
    job.status = Status::Completed;
    job.completed += 1;
    job.lease = None;
    if end.job == FIRST {
        let next = &mut state.jobs[SECOND];
        next.created += 1;
        if next.status == Status::Absent {
            next.status = Status::Pending;
        }
    }
    let unblocks = end.dependant && end.others_completed && CHAIN_OF[end.job] != CHAIN_OF_DEPENDANT && end.job != FIRST;
    if unblocks && state.jobs[DEPENDANT].status == Status::Blocked {
        make_pending(state);
        state.jobs[DEPENDANT].unblocked += 1;
    }
    state.unlock_all(party);
    if let Some(current) = state.end_of(party) {
        *current = None;
    }
    match (end.by, answer) {
        (By::Attempt(attempt), Answer::Arrives) => drop_attempt(state, attempt),
        // It will ask again.
        (By::Attempt(_), Answer::IsLost) | (By::Outside, _) => {}
    }
    true
}

fn make_pending(state: &mut State) {
    if !state.all_completed() {
        state.wrongs.pending_early = true;
    }
    state.jobs[DEPENDANT].status = Status::Pending;
}

/// Locks the blockers in order, looks whether they have completed, and commits.
fn start_dependant(protocol: &Protocol, state: &mut State) -> bool {
    let start = state.start;
    state.start = match start {
        Start::NotYet if protocol.creation == Creation::LooksOnly => Start::Looked {
            completed: state.all_completed(),
        },
        Start::NotYet if state.lock(0, Party::Starter) => Start::Locked(1),
        Start::Locked(1) if state.lock(1, Party::Starter) => Start::Locked(2),
        Start::Locked(2) => Start::Looked {
            completed: state.all_completed(),
        },
        Start::Looked { completed } => {
            state.jobs[DEPENDANT].created += 1;
            match completed {
                true => make_pending(state),
                false => state.jobs[DEPENDANT].status = Status::Blocked,
            }
            state.unlock_all(Party::Starter);
            Start::Done
        }
        _ => return false,
    };
    true
}

fn cancel(state: &mut State, chain: usize) -> bool {
    let Some(job) = state.latest(chain) else {
        return false;
    };
    let possible = state.is_unlocked(chain) && state.jobs[job].status.is_open();
    if possible {
        state.jobs[job].status = Status::Cancelled;
        state.jobs[job].lease = None;
    }
    possible
}

fn retry(state: &mut State, chain: usize) -> bool {
    let Some(job) = state.latest(chain) else {
        return false;
    };
    let possible = state.is_unlocked(chain) && matches!(state.jobs[job].status, Status::Dead | Status::Cancelled);
    if possible {
        state.jobs[job].attempt = 0;
        match job == DEPENDANT {
            true if state.all_completed() => make_pending(state),
            true => state.jobs[job].status = Status::Blocked,
            false => state.jobs[job].status = Status::Pending,
        }
    }
    possible
}
