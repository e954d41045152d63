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

/// What is done with a message, in the words of the conventions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Create,
    Process,
    Settle,
}

pub(crate) const OPERATIONS: [Operation; 3] = [Operation::Create, Operation::Process, Operation::Settle];

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Process => "process",
            Self::Settle => "settle",
        }
    }
}

/// Every outcome that an attempt may have.
pub(crate) const OUTCOMES: [&str; 7] = ["finished", "continued", "failed", "died", "snoozed", "aborted", "other"];

/// Which of [`OUTCOMES`] it is.
pub(crate) fn outcome_index(outcome: &AttemptOutcome) -> usize {
    match outcome {
        AttemptOutcome::Finished => 0,
        AttemptOutcome::Continued { .. } => 1,
        AttemptOutcome::Failed { .. } => 2,
        AttemptOutcome::Died { .. } => 3,
        AttemptOutcome::Snoozed => 4,
        AttemptOutcome::Aborted(_) => 5,
        _ => 6,
    }
}

pub(crate) fn outcome(outcome: &AttemptOutcome) -> &'static str {
    OUTCOMES[outcome_index(outcome)]
}
