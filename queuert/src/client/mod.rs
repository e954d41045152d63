//! The client: starts, reads, waits for and changes chains, inside the caller's transaction wherever it writes.

mod follow;
mod list;
mod lost_answer;
mod open;
mod operate;
mod query;
mod request;
mod standing;
mod start;
mod transaction;
mod wait;

pub use follow::Follow;
pub use list::{ListBlockedJobs, ListChainJobs, ListChains, ListJobs};
pub use open::{Open, OpenJob};
pub use operate::Delete;
pub use request::{Call, CallRequest, Operation, Request};
pub use start::{Start, StepTuple};
pub use transaction::{ForeignTransaction, HeldEffects, Transaction, TransactionScope};
pub use wait::Wait;

pub(crate) use standing::Scope;
pub(crate) use start::{check_type_name, new_job};

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use futures_util::FutureExt;

use crate::__task::{Lock, LockGuard};
use crate::adapter::{BoxFuture, Notice, NotifyAdapter, ObservabilityAdapter, StateAdapter};
use crate::effects::Effects;
use crate::error::{NotifyError, cause_chain};
use crate::event::Event;
use crate::event_hub::{EventHub, EventStream};
use crate::id::Entropy;
use crate::memory::InProcessNotify;

/// Starts, reads, waits for and changes chains. Cheap to clone; make one per store and process.
///
/// ```
/// use queuert::Client;
/// use queuert::memory::MemoryState;
///
/// let client = Client::new(MemoryState::new());
/// ```
pub struct Client<S: StateAdapter>(Arc<Inner<S>>);

struct Inner<S> {
    state: S,
    notify: Arc<dyn NotifyAdapter>,
    notified: bool,
    events: EventHub,
    entropy: Entropy,
    /// Nothing is announced before this time, because the notify adapter did not answer.
    mute_until: Lock<Option<Instant>>,
}

impl<S: StateAdapter> Client<S> {
    /// Makes a client on a store. It wakes the workers of its own process at once; workers of other processes find new
    /// jobs by polling, unless a notify adapter is added with [`Client::builder`].
    pub fn new(state: S) -> Self {
        Self::builder(state).build()
    }

    /// Begins to configure a client, for example with a notify or an observability adapter.
    pub fn builder(state: S) -> ClientBuilder<S> {
        ClientBuilder {
            state,
            notify: None,
            observability: None,
            entropy: Entropy::system(),
        }
    }

    /// A stream of the events of this client and its workers, from now on.
    pub fn events(&self) -> EventStream {
        self.0.events.subscribe()
    }

    /// The state adapter of this client.
    pub fn state(&self) -> &S {
        &self.0.state
    }

    pub(crate) fn hub(&self) -> &EventHub {
        &self.0.events
    }

    pub(crate) fn notify(&self) -> &dyn NotifyAdapter {
        &*self.0.notify
    }

    /// Whether a notify adapter wakes other processes.
    pub(crate) fn has_notify_adapter(&self) -> bool {
        self.0.notified
    }

    pub(crate) fn entropy(&self) -> &Entropy {
        &self.0.entropy
    }

    /// Emits the events and announces the wake-ups of a committed write. A failure is an event: the write stays committed.
    pub(crate) async fn flush(&self, effects: Effects) {
        let notices = effects.publish();
        self.announce(&notices).await;
    }

    pub(crate) async fn announce(&self, notices: &[Notice]) {
        if notices.is_empty() || self.is_mute() {
            return;
        }
        let asked_at = Instant::now();
        let announced = patiently(ANNOUNCE_PATIENCE, async { self.notify().announce(notices).await }).await;
        if let Err(error) = announced {
            // Notices are hints: an adapter that does not answer must not make every write as slow as itself.
            if asked_at.elapsed() >= ANNOUNCE_PATIENCE {
                *self.mute_until() = Some(Instant::now() + MUTE);
            }
            self.hub().emit_with(|| Event::NotifyFailed {
                operation: "announce",
                error: report(&error),
            });
        }
    }
}

/// How long a committed write waits until its wake-ups are sent. Wake-ups may be lost, so not long.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(1);
/// How long nothing is announced after that. Workers and waiters poll meanwhile.
const MUTE: Duration = Duration::from_secs(5);

