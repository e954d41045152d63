//! Runs one attempt from its claim to the end of its processor, and hands that end on.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::__task::Lock;
use crate::adapter::{ClaimedJob, StateAdapter};
use crate::chain::ChainRecord;
use crate::error::{Error, JobError};
use crate::event::{AttemptInfo, AttemptOutcome, Event, JobInfo};
use crate::event_hub::RunningSpan;
use crate::event_log::LogSpan;
use crate::job::JobRecord;
use crate::settings::LeaseSettings;
use crate::worker::attempt::behind::Behind;
use crate::worker::attempt::end::Way;
use crate::worker::context::{Runtime, TypeRuntime, panic_message};
use crate::worker::dispatch::local_queue::Payloads;
use crate::worker::user::abort::{AbortHandle, AbortReason};
use crate::worker::user::attempt::{HeldLease, RawAttempt, Shared};
use crate::worker::user::completion::{How, JobResult};
use crate::worker::user::middleware::{AttemptContext, Next};

/// What is left when an attempt has ended.
pub(crate) struct Ended<S: StateAdapter> {
    pub(crate) attempt: Attempt<S>,
    pub(crate) outcome: AttemptOutcome,
    /// The next job of the chain, if it was handed over.
    pub(crate) next: Option<Attempt<S>>,
}

/// Runs a claimed job, and waits until its end has been written.
pub(crate) async fn run_attempt<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    attempt: Attempt<S>,
    started: Instant,
) -> Ended<S> {
    let mut running = Running::begin(attempt, started);
    let end = running.process(runtime).await;
    let (outcome, next) = running.attempt.settle(runtime, end).await;
    running.conclude(&outcome);
    Ended {
        attempt: running.attempt,
        outcome,
        next,
    }
}

/// Runs a claimed job, and leaves the write of its end to the settler. Only the commit of a transaction of the
/// processor's own is waited for. Says whether somebody was woken.
pub(crate) async fn run_ahead<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    attempt: Attempt<S>,
    started: Instant,
) -> bool {
    let mut running = Running::begin(attempt, started);
    let end = running.process(runtime).await;
    let way = match running.attempt.way(runtime, end) {
        // Boxed: few attempts need it, and all would carry it.
        Way::Commit(kind, transaction) => Box::pin(running.attempt.commit(runtime, kind, transaction)).await,
        way => way,
    };
    match way {
        Way::Write(outcome, then) => Behind::send(runtime, running, outcome, then),
        // What it has committed may have woken the claimer, on this thread.
        Way::Over(outcome) => {
            running.conclude(&outcome);
            true
        }
        Way::Commit(..) => false,
    }
}

/// How the processor's part ended.
pub(crate) enum End<S: StateAdapter> {
    Returned(JobResult<S>),
    Panicked(String),
    TimedOut(Duration),
    /// Dropped because the signal fired.
    Dropped(AbortReason),
    /// Dropped because the worker could wait no longer.
    Killed,
}

/// An attempt that this process has claimed.
pub(crate) struct Attempt<S: StateAdapter> {
    pub(crate) job_type: Arc<TypeRuntime<S>>,
    pub(crate) shared: Arc<Shared<S>>,
    /// How many more jobs of its chain may be handed over before the chain gets in line again.
    pub(crate) steps_left: u32,
}

/// How many jobs of a chain may run one after the other before it gets in line again. Others wait longer for it, and the
/// chain ends sooner; a job that waits is passed by at most this many steps of each chain that was claimed before it.
pub(crate) const STEPS_IN_A_TURN: u32 = 8;

/// How many bytes a claimed job brings: its input, and the outputs of the chains that it waited for.
pub(crate) fn payload_bytes(job: &JobRecord, blockers: &[ChainRecord]) -> usize {
    let outputs = blockers.iter().filter_map(|chain| chain.output.as_ref());
    let outputs: usize = outputs.map(|output| output.as_str().len()).sum();
    job.input.as_str().len() + outputs
}

