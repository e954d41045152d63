//! Puts a set of workers together: processors, middlewares and settings.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::adapter::StateAdapter;
use crate::client::{Client, check_type_name};
use crate::error::Error;
use crate::job::TypeName;
use crate::job_type::{JobType, JobTypes};
use crate::settings::{JobSettings, LeaseSettings, RetryPolicy};
use crate::worker::context::{Context, RegisteredType, WorkerSettings};
use crate::worker::drain::{Drained, drain};
use crate::worker::user::attempt::Attempt;
use crate::worker::user::completion::JobResult;
use crate::worker::user::diagnostics::Diagnostics;
use crate::worker::user::extensions::Extensions;
use crate::worker::user::middleware::{ErasedMiddleware, Middleware, Middlewares};
use crate::worker::user::processor::{ByEnum, ByFunction, ByTrait, ErasedProcessor, Processor};
use crate::worker::workers::{Workers, check_runtime};

impl<S: StateAdapter> Client<S> {
    /// Puts workers together: processors, middlewares and settings. See [`WorkerBuilder`].
    pub fn worker(&self) -> WorkerBuilder<S> {
        WorkerBuilder {
            client: self.clone(),
            processors: Vec::new(),
            overrides: Vec::new(),
            extensions: Extensions::default(),
            layers: Vec::new(),
            concurrency: 1,
            name: None,
            poll_interval: None,
            reap_interval: None,
            grace: Duration::from_secs(30),
            drop_on_abort: false,
            worker_wide: JobSettings::default(),
        }
    }
}

/// The settings of a set of workers that is not started yet: add processors, then call [`start`](Self::start).
///
/// ```
/// use queuert::memory::{Attempt, MemoryState};
/// use queuert::{Client, Error};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Greet { name: String }
/// # #[derive(queuert::JobTypes)]
/// # enum Greetings { #[job(entry, output = String)] Greet(Greet) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
///
/// let client = Client::new(MemoryState::new());
/// let workers = client
///     .worker()
///     .process(|job: Attempt<Greet>| async move {
///         let greeting = format!("Hello, {}!", job.name);
///         job.finish(greeting)
///     })
///     .concurrency(8)
///     .start()
///     .await?;
///
/// let chain = client.start(Greet { name: "Ada".into() }).await?;
/// assert_eq!(client.wait(&chain).await?, "Hello, Ada!");
/// workers.stop().await;
/// # Ok(()) }
/// ```
#[must_use = "workers do nothing until they are started"]
pub struct WorkerBuilder<S: StateAdapter> {
    client: Client<S>,
    processors: Vec<(TypeName, JobSettings, Arc<dyn ErasedProcessor<S>>)>,
    overrides: Vec<(TypeName, JobSettings)>,
    extensions: Extensions,
    layers: Vec<Arc<dyn ErasedMiddleware<S>>>,
    concurrency: usize,
    name: Option<String>,
    poll_interval: Option<Duration>,
    reap_interval: Option<Duration>,
    grace: Duration,
    drop_on_abort: bool,
    worker_wide: JobSettings,
}

/// The most workers that one set may have.
const MAX_CONCURRENCY: usize = 100_000;
const POLL_WITH_NOTIFY: Duration = Duration::from_secs(30);
const POLL_WITHOUT_NOTIFY: Duration = Duration::from_secs(1);

impl<S: StateAdapter> WorkerBuilder<S> {
    /// Adds the processor of a job type: a closure, or an async function. It returns what `finish`, `continue_with` or
    /// `snooze` gave, or an error.
    pub fn process<J, F, Fut>(self, processor: F) -> Self
    where
        J: JobType,
        // The compiler shows the line that a processor breaks, so each says what to do.
        F: Fn(Attempt<J, S>) -> Fut // an `async fn` or `|job| async move { .. }`, with this adapter's `Attempt`
            + Send
            + Sync // what it captures is shared by all workers: an `Arc` or a `Mutex`, no `Rc` or `RefCell`
            + 'static, // it captures by value: `move |job| ..`
        Fut: Future<Output = JobResult<S>> // async, and returns what `finish`, `continue_with` or `snooze` gave
            + Send // no `Rc` and no guard of a `std::sync` lock may live across an `.await`
            + 'static,
    {
        self.add::<J>(Arc::new(ByFunction {
            function: processor,
            job: PhantomData::<fn() -> J>,
        }))
    }

    /// Adds the processor of a job type: a closure or an async function that is handed a clone of `state` with each
    /// attempt.
    pub fn process_with<J, T, F, Fut>(self, state: T, processor: F) -> Self
    where
        J: JobType,
        T: Clone + Send + Sync + 'static,
        F: Fn(Attempt<J, S>, T) -> Fut // an `async fn` or `|job, state| async move { .. }`, see `process`
            + Send
            + Sync
            + 'static,
        Fut: Future<Output = JobResult<S>> // async, and returns what `finish`, `continue_with` or `snooze` gave
            + Send // no `Rc` and no guard of a `std::sync` lock may live across an `.await`
            + 'static,
    {
        self.process(move |job: Attempt<J, S>| processor(job, state.clone()))
    }

