//! An attempt as its processor sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::__task::{Lock, LockGuard};
use crate::adapter::{AttemptStart, Continued, NewJob, Outcome, RenewLease, Renewal, StateAdapter};
use crate::blockers::BlockerSpec;
use crate::chain::ChainRecord;
use crate::client::{Client, Transaction, new_job};
use crate::error::{Error, JobError};
use crate::event::{Ages, AttemptInfo, Event};
use crate::id::{ChainId, Fence, JobId};
use crate::job::{AttemptError, JobRecord};
use crate::job_type::{BlockerOf, ContinuationOf, JobType, OutputOf};
use crate::payload::Payload;
use crate::settings::LeaseSettings;
use crate::step::IntoStep;
use crate::time::{Schedule, Timestamp};
use crate::worker::context::Common;
use crate::worker::user::abort::{AbortHandle, AbortReason, AbortSignal};
use crate::worker::user::completion::{Completion, CompletionKind, How, JobResult};
use crate::worker::user::extensions::Values;
use crate::worker::user::transaction::AttemptTransaction;

/// The shortest snooze. Snoozing costs no attempt, so nothing else would slow down a processor that snoozes for no time, or
/// until a time that has passed or is about to, again and again.
pub(crate) const SHORTEST_SNOOZE: Duration = Duration::from_millis(100);

/// What all views of one attempt share.
pub(crate) struct Shared<S: StateAdapter> {
    pub(crate) common: Arc<Common<S>>,
    pub(crate) record: JobRecord,
    pub(crate) blockers: Vec<ChainRecord>,
    pub(crate) info: Arc<AttemptInfo>,
    pub(crate) fence: Fence,
    pub(crate) lease: LeaseSettings,
    /// Attempts after which the job is dead, where the starter chose no number.
    pub(crate) max_attempts: u32,
    /// The moment before the claim was sent.
    pub(crate) claimed_at: Instant,
    pub(crate) abort: AbortHandle,
    pub(crate) held: Lock<HeldLease>,
    /// The processor is done, and the end of the attempt is on its way to the store.
    pub(crate) settling: AtomicBool,
    /// A transaction of the attempt was dropped, and what it wrote rolled back.
    pub(crate) abandoned: AtomicBool,
    /// The transaction that the attempt has open; see [`OpenTransaction`].
    pub(crate) transaction: AtomicU8,
}

/// Keeps an attempt from opening a second transaction while it has one: that one would wait for the locks of the first, and
/// nothing would ever end the wait.
pub(crate) struct OpenTransaction<S: StateAdapter>(Arc<Shared<S>>);

impl<S: StateAdapter> OpenTransaction<S> {
    const NONE: u8 = 0;
    const OPEN: u8 = 1;
    /// The completion of the attempt is written in it.
    const WRITTEN: u8 = 2;

    fn new(shared: &Arc<Shared<S>>) -> Result<Self, Error> {
        let (none, open) = (Self::NONE, Self::OPEN);
        let before = shared
            .transaction
            .compare_exchange(none, open, Ordering::SeqCst, Ordering::SeqCst);
        match before {
            Ok(_) => Ok(Self(Arc::clone(shared))),
            Err(before) => Err(Error::TransactionOpen {
                job: shared.record.id,
                written: before == Self::WRITTEN,
            }),
        }
    }

    /// The completion of the attempt has been written in it.
    pub(crate) fn written(&self) {
        self.0.transaction.store(Self::WRITTEN, Ordering::SeqCst);
    }
}

impl<S: StateAdapter> Drop for OpenTransaction<S> {
    fn drop(&mut self) {
        self.0.transaction.store(Self::NONE, Ordering::SeqCst);
    }
}

/// What is known of a lease, by the process's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLease {
    pub(crate) renew_at: Instant,
    /// When it is surely over.
    pub(crate) expires_at: Instant,
    /// Somebody says that it is lost.
    pub(crate) doubted: bool,
}

impl<S: StateAdapter> Shared<S> {
    pub(crate) fn client(&self) -> &Client<S> {
        &self.common.client
    }

    /// Whether the job is dead if this attempt fails.
    pub(crate) fn is_last_attempt(&self) -> bool {
        self.record.attempt >= self.record.max_attempts.unwrap_or(self.max_attempts)
    }