impl<S: StateAdapter> Payloads for Attempt<S> {
    fn bytes(&self) -> usize {
        payload_bytes(&self.shared.record, &self.shared.blockers)
    }
}

impl<S: StateAdapter> Attempt<S> {
    /// Takes charge of claimed jobs: from here on their leases are renewed. `claimed_at` is the moment before the claim
    /// was sent: a lease cannot end before it plus the lease's duration.
    ///
    /// `steps` is how many jobs of a chain may run in this turn, with this one.
    pub(crate) fn all(runtime: &Runtime<S>, jobs: Vec<ClaimedJob>, claimed_at: Instant, steps: u32) -> Vec<Self> {
        let attempts: Vec<Self> = jobs
            .into_iter()
            .filter_map(|claimed| Self::prepare(runtime, claimed, claimed_at, steps))
            .collect();
        let before = runtime.flights.add(attempts.iter().map(|attempt| &attempt.shared));
        // This process has the job again: its old attempt has lost it, and nobody would renew that lease any more.
        // Unless that has just ended in good order, and its answer is on its way.
        for before in before {
            if !before.settling.load(Ordering::SeqCst) {
                before.lost(AbortReason::TakenByAnotherWorker);
            }
        }
        attempts
    }

    /// The same for one.
    pub(crate) fn new(runtime: &Runtime<S>, claimed: ClaimedJob, claimed_at: Instant, steps: u32) -> Option<Self> {
        Self::all(runtime, vec![claimed], claimed_at, steps).pop()
    }

    fn prepare(runtime: &Runtime<S>, claimed: ClaimedJob, claimed_at: Instant, steps: u32) -> Option<Self> {
        let ClaimedJob { mut job, blockers } = claimed;
        // An adapter that breaks its contract here leaves a job that nobody can settle; its lease will expire.
        let fence = job.lease.as_ref()?.fence;
        let (name, job_type) = runtime.types.get_key_value(&job.type_name)?;
        // The worker's own copies of the names: most are known at compile time, and cost nothing to clone.
        if let Some((name, _)) = runtime.types.get_key_value(&job.chain_type) {
            job.chain_type = name.clone();
        }
        job.type_name = name.clone();
        let info = AttemptInfo {
            job: JobInfo::of(&job),
            attempt: job.attempt,
            worker: runtime.worker.clone(),
            trace_context: job.trace_context.clone(),
            created_at: job.created_at,
            scheduled_at: job.scheduled_at,
            started_at: job.started_at.unwrap_or(job.created_at),
        };
        let LeaseSettings {
            duration, renew_every, ..
        } = job_type.lease;
        let shared = Shared {
            common: Arc::clone(&runtime.common),
            record: job,
            blockers,
            info: Arc::new(info),
            fence,
            lease: job_type.lease,
            max_attempts: job_type.retry.max_attempts,
            claimed_at,
            abort: AbortHandle::new(),
            held: Lock::new(HeldLease {
                renew_at: claimed_at + renew_every,
                expires_at: claimed_at + duration,
                doubted: false,
            }),
            settling: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            transaction: AtomicU8::new(0),
        };
        Some(Self {
            job_type: Arc::clone(job_type),
            shared: Arc::new(shared),
            steps_left: steps.saturating_sub(1),
        })
    }

    pub(crate) fn info(&self) -> &AttemptInfo {
        &self.shared.info
    }

    /// Whether it was told to stop.
    pub(crate) fn is_aborted(&self) -> bool {
        self.shared.abort.reason().is_some()
    }

