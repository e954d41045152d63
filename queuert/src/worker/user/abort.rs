//! The typed abort signal of an attempt.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// Why an attempt should stop: it cannot commit anything any more, except after [`Error`](Self::Error), where the store
/// decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// The lease expired and another attempt has the job, or will have.
    TakenByAnotherWorker,
    /// The job was completed from outside.
    AlreadyCompleted,
    /// The chain was deleted.
    NotFound,
    /// The chain was cancelled.
    Cancelled,
    /// The worker stops and the grace period is over; the job goes back at no cost.
    Shutdown,
    /// The attempt ran longer than its timeout allows.
    TimedOut,
    /// The lease could not be renewed before it ran out by the process's clock, because the store does not answer. Another
    /// worker may have the job or not: an attempt that goes on may complete if the store says that the job is still its own.
    Error,
}

impl AbortReason {
    /// The reason in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TakenByAnotherWorker => "taken by another worker",
            Self::AlreadyCompleted => "already completed",
            Self::NotFound => "deleted",
            Self::Cancelled => "cancelled",
            Self::Shutdown => "the worker is stopping",
            Self::TimedOut => "timed out",
            Self::Error => "its lease could not be renewed",
        }
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A processor that stops because its signal fired returns the reason: `return Err(reason.into())`.
impl std::error::Error for AbortReason {}

/// Fires once, with a reason, when an attempt should stop. Await it, poll it, or hand a clone to a task.
///
/// ```
/// use queuert::memory::{Attempt, JobResult};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Render;
/// # #[derive(queuert::JobTypes)] enum Films { #[job(entry, output = u64)] Render(Render) }
/// # async fn render() -> u64 { 24 }
///
/// async fn process(job: Attempt<Render>) -> JobResult {
///     let signal = job.signal();
///     tokio::select! {
///         frames = render() => job.finish(frames),
///         reason = signal.aborted() => Err(format!("stopped: {reason}").into()), // the job is no longer ours
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct AbortSignal(Arc<Abort>);

/// Each attempt has one, and most are never read: a `watch` channel would cost several times as much to make.
#[derive(Debug, Default)]
struct Abort {
    reason: OnceLock<AbortReason>,
    fired: Notify,
}

impl AbortSignal {
    /// The reason, if it has fired.
    pub fn reason(&self) -> Option<AbortReason> {
        self.0.reason.get().copied()
    }

    /// Whether it has fired.
    pub fn is_aborted(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until it fires; for ever if the attempt ends well.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn aborted(&self) -> AbortReason {
        loop {
            // Created before the reason is read: it is notified of every firing from here on.
            let fired = self.0.fired.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            fired.await;
        }
    }
}

/// The sending end of an [`AbortSignal`]: the first reason counts.
#[derive(Clone, Debug)]
pub(crate) struct AbortHandle(Arc<Abort>);

impl AbortHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn signal(&self) -> AbortSignal {
        AbortSignal(Arc::clone(&self.0))
    }

    pub(crate) fn reason(&self) -> Option<AbortReason> {
        self.0.reason.get().copied()
    }

    /// Fires. Returns whether this was the first reason.
    pub(crate) fn abort(&self, reason: AbortReason) -> bool {
        let first = self.0.reason.set(reason).is_ok();
        if first {
            self.0.fired.notify_waiters();
        }
        first
    }
}