    /// Adds the processor of a job type: a value that implements [`Processor`].
    pub fn processor<J: JobType>(self, processor: impl Processor<J, S>) -> Self {
        self.add::<J>(Arc::new(ByTrait {
            processor,
            job: PhantomData::<fn() -> J>,
        }))
    }

    /// Adds one processor for all job types of an enum: it is handed the enum of attempts, to `match` exhaustively.
    ///
    /// ```
    /// # use queuert::{Client, memory::MemoryState};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Fetch;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Store { rows: u32 }
    /// #[derive(queuert::JobTypes)]
    /// enum Import {
    ///     #[job(entry, continues = [Store])]
    ///     Fetch(Fetch),
    ///     #[job(output = u32)]
    ///     Store(Store),
    /// }
    ///
    /// # let client = Client::new(MemoryState::new());
    /// let worker = client.worker().process_all::<Import, _, _>(|job| async move {
    ///     match job {
    ///         ImportAttempt::Fetch(job) => job.continue_with(Store { rows: 3 }),
    ///         ImportAttempt::Store(job) => job.finish(job.rows),
    ///     }
    /// });
    /// ```
    pub fn process_all<E, F, Fut>(mut self, processor: F) -> Self
    where
        E: JobTypes,
        F: Fn(E::Attempt<S>) -> Fut // `|job| async move { match job { .. } }`, see `process`
            + Send
            + Sync
            + 'static,
        Fut: Future<Output = JobResult<S>> // async, and returns what `finish`, `continue_with` or `snooze` gave
            + Send // no `Rc` and no guard of a `std::sync` lock may live across an `.await`
            + 'static,
    {
        let processor: Arc<dyn ErasedProcessor<S>> = Arc::new(ByEnum {
            function: processor,
            types: PhantomData::<fn() -> E>,
        });
        for (name, settings) in E::NAMES.iter().zip(E::settings()) {
            self.processors
                .push((TypeName::from_static(name), settings, Arc::clone(&processor)));
        }
        self
    }

    fn add<J: JobType>(mut self, processor: Arc<dyn ErasedProcessor<S>>) -> Self {
        self.processors.push((J::NAME.into(), J::SETTINGS, processor));
        self
    }

