//! The protocol of leases, fences and unblocking, small enough to be explored in every interleaving.
//!
//! Two workers, a reaper, somebody who completes jobs from outside, an operator who cancels and retries, and somebody who
//! starts a job that waits for two chains, while these run. Workers crash, pause beyond their leases and go on, fail, and
//! lose the answers to their commits. Statements of a transaction are steps of their own wherever another one could come
//! in between; locks are held until the commit, and a statement sees what was committed when it began.
//!
//! `step.rs` is the protocol, `state.rs` what is stored and remembered, `invariants.rs` what must hold in every state.

mod invariants;
mod state;
mod step;

use stateright::{Model, Property};

pub use state::{Job, Lease, Number, State, Status, Worker};
pub use step::Action;

/// How an attempt proves that a job is still its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// By a value that is new with every claim. The only one that is right.
    Token,
    /// By the number of the attempt, which an operator resets.
    AttemptNumber,
    /// By the name of the worker, who may claim the job again.
    WorkerName,
    /// Not at all.
    None,
}

/// When the end of a chain looks for jobs that wait for it, and for their other blockers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unblocking {
    /// In statements of their own, after the locks are granted.
    AfterTheLocks,
    /// In the statement that completes the job, which sees what was committed before it began to wait for locks.
    InTheCompletingStatement,
}

/// What whoever starts a job that waits does about the chains that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Locks them, then looks.
    LocksBlockers,
    /// Only looks.
    LooksOnly,
}

/// The protocol, or one of those that it must not become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// How writes are fenced.
    pub fencing: Fencing,
    /// How dependants are unblocked.
    pub unblocking: Unblocking,
    /// How dependants are created.
    pub creation: Creation,
    /// How much may happen.
    pub bounds: Bounds,
}

/// What makes the exploration finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How often each job is claimed at most.
    pub claims: u8,
    /// How many attempts one worker has in its memory at most, those that have lost their job included.
    pub memory: usize,
    /// How much goes wrong in all: crashes, leases that run out, failures, cancellations, retries, lost answers.
    pub disturbances: u8,
    /// How many steps the first of the two blockers has: one or two.
    pub steps: usize,
    /// Whether somebody completes a job from outside.
    pub outside: bool,
}

impl Protocol {
    /// As it is.
    pub const fn right(bounds: Bounds) -> Self {
        Self {
            fencing: Fencing::Token,
            unblocking: Unblocking::AfterTheLocks,
            creation: Creation::LocksBlockers,
            bounds,
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.steps)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        step::all(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        step::take(self, &mut next, action).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants::all()
    }
}
