//! The state that all parts of one set of workers share: its client, its job types, its settings, and the signals between its
//! services. It knows no queue; see [`Environment`] for the reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::adapter::{Demand, Notice, StateAdapter};
use crate::client::Client;
use crate::effects::Effects;
use crate::error::Error;
use crate::id::WorkerId;
use crate::job::TypeName;
use crate::settings::{LeaseSettings, RetryPolicy};
use crate::worker::health::HealthMonitor;
use crate::worker::pauses::KnownPauses;
use crate::worker::user::diagnostics::Diagnostics;
use crate::worker::user::extensions::Extensions;
use crate::worker::user::middleware::Middlewares;
use crate::worker::user::processor::ErasedProcessor;
use crate::worker::user::shared::Environment;

/// A job type as this set of workers runs it.
pub(crate) struct RegisteredType<S: StateAdapter> {
    pub(crate) retry: RetryPolicy,
    pub(crate) lease: LeaseSettings,
    pub(crate) timeout: Option<Duration>,
    pub(crate) processor: Arc<dyn ErasedProcessor<S>>,
    pub(crate) diagnostics: Diagnostics,
}

impl<S: StateAdapter> RegisteredType<S> {
    /// Refuses settings that cannot work.
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

/// The settings that concern the whole set.
pub(crate) struct WorkerSettings {
    pub(crate) concurrency: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) reap_interval: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) drop_on_abort: bool,
}

/// The state that all parts of one set of workers share.
pub(crate) struct Context<S: StateAdapter> {
    pub(crate) client: Client<S>,
    pub(crate) worker: WorkerId,
    /// The job types that have a processor here.
    pub(crate) types: BTreeMap<TypeName, Arc<RegisteredType<S>>>,
    pub(crate) middlewares: Middlewares<S>,
    /// The values that the builder was given with `provide`.
    pub(crate) extensions: Extensions,
    pub(crate) settings: WorkerSettings,
    /// The part of this that attempts reach.
    pub(crate) environment: Arc<Environment<S>>,
    pub(crate) health: HealthMonitor,
    /// Cancelled by [`Workers::stop`](crate::Workers::stop): the claimer claims no more jobs, and waits for the attempts.
    pub(crate) stop: CancellationToken,
    /// Cancelled by the claimer: the executors drop the attempts that have outlived their grace period.
    pub(crate) kill: CancellationToken,
    /// Cancelled by the supervisor once no attempt is left that needs a service: all services end.
    pub(crate) quit: CancellationToken,
    /// Wakes the claimer, because there may be jobs to claim. Notified by the listener for jobs, and by a commit of this set
    /// that made jobs available.
    pub(crate) wake: Notify,
    /// Wakes the renewer, because a lease is in doubt. Notified by the listener for leases.
    pub(crate) check_leases: Notify,
    /// What is known of paused job types. Written by the claimer, doubted by the listener for jobs.
    pub(crate) pauses: KnownPauses,
    /// How many jobs the set wants. Written by the claimer, read by the notify adapter.
    pub(crate) demand: Demand,
}

impl<S: StateAdapter> Context<S> {
    pub(crate) fn new(
        client: Client<S>,
        worker: WorkerId,
        types: BTreeMap<TypeName, Arc<RegisteredType<S>>>,
        middlewares: Middlewares<S>,
        extensions: Extensions,
        settings: WorkerSettings,
    ) -> Self {
        Self {
            environment: Arc::new(Environment {
                client: client.clone(),
                hooks: middlewares.hooks(),
            }),
            pauses: KnownPauses::new(settings.poll_interval),
            health: HealthMonitor::new(worker.clone(), client.hub().clone()),
            client,
            worker,
            types,
            middlewares,
            extensions,
            settings,
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            quit: CancellationToken::new(),
            wake: Notify::new(),
            check_leases: Notify::new(),
            demand: Demand::default(),
        }
    }

    /// Emits and announces the effects of a commit.
    pub(crate) async fn flush(&self, effects: Effects) {
        let notices = self.emit(effects);
        self.client.announce(&notices).await;
    }

    /// Emits the events of a commit, and returns the notices to announce. It wakes the claimer of this set directly, so that
    /// a chain goes on at once even without a notify adapter.
    pub(crate) fn emit(&self, effects: Effects) -> Vec<Notice> {
        if effects.make_available(|type_name| self.types.contains_key(type_name)) {
            self.wake.notify_one();
        }
        effects.publish()
    }
}
