//! What the loops of one set of workers share.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::__task::Lock;
use crate::adapter::{
    ClaimJobs, ClaimType, Claimed, ClaimedJob, Demand, Notice, ReapType, RenewLease, Renewal, StateAdapter,
};
use crate::client::Client;
use crate::effects::Effects;
use crate::error::{Error, StateError, StateErrorKind};
use crate::id::{Fence, WorkerId};
use crate::job::TypeName;
use crate::settings::{LeaseSettings, RetryPolicy};
use crate::worker::attempt::behind::{Behind, OddJob};
use crate::worker::attempt::executor::Attempt;
use crate::worker::attempt::in_flight::Flights;
use crate::worker::attempt::settler::SettleQueue;
use crate::worker::dispatch::local_queue::{Bounds, Line};
use crate::worker::health::HealthKeeper;
use crate::worker::user::diagnostics::Advice;
use crate::worker::user::extensions::Values;
use crate::worker::user::middleware::Middlewares;
use crate::worker::user::processor::ErasedProcessor;

/// A job type as this worker runs it.
pub(crate) struct TypeRuntime<S: StateAdapter> {
    pub(crate) retry: RetryPolicy,
    pub(crate) lease: LeaseSettings,
    pub(crate) timeout: Option<Duration>,
    pub(crate) processor: Arc<dyn ErasedProcessor<S>>,
    pub(crate) advice: Advice,
}

impl<S: StateAdapter> TypeRuntime<S> {
    pub(crate) fn check(&self, name: &TypeName) -> Result<(), Error> {
        let timeout = self
            .timeout
            .filter(Duration::is_zero)
            .map(|_| "the timeout is zero".to_owned());
        let problems = [
            ("retry policy", self.retry.problem()),
            ("lease", self.lease.problem()),
            ("timeout", timeout),
        ];
        for (what, problem) in problems {
            if let Some(problem) = problem {
                return Err(Error::Invalid {
                    what,
                    problem: format!("for `{name}`: {problem}"),
                });
            }
        }
        Ok(())
    }
}

/// Workers are tasks with timers. Where there are none, they would panic one after the other, out of sight.
pub(crate) fn check_runtime() -> Result<(), Error> {
    let problem = if tokio::runtime::Handle::try_current().is_err() {
        "workers need a tokio runtime: start them in `#[tokio::main]`, `#[tokio::test]` or `runtime.block_on(..)`"
    } else if std::panic::catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_err() {
        "the tokio runtime has no timers: add `.enable_all()` to its builder"
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "runtime",
        problem: problem.into(),
    })
}

pub(crate) struct RuntimeSettings {
    pub(crate) concurrency: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) reap_interval: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) drop_on_abort: bool,
}

/// What attempts share with the loops. It has no way back to them: an attempt that waits in one of their queues must not
/// keep them, and with them the store, for ever when the workers are dropped.
pub(crate) struct Common<S: StateAdapter> {
    pub(crate) client: Client<S>,
    pub(crate) worker: WorkerId,
    pub(crate) middlewares: Middlewares<S>,
    pub(crate) flights: Flights<S>,
}

pub(crate) struct Runtime<S: StateAdapter> {
    pub(crate) common: Arc<Common<S>>,
    pub(crate) types: BTreeMap<TypeName, Arc<TypeRuntime<S>>>,
    pub(crate) values: Values,
    pub(crate) settings: RuntimeSettings,
    pub(crate) health: HealthKeeper,
    /// Claims no more.
    pub(crate) stop: CancellationToken,
    /// Drops attempts that outlived their grace.
    pub(crate) kill: CancellationToken,
    /// Ends the loops, when no attempt is left that needs them.
    pub(crate) quit: CancellationToken,
    /// There may be something to claim.
    pub(crate) wake: Notify,
    /// A lease may have been lost.
    pub(crate) check_leases: Notify,
    pub(crate) demand: Demand,
    pub(crate) line: Arc<Line<Attempt<S>>>,
    odd_jobs: Lock<Vec<OddJob<S>>>,
    /// What is to be settled. It belongs to the runtime, so that a settler that is begun anew finds what was sent before.
    pub(crate) settlements: SettleQueue<S>,
    claim_types: Vec<ClaimType>,
}

impl<S: StateAdapter> Deref for Runtime<S> {
    type Target = Common<S>;

    fn deref(&self) -> &Common<S> {
        &self.common
    }
}

impl<S: StateAdapter> Runtime<S> {
    pub(crate) fn new(
        client: Client<S>,
        worker: WorkerId,
        types: BTreeMap<TypeName, Arc<TypeRuntime<S>>>,
        middlewares: Middlewares<S>,
        values: Values,
        settings: RuntimeSettings,
    ) -> Self {
        let claim_types = types
            .iter()
            .map(|(name, job_type)| ClaimType {
                name: name.clone(),
                lease: job_type.lease.duration,
            })
            .collect();
        Self {
            health: HealthKeeper::new(worker.clone(), client.hub().clone()),
            common: Arc::new(Common {
                client,
                worker,
                middlewares,
                flights: Flights::new(),
            }),
            types,
            values,
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            quit: CancellationToken::new(),
            wake: Notify::new(),
            check_leases: Notify::new(),
            demand: Demand::default(),
            line: Arc::new(Line::new(settings.concurrency)),
            odd_jobs: Lock::default(),
            settlements: SettleQueue::new(),
            claim_types,
            settings,
        }
    }

