//! Runs one attempt from its claim to its end.

use std::collections::btree_map::Entry;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::attempt::Shared;
use super::completion::{Completion, CompletionKind, How, JobResult};
use super::middleware::{AttemptContext, Next};
use super::runtime::{InFlight, Runtime, TypeRuntime, contained, panic_message};
use super::settler::SettleRequest;
use super::signal::{AbortHandle, AbortReason};
use super::slots::Slot;
use crate::adapter::{Applied, Authority, ClaimedJob, Commit, NewJob, Outcome, Settled, Settlement, StateAdapter};
use crate::client::{Transaction, report};
use crate::effects::Effects;
use crate::error::{Error, JobError, StateError, Verdict, shorten};
use crate::event::{AttemptInfo, AttemptOutcome, Event, JobInfo};
use crate::event_hub::{HeldSpan, RunningSpan};
use crate::event_log;
use crate::job::JobStatus;
use crate::settings::LeaseSettings;
use crate::time::Schedule;

/// What is left when an attempt has ended.
pub(crate) struct Ended<S: StateAdapter> {
    pub(crate) info: Arc<AttemptInfo>,
    pub(crate) outcome: AttemptOutcome,
    /// The next job of the chain, if it was handed over.
    pub(crate) next: Option<Attempt<S>>,
}

/// Runs a claimed job.
pub(crate) async fn run_attempt<S: StateAdapter>(attempt: Attempt<S>) -> Ended<S> {
    let started = Instant::now();
    let processor = Arc::clone(&attempt.job_type);
    let hub = attempt.runtime.client.hub();
    hub.emit_often(|| Event::AttemptStarted(Arc::clone(&attempt.shared.info)));
    let mut span = RunningSpan::new(hub.ask(|adapter| adapter.attempt_span(&attempt.shared.start())));
    let end = attempt.run(&processor, &mut span).await;
    let (outcome, next) = attempt.settle(end, &processor).await;
    span.end(&outcome);
    let ended = || Event::AttemptEnded {
        attempt: Arc::clone(&attempt.shared.info),
        outcome: outcome.clone(),
        duration: started.elapsed(),
    };
    match &outcome {
        AttemptOutcome::Finished | AttemptOutcome::Continued { .. } | AttemptOutcome::Snoozed => hub.emit_often(ended),
        _ => hub.emit_with(ended),
    }
    Ended {
        info: Arc::clone(&attempt.shared.info),
        outcome,
        next,
    }
}

/// How the processor's part ended.
enum End<S: StateAdapter> {
    Returned(Box<JobResult<S>>),
    Panicked(String),
    TimedOut(Duration),
    /// Dropped because the signal fired.
    Dropped(AbortReason),
    /// Dropped because the worker could wait no longer.
    Killed,
}

/// What the store made of the end of an attempt.
enum Written {
    Done(Applied),
    Lost(AbortReason),
    Refused(Error),
    Failed(StateError),
    /// An earlier write under the same fence stands.
    Before(JobStatus),
}

/// A completion that goes to the store with others.
struct Grouped {
    kind: CompletionKind,
    /// That of the next job's creation.
    span: Option<HeldSpan>,
    /// The next job, if it was asked for, and when that was.
    expected: Option<Box<NewJob>>,
    asked_at: Instant,
}

impl Grouped {
    /// It has been written.
    fn told(self) -> (AttemptOutcome, Option<Box<NewJob>>, Instant) {
        if let Some(span) = self.span {
            span.committed(Commit::Created);
        }
        (completed(self.kind), self.expected, self.asked_at)
    }
}

/// An attempt that this process has claimed.
pub(crate) struct Attempt<S: StateAdapter> {
    pub(super) runtime: Arc<Runtime<S>>,
    job_type: Arc<TypeRuntime<S>>,
    pub(super) shared: Arc<Shared<S>>,
    /// The worker that has it, until the end is on its way to the store.
    slot: Mutex<Option<Slot>>,
    /// How many more jobs of its chain may be handed over before the chain gets in line again.
    pub(super) steps_left: u32,
}

/// How many jobs of a chain may run one after the other before it gets in line again. Others wait longer for it, and the
/// chain ends sooner; a job that waits is passed by at most this many steps of each chain that was claimed before it.
pub(crate) const STEPS_IN_A_TURN: u32 = 8;

