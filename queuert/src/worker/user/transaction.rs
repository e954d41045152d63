//! The transaction in which an attempt writes and completes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::adapter::{Commit, Outcome, Settled, StateAdapter};
use crate::client::{Scope, Transaction, TransactionScope, new_job};
use crate::error::{Error, JobError, StateError, StateErrorKind};
use crate::event_hub::HeldSpan;
use crate::job_type::{ContinuationOf, JobType, OutputOf};
use crate::step::IntoStep;
use crate::worker::user::completion::{
    Completion, CompletionKind, DropNotice, How, JobResult, WrittenTransaction, continue_kind, encode_output,
};
use crate::worker::user::shared::{OpenTransaction, SharedAttempt};

/// The transaction in which an attempt of type `J` writes and completes. Dereferences to the store's connection.
///
/// Dropped without `finish` or `continue_with`, it rolls back; so does a completion of it that is dropped instead of
/// returned. If the attempt is completed all the same, an event says that the writes are missing; call
/// [`rollback`](Self::rollback) if you mean it.
pub struct AttemptTransaction<J: JobType, S: StateAdapter> {
    transaction: Transaction<S>,
    shared: Arc<SharedAttempt<S>>,
    dropped: DropNotice<S>,
    /// Dropped after the transaction: the attempt may open another one when this one is gone.
    open: OpenTransaction<S>,
    job: PhantomData<fn() -> J>,
}

impl<J: JobType, S: StateAdapter> AttemptTransaction<J, S> {
    pub(crate) fn new(transaction: Transaction<S>, open: OpenTransaction<S>, shared: Arc<SharedAttempt<S>>) -> Self {
        Self {
            transaction,
            dropped: DropNotice::new(Arc::clone(&shared)),
            open,
            shared,
            job: PhantomData,
        }
    }

    /// Finishes the chain with its output, in this transaction. Return the result: the worker commits.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if the attempt has lost its job; [`Error::TransactionUnusable`] if a request in the transaction
    /// was dropped or failed, or the transaction has ended; [`Error::State`]; an output that cannot be written as JSON.
    /// Everything is rolled back.
    ///
    /// # Cancel safety
    ///
    /// A dropped future rolls back.
    pub async fn finish<O: OutputOf<J>>(self, output: O) -> JobResult<S> {
        let output = encode_output::<J, O>(&output)?;
        self.settle(Outcome::Finish { output }, CompletionKind::Finish, None)
            .await
    }

    /// Continues the chain with the next job, in this transaction. Return the result: the worker commits.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if the attempt has lost its job; [`Error::IdTaken`], [`Error::BlockerNotFound`],
    /// [`Error::BlockerCycle`], [`Error::TransactionUnusable`], [`Error::State`]; an input that cannot be written as JSON.
    /// Everything is rolled back.
    ///
    /// # Cancel safety
    ///
    /// A dropped future rolls back.
    pub async fn continue_with<N>(self, next: N) -> JobResult<S>
    where
        N: IntoStep,
        N::Job: ContinuationOf<J>,
    {
        let (next, span) = new_job(self.shared.client(), next.into_step(), self.shared.continued())?;
        let kind = continue_kind(&next);
        self.settle(Outcome::Continue { next: Box::new(next) }, kind, span)
            .await
    }

    /// Rolls back on purpose: the attempt may go on, and complete without the writes of this transaction.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the store fails; the transaction is lost either way.
    ///
    /// # Cancel safety
    ///
    /// A dropped future rolls back all the same.
    pub async fn rollback(self) -> Result<(), Error> {
        self.dropped.disarm();
        self.transaction.rollback().await
    }

    /// Runs `work` in a savepoint; see [`Transaction::savepoint`].
    ///
    /// # Errors
    ///
    /// As [`Transaction::savepoint`].
    ///
    /// # Cancel safety
    ///
    /// After a dropped future the transaction can only be rolled back, or to an enclosing savepoint.
    pub async fn savepoint<T, E, F>(&mut self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Transaction<S>) -> Result<T, E>,
        E: From<Error>,
    {
        self.transaction.savepoint(work).await
    }

    async fn settle(mut self, outcome: Outcome, kind: CompletionKind, span: Option<HeldSpan>) -> JobResult<S> {
        self.shared.check()?;
        self.transaction.check().await?;
        let settlement = self.shared.settlement(outcome);
        let state = self.shared.client().state();
        let settled = state
            .settle_in(self.transaction.opened(), std::slice::from_ref(&settlement))
            .await;
        let settled = self.transaction.end_change(settled.map_err(Error::State))?;
        match settled.into_iter().next() {
            Some(Settled::Applied(applied)) => {
                let next = match &kind {
                    CompletionKind::Continue { next, next_type } => Some((*next, next_type.clone())),
                    _ => None,
                };
                let info = &self.shared.info;
                // Not through `scope()`, which would also take the connection: the store may have noted that no caller has
                // used the connection since the settlement.
                let effects = self.transaction.effects();
                effects.completed(&info.job, self.shared.ages(), Some(&info.worker), next, &applied);
                effects.span(span, Commit::Created);
                self.open.written();
                let how = How::Written(Box::new(WrittenTransaction {
                    transaction: self.transaction,
                    dropped: self.dropped,
                    open: self.open,
                }));
                Ok(Completion::new(&self.shared, kind, how))
            }
            Some(Settled::Refused(refusal)) => Err(Error::from(refusal).into()),
            Some(Settled::Lost(reason)) => {
                self.shared.lost(reason);
                let job = self.shared.record.id;
                Err(Error::LeaseLost { job, reason }.into())
            }
            // Only this transaction knows the fence and it settles the job once, so nothing can be repeated; and a
            // transaction waits for locks, so nothing can be busy.
            Some(Settled::Repeated(_) | Settled::Busy) | None => Err(JobError::fatal(StateError::new(
                StateErrorKind::Corrupt,
                "the state adapter gave an answer that a fenced settlement in a transaction cannot have",
            ))),
        }
    }
}

impl<J: JobType, S: StateAdapter> Deref for AttemptTransaction<J, S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.transaction
    }
}

impl<J: JobType, S: StateAdapter> DerefMut for AttemptTransaction<J, S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.transaction
    }
}

impl<J: JobType, S: StateAdapter> TransactionScope<S> for AttemptTransaction<J, S> {
    async fn catch_up(&mut self) -> Result<(), Error> {
        self.transaction.catch_up().await
    }

    fn scope(&mut self) -> Result<Scope<'_, S>, Error> {
        self.transaction.scope()
    }
}

impl<J: JobType, S: StateAdapter> fmt::Debug for AttemptTransaction<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptTransaction")
            .field("attempt", &self.shared.info)
            .finish_non_exhaustive()
    }
}
