//! Events as structured lines of `tracing`, with the target `queuert`.
//!
//! Errors are for what needs a person, warnings for what the library copes with, `info` for what happens once in a
//! while or because somebody asked for it, `debug` for the life of every job, `trace` for its leases. Workers that have
//! nothing to do say nothing, and an outage is told of once per cause, with how many lines were left out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::span::Entered;
use tracing::{Level, Span, debug, enabled, error, info, trace, warn};

use crate::event::{AttemptInfo, AttemptOutcome, Event};
use crate::log_limit::LogLimit;
use crate::worker::AbortReason;

/// Whether there is a subscriber that wants anything. Without one this is the load of one number.
pub(crate) fn is_on() -> bool {
    tracing::level_filters::LevelFilter::current() != tracing::level_filters::LevelFilter::OFF
}

/// Whether there is a subscriber that wants to hear of every job.
pub(crate) fn is_detailed() -> bool {
    enabled!(target: "queuert", Level::DEBUG)
}

/// The span of an attempt: the processor's own lines carry its fields, and so does the line that says how it ended.
///
/// A subscriber is code of the application: its panics do not reach the worker.
#[derive(Debug)]
pub(crate) struct LogSpan(Span);

impl LogSpan {
    pub(crate) fn new(attempt: &AttemptInfo) -> Self {
        let span = || {
            // A target of its own: a layer that exports spans can leave it out while others keep its fields.
            tracing::info_span!(
                target: "queuert::span",
                "attempt",
                job_id = %attempt.job.id,
                job_type = attempt.job.type_name.as_str(),
                chain_id = %attempt.job.chain_id,
                attempt = attempt.attempt,
                worker = attempt.worker.as_str(),
                outcome = tracing::field::Empty,
            )
        };
        Self(catch_unwind(AssertUnwindSafe(span)).unwrap_or_else(|_| Span::none()))
    }

    /// Enters it while a processor is polled, which contains panics by itself.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.enter()
    }

    /// Ends it, with the last words of the attempt inside, and then says on it how the attempt ended.
    pub(crate) fn end(&mut self, outcome: &AttemptOutcome, last_words: impl FnOnce()) {
        let span = std::mem::replace(&mut self.0, Span::none());
        if span.is_disabled() {
            return last_words();
        }
        let entered = catch_unwind(AssertUnwindSafe(|| span.enter()));
        last_words();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(entered)));
        let _ = catch_unwind(AssertUnwindSafe(|| span.record("outcome", name_of(outcome))));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(span)));
    }
}

fn name_of(outcome: &AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::Finished => "finished",
        AttemptOutcome::Continued { .. } => "continued",
        AttemptOutcome::Failed { .. } => "failed",
        AttemptOutcome::Died { .. } => "died",
        AttemptOutcome::Snoozed => "snoozed",
        AttemptOutcome::Aborted(_) => "aborted",
    }
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