    /// Provides a value that processors and middlewares read with `job.get::<T>()`; the last one of a type counts.
    pub fn provide<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }

    /// Adds a middleware inside those added before.
    pub fn middleware(mut self, middleware: impl Middleware<S>) -> Self {
        self.layers.push(Arc::new(middleware));
        self
    }

    /// Sets the number of workers, each running one job at a time. Default 1.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers;
        self
    }

    /// Sets the readable part of the worker's id: letters, digits, dots, underscores and dashes. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how often to look for jobs without having been notified. Default 1 second, or 30 seconds with a notify
    /// adapter.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Sets how often to look for expired leases. Default: half of the shortest lease, at most 15 seconds.
    pub fn reap_interval(mut self, interval: Duration) -> Self {
        self.reap_interval = Some(interval);
        self
    }

    /// Sets how failed attempts are retried, for all types of this worker. Default: the setting of each type, else
    /// [`RetryPolicy::DEFAULT`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.worker_wide.retry = Some(policy);
        self
    }

    /// Sets how long a lease lasts, for all types of this worker. Default: the setting of each type, else
    /// [`LeaseSettings::DEFAULT`].
    pub fn lease(mut self, lease: LeaseSettings) -> Self {
        self.worker_wide.lease = Some(lease);
        self
    }

    /// Sets how long an attempt may run, for all types of this worker. Default: the setting of each type, else no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.worker_wide.timeout = Some(timeout);
        self
    }

    /// Overrides the settings of one job type, also those of the worker, except its priority, which only the type and the
    /// caller of `start` can set. Default: nothing is overridden.
    pub fn settings<J: JobType>(mut self, settings: JobSettings) -> Self {
        self.overrides.push((J::NAME.into(), settings));
        self
    }

    /// Sets how long running attempts may go on after [`Workers::stop`] was called. Default 30 seconds.
    pub fn grace(mut self, period: Duration) -> Self {
        self.grace = period;
        self
    }

    /// Drops an attempt as soon as its abort signal fires. Default: the processor listens to the signal, and decides itself.
    pub fn drop_on_abort(mut self) -> Self {
        self.drop_on_abort = true;
        self
    }

    /// Starts the workers. They run until [`Workers::stop`], whatever the store does meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcessor`], [`Error::DuplicateProcessor`], or [`Error::Invalid`] for settings that cannot work and for
    /// a runtime that is not tokio's or has no timers.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has started nothing.
    pub async fn start(self) -> Result<Workers<S>, Error> {
        check_runtime()?;
        Ok(Workers::spawn(self.build()?))
    }

    /// Runs the workers until `signal` is ready, then stops them gracefully, and returns the signal's value: for services.
    ///
    /// `signal` is polled for the first time before any worker starts. Futures that install a signal handler do so when
    /// they are first polled, and until then a signal would end the process in the middle of its first job.
    ///
    /// ```no_run
    /// # use queuert::{Client, Error, memory::{Attempt, MemoryState}};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Greet;
    /// # #[derive(queuert::JobTypes)]
    /// # enum Greetings { #[job(entry, output = ())] Greet(Greet) }
    /// # async fn stop_signal() {}
    /// # async fn run(client: Client<MemoryState>) -> Result<(), Error> {
    /// client
    ///     .worker()
    ///     .process(|job: Attempt<Greet>| async move { job.finish(()) })
    ///     .run_until(stop_signal()) // for example `tokio::signal::ctrl_c()`
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// A dropped future stops the workers in the background, gracefully.
    pub async fn run_until<T>(self, signal: impl Future<Output = T>) -> Result<T, Error> {
        check_runtime()?;
        let context = self.build()?;
        let mut signal = pin!(signal);
        if let Poll::Ready(value) = futures_util::poll!(&mut signal) {
            return Ok(value);
        }
        let workers = Workers::spawn(context);
        let stop_on_drop = workers.stop_on_drop();
        let value = signal.await;
        workers.stop().await;
        drop(stop_on_drop);
        Ok(value)
    }

    /// For tests: runs every job that is due, one after the other, also jobs that become due meanwhile, and returns the
    /// attempts. Jobs that are due later stay: move the clock and drain again.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`Error::State`] if the store fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves a running attempt to the expiry of its lease.
    pub async fn drain(self) -> Result<Drained, Error> {
        drain(self.build()?).await
    }

    pub(crate) fn build(self) -> Result<Context<S>, Error> {
        if self.processors.is_empty() {
            return Err(Error::NoProcessor);
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return Err(invalid(
                "concurrency",
                format!("{} is not between 1 and {MAX_CONCURRENCY}", self.concurrency),
            ));
        }
        if let Some(name) = &self.name {
            check_worker_name(name)?;
        }
        for (what, interval) in [
            ("poll interval", self.poll_interval),
            ("reap interval", self.reap_interval),
        ] {
            if interval.is_some_and(|interval| interval.is_zero()) {
                return Err(invalid(what, "it is zero: the worker would never pause".into()));
            }
        }
        let mut types: BTreeMap<TypeName, Arc<RegisteredType<S>>> = BTreeMap::new();
        for (name, of_type, processor) in self.processors {
            check_type_name(name.as_str())?;
            let overrides = self.overrides.iter().filter(|(of, _)| *of == name);
            let of_worker = overrides.fold(self.worker_wide, |before, (_, later)| later.or(before));
            let settings = of_worker.or(of_type);
            let job_type = RegisteredType {
                retry: settings.retry.unwrap_or_default(),
                lease: settings.lease.unwrap_or_default(),
                timeout: settings.timeout,
                processor,
                diagnostics: Diagnostics::default(),
            };
            job_type.check(&name)?;
            if types.insert(name.clone(), Arc::new(job_type)).is_some() {
                return Err(Error::DuplicateProcessor(name));
            }
        }
        if let Some((name, _)) = self.overrides.iter().find(|(name, _)| !types.contains_key(name)) {
            return Err(invalid(
                "settings",
                format!("they are for `{name}`, for which this worker has no processor"),
            ));
        }
        if let Some((name, _)) = self.overrides.iter().find(|(_, settings)| settings.priority.is_some()) {
            return Err(invalid(
                "settings",
                format!(
                    "a job has its priority before a worker meets it: for `{name}` write `#[job(priority = ..)]`, or start it \
                     with `.priority(..)`"
                ),
            ));
        }
        let default_poll = if self.client.has_notify_adapter() {
            POLL_WITH_NOTIFY
        } else {
            POLL_WITHOUT_NOTIFY
        };
        let settings = WorkerSettings {
            concurrency: self.concurrency,
            poll_interval: self.poll_interval.unwrap_or(default_poll),
            reap_interval: self.reap_interval,
            grace: self.grace,
            drop_on_abort: self.drop_on_abort,
        };
        let middlewares = Middlewares::new(self.layers);
        let worker = self.client.entropy().worker(self.name.as_deref());
        Ok(Context::new(
            self.client,
            worker,
            types,
            middlewares,
            self.extensions,
            settings,
        ))
    }
}

impl<S: StateAdapter> fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<_> = self.processors.iter().map(|(name, ..)| name).collect();
        f.debug_struct("WorkerBuilder")
            .field("types", &types)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

fn invalid(what: &'static str, problem: String) -> Error {
    Error::Invalid { what, problem }
}

fn check_worker_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=100).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(invalid(
        "worker name",
        format!("`{name}` is not 1 to 100 letters, digits, dots, underscores or dashes"),
    ))
}
