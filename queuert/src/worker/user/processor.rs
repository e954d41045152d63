//! Processors: the user's code for a job type, in public generic, in private erased.

use std::future::Future;
use std::marker::PhantomData;

use crate::adapter::{BoxFuture, StateAdapter};
use crate::job_type::{JobType, JobTypes};
use crate::worker::user::attempt::{Attempt, RawAttempt};
use crate::worker::user::completion::JobResult;

/// The user's code for a job type, as a type of its own. Closures and async functions need no trait: pass them to
/// [`process`](crate::WorkerBuilder::process).
///
/// ```
/// use queuert::memory::{Attempt, JobResult, MemoryState};
/// use queuert::Processor;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct SendWelcome { user: u64 }
/// # #[derive(queuert::JobTypes)]
/// # enum Mails { #[job(entry, output = ())] SendWelcome(SendWelcome) }
///
/// struct Mailer { from: String }
///
/// impl Processor<SendWelcome, MemoryState> for Mailer {
///     async fn process(&self, job: Attempt<SendWelcome>) -> JobResult {
///         println!("{} writes to user {}", self.from, job.user);
///         job.finish(())
///     }
/// }
/// ```
pub trait Processor<J: JobType, S: StateAdapter>:
    Send
    + Sync // all workers share it: hold an `Arc` or a `Mutex`, no `Rc` or `RefCell`
    + 'static
{
    /// Runs one attempt. Dropped at any await when it times out, or is aborted and the worker was told to drop.
    fn process(&self, job: Attempt<J, S>) -> impl Future<Output = JobResult<S>> + Send;
}

/// A processor for whatever type the attempt turns out to be.
pub(crate) trait ErasedProcessor<S: StateAdapter>: Send + Sync + 'static {
    fn process(&self, attempt: RawAttempt<S>) -> BoxFuture<'_, JobResult<S>>;
}

pub(crate) struct ByTrait<J, P> {
    pub(crate) processor: P,
    pub(crate) job: PhantomData<fn() -> J>,
}

impl<J: JobType, S: StateAdapter, P: Processor<J, S>> ErasedProcessor<S> for ByTrait<J, P> {
    fn process(&self, attempt: RawAttempt<S>) -> BoxFuture<'_, JobResult<S>> {
        Box::pin(async move { self.processor.process(attempt.typed()?).await })
    }
}

pub(crate) struct ByFunction<J, F> {
    pub(crate) function: F,
    pub(crate) job: PhantomData<fn() -> J>,
}

impl<J, S, F, Fut> ErasedProcessor<S> for ByFunction<J, F>
where
    J: JobType,
    S: StateAdapter,
    F: Fn(Attempt<J, S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = JobResult<S>> + Send + 'static,
{
    fn process(&self, attempt: RawAttempt<S>) -> BoxFuture<'_, JobResult<S>> {
        match attempt.typed() {
            Ok(attempt) => Box::pin((self.function)(attempt)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

pub(crate) struct ByEnum<E, F> {
    pub(crate) function: F,
    pub(crate) types: PhantomData<fn() -> E>,
}

impl<E, S, F, Fut> ErasedProcessor<S> for ByEnum<E, F>
where
    E: JobTypes,
    S: StateAdapter,
    F: Fn(E::Attempt<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = JobResult<S>> + Send + 'static,
{
    fn process(&self, attempt: RawAttempt<S>) -> BoxFuture<'_, JobResult<S>> {
        match E::attempt(attempt) {
            Ok(attempt) => Box::pin((self.function)(attempt)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