/// Runs a call to the notify adapter. A call that panics or does not answer is a failure like any other: it may lose
/// wake-ups, but must not block the caller.
pub(crate) async fn patiently<T>(
    patience: Duration,
    call: impl Future<Output = Result<T, NotifyError>>,
) -> Result<T, NotifyError> {
    match tokio::time::timeout(patience, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(NotifyError::new(
            "the notify adapter panicked; the panic hook has printed where: report it to the authors of the adapter",
        )),
        Err(_) => Err(NotifyError::new(format!(
            "the notify adapter did not answer within {patience:?}; check that its server can be reached"
        ))),
    }
}

impl<S: StateAdapter> Client<S> {
    fn mute_until(&self) -> LockGuard<'_, Option<Instant>> {
        self.0.mute_until.lock()
    }

    fn is_mute(&self) -> bool {
        self.mute_until().is_some_and(|until| Instant::now() < until)
    }
}

/// An error with its sources, for an event.
pub(crate) fn report(error: &(dyn std::error::Error + 'static)) -> Arc<str> {
    cause_chain(error).into()
}

impl<S: StateAdapter> Clone for Client<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: StateAdapter> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Configures a [`Client`].
#[must_use]
pub struct ClientBuilder<S> {
    state: S,
    notify: Option<Arc<dyn NotifyAdapter>>,
    observability: Option<Arc<dyn ObservabilityAdapter>>,
    entropy: Entropy,
}

impl<S: StateAdapter> ClientBuilder<S> {
    /// Sets the notify adapter, which tells other processes of new jobs and ended chains. Default: only workers and
    /// waiters of this process are woken.
    pub fn notify(mut self, adapter: impl NotifyAdapter) -> Self {
        self.notify = Some(Arc::new(adapter));
        self
    }

    /// Sets the observability adapter, which gets all events. Default: none.
    pub fn observability(mut self, adapter: impl ObservabilityAdapter) -> Self {
        self.observability = Some(Arc::new(adapter));
        self
    }

    /// Draws ids, fences and jitter from a seed, so that a test can repeat a run. Never use it with a store that
    /// outlives the process: the ids would repeat. Default: the operating system's randomness.
    pub fn seed(mut self, seed: u64) -> Self {
        self.entropy = Entropy::seeded(seed);
        self
    }

    /// Makes the client.
    pub fn build(self) -> Client<S> {
        let notified = self.notify.is_some();
        Client(Arc::new(Inner {
            state: self.state,
            notify: self.notify.unwrap_or_else(|| Arc::new(InProcessNotify::new())),
            notified,
            events: EventHub::new(self.observability),
            entropy: self.entropy,
            mute_until: Lock::default(),
        }))
    }
}

impl<S> fmt::Debug for ClientBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").finish_non_exhaustive()
    }
}