    pub(crate) fn held(&self) -> LockGuard<'_, HeldLease> {
        self.held.lock()
    }

    /// Extends the lease in a transaction that holds it and is about to commit, if its renewal is overdue: the transaction
    /// has kept the renewals from the store, and without its lock a sweep of another process could be faster than the next
    /// one. Returns when the extended lease begins and the end that the store gave it.
    async fn extend_overdue(&self, transaction: &mut Transaction<S>) -> Result<Option<(Instant, Timestamp)>, Error> {
        let now = Instant::now();
        if now < self.held().renew_at {
            return Ok(None);
        }
        let renewal = RenewLease {
            job: self.record.id,
            fence: self.fence,
            lease: self.lease.duration,
        };
        let state = self.client().state();
        let renewed = state.renew_leases(Some(&mut *transaction), &[renewal]).await;
        let renewed = transaction.end_change(renewed.map_err(Error::State))?;
        Ok(match renewed.first() {
            Some(Renewal::Renewed(until)) => Some((now, *until)),
            _ => None,
        })
    }

    /// Notes that the store has extended the lease at this time, until this one by its own clock.
    pub(crate) fn extended(&self, (at, until): (Instant, Timestamp)) {
        *self.held() = HeldLease {
            renew_at: at + self.lease.renew_every,
            expires_at: at + self.lease.duration,
            doubted: false,
        };
        self.client().hub().emit_often(|| Event::LeaseRenewed {
            attempt: Arc::clone(&self.info),
            until,
        });
    }

    /// Fails early when the job is known to be lost. A stopping worker may still complete what it can. A lease that could
    /// not be renewed is over by the process's clock only: whether the job is lost is for the store to say, by its fence.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.abort.reason() {
            None | Some(AbortReason::Shutdown | AbortReason::Error) => Ok(()),
            Some(reason) => Err(Error::LeaseLost {
                job: self.record.id,
                reason,
            }),
        }
    }

    /// Fires the signal because the job is lost, and says so to whoever listens, once.
    pub(crate) fn lost(&self, reason: AbortReason) {
        if self.abort.abort(reason) {
            self.client().hub().emit_with(|| Event::LeaseLost {
                attempt: Arc::clone(&self.info),
                reason,
            });
        }
    }

    /// The attempt as it begins.
    pub(crate) fn start(&self) -> AttemptStart<'_> {
        AttemptStart::new(&self.info, &self.record, &self.blockers)
    }

    /// Fires the signal because the attempt ran too long, and says so to whoever listens.
    pub(crate) fn timed_out(&self, timeout: Duration) {
        self.abort.abort(AbortReason::TimedOut);
        self.client().hub().emit_with(|| Event::AttemptTimedOut {
            attempt: Arc::clone(&self.info),
            timeout,
        });
    }

    /// How long job and chain have existed, if anybody wants to know.
    pub(crate) fn ages(&self) -> Ages {
        if !self.client().hub().is_listened_to() {
            return Ages::default();
        }
        Ages::at(&self.record, self.now())
    }

    /// The time by the store's clock until the claim, and by the process's clock since: never behind the store's.
    pub(crate) fn now(&self) -> Timestamp {
        self.info.started_at.saturating_add(self.claimed_at.elapsed())
    }

    /// This job, as what the next one continues.
    pub(crate) fn continued(&self) -> Continued<'_> {
        Continued::new(&self.info.job, self.info.trace_context.as_deref())
    }

    pub(crate) fn completion(&self, kind: CompletionKind, how: How<S>) -> Completion<S> {
        Completion {
            job: self.record.id,
            fence: self.fence,
            kind,
            how,
        }
    }
}

/// An attempt whose job type is not known yet: what a worker hands to a processor of any type.
pub struct RawAttempt<S: StateAdapter> {
    pub(crate) shared: Arc<Shared<S>>,
    pub(crate) values: Values,
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
            values: self.values,
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
/// Adapter crates export an alias with their state type filled in, such as [`memory::Attempt`](crate::memory::Attempt).
pub struct Attempt<J: JobType, S: StateAdapter> {
    input: J,
    blockers: <J::Blockers as BlockerSpec>::Outputs,
    shared: Arc<Shared<S>>,
    values: Values,
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

    /// Whether the job is dead if this attempt fails: no attempt is left, by what the starter chose or by the retry policy of
    /// its type. An attempt that is snoozed or given back is not spent, so there may be another one all the same.
    pub fn is_last_attempt(&self) -> bool {
        self.shared.is_last_attempt()
    }

    /// How the attempt before failed, if it did.
    pub fn last_error(&self) -> Option<&AttemptError> {
        self.shared.record.last_error.as_ref()
    }

    /// The job as it was claimed.
    pub fn record(&self) -> &JobRecord {
        &self.shared.record
    }