    /// Claims up to `limit` jobs within the bounds, and tells the keeper of health how that went.
    pub(crate) async fn claim(&self, limit: usize, bounds: Bounds, fence: Fence) -> Result<Claimed, StateError> {
        let claim = ClaimJobs::new(self.claim_types.clone(), limit, self.worker.clone(), fence);
        let claim = claim.within_bytes(bounds.at_least, bounds.bytes);
        let result = contained(self.client.state().claim_jobs(&claim)).await;
        self.heard_from_store("claim", &result);
        result
    }

    /// What a claim has taken that was not answered, and since when it is surely this process's. Its leases are renewed,
    /// because they may be about to expire; what has been taken back meanwhile is left out.
    ///
    /// A success says nothing about the health of claims: a store that refuses writes can be read.
    pub(crate) async fn recover(&self, fence: Fence) -> Result<(Vec<ClaimedJob>, Instant), StateError> {
        let result = self.take_charge(fence).await;
        if let Err(error) = &result {
            self.health.failed("claim", error);
        }
        result
    }

    async fn take_charge(&self, fence: Fence) -> Result<(Vec<ClaimedJob>, Instant), StateError> {
        let state = self.client.state();
        let mut jobs = contained(state.claimed_jobs(fence)).await?;
        jobs.retain(|claimed| self.types.contains_key(&claimed.job.type_name));
        let renewals: Vec<RenewLease> = jobs
            .iter()
            .filter_map(|claimed| {
                let lease = self.types.get(&claimed.job.type_name)?.lease.duration;
                let job = claimed.job.id;
                Some(RenewLease { job, fence, lease })
            })
            .collect();
        let renewed_at = Instant::now();
        if !renewals.is_empty() {
            let mut answers = contained(state.renew_leases(None, &renewals)).await?.into_iter();
            jobs.retain(|_| matches!(answers.next(), Some(Renewal::Renewed(_))));
        }
        Ok((jobs, renewed_at))
    }

    pub(crate) fn heard_from_store<T>(&self, operation: &'static str, result: &Result<T, StateError>) {
        match result {
            Ok(_) => self.health.succeeded(operation),
            Err(error) => self.health.failed(operation, error),
        }
    }

    pub(crate) fn reap_types(&self) -> Vec<ReapType> {
        self.types
            .iter()
            .map(|(name, job_type)| ReapType::new(name.clone(), job_type.retry, job_type.lease.duration))
            .collect()
    }

    /// Lines up attempts for the workers. Those for which there will be none go back.
    pub(crate) fn line_up(self: &Arc<Self>, attempts: Vec<Attempt<S>>) {
        for attempt in self.line.push(attempts, self.health.is_degraded()) {
            Behind::give_back(self, attempt);
        }
    }

    /// Has the crew run something that belongs to the workers and to none of them.
    pub(crate) fn odd_job(&self, job: OddJob<S>) {
        self.odd_jobs.lock().push(job);
        self.line.call_crew();
    }

    pub(crate) fn take_odd_jobs(&self) -> Vec<OddJob<S>> {
        std::mem::take(&mut *self.odd_jobs.lock())
    }

    /// Publishes what a commit caused.
    pub(crate) async fn flush(&self, effects: Effects) {
        let notices = self.emit(effects);
        self.client.announce(&notices).await;
    }

    /// Emits the events of a commit, and returns what is to be announced. Own claimers are woken directly, so that a
    /// chain goes on at once even if nothing carries notices.
    pub(crate) fn emit(&self, effects: Effects) -> Vec<Notice> {
        if effects.make_available(|type_name| self.types.contains_key(type_name)) {
            self.wake.notify_one();
        }
        effects.publish()
    }
}

/// How long a call to the store may go unanswered: longer than any sane lock wait, shorter than anybody's patience.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// Runs a call to an adapter. A panic inside, and no answer for long, are failures like any other, because a worker
/// must not die of them. What is cut off has happened entirely or not at all, and is repeated under the same fence.
pub(crate) async fn contained<T>(call: impl Future<Output = Result<T, StateError>>) -> Result<T, StateError> {
    let message = match tokio::time::timeout(STORE_PATIENCE, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(result)) => return result,
        Ok(Err(panic)) => format!("the state adapter panicked: {}", panic_message(&*panic)),
        Err(_) => format!("the store did not answer within {STORE_PATIENCE:?}; look for a broken connection or a lock"),
    };
    Err(StateError::new(StateErrorKind::Transient, message))
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a value that is no text"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_or_is_never_answered_is_a_failure_that_may_pass() {
        let silent = contained(std::future::pending::<Result<(), StateError>>())
            .await
            .unwrap_err();
        assert_eq!(silent.kind(), StateErrorKind::Transient);
        assert!(silent.to_string().contains("did not answer"), "{silent}");
        let call = async { if true { panic!("oh") } else { Ok(()) } };
        let panicked = contained(call).await.unwrap_err();
        assert_eq!(panicked.kind(), StateErrorKind::Transient);
        assert!(panicked.to_string().contains("oh"), "{panicked}");
    }
}
