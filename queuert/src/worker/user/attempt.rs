//! An attempt as its processor sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{Outcome, StateAdapter};
use crate::blockers::BlockerSpec;
use crate::client::{Client, Transaction, new_job};
use crate::error::{Error, JobError};
use crate::event::AttemptInfo;
use crate::id::{ChainId, JobId};
use crate::job::{AttemptError, JobRecord};
use crate::job_type::{BlockerOf, ContinuationOf, JobType, OutputOf};
use crate::step::IntoStep;
use crate::time::{Schedule, Timestamp};
use crate::worker::user::abort::AbortSignal;
use crate::worker::user::completion::{
    Completion, CompletionKind, How, JobResult, continue_kind, encode_output, snoozed,
};
use crate::worker::user::extensions::Extensions;
use crate::worker::user::shared::{OpenTransaction, SharedAttempt};
use crate::worker::user::transaction::AttemptTransaction;

/// The shortest snooze. Snoozing costs no attempt, so nothing else would slow down a processor that snoozes for no time, or
/// until a time that has passed or is about to, again and again.
pub(crate) const SHORTEST_SNOOZE: Duration = Duration::from_millis(100);

/// An attempt whose job type is not known yet, as a worker hands it to a processor of any type.
pub struct RawAttempt<S: StateAdapter> {
    pub(crate) shared: Arc<SharedAttempt<S>>,
    pub(crate) extensions: Extensions,
}

impl<S: StateAdapter> RawAttempt<S> {
    /// The name of the job's type.
    pub fn type_name(&self) -> &str {
        self.shared.record.type_name.as_str()
    }

    /// As an attempt of job type `J`.
    ///
    /// # Errors
    ///
    /// A fatal one when the job is of another type, or its input or a blocker's output cannot be decoded: no retry
    /// would help, so the job is dead until someone deploys a build that can read it and retries the chain.
    pub fn typed<J: JobType>(self) -> Result<Attempt<J, S>, JobError> {
        let record = &self.shared.record;
        if record.type_name.as_str() != J::NAME {
            return Err(JobError::fatal(Error::TypeMismatch {
                id: record.id,
                expected: J::NAME.into(),
                actual: record.type_name.clone(),
            }));
        }
        let input =
            J::decode(&record.input).map_err(|error| JobError::fatal(Error::undecodable_input(record, &error)))?;
        let blockers = J::Blockers::decode(&self.shared.blockers).map_err(JobError::fatal)?;
        Ok(Attempt {
            input,
            blockers,
            shared: self.shared,
            extensions: self.extensions,
        })
    }

    /// The error for a job of no type of the enum `enum_name`.
    pub fn unknown(&self, enum_name: &str) -> JobError {
        JobError::fatal(format!("`{}` is no job type of `{enum_name}`", self.type_name()))
    }
}

impl<S: StateAdapter> fmt::Debug for RawAttempt<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawAttempt").field(&self.shared.info).finish()
    }
}

/// One run of a job of type `J`. Dereferences to its input.
///
/// End it with [`finish`](Self::finish), [`continue_with`](Self::continue_with) or [`snooze`](Self::snooze), or fail
/// with `?`. A processor that writes to the database opens a transaction with [`begin`](Self::begin) and ends that.
///
/// These calls borrow the attempt, so that their arguments may read it: `job.finish(Receipt { order: job.order })`. Each makes
/// a [`Completion`], which the worker writes only if the processor returns it; an attempt cannot end twice.
///
/// Adapter crates export an alias with their state type filled in, such as [`memory::Attempt`](crate::memory::Attempt).
pub struct Attempt<J: JobType, S: StateAdapter> {
    input: J,
    blockers: <J::Blockers as BlockerSpec>::Outputs,
    shared: Arc<SharedAttempt<S>>,
    extensions: Extensions,
}

impl<J: JobType, S: StateAdapter> Attempt<J, S> {
    /// The input.
    pub fn input(&self) -> &J {
        &self.input
    }

    /// The job's id.
    pub fn id(&self) -> JobId {
        self.shared.record.id
    }

