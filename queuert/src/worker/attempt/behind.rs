//! The ends of attempts that nobody waits for: who hears the answer of the store does the rest.

use std::sync::Arc;

use crate::adapter::{Outcome, StateAdapter};
use crate::event::AttemptOutcome;
use crate::worker::attempt::end::{Rare, Then, Way, Written};
use crate::worker::attempt::executor::{Attempt, Running};
use crate::worker::attempt::settler::{Open, Reply};
use crate::worker::context::Runtime;
use crate::worker::dispatch::local_queue::Ending;
use crate::worker::user::abort::AbortReason;

/// An attempt whose worker has gone on: who hears the answer of the store does the rest.
pub(crate) struct Behind<S: StateAdapter> {
    who: Who<S>,
    then: Then,
    _ending: Ending<Attempt<S>>,
}

enum Who<S: StateAdapter> {
    /// It ran, and its end is told.
    Ran(Running<S>),
    /// It has not begun, so there is nothing to tell.
    Waited(Attempt<S>),
}

impl<S: StateAdapter> Behind<S> {
    /// Sends the end of an attempt to the store. Says whether the settler was woken for it.
    pub(crate) fn send(runtime: &Arc<Runtime<S>>, running: Running<S>, outcome: Outcome, then: Then) -> bool {
        Self::post(runtime, Who::Ran(running), outcome, then)
    }

    /// Gives back what no worker has begun.
    pub(crate) fn give_back(runtime: &Arc<Runtime<S>>, attempt: Attempt<S>) {
        if let Way::Write(outcome, then) = attempt.give_back() {
            Self::post(runtime, Who::Waited(attempt), outcome, then);
        }
    }

    fn post(runtime: &Arc<Runtime<S>>, who: Who<S>, outcome: Outcome, then: Then) -> bool {
        let attempt = who.attempt();
        let settlement = attempt.settlement(outcome);
        let ages = attempt.shared.ages();
        let behind = Self {
            who,
            then,
            _ending: runtime.line.ending(),
        };
        let open = Open {
            ages,
            reply: Reply::Behind(behind),
        };
        match runtime.settlements.send(settlement, open) {
            Ok(woke) => woke,
            // The settler has quit: the worker is gone, and the lease will expire.
            Err(unheard) => {
                let (settlement, open) = *unheard;
                if let Reply::Behind(behind) = open.reply {
                    behind.hear(runtime, Written::Lost(AbortReason::Shutdown), settlement.outcome);
                }
                false
            }
        }
    }

    pub(crate) fn attempt(&self) -> &Attempt<S> {
        self.who.attempt()
    }

    /// Goes on with the answer, and returns the next job of the chain if it was handed over.
    pub(crate) fn hear(self, runtime: &Arc<Runtime<S>>, written: Written, wrote: Outcome) -> Option<Attempt<S>> {
        let Self { mut who, then, _ending } = self;
        match who.attempt().told(runtime, then, written, wrote) {
            Ok((outcome, next)) => {
                who.conclude(&outcome);
                next
            }
            Err(rare) => {
                runtime.odd_job(OddJob { who, rare });
                None
            }
        }
    }
}

/// What is left to do after a rare answer. It takes time, so it belongs to the crew.
pub(crate) struct OddJob<S: StateAdapter> {
    who: Who<S>,
    rare: Box<Rare>,
}

impl<S: StateAdapter> OddJob<S> {
    pub(crate) async fn run(mut self, runtime: Arc<Runtime<S>>) {
        let (outcome, next) = self.who.attempt().told_otherwise(&runtime, *self.rare).await;
        self.who.conclude(&outcome);
        runtime.line_up(next.into_iter().collect());
    }
}

impl<S: StateAdapter> Who<S> {
    fn attempt(&self) -> &Attempt<S> {
        match self {
            Self::Ran(running) => &running.attempt,
            Self::Waited(attempt) => attempt,
        }
    }

    fn conclude(&mut self, outcome: &AttemptOutcome) {
        if let Self::Ran(running) = self {
            running.conclude(outcome);
        }
    }
}
