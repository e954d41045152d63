//! Wraps attempts in layers of tower.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::__task::Lock;
use crate::adapter::{BoxFuture, StateAdapter};
use crate::error::JobError;
use crate::worker::{AttemptContext, Completion, JobResult, Middleware, Next, OwnedNext};

type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// Wraps attempts in a layer of tower: rate limits, load shedding, and the layers that your services already use.
///
/// The layer is applied once, and its service is cloned for each attempt, so state that clones share, such as a limit,
/// holds for all attempts. The rules of middlewares hold: the response is a [`Completion`], which only the inner layers
/// can make, and an error of the layer is a failed attempt. Errors of the inner layers come out unchanged, also if the
/// layer boxes them.
///
/// ```
/// # #[cfg(feature = "tower")] {
/// use queuert::memory::MemoryState;
/// use queuert::middleware::{AttemptService, TowerMiddleware};
/// use queuert::Client;
///
/// # struct Identity; // stands for `tower::limit::RateLimitLayer` and its like
/// # impl<T> tower_layer::Layer<T> for Identity { type Service = T; fn layer(&self, inner: T) -> T { inner } }
/// let client = Client::new(MemoryState::new());
/// let worker = client.worker().middleware(TowerMiddleware::new(Identity));
/// # }
/// ```
pub struct TowerMiddleware<S: StateAdapter, T> {
    service: Lock<T>,
    state: PhantomData<fn() -> S>,
}

impl<S: StateAdapter, T> TowerMiddleware<S, T> {
    /// Wraps attempts in this layer.
    pub fn new<L>(layer: L) -> Self
    where
        L: Layer<AttemptService<S>, Service = T>,
    {
        Self {
            service: Lock::new(layer.layer(AttemptService { state: PhantomData })),
            state: PhantomData,
        }
    }
}

impl<S: StateAdapter, T> fmt::Debug for TowerMiddleware<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerMiddleware").finish_non_exhaustive()
    }
}

impl<S, T> Middleware<S> for TowerMiddleware<S, T>
where
    S: StateAdapter,
    T: Service<AttemptRequest<S>, Response = Completion<S>> + Clone + Send + 'static,
    T::Error: Into<BoxError>,
    T::Future: Send,
{
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        // A service is ready for whom it was asked: every attempt has a clone of its own.
        let mut service = self.service.lock().clone();
        let request = AttemptRequest {
            context: job.twin(),
            next: next.into_owned(),
        };
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(failure)?;
        service.call(request).await.map_err(failure)
    }
}

fn failure(error: impl Into<BoxError>) -> JobError {
    match error.into().downcast::<AttemptFailure>() {
        Ok(failure) => failure.0,
        Err(error) => JobError::from(error),
    }
}

/// An attempt as a request to services of tower.
pub struct AttemptRequest<S: StateAdapter> {
    context: AttemptContext<S>,
    next: OwnedNext<S>,
}

impl<S: StateAdapter> AttemptRequest<S> {
    /// The context of the attempt.
    pub fn context(&self) -> &AttemptContext<S> {
        &self.context
    }

    /// The context of the attempt. Values that are inserted here reach the inner layers.
    pub fn context_mut(&mut self) -> &mut AttemptContext<S> {
        &mut self.context
    }
}

impl<S: StateAdapter> fmt::Debug for AttemptRequest<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AttemptRequest").field(&self.context).finish()
    }
}

/// The innermost service: runs the inner middlewares and the processor. It is always ready.
pub struct AttemptService<S> {
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for AttemptService<S> {
    fn clone(&self) -> Self {
        Self { state: PhantomData }
    }
}

impl<S> fmt::Debug for AttemptService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptService")
    }
}

impl<S: StateAdapter> Service<AttemptRequest<S>> for AttemptService<S> {
    type Response = Completion<S>;
    type Error = AttemptFailure;
    type Future = BoxFuture<'static, Result<Completion<S>, AttemptFailure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AttemptFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: AttemptRequest<S>) -> Self::Future {
        let AttemptRequest { mut context, next } = request;
        Box::pin(async move { next.run(&mut context).await.map_err(AttemptFailure) })
    }
}

/// The failure of the inner layers, as an error type for tower's layers.
#[derive(Debug)]
pub struct AttemptFailure(JobError);

impl AttemptFailure {
    /// The error, as a middleware would see it.
    pub fn error(&self) -> &JobError {
        &self.0
    }
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0.source(), f)
    }
}

impl StdError for AttemptFailure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source().source()
    }
}