    /// The id of its chain.
    pub fn chain_id(&self) -> ChainId {
        self.shared.record.chain_id
    }

    /// The number of this attempt, from one.
    pub fn number(&self) -> u32 {
        self.shared.record.attempt
    }

    /// Whether the job is dead if this attempt fails: no attempt is left, by the number that the starter chose or by the retry
    /// policy of its type. An attempt that is snoozed or given back is not spent, so there may be another one all the same.
    pub fn is_last_attempt(&self) -> bool {
        self.shared.is_last_attempt()
    }

    /// The error of the previous attempt, if that failed.
    pub fn last_error(&self) -> Option<&AttemptError> {
        self.shared.record.last_error.as_ref()
    }

    /// The job as it was claimed.
    pub fn record(&self) -> &JobRecord {
        &self.shared.record
    }

    /// The job, the number of the attempt, its worker and its times, as events carry them.
    pub fn info(&self) -> &AttemptInfo {
        &self.shared.info
    }

    /// The outputs of the chains that it waited for, as declared: one, a tuple, or a `Vec`.
    pub fn blockers(&self) -> &<J::Blockers as BlockerSpec>::Outputs {
        &self.blockers
    }

    /// The outputs of the blockers that start with an `A`, in the order in which they were given.
    pub fn outputs_of<A: BlockerOf<J>>(&self) -> Vec<&A::Output> {
        A::outputs(&self.blockers)
    }

    /// A value that the worker provides with `.provide(..)` or a middleware inserted.
    ///
    /// # Errors
    ///
    /// [`Error::MissingValue`] if there is none of this type; with `?` that is a failed attempt whose error says so.
    pub fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, Error> {
        self.extensions.get()
    }

    /// The client that the worker was made from.
    pub fn client(&self) -> &Client<S> {
        self.shared.client()
    }

    /// Fires with a reason when this attempt should stop, because it could not commit anything.
    pub fn signal(&self) -> AbortSignal {
        self.shared.abort.signal()
    }

    /// Finishes the chain with its output. The worker commits many of these in one statement.
    ///
    /// # Errors
    ///
    /// When the output cannot be written as JSON: a fatal one, as no retry would help.
    pub fn finish<O: OutputOf<J>>(&self, output: O) -> JobResult<S> {
        let output = encode_output::<J, O>(&output)?;
        let how = How::Grouped(Outcome::Finish { output }, None);
        Ok(Completion::new(&self.shared, CompletionKind::Finish, how))
    }

    /// Continues the chain with the next job. The worker commits many of these in one statement.
    ///
    /// # Errors
    ///
    /// When the input cannot be written as JSON, or a setting of the step is refused.
    pub fn continue_with<N>(&self, next: N) -> JobResult<S>
    where
        N: IntoStep,
        N::Job: ContinuationOf<J>,
    {
        let (next, span) = new_job(self.shared.client(), next.into_step(), self.shared.continued())?;
        let kind = continue_kind(&next);
        let how = How::Grouped(Outcome::Continue { next: Box::new(next) }, span);
        Ok(Completion::new(&self.shared, kind, how))
    }

    /// Runs the job again after a delay, at no cost: the attempt is not spent. A delay of less than 100 milliseconds is one
    /// of 100 milliseconds.
    ///
    /// # Errors
    ///
    /// Never; the result fits the processor's.
    pub fn snooze(&self, delay: Duration) -> JobResult<S> {
        self.snooze_for(Schedule::After(delay.max(SHORTEST_SNOOZE)))
    }

    /// Runs the job again at a time, at no cost: the attempt is not spent. A time that has passed, or is less than 100
    /// milliseconds ahead, means 100 milliseconds from now, so that a processor which always gives such a time does not run
    /// without a pause.
    ///
    /// # Errors
    ///
    /// Never; the result fits the processor's.
    pub fn snooze_until(&self, time: impl Into<Timestamp>) -> JobResult<S> {
        let time = time.into();
        let schedule = if time < self.shared.now().saturating_add(SHORTEST_SNOOZE) {
            Schedule::After(SHORTEST_SNOOZE)
        } else {
            Schedule::At(time)
        };
        self.snooze_for(schedule)
    }