    async fn run(&self, runtime: &Runtime<S>, span: &mut RunningSpan, logged: &LogSpan) -> End<S> {
        // A row that is damaged is not run by any processor: what it says of its type and input may be wrong.
        let record = &self.shared.record;
        if let Some(problem) = &record.unreadable {
            let (id, problem) = (record.id, problem.clone());
            return End::Returned(Err(JobError::fatal(Error::Unreadable { id, problem })));
        }
        let job_type = &*self.job_type;
        let common = &self.shared.common;
        let shared = Arc::clone(&self.shared);
        let values = runtime.values.clone();
        let body = async {
            if common.middlewares.is_empty() {
                return job_type.processor.process(RawAttempt { shared, values }).await;
            }
            let mut context = AttemptContext { shared, values };
            let next = Next::new(&common.middlewares, &job_type.processor);
            let mut result = next.run(&mut context).await;
            // The last words of the middlewares belong to the attempt: its timeout, its abort and its panics cover them.
            if let Ok(completion) = &mut result
                && let How::Written(written) = &mut completion.how
            {
                common
                    .middlewares
                    .closing(self.info(), &mut written.transaction)
                    .await?;
            }
            result
        };
        let mut body = pin!(AssertUnwindSafe(body).catch_unwind());
        let hub = common.client.hub();
        let type_name = &self.info().job.type_name;
        let body = std::future::poll_fn(|cx| {
            job_type.advice.watch(hub, type_name, || {
                span.scope(|| {
                    let _entered = logged.enter();
                    body.as_mut().poll(cx)
                })
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
            if runtime.settings.drop_on_abort {
                self.shared.abort.signal().aborted().await
            } else {
                std::future::pending().await
            }
        };
        // In this order: what stops a processor is not even listened to unless it has to wait for something.
        tokio::select! {
            biased;
            result = body => match result {
                Ok(result) => End::Returned(result),
                Err(panic) => End::Panicked(panic_message(&*panic).to_owned()),
            },
            timeout = timeout => {
                self.shared.timed_out(timeout);
                End::TimedOut(timeout)
            }
            reason = dropped => End::Dropped(reason),
            () = runtime.kill.cancelled() => End::Killed,
        }
    }
}

impl<S: StateAdapter> Drop for Attempt<S> {
    fn drop(&mut self) {
        self.shared.common.flights.remove(&self.shared);
    }
}

/// An attempt that a worker has begun, until its end is known.
pub(crate) struct Running<S: StateAdapter> {
    pub(crate) attempt: Attempt<S>,
    span: RunningSpan,
    /// The lines that the processor logs, and the one that says how it ended, carry what is known of the attempt.
    logged: LogSpan,
    started: Instant,
}

impl<S: StateAdapter> Running<S> {
    fn begin(attempt: Attempt<S>, started: Instant) -> Self {
        let hub = attempt.shared.client().hub();
        hub.emit_often(|| Event::AttemptStarted(Arc::clone(&attempt.shared.info)));
        let mut span = RunningSpan::new(hub.ask(|adapter| adapter.attempt_span(&attempt.shared.start())));
        // Made inside the adapter's span: a layer that exports spans finds its parent there, in the trace of the chain.
        let logged = span.scope(|| LogSpan::new(&attempt.shared.info));
        Self {
            attempt,
            span,
            logged,
            started,
        }
    }

    async fn process(&mut self, runtime: &Runtime<S>) -> End<S> {
        // Also what the processor leaves behind is the user's, and may panic when it is dropped.
        let run = self.attempt.run(runtime, &mut self.span, &self.logged);
        let end = AssertUnwindSafe(run).catch_unwind().await;
        let end = end.unwrap_or_else(|panic| End::Panicked(panic_message(&*panic).to_owned()));
        self.attempt.shared.settling.store(true, Ordering::SeqCst);
        end
    }

    /// Tells how it ended.
    pub(crate) fn conclude(&mut self, outcome: &AttemptOutcome) {
        let Self {
            attempt,
            span,
            logged,
            started,
        } = self;
        let ended = || Event::AttemptEnded {
            attempt: Arc::clone(&attempt.shared.info),
            outcome: outcome.clone(),
            duration: started.elapsed(),
        };
        let hub = attempt.shared.client().hub();
        // It ends before the adapter's, which it is a part of.
        logged.end(|| match outcome {
            AttemptOutcome::Finished | AttemptOutcome::Continued { .. } | AttemptOutcome::Snoozed => {
                hub.emit_often(ended);
            }
            _ => hub.emit_with(ended),
        });
        span.end(outcome);
    }
}
