//! The typed abort signal of an attempt.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Why an attempt should stop: nothing that it writes can be committed any more.
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
    /// The lease could not be renewed before it ran out, because the store does not answer.
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

/// Fires once, with a reason, when an attempt should stop. Await it, poll it, or hand a clone to a task.
#[derive(Clone, Debug)]
pub struct AbortSignal(watch::Receiver<Option<AbortReason>>);

impl AbortSignal {
    /// The reason, if it has fired.
    pub fn reason(&self) -> Option<AbortReason> {
        *self.0.borrow()
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
        let mut receiver = self.0.clone();
        let fired = receiver.wait_for(Option::is_some).await.map(|reason| *reason);
        match fired {
            Ok(Some(reason)) => reason,
            _ => std::future::pending().await,
        }
    }
}

/// The other end of an [`AbortSignal`]: the first reason counts.
#[derive(Clone, Debug)]
pub(crate) struct AbortHandle(Arc<watch::Sender<Option<AbortReason>>>);

impl AbortHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::channel(None).0))
    }

    pub(crate) fn signal(&self) -> AbortSignal {
        AbortSignal(self.0.subscribe())
    }

    pub(crate) fn reason(&self) -> Option<AbortReason> {
        *self.0.borrow()
    }

    /// Fires, and says whether this was the first reason.
    pub(crate) fn abort(&self, reason: AbortReason) -> bool {
        self.0.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason);
            }
            first
        })
    }
}