    fn snooze_for(&self, schedule: Schedule) -> JobResult<S> {
        Ok(snoozed(&self.shared, schedule))
    }

    /// Opens the transaction in which the attempt writes and completes: end it with
    /// [`AttemptTransaction::finish`] or [`AttemptTransaction::continue_with`]. The worker commits it after the
    /// processor and all middlewares returned `Ok`; an error rolls everything back.
    ///
    /// An attempt has one transaction at a time: a second one would wait for the locks of the first.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if the job is known to be lost, [`Error::TransactionOpen`] while the attempt has another
    /// transaction, [`Error::State`], or the error of a middleware.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no open transaction behind.
    pub async fn begin(&self) -> Result<AttemptTransaction<J, S>, JobError> {
        let open = OpenTransaction::new(&self.shared)?;
        let transaction = self.open_transaction().await?;
        Ok(AttemptTransaction::new(transaction, open, Arc::clone(&self.shared)))
    }

    /// Runs `work` in a short transaction of its own that is committed at once, before the slow part of the processor:
    /// to read, or to reserve something. It cannot commit if the attempt has lost its job.
    ///
    /// ```
    /// # use queuert::memory::{Attempt, JobResult};
    /// # use queuert::Error;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
    /// # #[derive(queuert::JobTypes)]
    /// # enum Orders { #[job(entry, output = ())] Charge(Charge) }
    /// # async fn call_the_bank(_: u64) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn charge(job: Attempt<Charge>) -> JobResult {
    ///     let amount = job
    ///         .prepare(async |tx| Ok::<_, Error>(tx.get::<u64>("amount").await?.unwrap_or(0)))
    ///         .await?;
    ///     call_the_bank(amount).await?; // no transaction is open, the lease is renewed meanwhile
    ///     let mut tx = job.begin().await?;
    ///     tx.put("charged", true).await?;
    ///     tx.finish(()).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`; [`Error::LeaseLost`]; [`Error::TransactionOpen`] while the attempt has another transaction;
    /// [`Error::TransactionUnusable`] if a request in this one was dropped or failed, or it has ended; [`Error::State`];
    /// the error of a middleware. Nothing is committed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has committed `work` entirely or not at all.
    pub async fn prepare<T, E, F>(&self, work: F) -> Result<T, JobError>
    where
        F: AsyncFnOnce(&mut Transaction<S>) -> Result<T, E>,
        JobError: From<E>,
    {
        // Dropped after the transaction.
        let _open = OpenTransaction::new(&self.shared)?;
        let mut transaction = self.open_transaction().await?;
        let value = work(&mut transaction).await?;
        self.shared
            .environment
            .hooks
            .closing(&self.shared.info, &mut transaction)
            .await?;
        transaction.check().await?;
        let held = self
            .client()
            .state()
            .hold_lease(transaction.opened(), self.id(), self.shared.fence)
            .await;
        let held = transaction.end_change(held.map_err(Error::State))?;
        if let Err(reason) = held {
            self.shared.lost(reason);
            return Err(Error::LeaseLost { job: self.id(), reason }.into());
        }
        let extended = self.shared.extend_overdue(&mut transaction).await?;
        transaction.commit().await?;
        if let Some(extended) = extended {
            self.shared.extended(extended);
        }
        Ok(value)
    }

    async fn open_transaction(&self) -> Result<Transaction<S>, JobError> {
        self.shared.check()?;
        let mut transaction = self.client().begin().await?;
        self.shared
            .environment
            .hooks
            .opened(&self.shared.info, &mut transaction)
            .await?;
        Ok(transaction)
    }
}

impl<J: JobType, S: StateAdapter> Deref for Attempt<J, S> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.input
    }
}

impl<J: JobType, S: StateAdapter> fmt::Debug for Attempt<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.shared.info).finish()
    }
}
