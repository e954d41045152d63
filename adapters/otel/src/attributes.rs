//! The names of attributes, and values for them that are one of few.

use queuert::{AbortReason, AttemptOutcome};

pub(crate) const SYSTEM: &str = "messaging.system";
pub(crate) const DESTINATION: &str = "messaging.destination.name";
pub(crate) const OPERATION_NAME: &str = "messaging.operation.name";
pub(crate) const OPERATION_TYPE: &str = "messaging.operation.type";
pub(crate) const MESSAGE_ID: &str = "messaging.message.id";
pub(crate) const CONVERSATION_ID: &str = "messaging.message.conversation_id";
pub(crate) const CLIENT_ID: &str = "messaging.client.id";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const EXCEPTION_MESSAGE: &str = "exception.message";

pub(crate) const JOB_TYPE: &str = "queuert.job.type";
pub(crate) const CHAIN_ID: &str = "queuert.chain.id";
pub(crate) const CHAIN_TYPE: &str = "queuert.chain.type";
pub(crate) const CHAIN_STATUS: &str = "queuert.chain.status";
pub(crate) const ATTEMPT: &str = "queuert.attempt";
pub(crate) const OUTCOME: &str = "queuert.outcome";
pub(crate) const NEXT_TYPE: &str = "queuert.next.type";
pub(crate) const RETRY_DELAY: &str = "queuert.retry.delay";
pub(crate) const ABORT_REASON: &str = "queuert.abort.reason";
pub(crate) const DEDUPLICATED: &str = "queuert.deduplicated";
pub(crate) const CONTINUED: &str = "queuert.continued";
pub(crate) const COMPLETED_BY: &str = "queuert.completed_by";
pub(crate) const OPERATION: &str = "queuert.operation";
/// On a span that was begun for a write that did not happen.
pub(crate) const ROLLED_BACK: &str = "queuert.rolled_back";

pub(crate) fn reason(reason: AbortReason) -> &'static str {
    match reason {
        AbortReason::TakenByAnotherWorker => "taken_by_another_worker",
        AbortReason::AlreadyCompleted => "already_completed",
        AbortReason::NotFound => "not_found",
        AbortReason::Cancelled => "cancelled",
        AbortReason::Shutdown => "shutdown",
        AbortReason::TimedOut => "timed_out",
        AbortReason::Error => "error",
        _ => "other",
    }
}

pub(crate) fn outcome(outcome: &AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::Finished => "finished",
        AttemptOutcome::Continued { .. } => "continued",
        AttemptOutcome::Failed { .. } => "failed",
        AttemptOutcome::Died { .. } => "died",
        AttemptOutcome::Snoozed => "snoozed",
        AttemptOutcome::Aborted(_) => "aborted",
        _ => "other",
    }
}
