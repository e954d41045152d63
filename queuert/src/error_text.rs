//! The words of errors: what a newcomer needs to read, wherever the error is shown.

use std::fmt;

use crate::error::{Error, JobError, NotifyError, StateError, cause_chain};
use crate::job::{JobRecord, JobStatus};

/// What the compiler's own `Debug` would leave out is what a newcomer needs: the message.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variant(), cause_chain(self))
    }
}

/// The `Debug` of a driver's error may have the row that the database refused, and so a payload: its message has not.
impl fmt::Debug for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateError({:?}): {}", self.kind(), cause_chain(self))
    }
}

impl fmt::Debug for NotifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotifyError: {}", cause_chain(self))
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobError({:?}): {}", self.verdict, self.report())
    }
}

impl Error {
    fn variant(&self) -> &'static str {
        match self {
            Self::JobNotFound(_) => "JobNotFound",
            Self::ChainNotFound(_) => "ChainNotFound",
            Self::AtAnotherJob { .. } => "AtAnotherJob",
            Self::TypeMismatch { .. } => "TypeMismatch",
            Self::Unreadable { .. } => "Unreadable",
            Self::Undecodable { .. } => "Undecodable",
            Self::Unencodable { .. } => "Unencodable",
            Self::IdTaken(_) => "IdTaken",
            Self::BlockerNotFound { .. } => "BlockerNotFound",
            Self::BlockerCycle { .. } => "BlockerCycle",
            Self::BlockerMissing { .. } => "BlockerMissing",
            Self::BlockerReference(_) => "BlockerReference",
            Self::NotTriggerable { .. } => "NotTriggerable",
            Self::ChainEnded { .. } => "ChainEnded",
            Self::NotRetryable { .. } => "NotRetryable",
            Self::KeyTaken { .. } => "KeyTaken",
            Self::ChainDamaged(_) => "ChainDamaged",
            Self::ChainDead { .. } => "ChainDead",
            Self::ChainCancelled(_) => "ChainCancelled",
            Self::WaitTimeout { .. } => "WaitTimeout",
            Self::LeaseLost { .. } => "LeaseLost",
            Self::InBatch { .. } => "InBatch",
            Self::TransactionUnusable(_) => "TransactionUnusable",
            Self::TransactionOpen { .. } => "TransactionOpen",
            Self::Invalid { .. } => "Invalid",
            Self::UnknownType(_) => "UnknownType",
            Self::DuplicateProcessor(_) => "DuplicateProcessor",
            Self::NoProcessor => "NoProcessor",
            Self::InvalidCursor(_) => "InvalidCursor",
            Self::MissingValue { .. } => "MissingValue",
            Self::State(_) => "State",
            Self::Notify(_) => "Notify",
        }
    }
}

/// Where a chain stands that did not end in time, and what that means.
pub(crate) struct Standing<'a>(pub(crate) Option<&'a JobRecord>);

impl fmt::Display for Standing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(job) = self.0 else {
            return Ok(());
        };
        let name = &job.type_name;
        match (job.status, &job.last_error) {
            (JobStatus::Blocked, _) => write!(f, ": its job `{name}` waits for other chains"),
            (JobStatus::Pending, None) => write!(
                f,
                ": no worker has taken its job `{name}`, due at {}: is one running that processes `{name}`?",
                job.scheduled_at
            ),
            (JobStatus::Pending, Some(error)) => write!(
                f,
                ": attempt {} of its job `{name}` failed, the next one is due at {}: {}",
                error.attempt, job.scheduled_at, error.message
            ),
            (JobStatus::Running, _) => write!(f, ": attempt {} of its job `{name}` is running", job.attempt),
            (status, _) => write!(f, ": its job `{name}` is {status}"),
        }
    }
}

/// What was provided in place of a value that was not.
pub(crate) struct Provided<'a>(pub(crate) &'a [&'static str]);

impl fmt::Display for Provided<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("; nothing was provided"),
            provided => write!(f, "; provided were `{}`", provided.join("`, `")),
        }
    }
}