impl<S: StateAdapter> Attempt<S> {
    /// Takes charge of a claimed job: from here on its lease is renewed. `claimed_at` is the moment before the claim was
    /// sent: the lease cannot end before it plus the lease's duration.
    ///
    /// `steps` is how many jobs of its chain may run in this turn, with this one.
    pub(crate) fn new(runtime: &Arc<Runtime<S>>, claimed: ClaimedJob, claimed_at: Instant, steps: u32) -> Option<Self> {
        let ClaimedJob { job, blockers } = claimed;
        // An adapter that breaks its contract here leaves a job that nobody can settle; its lease will expire.
        let fence = job.lease.as_ref()?.fence;
        let job_type = Arc::clone(runtime.types.get(&job.type_name)?);
        let info = Arc::new(AttemptInfo {
            job: JobInfo::of(&job),
            attempt: job.attempt,
            worker: runtime.worker.clone(),
            trace_context: job.trace_context.clone(),
            created_at: job.created_at,
            scheduled_at: job.scheduled_at,
            started_at: job.started_at.unwrap_or(job.created_at),
        });
        let abort = AbortHandle::new();
        let LeaseSettings {
            duration, renew_every, ..
        } = job_type.lease;
        let in_flight = InFlight {
            fence,
            lease: job_type.lease,
            abort: abort.clone(),
            info: Arc::clone(&info),
            renew_at: claimed_at + renew_every,
            expires_at: claimed_at + duration,
            doubted: false,
            settling: false,
        };
        let before = runtime.in_flight().insert(job.id, in_flight);
        // This process has the job again: its old attempt has lost it, and nobody would renew that lease any more.
        if let Some(before) = before
            && before.abort.abort(AbortReason::TakenByAnotherWorker)
        {
            runtime.client.hub().emit_with(|| Event::LeaseLost {
                attempt: before.info,
                reason: AbortReason::TakenByAnotherWorker,
            });
        }
        let shared = Arc::new(Shared {
            client: runtime.client.clone(),
            record: job,
            blockers,
            info,
            fence,
            claimed_at,
            abort,
            middlewares: runtime.middlewares.clone(),
            abandoned: AtomicBool::new(false),
        });
        Some(Self {
            runtime: Arc::clone(runtime),
            job_type,
            shared,
            slot: Mutex::new(None),
            steps_left: steps.saturating_sub(1),
        })
    }

    /// A worker has it now.
    pub(crate) fn on(self, slot: Slot) -> Self {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(slot);
        self
    }

    /// Waits until the attempt is told to stop.
    pub(crate) async fn aborted(&self) -> AbortReason {
        self.shared.abort.signal().aborted().await
    }

    fn info(&self) -> &AttemptInfo {
        &self.shared.info
    }

    async fn run(&self, job_type: &TypeRuntime<S>, span: &mut RunningSpan) -> End<S> {
        let mut context = AttemptContext {
            shared: Arc::clone(&self.shared),
            values: self.runtime.values.clone(),
        };
        let next = Next::new(&self.shared.middlewares, &job_type.processor);
        let body = async {
            let mut result = next.run(&mut context).await;
            // The last words of the middlewares belong to the attempt: its timeout, its abort and its panics cover them.
            if let Ok(completion) = &mut result
                && let How::Written(transaction) = &mut completion.how
            {
                self.shared.middlewares.closing(self.info(), transaction).await?;
            }
            result
        };
        let mut body = pin!(AssertUnwindSafe(body).catch_unwind());
        let hub = self.runtime.client.hub();
        let type_name = &self.info().job.type_name;
        // The lines that the processor logs carry what is known of its attempt.
        let logged = event_log::attempt_span(self.info());
        let body = std::future::poll_fn(|cx| {
            job_type.advice.watch(hub, type_name, || {
                let _entered = logged.enter();
                span.scope(|| body.as_mut().poll(cx))
            })
        });
        let timeout = async {
            match job_type.timeout {
                Some(timeout) => {
                    tokio::time::sleep(timeout).await;
                    timeout
                }
                None => std::future::pending().await,
            }
        };
        let dropped = async {
            if self.runtime.settings.drop_on_abort {
                self.shared.abort.signal().aborted().await
            } else {
                std::future::pending().await
            }
        };
        tokio::select! {
            biased;
            result = body => match result {
                Ok(result) => End::Returned(Box::new(result)),
                Err(panic) => End::Panicked(panic_message(&*panic).to_owned()),
            },
            timeout = timeout => {
                self.shared.timed_out(timeout);
                End::TimedOut(timeout)
            }
            reason = dropped => End::Dropped(reason),
            () = self.runtime.kill.cancelled() => End::Killed,
        }
    }

