//! Completion from outside: no worker, the caller's own transaction.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use super::Client;
use super::standing::Scope;
use super::start::{Of, new_job};
use super::transaction::TransactionScope;
use crate::adapter::{Authority, Commit, Continued, Outcome, OutsideCompletion, Settled, Settlement, StateAdapter};
use crate::chain::ChainHandle;
use crate::error::Error;
use crate::event::{Ages, JobInfo};
use crate::id::ChainId;
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::job_type::{ContinuationOf, JobType, OutputOf};
use crate::step::IntoStep;
use crate::time::Timestamp;
use crate::worker::AbortReason;

impl<S: StateAdapter> Client<S> {
    /// Opens the current job of a chain for completion from outside, such as an approval by a person. The job must be a
    /// `J`, and may be blocked, pending or running. A running attempt gets the reason
    /// [`AlreadyCompleted`](crate::AbortReason::AlreadyCompleted) and cannot commit any more.
    ///
    /// ```
    /// # use queuert::{ChainRef, Client, Error, memory::MemoryState};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct AwaitApproval { order: u64 }
    /// # #[derive(queuert::JobTypes)]
    /// # enum Orders { #[job(entry, output = bool)] AwaitApproval(AwaitApproval) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = Client::new(MemoryState::new());
    /// let chain = client.start(AwaitApproval { order: 7 }).await?;
    ///
    /// let mut tx = client.begin().await?;
    /// let job = client.open::<AwaitApproval>(&chain).within(&mut tx).await?;
    /// job.finish(true).await?;
    /// tx.commit().await?;
    ///
    /// assert!(client.wait(&chain).await?);
    /// # Ok(()) }
    /// ```
    pub fn open<J: JobType>(&self, chain: impl ChainHandle) -> Open<'_, S, J> {
        fn entry_of<H: ChainHandle>(_: &H) -> &'static str {
            <H::Entry as JobType>::NAME
        }
        Open {
            client: self,
            chain_type: entry_of(&chain),
            chain: chain.chain_ref().id(),
            job: PhantomData,
        }
    }
}

/// A request to open the current job of a chain. Run it [`within`](Self::within) a transaction.
#[must_use = "opening does nothing until it is run with `.within(&mut tx).await`"]
pub struct Open<'c, S: StateAdapter, J> {
    client: &'c Client<S>,
    chain: ChainId,
    chain_type: &'static str,
    job: Of<J>,
}

impl<'c, S: StateAdapter, J: JobType> Open<'c, S, J> {
    /// Locks the chain until the transaction ends, and returns its current job.
    ///
    /// # Errors
    ///
    /// [`Error::ChainNotFound`]; [`Error::ChainEnded`]; [`Error::TypeMismatch`] if the chain is of another type;
    /// [`Error::AtAnotherJob`] if its current job is of another type; [`Error::Unreadable`]; [`Error::Undecodable`];
    /// [`Error::TransactionUnusable`]; [`Error::State`]. Nothing is changed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have locked the chain; the lock is released when the transaction ends.
    pub async fn within<'t, T: TransactionScope<S>>(self, transaction: &'t mut T) -> Result<OpenJob<'t, J, S>, Error> {
        transaction.catch_up().await?;
        let scope = transaction.scope()?;
        let client = self.client.clone();
        let Some(record) = client.state().lock_chain(scope.connection, self.chain).await? else {
            return Err(Error::ChainNotFound(self.chain));
        };
        if record.chain_type.as_str() != self.chain_type {
            return Err(Error::TypeMismatch {
                id: self.chain.first_job(),
                expected: self.chain_type.into(),
                actual: record.chain_type,
            });
        }
        if !record.status.is_open() {
            return Err(Error::ChainEnded {
                chain: self.chain,
                status: record.status,
            });
        }
        if record.unreadable.is_none() && record.type_name.as_str() != J::NAME {
            return Err(Error::AtAnotherJob {
                chain: self.chain,
                expected: J::NAME.into(),
                actual: record.type_name,
            });
        }
        let (input, record) = record.typed::<J>()?.into_parts();
        Ok(OpenJob {
            client,
            scope,
            input,
            record,
        })
    }
}

impl<S: StateAdapter, J> fmt::Debug for Open<'_, S, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}

/// The current job of a chain, locked by the caller's transaction. Dereferences to its input.
///
/// If it is dropped without [`finish`](Self::finish) or [`continue_with`](Self::continue_with), nothing changes.
pub struct OpenJob<'t, J, S: StateAdapter> {
    client: Client<S>,
    scope: Scope<'t, S>,
    input: J,
    record: JobRecord,
}