    /// What identifies this attempt in events.
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
    /// [`Error::MissingValue`] if nobody did; with `?` that is a failed attempt whose error says so.
    pub fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, Error> {
        self.values.get()
    }

    /// The client that the worker was made from.
    pub fn client(&self) -> &Client<S> {
        self.shared.client()
    }

    /// Fires with a reason when this attempt should stop, because nothing that it writes could be committed.
    pub fn signal(&self) -> AbortSignal {
        self.shared.abort.signal()
    }

    /// Finishes the chain with its output. The worker commits many of these in one statement.
    ///
    /// # Errors
    ///
    /// When the output cannot be written as JSON: a fatal one, as no retry would help.
    pub fn finish<O: OutputOf<J>>(self, output: O) -> JobResult<S> {
        let output = encode_output::<J, O>(&output)?;
        let how = How::Grouped(Outcome::Finish { output }, None);
        Ok(self.shared.completion(CompletionKind::Finish, how))
    }

    /// Continues the chain with the next job. The worker commits many of these in one statement.
    ///
    /// # Errors
    ///
    /// When the input cannot be written as JSON, or a setting of the step is refused.
    pub fn continue_with<N>(self, next: N) -> JobResult<S>
    where
        N: IntoStep,
        N::Job: ContinuationOf<J>,
    {
        let (next, span) = new_job(self.shared.client(), next.into_step(), self.shared.continued())?;
        let kind = continue_kind(&next);
        let how = How::Grouped(Outcome::Continue { next: Box::new(next) }, span);
        Ok(self.shared.completion(kind, how))
    }

    /// Runs the job again after a delay, at no cost: the attempt is not spent. A delay of less than 100 milliseconds is one
    /// of 100 milliseconds.
    ///
    /// # Errors
    ///
    /// Never; the result fits the processor's.
    pub fn snooze(self, delay: Duration) -> JobResult<S> {
        self.snooze_for(Schedule::After(delay.max(SHORTEST_SNOOZE)))
    }

    /// Runs the job again at a time, at no cost: the attempt is not spent. A time that has passed, or is less than 100
    /// milliseconds ahead, means 100 milliseconds from now, so that a processor which always gives such a time does not run
    /// without a pause.
    ///
    /// # Errors
    ///
    /// Never; the result fits the processor's.
    pub fn snooze_until(self, time: impl Into<Timestamp>) -> JobResult<S> {
        let time = time.into();
        let schedule = if time < self.shared.now().saturating_add(SHORTEST_SNOOZE) {
            Schedule::After(SHORTEST_SNOOZE)
        } else {
            Schedule::At(time)
        };
        self.snooze_for(schedule)
    }

    fn snooze_for(self, schedule: Schedule) -> JobResult<S> {
        let how = How::Grouped(Outcome::Snooze { schedule }, None);
        Ok(self.shared.completion(CompletionKind::Snooze, how))
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
    /// transaction, [`Error::State`], or what a middleware returned.
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
    /// What `work` returned; [`Error::LeaseLost`]; [`Error::TransactionOpen`] while the attempt has another transaction;
    /// [`Error::TransactionUnusable`] if a request in this one was dropped or failed, or it has ended; [`Error::State`]; what
    /// a middleware returned. Nothing is committed.
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
            .common
            .middlewares
            .closing(&self.shared.info, &mut transaction)
            .await?;
        transaction.check()?;
        let held = self
            .client()
            .state()
            .hold_lease(&mut transaction, self.id(), self.shared.fence)
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
            .common
            .middlewares
            .opened(&self.shared.info, &mut transaction)
            .await?;
        Ok(transaction)
    }
}

pub(crate) fn encode_output<J: JobType, O: OutputOf<J>>(output: &O) -> Result<Payload, JobError> {
    output.encode().map_err(|error| {
        JobError::fatal(Error::Unencodable {
            type_name: J::NAME.into(),
            part: "output",
            message: error.to_string(),
        })
    })
}

pub(crate) fn continue_kind(next: &NewJob) -> CompletionKind {
    CompletionKind::Continue {
        next: next.id,
        next_type: next.type_name.clone(),
    }
}

impl<J: JobType, S: StateAdapter> Deref for Attempt<J, S> {
    // The compiler shows this line to whoever reads the job in the call that ends it.
    type Target = J; // read it before the call that ends the attempt: `let x = job.x; job.finish(x)`

    fn deref(&self) -> &J {
        &self.input
    }
}

impl<J: JobType, S: StateAdapter> fmt::Debug for Attempt<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.shared.info).finish()
    }
}