    async fn settle(&self, end: End<S>, job_type: &TypeRuntime<S>) -> (AttemptOutcome, Option<Self>) {
        if let Some(attempt) = self.runtime.in_flight().get_mut(&self.shared.record.id)
            && attempt.fence == self.shared.fence
        {
            attempt.settling = true;
        }
        let outcome = match end {
            End::Returned(result) => match *result {
                Ok(completion) => return self.complete(completion, job_type).await,
                Err(error) => self.fail(error, job_type).await,
            },
            End::Panicked(message) => {
                self.fail(JobError::from(format!("panicked: {message}")), job_type)
                    .await
            }
            End::TimedOut(timeout) => {
                self.fail(JobError::from(format!("timed out after {timeout:?}")), job_type)
                    .await
            }
            End::Dropped(AbortReason::Shutdown) | End::Killed => self.release().await,
            End::Dropped(reason) => AttemptOutcome::Aborted(reason),
        };
        (outcome, None)
    }

    async fn complete(&self, completion: Completion<S>, job_type: &TypeRuntime<S>) -> (AttemptOutcome, Option<Self>) {
        let Completion { job, fence, kind, how } = completion;
        if job != self.shared.record.id || fence != self.shared.fence {
            let message = format!("the processor returned the completion of another attempt, of job {job}");
            return (self.fail(JobError::from(message), job_type).await, None);
        }
        // Snoozing may well follow a look that was not worth keeping.
        if self.shared.abandoned.load(Ordering::Relaxed)
            && matches!(how, How::Grouped(..))
            && kind != CompletionKind::Snooze
        {
            let hub = self.runtime.client.hub();
            job_type.advice.dropped_transaction(hub, &self.info().job.type_name);
        }
        match how {
            How::Grouped(mut outcome, span) => {
                let asked_at = Instant::now();
                let expected = self.ask_for_next(&mut outcome);
                let written = self.write(outcome).await;
                let grouped = Grouped {
                    kind,
                    span,
                    expected,
                    asked_at,
                };
                self.completed(written, grouped, job_type).await
            }
            How::Written(transaction) => match self.commit(*transaction).await {
                Ok(()) => (completed(kind), None),
                Err(error) => (self.fail_after_commit(error, &kind, job_type).await, None),
            },
        }
    }

    async fn completed(
        &self,
        written: Written,
        grouped: Grouped,
        job_type: &TypeRuntime<S>,
    ) -> (AttemptOutcome, Option<Self>) {
        match written {
            Written::Done(applied) => {
                let (outcome, expected, asked_at) = grouped.told();
                let next = self.handed_over(expected, applied.handed_over);
                let next = next.and_then(|next| Self::new(&self.runtime, next, asked_at, self.steps_left));
                (outcome, next)
            }
            Written::Before(_) => self.completed_before(grouped).await,
            Written::Lost(reason) => (self.lost(reason), None),
            Written::Refused(error) => (self.fail(error.into(), job_type).await, None),
            Written::Failed(error) => {
                let (outcome, ended) = self.judge(&error.into(), job_type);
                match self.write(outcome).await {
                    // The store had taken the completion and only its answer was lost.
                    Written::Before(JobStatus::Completed) => self.completed_before(grouped).await,
                    written => (self.failed(written, ended), None),
                }
            }
        }
    }

    /// The store had taken the completion before, and what else it said then is lost.
    async fn completed_before(&self, grouped: Grouped) -> (AttemptOutcome, Option<Self>) {
        let (outcome, expected, _) = grouped.told();
        (outcome, self.find_next(expected).await)
    }

    async fn commit(&self, transaction: Transaction<S>) -> Result<(), (StateError, Effects)> {
        let (inner, effects) = transaction.into_parts();
        match contained(self.runtime.client.state().commit(inner)).await {
            Ok(()) => {
                self.runtime.flush(effects).await;
                Ok(())
            }
            Err(error) => Err((error, effects)),
        }
    }

    async fn fail_after_commit(
        &self,
        (error, effects): (StateError, Effects),
        kind: &CompletionKind,
        job_type: &TypeRuntime<S>,
    ) -> AttemptOutcome {
        let report = report(&error);
        let error = JobError::from(format!("the transaction could not be committed: {report}"));
        let (outcome, ended) = self.judge(&error, job_type);
        match self.write(outcome).await {
            // The store had committed and only its answer was lost.
            Written::Before(JobStatus::Completed) => {
                self.runtime.flush(effects).await;
                completed(kind.clone())
            }
            written => self.failed(written, ended),
        }
    }