impl<'t, J: JobType, S: StateAdapter> OpenJob<'t, J, S> {
    /// The job as it is stored.
    pub fn record(&self) -> &JobRecord {
        &self.record
    }

    /// Finishes the chain with its output. It is announced when the transaction commits.
    ///
    /// # Errors
    ///
    /// [`Error::Unencodable`], [`Error::TransactionUnusable`], [`Error::State`]. After [`Error::State`] the transaction
    /// can only be rolled back.
    ///
    /// # Cancel safety
    ///
    /// As [`Request::within`](super::Request::within): the transaction never commits half of it.
    pub async fn finish<O: OutputOf<J>>(mut self, output: O) -> Result<(), Error> {
        let output = output.encode().map_err(|error| Error::Unencodable {
            type_name: J::NAME.into(),
            part: "output",
            message: error.to_string(),
        })?;
        self.settle(Outcome::Finish { output }, None).await
    }

    /// Continues the chain with the next job, and returns that job, which the caller may complete as well.
    ///
    /// # Errors
    ///
    /// [`Error::IdTaken`], [`Error::BlockerNotFound`], [`Error::BlockerCycle`], [`Error::Unencodable`],
    /// [`Error::TransactionUnusable`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// As [`Request::within`](super::Request::within): the transaction never commits half of it.
    pub async fn continue_with<N>(mut self, next: N) -> Result<OpenJob<'t, N::Job, S>, Error>
    where
        N: IntoStep,
        N::Job: ContinuationOf<J>,
    {
        let info = JobInfo::of(&self.record);
        let before = Continued::new(&info, self.record.trace_context.as_deref());
        let next = next.into_step();
        let own_id = next.settings.id.is_none();
        let (next, span) = new_job(&self.client, next, before)?;
        let (id, name) = (next.id, next.type_name.clone());
        let outcome = Outcome::Continue { next: Box::new(next) };
        self.settle(outcome, Some((id, name))).await?;
        if own_id {
            self.scope.effects.witnessed_by(id);
        }
        self.scope.effects.span(span, Commit::Created);
        let record = self
            .client
            .state()
            .get_jobs(Some(self.scope.connection), &[id])
            .await?
            .pop();
        let (input, record) = record.ok_or(Error::JobNotFound(id))?.typed::<N::Job>()?.into_parts();
        Ok(OpenJob {
            client: self.client,
            scope: self.scope,
            input,
            record,
        })
    }

    async fn settle(&mut self, outcome: Outcome, next: Option<(crate::JobId, TypeName)>) -> Result<(), Error> {
        let settlement = Settlement {
            job: self.record.id,
            authority: Authority::Outside,
            outcome,
        };
        let Self {
            client, scope, record, ..
        } = self;
        let span = client
            .hub()
            .hold(|adapter| adapter.completion_span(&OutsideCompletion::new(record, next.is_some())));
        let mut change = scope.change(client.state()).await?;
        let (connection, effects) = change.parts();
        let settled = client
            .state()
            .settle_jobs(Some(connection), std::slice::from_ref(&settlement))
            .await;
        let result = match settled.map(|settled| settled.into_iter().next()) {
            Ok(Some(Settled::Applied(applied))) => {
                // The store does not say when: the process's clock is near enough for a figure.
                let ages = Ages::at(record, Timestamp::wall_clock());
                effects.completed(&JobInfo::of(record), ages, None, next, &applied);
                effects.span(span, Commit::Completed);
                if applied.interrupted {
                    effects.lease_lost(record.id);
                }
                Ok(())
            }
            Ok(Some(Settled::Refused(refusal))) => Err(refusal.into()),
            Ok(Some(Settled::Lost(AbortReason::NotFound)) | None) => Err(Error::ChainNotFound(record.chain_id)),
            Ok(Some(Settled::Lost(AbortReason::Cancelled))) => Err(ended(record, JobStatus::Cancelled)),
            Ok(Some(Settled::Lost(_))) => Err(ended(record, JobStatus::Completed)),
            Ok(Some(Settled::Repeated(repeated))) => Err(ended(record, repeated.status)),
            Ok(Some(Settled::Busy)) => Err(Error::State(crate::StateError::new(
                crate::StateErrorKind::Conflict,
                "the chain is locked by another transaction although this one has locked it",
            ))),
            Err(error) => Err(Error::State(error)),
        };
        change.end(result).await
    }
}

fn ended(record: &JobRecord, status: JobStatus) -> Error {
    Error::ChainEnded {
        chain: record.chain_id,
        status,
    }
}

impl<J, S: StateAdapter> Deref for OpenJob<'_, J, S> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.input
    }
}

impl<J: fmt::Debug, S: StateAdapter> fmt::Debug for OpenJob<'_, J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenJob")
            .field("input", &self.input)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}
