//! Middlewares: they wrap attempts like the layers of an onion, in the order in which they are given.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{BoxFuture, StateAdapter};
use crate::client::{Client, Transaction};
use crate::error::{Error, JobError};
use crate::event::AttemptInfo;
use crate::job::JobRecord;
use crate::time::Schedule;
use crate::worker::user::abort::AbortSignal;
use crate::worker::user::attempt::{RawAttempt, SHORTEST_SNOOZE};
use crate::worker::user::completion::{JobResult, snoozed};
use crate::worker::user::extensions::Extensions;
use crate::worker::user::hooks::{ErasedHooks, TransactionHooks};
use crate::worker::user::processor::ErasedProcessor;
use crate::worker::user::shared::SharedAttempt;

/// Wraps attempts. The first one given is the outermost.
///
/// A middleware sees the outcome of the layers inside it and can add typed values that processors read. It cannot lose a
/// job: a [`Completion`](crate::Completion) comes only from the inner layers or from [`AttemptContext::snooze`], so one that
/// returns an error, panics or never calls `next` gives a counted failure.
///
/// ```
/// use queuert::memory::{JobResult, MemoryState};
/// use queuert::{AttemptContext, Middleware, Next};
///
/// struct RequestId(String);
/// struct AddRequestId;
///
/// impl Middleware<MemoryState> for AddRequestId {
///     async fn attempt(&self, job: &mut AttemptContext<MemoryState>, next: Next<'_, MemoryState>) -> JobResult {
///         job.insert(RequestId(job.info().job.id.to_string()));
///         let result = next.run(job).await;
///         if let Err(error) = &result {
///             eprintln!("{}: {error}", job.info().job.type_name);
///         }
///         result
///     }
/// }
/// ```
pub trait Middleware<S: StateAdapter>: Send + Sync + 'static {
    /// Runs around the attempt. Dropped at any await when the attempt times out or is dropped on abort.
    fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> impl Future<Output = JobResult<S>> + Send {
        next.run(job)
    }

    /// Runs first in each transaction of the attempt: those of `prepare` and the one of `begin`. An error fails the
    /// attempt and rolls back.
    fn transaction_opened(
        &self,
        attempt: &AttemptInfo,
        transaction: &mut Transaction<S>,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        let _ = (attempt, transaction);
        std::future::ready(Ok(()))
    }

    /// Runs last in each transaction of the attempt, before it commits, the innermost middleware first. An error fails
    /// the attempt and rolls back.
    fn transaction_closing(
        &self,
        attempt: &AttemptInfo,
        transaction: &mut Transaction<S>,
    ) -> impl Future<Output = Result<(), JobError>> + Send {
        let _ = (attempt, transaction);
        std::future::ready(Ok(()))
    }
}

/// An attempt as middlewares see it: its job, and the values for the layers inside.
pub struct AttemptContext<S: StateAdapter> {
    pub(crate) shared: Arc<SharedAttempt<S>>,
    pub(crate) extensions: Extensions,
}

impl<S: StateAdapter> AttemptContext<S> {
    /// The job, the number of the attempt, its worker and its times.
    pub fn info(&self) -> &AttemptInfo {
        &self.shared.info
    }

    /// The job as it was claimed, with its input as JSON.
    pub fn job(&self) -> &JobRecord {
        &self.shared.record
    }

    /// Fires when the attempt should stop.
    pub fn signal(&self) -> AbortSignal {
        self.shared.abort.signal()
    }

    /// Runs the job again after a delay, at no cost, as [`Attempt::snooze`](crate::Attempt::snooze) does: for a middleware that
    /// does not let an attempt run now, or not end as its processor wants. A transaction of the attempt is rolled back.
    ///
    /// # Errors
    ///
    /// Never; the result fits the middleware's.
    pub fn snooze(&self, delay: Duration) -> JobResult<S> {
        Ok(snoozed(&self.shared, Schedule::After(delay.max(SHORTEST_SNOOZE))))
    }

    /// The client that the worker was made from.
    pub fn client(&self) -> &Client<S> {
        self.shared.client()
    }

    /// Adds a value that the layers inside read with `get`; one of the same type is replaced for them.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }

    /// A value that the worker provides or an outer middleware inserted.
    ///
    /// # Errors
    ///
    /// [`Error::MissingValue`] if there is none of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, Error> {
        self.extensions.get()
    }
}

impl<S: StateAdapter> fmt::Debug for AttemptContext<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AttemptContext").field(&self.shared.info).finish()
    }
}