impl<T: NotifyAdapter + ?Sized> NotifyAdapter for Arc<T> {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        (**self).announce(notices)
    }

    fn subscribe(
        &self,
        topic: crate::adapter::Topic,
    ) -> BoxFuture<'_, Result<crate::adapter::Subscription, NotifyError>> {
        (**self).subscribe(topic)
    }
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::adapter::{Subscription, Topic};
    use crate::chain::ChainRef;
    use crate::memory::{Attempt, MemoryState};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing;

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Nothing(Nothing),
    }

    /// Never answers an announcement, and ends every subscription at once.
    #[derive(Clone, Default)]
    struct Silent {
        announced: Arc<AtomicUsize>,
        subscribed: Arc<AtomicUsize>,
    }

    impl NotifyAdapter for Silent {
        fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
            self.announced.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::pending())
        }

        fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
            self.subscribed.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(Subscription::new(()).1) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_adapter_that_does_not_answer_is_left_alone_for_a_while() {
        let silent = Silent::default();
        let client = Client::builder(MemoryState::new()).notify(silent.clone()).build();
        let begun = Instant::now();
        for _ in 0..10 {
            client.start(Nothing).await.unwrap();
        }
        assert_eq!(silent.announced.load(Ordering::SeqCst), 1);
        assert_eq!(
            begun.elapsed().as_secs(),
            ANNOUNCE_PATIENCE.as_secs(),
            "one start was slow"
        );
        tokio::time::advance(MUTE).await;
        client.start(Nothing).await.unwrap();
        assert_eq!(silent.announced.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_whose_subscription_ends_listens_again_and_looks() {
        let silent = Silent::default();
        let client = Client::builder(MemoryState::new()).notify(silent.clone()).build();
        let chain: ChainRef<Nothing> = client.start(Nothing).await.unwrap().chain();
        let begun = Instant::now();
        let waiting = client.wait(chain).timeout(Duration::from_secs(60)).into_future();
        let working = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let worker = client
                .worker()
                .process(|job: Attempt<Nothing>| async move { job.finish(()) });
            worker.drain().await.unwrap();
        };
        let (output, ()) = tokio::join!(waiting, working);
        output.unwrap();
        assert!(begun.elapsed() < POLL_OF_A_WAIT, "it looked before its poll");
        assert!(silent.subscribed.load(Ordering::SeqCst) > 2);
    }

    /// Cannot hear, says so, and keeps its subscriptions.
    #[derive(Clone, Default)]
    struct Deaf(Arc<Lock<Vec<crate::adapter::NoticeSender>>>);

    impl NotifyAdapter for Deaf {
        fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
            let (sender, subscription) = Subscription::new(());
            sender.fail("the line is dead");
            self.0.lock().push(sender);
            Box::pin(std::future::ready(Ok(subscription)))
        }
    }

    async fn heard_of_the_dead_line(events: &mut EventStream) {
        loop {
            if let Some(Event::NotifyFailed { operation, error }) = events.next().await {
                assert_eq!((operation, &*error), ("listen", "the line is dead"));
                return;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_adapter_that_cannot_hear_is_an_event_of_workers_and_waits() {
        let deaf = Deaf::default();
        let client = Client::builder(MemoryState::new()).notify(deaf.clone()).build();
        let mut events = client.events();
        let chain: ChainRef<Nothing> = client.start(Nothing).await.unwrap().chain();
        let waiting = client.clone();
        let waiting = tokio::spawn(async move { waiting.wait(chain).await });
        heard_of_the_dead_line(&mut events).await;
        let worker = client
            .worker()
            .process(|job: Attempt<Nothing>| async move { job.finish(()) })
            .start()
            .await
            .unwrap();
        heard_of_the_dead_line(&mut events).await;
        heard_of_the_dead_line(&mut events).await;
        waiting.await.unwrap().unwrap();
        assert_eq!(deaf.0.lock().len(), 3, "nobody subscribed again");
        worker.stop().await;
    }

    /// Refuses the first subscriptions.
    #[derive(Clone, Default)]
    struct Late(Arc<AtomicUsize>);

    impl NotifyAdapter for Late {
        fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
            let refused = self.0.fetch_add(1, Ordering::SeqCst) < 3;
            Box::pin(async move {
                match refused {
                    true => Err(NotifyError::new("not yet")),
                    false => crate::memory::NoNotify.subscribe(topic).await,
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_could_not_listen_tries_again_before_its_poll_and_looks() {
        let late = Late::default();
        let client = Client::builder(MemoryState::new()).notify(late.clone()).build();
        let chain: ChainRef<Nothing> = client.start(Nothing).await.unwrap().chain();
        let begun = Instant::now();
        let waiting = client.wait(chain).into_future();
        let working = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let quiet = Client::builder(client.state().clone()).build();
            let worker = quiet
                .worker()
                .process(|job: Attempt<Nothing>| async move { job.finish(()) });
            worker.drain().await.unwrap();
        };
        let (output, ()) = tokio::join!(waiting, working);
        output.unwrap();
        assert_eq!(late.0.load(Ordering::SeqCst), 4);
        assert!(begun.elapsed() < POLL_OF_A_WAIT, "it looked when it listened");
    }

    #[tokio::test]
    async fn notices_that_were_taken_out_are_not_published() {
        let recorder = Silent::default();
        let client = Client::builder(MemoryState::new()).notify(recorder.clone()).build();
        let mut events = client.events();
        let mut own = client.state().begin().await.unwrap();
        let mut foreign = client.adopt(&mut own);
        client.start(Nothing).within(&mut foreign).await.unwrap();
        let mut held = foreign.into_effects();
        let notices = held.take_notices();
        assert!(matches!(notices[..], [Notice::JobsAvailable { count: 1, .. }]));
        client.state().commit(own).await.unwrap();
        held.publish().await;
        assert_eq!(recorder.announced.load(Ordering::SeqCst), 0);
        assert!(matches!(events.next().await, Some(Event::ChainCreated { .. })));
    }

    /// How long a wait with a notify adapter sleeps when nothing wakes it.
    const POLL_OF_A_WAIT: Duration = Duration::from_secs(15);
}
