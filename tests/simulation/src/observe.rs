//! Hears every event, and asks the model whether it may be true.

use queuert::Event;
use queuert::adapter::{Delivery, ObservabilityAdapter};

use crate::history::History;
use crate::world::World;

/// The observability adapter of the simulation.
#[derive(Debug)]
pub struct Observer(World);

impl Observer {
    /// The observer of a run.
    pub fn new(world: World) -> Self {
        Self(world)
    }
}

impl ObservabilityAdapter for Observer {
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn event(&self, event: &Event) {
        let text = describe(&mut self.0.lock().history, event);
        self.0.log(format_args!("event {text}"));
        self.0.count(name(event));
        self.0.check(|state, _| state.model.emitted(event));
    }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::WorkerDegraded { .. } => "worker degraded",
        Event::WorkerRecovered { .. } => "worker recovered",
        Event::WorkerStopped { .. } => "worker stopped",
        Event::ChainDeduplicated { .. } => "chain deduplicated",
        Event::ChainCompleted { .. } => "chain completed",
        Event::ChainDead { .. } => "chain died",
        Event::ChainCancelled { .. } => "chain cancelled",
        Event::ChainRetried { .. } => "chain retried",
        Event::ChainDeleted { .. } => "chain deleted",
        Event::JobUnblocked { .. } => "job unblocked",
        Event::JobTriggered(_) => "job triggered",
        Event::JobReaped { .. } => "job reaped",
        Event::LeaseLost { .. } => "lease lost",
        Event::NotifyFailed { .. } => "notify failed",
        Event::AttemptEnded { .. } => "attempt ended",
        _ => "other event",
    }
}

fn describe(history: &mut History, event: &Event) -> String {
    match event {
        Event::AttemptStarted(attempt) => format!(
            "attempt {} of {} ({}) by {}",
            attempt.attempt,
            history.job(attempt.job.id),
            attempt.job.type_name,
            history.worker(&attempt.worker)
        ),
        Event::AttemptEnded { attempt, outcome, .. } => format!(
            "attempt {} of {} ended {outcome:?}",
            attempt.attempt,
            history.job(attempt.job.id)
        ),
        Event::LeaseLost { attempt, reason } => {
            format!("lease of {} lost: {reason}", history.job(attempt.job.id))
        }
        Event::LeaseRenewed { attempt, .. } => format!("lease of {} renewed", history.job(attempt.job.id)),
        Event::JobReaped { job, owner, .. } => {
            format!("{} reaped from {}", history.job(job.id), history.worker(owner))
        }
        Event::JobCreated(job) | Event::JobBlocked(job) | Event::JobTriggered(job) => {
            format!("{} {}", job.type_name, history.job(job.id))
        }
        Event::JobUnblocked { job, .. } => format!("unblocked {}", history.job(*job)),
        Event::JobCompleted { job, continued, .. } => {
            format!("completed {} (continued: {continued})", history.job(job.id))
        }
        // Without its duration: a chain that is completed from outside measures that with the process's clock.
        Event::ChainCompleted { chain, type_name, .. } => {
            format!("chain {type_name} {} completed", history.job(chain.first_job()))
        }
        other => format!("{other:?}"),
    }
}
