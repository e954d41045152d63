//! A notify adapter that fails on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use queuert::NotifyError;
use queuert::adapter::{BoxFuture, Notice, NotifyAdapter, Subscription, Topic};

/// How the calls of a [`FaultyNotify`] adapter go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotifyFault {
    /// An error; nobody is told.
    Fail,
    /// It seems to go well, but nobody is told, and subscriptions are deaf.
    Lose,
    /// A panic.
    Panic,
    /// No answer, ever.
    Hang,
}

/// A notify adapter that passes everything on to another one, and fails on demand. Clones share the adapter and the
/// fault.
#[derive(Clone)]
pub struct FaultyNotify {
    inner: Arc<dyn NotifyAdapter>,
    control: Arc<Mutex<Control>>,
}

#[derive(Debug, Default)]
struct Control {
    fault: Option<NotifyFault>,
    announced: Vec<Notice>,
    /// Deaf subscriptions must keep their senders, or they would report that the adapter has gone.
    kept: Vec<queuert::adapter::NoticeSender>,
}

impl FaultyNotify {
    /// Passes everything on, until it is told otherwise.
    pub fn new(inner: Arc<dyn NotifyAdapter>) -> Self {
        Self {
            inner,
            control: Arc::default(),
        }
    }

    /// From now on all calls go wrong like this; `None` heals.
    pub fn set(&self, fault: Option<NotifyFault>) {
        self.lock().fault = fault;
    }

    /// The notices that were to be announced, also those that went wrong.
    pub fn announced(&self) -> Vec<Notice> {
        self.lock().announced.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NotifyAdapter for FaultyNotify {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        let fault = {
            let mut control = self.lock();
            control.announced.extend_from_slice(notices);
            control.fault
        };
        match fault {
            None => self.inner.announce(notices),
            Some(NotifyFault::Fail) => Box::pin(async { Err(NotifyError::new("made to fail: announce")) }),
            Some(NotifyFault::Lose) => Box::pin(async { Ok(()) }),
            Some(NotifyFault::Panic) => Box::pin(async { panic!("made to panic: announce") }),
            Some(NotifyFault::Hang) => Box::pin(std::future::pending()),
        }
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        let fault = self.lock().fault;
        match fault {
            None => self.inner.subscribe(topic),
            Some(NotifyFault::Fail) => Box::pin(async { Err(NotifyError::new("made to fail: subscribe")) }),
            Some(NotifyFault::Lose) => Box::pin(async {
                let (sender, subscription) = Subscription::new(());
                self.lock().kept.push(sender);
                Ok(subscription)
            }),
            Some(NotifyFault::Panic) => Box::pin(async { panic!("made to panic: subscribe") }),
            Some(NotifyFault::Hang) => Box::pin(std::future::pending()),
        }
    }
}

impl std::fmt::Debug for FaultyNotify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyNotify").finish_non_exhaustive()
    }
}