/// The layers inside a middleware, the processor last. It can be run once.
#[must_use = "a middleware that does not run the inner layers fails the attempt"]
pub struct Next<'a, S: StateAdapter> {
    layers: &'a [Arc<dyn ErasedMiddleware<S>>],
    processor: &'a Arc<dyn ErasedProcessor<S>>,
}

impl<'a, S: StateAdapter> Next<'a, S> {
    pub(crate) fn new(middlewares: &'a Middlewares<S>, processor: &'a Arc<dyn ErasedProcessor<S>>) -> Self {
        Self {
            layers: &middlewares.0,
            processor,
        }
    }

    /// Runs the inner layers.
    ///
    /// # Errors
    ///
    /// The error of the processor or of an inner middleware. Return it, or another one: the attempt has failed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future drops the processor, as a timeout does.
    pub async fn run(self, job: &mut AttemptContext<S>) -> JobResult<S> {
        match self.layers.split_first() {
            Some((layer, layers)) => {
                let processor = self.processor;
                layer.attempt(job, Next { layers, processor }).await
            }
            None => {
                let attempt = RawAttempt {
                    shared: Arc::clone(&job.shared),
                    extensions: job.extensions.clone(),
                };
                self.processor.process(attempt).await
            }
        }
    }
}

/// The layers inside a middleware, for a future that borrows nothing.
#[cfg(feature = "tower")]
pub(crate) struct OwnedNext<S: StateAdapter> {
    layers: Vec<Arc<dyn ErasedMiddleware<S>>>,
    processor: Arc<dyn ErasedProcessor<S>>,
}

#[cfg(feature = "tower")]
impl<S: StateAdapter> Next<'_, S> {
    pub(crate) fn into_owned(self) -> OwnedNext<S> {
        OwnedNext {
            layers: self.layers.to_vec(),
            processor: Arc::clone(self.processor),
        }
    }
}

#[cfg(feature = "tower")]
impl<S: StateAdapter> OwnedNext<S> {
    pub(crate) async fn run(self, job: &mut AttemptContext<S>) -> JobResult<S> {
        let next = Next {
            layers: &self.layers,
            processor: &self.processor,
        };
        next.run(job).await
    }
}

#[cfg(feature = "tower")]
impl<S: StateAdapter> AttemptContext<S> {
    /// The same attempt with the values as they are now.
    pub(crate) fn twin(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            extensions: self.extensions.clone(),
        }
    }
}

impl<S: StateAdapter> fmt::Debug for Next<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({} layers)", self.layers.len())
    }
}

/// All middlewares of a worker, outermost first.
pub(crate) struct Middlewares<S: StateAdapter>(Arc<[Arc<dyn ErasedMiddleware<S>>]>);

impl<S: StateAdapter> Clone for Middlewares<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: StateAdapter> Middlewares<S> {
    pub(crate) fn new(layers: Vec<Arc<dyn ErasedMiddleware<S>>>) -> Self {
        Self(layers.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hooks of all middlewares in the transactions of attempts.
    pub(crate) fn hooks(&self) -> TransactionHooks<S> {
        let layers = self.0.iter().cloned();
        TransactionHooks::new(layers.map(|layer| layer as Arc<dyn ErasedHooks<S>>).collect())
    }
}

/// The object-safe twin of [`Middleware`].
pub(crate) trait ErasedMiddleware<S: StateAdapter>: ErasedHooks<S> {
    fn attempt<'a>(&'a self, job: &'a mut AttemptContext<S>, next: Next<'a, S>) -> BoxFuture<'a, JobResult<S>>;
}

impl<S: StateAdapter, M: Middleware<S>> ErasedMiddleware<S> for M {
    fn attempt<'a>(&'a self, job: &'a mut AttemptContext<S>, next: Next<'a, S>) -> BoxFuture<'a, JobResult<S>> {
        Box::pin(Middleware::attempt(self, job, next))
    }
}

impl<S: StateAdapter, M: Middleware<S>> ErasedHooks<S> for M {
    fn transaction_opened<'a>(
        &'a self,
        attempt: &'a AttemptInfo,
        transaction: &'a mut Transaction<S>,
    ) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(Middleware::transaction_opened(self, attempt, transaction))
    }

    fn transaction_closing<'a>(
        &'a self,
        attempt: &'a AttemptInfo,
        transaction: &'a mut Transaction<S>,
    ) -> BoxFuture<'a, Result<(), JobError>> {
        Box::pin(Middleware::transaction_closing(self, attempt, transaction))
    }
}
