//! The only successful return value of a processor.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::adapter::{NewJob, Outcome, StateAdapter};
use crate::client::Transaction;
use crate::error::{Error, JobError};
use crate::event_hub::HeldSpan;
use crate::id::{Fence, JobId};
use crate::job::TypeName;
use crate::job_type::{JobType, OutputOf};
use crate::payload::Payload;
use crate::time::Schedule;
use crate::worker::user::shared::{OpenTransaction, SharedAttempt};

/// The return value of a processor.
pub type JobResult<S> = Result<Completion<S>, JobError>;

/// How an attempt wants to end. Made by `finish`, `continue_with` and `snooze`, and by nothing else: a processor
/// cannot forget to complete its job.
///
/// Dropped instead of returned, it has no effect; a transaction inside it rolls back.
#[must_use = "return the completion from the processor: dropped, it has no effect"]
pub struct Completion<S: StateAdapter> {
    pub(crate) job: JobId,
    pub(crate) fence: Fence,
    pub(crate) kind: CompletionKind,
    pub(crate) how: How<S>,
}

/// The effect of a [`Completion`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionKind {
    /// Finishes the chain.
    Finish,
    /// Continues the chain.
    Continue {
        /// The next job.
        next: JobId,
        /// Its type.
        next_type: TypeName,
    },
    /// Runs the job again later, at no cost.
    Snooze,
}

/// How a completion reaches the store.
pub(crate) enum How<S: StateAdapter> {
    /// The settler writes it together with the ends of other attempts. The span is that of the next job's creation.
    Grouped(Outcome, Option<HeldSpan>),
    /// It is written in the processor's transaction, which the worker has to commit.
    Written(Box<WrittenTransaction<S>>),
}

/// A transaction that holds the end of its attempt.
pub(crate) struct WrittenTransaction<S: StateAdapter> {
    pub(crate) transaction: Transaction<S>,
    /// Notes when the completion is dropped, and the transaction with it.
    pub(crate) dropped: DropNotice<S>,
    /// While this exists, the attempt opens no other transaction. Dropped after the transaction.
    pub(crate) open: OpenTransaction<S>,
}

impl<S: StateAdapter> WrittenTransaction<S> {
    /// Takes the transaction out, to commit it, with the guard that keeps the attempt from opening another one meanwhile.
    pub(crate) fn into_parts(self) -> (Transaction<S>, OpenTransaction<S>) {
        self.dropped.disarm();
        (self.transaction, self.open)
    }
}

/// Notes that a transaction of an attempt was dropped instead of committed. If the processor completes the job all the same,
/// it most likely called `job.finish(..)` where it meant to return what `tx.finish(..)` gave.
pub(crate) struct DropNotice<S: StateAdapter>(Option<Arc<SharedAttempt<S>>>);

impl<S: StateAdapter> DropNotice<S> {
    pub(crate) fn new(attempt: Arc<SharedAttempt<S>>) -> Self {
        Self(Some(attempt))
    }

    /// The transaction ends as intended.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<S: StateAdapter> Drop for DropNotice<S> {
    fn drop(&mut self) {
        if let Some(attempt) = &self.0 {
            attempt.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

impl<S: StateAdapter> Completion<S> {
    pub(crate) fn new(attempt: &SharedAttempt<S>, kind: CompletionKind, how: How<S>) -> Self {
        Self {
            job: attempt.record.id,
            fence: attempt.fence,
            kind,
            how,
        }
    }

    /// Whether it finishes the chain, continues it, or snoozes.
    pub fn kind(&self) -> &CompletionKind {
        &self.kind
    }
}

impl<S: StateAdapter> fmt::Debug for Completion<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("job", &self.job)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The end of an attempt whose job runs again at this time, at no cost.
pub(crate) fn snoozed<S: StateAdapter>(attempt: &SharedAttempt<S>, schedule: Schedule) -> Completion<S> {
    let how = How::Grouped(Outcome::Snooze { schedule }, None);
    Completion::new(attempt, CompletionKind::Snooze, how)
}

/// An output as JSON. An error is fatal: no retry would help.
pub(crate) fn encode_output<J: JobType, O: OutputOf<J>>(output: &O) -> Result<Payload, JobError> {
    output.encode().map_err(|error| {
        JobError::fatal(Error::Unencodable {
            type_name: J::NAME.into(),
            part: "output",
            message: error.to_string(),
        })
    })
}

/// The kind of a completion that continues the chain with `next`.
pub(crate) fn continue_kind(next: &NewJob) -> CompletionKind {
    CompletionKind::Continue {
        next: next.id,
        next_type: next.type_name.clone(),
    }
}