macro_rules! about_pause {
    ($pause:expr, $text:literal) => {
        info!(
            target: "queuert",
            job_type = $pause.type_name.as_str(),
            author = $pause.author.as_deref(),
            reason = $pause.reason.as_deref(),
            $text
        )
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

pub(crate) fn log(event: &Event, limit: &LogLimit) {
    if !is_on() {
        return;
    }
    match event {
        Event::WorkerStarted { worker, concurrency } => {
            info!(target: "queuert", worker = worker.as_str(), concurrency, "workers started");
        }
        Event::WorkerDegraded { worker, error } => {
            // The failed call has a line of its own, one for all workers of the process.
            debug!(target: "queuert", worker = worker.as_str(), error = &**error, "the workers wait for the store");
        }
        Event::WorkerRecovered { worker } => {
            if let Some(lines) = limit.store_answers() {
                info!(
                    target: "queuert",
                    worker = worker.as_str(),
                    lines_left_out = lines.left_out,
                    "the store answers again"
                );
            }
        }
        Event::WorkerStopping { worker } => info!(target: "queuert", worker = worker.as_str(), "workers are stopping"),
        Event::WorkerStopped { worker } => {
            let lines_left_out = limit.stopped().left_out;
            info!(target: "queuert", worker = worker.as_str(), lines_left_out, "workers stopped");
        }
        Event::ChainCreated { chain, type_name } => about_chain!(debug, chain, type_name, "chain created"),
        Event::ChainDeduplicated { chain, type_name } => about_chain!(debug, chain, type_name, "chain deduplicated"),
        Event::ChainCompleted { chain, type_name, .. } => about_chain!(debug, chain, type_name, "chain completed"),
        Event::ChainDead { chain, type_name, .. } => about_chain!(debug, chain, type_name, "chain died"),
        Event::ChainCancelled { chain, type_name, .. } => about_chain!(info, chain, type_name, "chain cancelled"),
        Event::ChainRetried { chain, type_name } => about_chain!(info, chain, type_name, "chain retried"),
        Event::TypePaused(pause) => about_pause!(pause, "job type paused"),
        Event::TypeResumed(pause) => about_pause!(pause, "job type resumed"),
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
            if let Some(lines) = limit.job_suffers("job reaped") {
                about_job!(
                    warn,
                    job,
                    owner = owner.as_str(),
                    lines_left_out = lines.left_out,
                    "the lease of a job had expired, and was taken"
                );
            }
        }
        Event::AttemptStarted(attempt) => about_attempt!(debug, attempt, "attempt started"),
        Event::AttemptTimedOut { attempt, timeout } => about_attempt!(warn, attempt, ?timeout, "attempt timed out"),
        Event::AttemptEnded {
            attempt,
            outcome,
            duration,
        } => log_end(attempt, outcome, *duration, limit),
        Event::LeaseRenewed { attempt, until } => about_attempt!(trace, attempt, %until, "lease renewed"),
        Event::LeaseLost { attempt, reason } => match reason {
            AbortReason::TakenByAnotherWorker | AbortReason::Error => {
                if let Some(lines) = limit.job_suffers("lease lost") {
                    let lines_left_out = lines.left_out;
                    about_attempt!(warn, attempt, reason = reason.as_str(), lines_left_out, "lease lost");
                }
            }
            _ => about_attempt!(info, attempt, reason = reason.as_str(), "lease lost"),
        },
        Event::StateFailed { operation, error } => {
            if let Some(lines) = limit.store_failed(error) {
                warn!(
                    target: "queuert",
                    operation,
                    error = &**error,
                    lines_left_out = lines.left_out,
                    "a call to the store failed; the workers retry it"
                );
            }
        }
        Event::MaintenanceFinding { finding: text, .. } => {
            if let Some(lines) = limit.finding(text) {
                warn!(target: "queuert", lines_left_out = lines.left_out, "{text}");
            }
        }
        Event::Advice { advice: text } => {
            if let Some(lines) = limit.advice(text) {
                warn!(target: "queuert", lines_left_out = lines.left_out, "{text}");
            }
        }
        Event::NotifyFailed { operation, error } => {
            if let Some(lines) = limit.notify_failed(error) {
                warn!(
                    target: "queuert",
                    operation,
                    error = &**error,
                    lines_left_out = lines.left_out,
                    "a call to the notify adapter failed; jobs are found by polling meanwhile"
                );
            }
        }
        // Figures are not for reading line by line.
        Event::QueuesSampled { .. } | Event::EventsMissed { .. } => {}
    }
}

fn log_end(attempt: &AttemptInfo, outcome: &AttemptOutcome, duration: std::time::Duration, limit: &LogLimit) {
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
        AttemptOutcome::Failed {
            error,
            retry_in,
            by_store,
        } => {
            // A failure of the processor has its line each time. An outage fails every job in hand.
            let mut lines_left_out = None;
            if *by_store {
                let Some(lines) = limit.attempt_failed(error) else {
                    return;
                };
                lines_left_out = lines.left_out;
            }
            about_attempt!(
                warn,
                attempt,
                ?duration,
                ?retry_in,
                error = error.as_str(),
                lines_left_out,
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
