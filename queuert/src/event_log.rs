//! Events as structured lines of `tracing`, with the target `queuert`.
//!
//! Errors are for what needs a person, warnings for what the library copes with, `info` for what happens once in a
//! while or because somebody asked for it, `debug` for the life of every job, `trace` for its leases. Workers that have
//! nothing to do say nothing.

use tracing::{Level, debug, enabled, error, info, trace, warn};

use crate::event::{AttemptInfo, AttemptOutcome, Event};
use crate::worker::AbortReason;

/// Whether there is a subscriber that wants anything. Without one this is the load of one number.
pub(crate) fn is_on() -> bool {
    tracing::level_filters::LevelFilter::current() != tracing::level_filters::LevelFilter::OFF
}

/// Whether there is a subscriber that wants to hear of every job.
pub(crate) fn is_detailed() -> bool {
    enabled!(target: "queuert", Level::DEBUG)
}

/// The span of an attempt: the processor's own lines carry its fields.
pub(crate) fn attempt_span(attempt: &AttemptInfo) -> tracing::Span {
    tracing::info_span!(
        target: "queuert",
        "attempt",
        job_id = %attempt.job.id,
        job_type = attempt.job.type_name.as_str(),
        chain_id = %attempt.job.chain_id,
        attempt = attempt.attempt,
        worker = attempt.worker.as_str(),
    )
}

macro_rules! about_job {
    ($log:ident, $job:expr, $($rest:tt)+) => {
        $log!(
            target: "queuert",
            job_id = %$job.id,
            job_type = $job.type_name.as_str(),
            chain_id = %$job.chain_id,
            $($rest)+
        )
    };
}

macro_rules! about_chain {
    ($log:ident, $chain:expr, $type_name:expr, $($rest:tt)+) => {
        $log!(target: "queuert", chain_id = %$chain, chain_type = $type_name.as_str(), $($rest)+)
    };
}

macro_rules! about_attempt {
    ($log:ident, $attempt:expr, $($rest:tt)+) => {
        about_job!(
            $log,
            $attempt.job,
            attempt = $attempt.attempt,
            worker = $attempt.worker.as_str(),
            $($rest)+
        )
    };
}

pub(crate) fn log(event: &Event) {
    if !is_on() {
        return;
    }
    match event {
        Event::WorkerStarted { worker, concurrency } => {
            info!(target: "queuert", worker = worker.as_str(), concurrency, "workers started");
        }
        Event::WorkerDegraded { worker, error } => {
            warn!(target: "queuert", worker = worker.as_str(), error = &**error, "the store fails; trying on");
        }
        Event::WorkerRecovered { worker } => {
            info!(target: "queuert", worker = worker.as_str(), "the store answers again");
        }
        Event::WorkerStopping { worker } => info!(target: "queuert", worker = worker.as_str(), "workers are stopping"),
        Event::WorkerStopped { worker } => info!(target: "queuert", worker = worker.as_str(), "workers stopped"),
        Event::ChainCreated { chain, type_name } => about_chain!(debug, chain, type_name, "chain created"),
        Event::ChainDeduplicated { chain, type_name } => about_chain!(debug, chain, type_name, "chain deduplicated"),
        Event::ChainCompleted { chain, type_name, .. } => about_chain!(debug, chain, type_name, "chain completed"),
        Event::ChainDead { chain, type_name, .. } => about_chain!(debug, chain, type_name, "chain died"),
        Event::ChainCancelled { chain, type_name, .. } => about_chain!(info, chain, type_name, "chain cancelled"),
        Event::ChainRetried { chain, type_name } => about_chain!(info, chain, type_name, "chain retried"),
        Event::ChainDeleted { chain, type_name } => about_chain!(debug, chain, type_name, "chain deleted"),
        Event::JobCreated(job) => about_job!(debug, job, "job created"),
        Event::JobBlocked(job) => about_job!(debug, job, "job blocked"),
        Event::JobUnblocked { job, chain, type_name } => debug!(
            target: "queuert",
            job_id = %job,
            job_type = type_name.as_str(),
            chain_id = %chain,
            "job unblocked"
        ),
        Event::JobTriggered(job) => about_job!(debug, job, "job triggered"),
        Event::JobCompleted { job, continued, .. } => about_job!(debug, job, continued, "job completed"),
        Event::JobDead { job, error, .. } => about_job!(error, job, error = error.as_str(), "job died"),
        Event::JobCancelled(job) => about_job!(debug, job, "job cancelled"),
        Event::JobReaped { job, owner, .. } => {
            about_job!(
                warn,
                job,
                owner = owner.as_str(),
                "the lease of a job had expired, and was taken"
            );
        }
        Event::AttemptStarted(attempt) => about_attempt!(debug, attempt, "attempt started"),
        Event::AttemptTimedOut { attempt, timeout } => about_attempt!(warn, attempt, ?timeout, "attempt timed out"),
        Event::AttemptEnded {
            attempt,
            outcome,
            duration,
        } => log_end(attempt, outcome, *duration),
        Event::LeaseRenewed { attempt, until } => about_attempt!(trace, attempt, %until, "lease renewed"),
        Event::LeaseLost { attempt, reason } => match reason {
            AbortReason::TakenByAnotherWorker | AbortReason::Error => {
                about_attempt!(warn, attempt, reason = reason.as_str(), "lease lost");
            }
            _ => about_attempt!(info, attempt, reason = reason.as_str(), "lease lost"),
        },
        Event::StateFailed { operation, error } => {
            warn!(target: "queuert", operation, error = &**error, "a call to the store failed");
        }
        Event::MaintenanceFinding { finding, .. } => warn!(target: "queuert", "{finding}"),
        Event::Advice { advice } => warn!(target: "queuert", "{advice}"),
        Event::NotifyFailed { operation, error } => {
            warn!(target: "queuert", operation, error = &**error, "a call to the notify adapter failed");
        }
        // Figures are not for reading line by line.
        Event::QueuesSampled { .. } | Event::EventsMissed { .. } => {}
    }
}

fn log_end(attempt: &AttemptInfo, outcome: &AttemptOutcome, duration: std::time::Duration) {
    match outcome {
        AttemptOutcome::Finished => about_attempt!(debug, attempt, ?duration, "attempt finished"),
        AttemptOutcome::Continued { next_type, .. } => {
            about_attempt!(
                debug,
                attempt,
                ?duration,
                next = next_type.as_str(),
                "attempt continued"
            );
        }
        AttemptOutcome::Failed { error, retry_in } => {
            about_attempt!(
                warn,
                attempt,
                ?duration,
                ?retry_in,
                error = error.as_str(),
                "attempt failed"
            );
        }
        AttemptOutcome::Died { error } => {
            about_attempt!(
                error,
                attempt,
                ?duration,
                error = error.as_str(),
                "attempt failed for good"
            );
        }
        AttemptOutcome::Snoozed => about_attempt!(debug, attempt, ?duration, "attempt snoozed"),
        AttemptOutcome::Aborted(reason) => {
            about_attempt!(info, attempt, ?duration, reason = reason.as_str(), "attempt aborted");
        }
    }
}