    async fn fail(&self, error: JobError, job_type: &TypeRuntime<S>) -> AttemptOutcome {
        if let Some(reason) = error.lease_lost() {
            return self.lost(reason);
        }
        match self.shared.abort.reason() {
            // A processor that stops because it was told to has not failed.
            Some(AbortReason::Shutdown) => return self.release().await,
            None | Some(AbortReason::TimedOut | AbortReason::Error) => {}
            Some(reason) => return self.lost(reason),
        }
        let (outcome, ended) = self.judge(&error, job_type);
        let written = self.write(outcome).await;
        self.failed(written, ended)
    }

    /// How an attempt ended whose failure was to be written as `ended`.
    fn failed(&self, written: Written, ended: AttemptOutcome) -> AttemptOutcome {
        match written {
            Written::Done(_) | Written::Before(_) => ended,
            Written::Lost(reason) => self.lost(reason),
            // Nothing was written, so nothing may be claimed: the lease will expire, and that counts the attempt.
            Written::Refused(_) | Written::Failed(_) => AttemptOutcome::Aborted(AbortReason::Error),
        }
    }

    /// What a failure leads to: a retry, or death.
    fn judge(&self, error: &JobError, job_type: &TypeRuntime<S>) -> (Outcome, AttemptOutcome) {
        let record = &self.shared.record;
        let max_attempts = record.max_attempts.unwrap_or(job_type.retry.max_attempts);
        let report = shorten(error.report());
        let (schedule, retry_in) = match error.verdict {
            Verdict::Retry(schedule) => (schedule, None),
            _ => {
                let delay = job_type.retry.delay_after(record.attempt);
                let delay = self.runtime.client.entropy().jittered(delay, job_type.retry.jitter);
                (Schedule::After(delay), Some(delay))
            }
        };
        if error.is_fatal() || record.attempt >= max_attempts {
            let outcome = Outcome::Bury { error: report.clone() };
            return (outcome, AttemptOutcome::Died { error: report });
        }
        let outcome = Outcome::Retry {
            schedule,
            error: report.clone(),
        };
        (
            outcome,
            AttemptOutcome::Failed {
                error: report,
                retry_in,
            },
        )
    }

    /// Gives the job back as it was.
    pub(crate) async fn release(&self) -> AttemptOutcome {
        self.shared.abort.abort(AbortReason::Shutdown);
        match self.write(Outcome::Release).await {
            Written::Lost(reason) => AttemptOutcome::Aborted(reason),
            _ => AttemptOutcome::Aborted(AbortReason::Shutdown),
        }
    }

    fn lost(&self, reason: AbortReason) -> AttemptOutcome {
        self.shared.lost(reason);
        AttemptOutcome::Aborted(reason)
    }

    async fn write(&self, outcome: Outcome) -> Written {
        let (reply, answer) = oneshot::channel();
        let request = SettleRequest {
            settlement: Settlement {
                job: self.shared.record.id,
                authority: Authority::Fence {
                    fence: self.shared.fence,
                    worker: self.runtime.worker.clone(),
                },
                outcome,
            },
            job: self.info().job.clone(),
            ages: self.shared.ages(),
            reply,
        };
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ending = self.runtime.slots.ending(slot);
        if self.runtime.settlements.send(request).is_err() {
            return Written::Lost(AbortReason::Shutdown);
        }
        match answer.await {
            Ok(Ok(Settled::Applied(applied))) => Written::Done(applied),
            Ok(Ok(Settled::Repeated(status))) => Written::Before(status),
            Ok(Ok(Settled::Lost(reason))) => Written::Lost(reason),
            Ok(Ok(Settled::Refused(refusal))) => Written::Refused(refusal.into()),
            Ok(Err(error)) => Written::Failed(error),
            // The settler has quit: the worker is gone, and the lease will expire.
            Ok(Ok(Settled::Busy)) | Err(_) => Written::Lost(AbortReason::Shutdown),
        }
    }
}

fn completed(kind: CompletionKind) -> AttemptOutcome {
    match kind {
        CompletionKind::Finish => AttemptOutcome::Finished,
        CompletionKind::Continue { next, next_type } => AttemptOutcome::Continued { next, next_type },
        CompletionKind::Snooze => AttemptOutcome::Snoozed,
    }
}

impl<S: StateAdapter> Drop for Attempt<S> {
    fn drop(&mut self) {
        // The entry may be that of a later attempt of the same job, which goes on.
        if let Entry::Occupied(entry) = self.runtime.in_flight().entry(self.shared.record.id)
            && entry.get().fence == self.shared.fence
        {
            entry.remove();
        }
    }
}
