//! What must hold in every state, and what must be reached in some.

use stateright::Property;

use crate::state::{CHAIN_OF, DEPENDANT, Party, SECOND, Stage, Start, State, Status};
use crate::{Creation, Protocol};

fn always(rule: &'static str, holds: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::always(rule, holds)
}

fn sometimes(situation: &'static str, holds: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::sometimes(situation, holds)
}

pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        always("only the attempt that has a job ends it", |_, state| {
            !state.wrongs.stale_write
        }),
        always("a job completes once", |_, state| {
            state.jobs.iter().all(|job| job.completed <= 1) && !state.wrongs.completed_changed
        }),
        always("a job has one successor", |_, state| state.jobs[SECOND].created <= 1),
        always("a job is unblocked once", |_, state| {
            state.jobs[DEPENDANT].unblocked <= 1
        }),
        always("a job does not stay blocked by what has completed", |_, state| {
            !(state.all_completed() && state.jobs[DEPENDANT].status == Status::Blocked)
        }),
        always("a job is not pending before its blockers have completed", |_, state| {
            !state.wrongs.pending_early
        }),
        always("a job runs if and only if somebody has its lease", |_, state| {
            let agree = |job: &crate::Job| (job.status == Status::Running) == job.lease.is_some();
            state.jobs.iter().all(agree)
        }),
        always("every claim is a counted attempt", |_, state| {
            state.jobs.iter().all(|job| job.attempt <= job.claims)
        }),
        always(
            "transactions do not wait for each other in a circle",
            |protocol, state| !is_deadlocked(protocol, state),
        ),
        sometimes("an attempt goes on beside its successor", |_, state| {
            let is_stale = |attempt: &crate::state::Attempt| {
                let held = state.jobs[attempt.job].lease;
                held.is_some_and(|(held, _)| held.fence != attempt.fence)
            };
            state.workers.iter().any(|worker| worker.attempts.iter().any(is_stale))
        }),
        sometimes("a job is unblocked by its last blocker", |_, state| {
            state.jobs[DEPENDANT].unblocked == 1 && state.jobs[DEPENDANT].status == Status::Completed
        }),
        sometimes("a job is started after its blockers have completed", |_, state| {
            let dependant = &state.jobs[DEPENDANT];
            dependant.unblocked == 0 && dependant.status == Status::Completed && dependant.claims > 0
        }),
        sometimes("both blockers end at the same moment", |_, state| {
            let ending = |number: usize| {
                state.workers[number]
                    .end
                    .map(|end| (CHAIN_OF[end.job], end.stage, end.job))
            };
            let (one, other) = (ending(0), ending(1));
            matches!((one, other), (Some((0, Stage::Looked, SECOND)), Some((1, Stage::Looked, _)))
                if state.jobs[DEPENDANT].status == Status::Blocked)
        }),
        sometimes("the job of a dead worker runs again", |_, state| {
            let claimed_again = |job: &crate::Job| job.claims > 1 && job.status == Status::Running;
            state.workers.iter().any(|worker| worker.life > 0) && state.jobs.iter().any(claimed_again)
        }),
        sometimes("a commit is repeated whose answer was lost", |_, state| {
            let asks_again = |worker: &crate::Worker| {
                let end = worker.end.filter(|end| end.stage == Stage::Begun);
                end.is_some_and(|end| state.jobs[end.job].status == Status::Completed)
            };
            state.workers.iter().any(asks_again)
        }),
        sometimes("a job is retried by an operator and completes", |_, state| {
            let retried = |job: &crate::Job| job.status == Status::Completed && job.claims > job.attempt;
            state.jobs.iter().any(retried)
        }),
    ]
}

/// Whether transactions are open, and none of them can take its next step.
fn is_deadlocked(protocol: &Protocol, state: &State) -> bool {
    let mut waiting = 0;
    let mut moving = 0;
    for party in [Party::Worker(0), Party::Worker(1), Party::Outside] {
        let end = match party {
            Party::Worker(worker) => state.workers[worker].end,
            _ => state.outside,
        };
        let Some(end) = end else { continue };
        let wants = match end.stage {
            Stage::Begun => Some(CHAIN_OF[end.job]),
            Stage::Looked if end.dependant => Some(CHAIN_OF[DEPENDANT]),
            _ => None,
        };
        match wants.and_then(|chain| state.locks[chain]) {
            Some(holder) if holder != party => waiting += 1,
            _ => moving += 1,
        }
    }
    if protocol.creation == Creation::LocksBlockers {
        match state.start {
            Start::NotYet | Start::Done => {}
            Start::Locked(1) if state.locks[1].is_some_and(|holder| holder != Party::Starter) => waiting += 1,
            _ => moving += 1,
        }
    }
    waiting > 0 && moving == 0
}
