//! The seam to whatever carries hints between processes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::BoxFuture;
use crate::__task::Lock;
use crate::error::NotifyError;
use crate::id::{ChainId, JobId};
use crate::job::TypeName;

/// Carries hints between processes.
///
/// # Contract
///
/// - Notices are hints: they may be lost, repeated or reordered. Losing all of them costs latency up to a poll
///   interval, never work.
/// - The library announces after commit only, and nothing after a rollback.
/// - When [`subscribe`](Self::subscribe) has returned, everything announced from then on is delivered, barring loss.
/// - After a lost connection the adapter subscribes again first, then sends [`Wake::Resync`] to every subscription, so
///   that everyone looks again.
/// - An adapter that cannot hear for a while says so with [`Wake::Failed`], keeps its subscriptions, and goes on trying
///   by itself.
/// - `count` new jobs should wake about `count` workers, not all of them: [`Demand`] tells how many jobs a subscriber
///   could take right now.
/// - A slow or dropped subscriber never disturbs another one, nor the announcer.
pub trait NotifyAdapter: Send + Sync + 'static {
    /// Tells everyone concerned. A dropped future may have told some.
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>>;

    /// Listens for a topic until the subscription is dropped.
    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>>;
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Notice {
    /// Jobs of a type became due.
    JobsAvailable {
        /// The type.
        type_name: TypeName,
        /// How many.
        count: usize,
    },
    /// A chain completed, died, was cancelled or deleted.
    ChainEnded(ChainId),
    /// The lease of a job was taken from its attempt.
    LeaseLost(JobId),
    /// A job type was paused or resumed. It concerns all subscribers for [jobs](Topic::Jobs), whatever their types and their
    /// demand.
    PausesChanged,
}

/// What to listen for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Topic {
    /// Due jobs of these types.
    Jobs {
        /// The types.
        types: Vec<TypeName>,
        /// How many jobs the subscriber could take right now.
        demand: Demand,
    },
    /// The end of one chain.
    Chain(ChainId),
    /// Lost leases, of any job.
    Leases,
}

/// How many jobs a subscriber could take right now. The subscriber keeps it up to date; adapters may read it.
#[derive(Clone, Debug, Default)]
pub struct Demand(Arc<AtomicUsize>);

impl Demand {
    /// A demand that can be changed through any clone.
    pub fn new(jobs: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(jobs)))
    }

    /// Changes it.
    pub fn set(&self, jobs: usize) {
        self.0.store(jobs, Ordering::SeqCst);
    }

    /// Reads it.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Takes up to `jobs` of it, so that the next announcement looks elsewhere, and returns how many.
    pub fn take(&self, jobs: usize) -> usize {
        let before = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |demand| {
                Some(demand - demand.min(jobs))
            })
            .unwrap_or_else(|demand| demand);
        before.min(jobs)
    }
}

/// What a subscription delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A notice of its topic.
    Notice(Notice),
    /// Notices may have been lost: look at the store.
    Resync,
    /// The adapter cannot hear for now, for this reason. It goes on trying by itself, and a [`Resync`](Self::Resync)
    /// follows when it hears again.
    Failed(Arc<str>),
}

/// A live subscription; dropping it ends it.
pub struct Subscription {
    notices: mpsc::Receiver<Notice>,
    aside: Arc<Aside>,
    _guard: Box<dyn Send + Sync>,
}

/// The adapter's end of a subscription.
#[derive(Clone, Debug)]
pub struct NoticeSender {
    notices: mpsc::Sender<Notice>,
    aside: Arc<Aside>,
}

/// What a subscriber must learn however far it is behind.
#[derive(Debug, Default)]
struct Aside {
    resync: AtomicBool,
    failure: Lock<Option<Arc<str>>>,
    changed: tokio::sync::Notify,
}

impl Aside {
    /// The latest failure, before the word that it is over.
    fn take(&self) -> Option<Wake> {
        let failure = self.failure.lock().take();
        match failure {
            Some(error) => Some(Wake::Failed(error)),
            None => self.resync.swap(false, Ordering::SeqCst).then_some(Wake::Resync),
        }
    }
}

/// Notices that a subscriber may be behind before it is told to look at the store instead.
const BACKLOG: usize = 64;

impl Subscription {
    /// A subscription and the sender that feeds it. `guard` is dropped with the subscription: let its `Drop`
    /// unsubscribe.
    pub fn new(guard: impl Send + Sync + 'static) -> (NoticeSender, Self) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let aside = Arc::new(Aside::default());
        let subscription = Self {
            notices: receiver,
            aside: Arc::clone(&aside),
            _guard: Box::new(guard),
        };
        let sender = NoticeSender { notices: sender, aside };
        (sender, subscription)
    }

    /// The next wake-up; `None` when the adapter has gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<Wake> {
        loop {
            if let Some(wake) = self.aside.take() {
                return Some(wake);
            }
            tokio::select! {
                biased;
                notice = self.notices.recv() => return notice.map(Wake::Notice),
                () = self.aside.changed.notified() => {}
            }
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

impl NoticeSender {
    /// Delivers a notice, without waiting. A subscriber that is too far behind gets a [`Wake::Resync`] instead.
    pub fn send(&self, notice: Notice) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.notices.try_send(notice) {
            self.resync();
        }
    }

    /// Tells the subscriber that notices may have been lost.
    pub fn resync(&self) {
        self.aside.resync.store(true, Ordering::SeqCst);
        self.aside.changed.notify_one();
    }

    /// Tells the subscriber that the adapter cannot hear for now, and why. Call [`resync`](Self::resync) when it hears
    /// again. A subscriber that is behind learns of the latest failure only.
    pub fn fail(&self, error: impl Into<Arc<str>>) {
        *self.aside.failure.lock() = Some(error.into());
        self.aside.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_is_told_once_and_before_the_word_that_it_is_over() {
        let (sender, mut subscription) = Subscription::new(());
        sender.fail("first");
        sender.fail("second");
        sender.resync();
        assert_eq!(subscription.recv().await, Some(Wake::Failed("second".into())));
        assert_eq!(subscription.recv().await, Some(Wake::Resync));
        drop(sender);
        assert_eq!(subscription.recv().await, None);
    }
}
