//! Waiting for a chain to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::{BoxFuture, Notice, NoticeSender, NotifyAdapter, StateAdapter, Subscription, Topic};
use queuert::memory::{InProcessNotify, NoNotify};
use queuert::{ChainRef, Client, Error, Event, JobStatus, JobType, NotifyError, Started};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::assert_error;
use super::jobs::{Count, Decide, DecideOutput, Fail, First, Greet, POLL, crew, greet, greeting, run_all};
use super::probe::{is_done, smuggle_output, status, unknown_chain};
use crate::behaviour::PairFixture;

const LONG: Duration = Duration::from_secs(60);

/// A wait on a task of its own, that looks often.
fn waiting<S: StateAdapter>(client: &Client<S>, chain: &Started<Greet>) -> JoinHandle<Result<String, Error>> {
    let (client, chain) = (client.clone(), chain.chain());
    tokio::spawn(async move { client.wait(chain).poll_interval(POLL).await })
}

async fn finish<S: StateAdapter>(client: &Client<S>, chain: &Started<Greet>) {
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("done".to_owned()).await.expect("it finishes");
    tx.commit().await.expect("it commits");
}

/// A chain that has ended is given at once. (AW1)
pub async fn an_ended_chain_is_given_at_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    run_all(&client).await;
    let output = client.wait(&started).poll_interval(LONG).timeout(Duration::ZERO).await;
    assert_eq!(output.expect("it ended"), greeting("Ada"));
}

/// A chain that ends while somebody waits is noticed, by every waiter.
pub async fn an_end_is_noticed_by_every_waiter<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiters: Vec<_> = (0..10).map(|_| waiting(&client, &started)).collect();
    for waiter in &mut waiters[..1] {
        assert!(!is_done(&fixture, waiter).await, "the chain is open");
    }
    finish(&client, &started).await;
    for waiter in waiters {
        assert_eq!(waiter.await.expect("the task ends").expect("it ended"), "done");
    }
}

/// The output of a chain is that of its last job, and tells which branch it took. (C1, C2, C3)
pub async fn the_output_is_that_of_the_last_job<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let workers = crew(&client).start().await.expect("the crew starts");
    let (three, small, large) = client
        .start_each((First { number: 1 }, Decide { amount: 5 }, Decide { amount: 500 }))
        .await
        .expect("they start");
    assert_eq!(client.wait(&three).poll_interval(POLL).await.expect("it ends"), 3);
    let small = client.wait(&small).poll_interval(POLL).await.expect("it ends");
    assert!(matches!(small, DecideOutput::Accept(true)));
    let large = client.wait(&large).poll_interval(POLL).await.expect("it ends");
    assert!(matches!(large, DecideOutput::Reject(reason) if reason == "500 is too much"));
    workers.stop().await;
}

/// A wait is woken by the notice of the end, long before it would look again.
pub async fn a_notice_wakes_the_wait<F: PairFixture>(fixture: F) {
    let notify = InProcessNotify::new();
    let client = Client::builder(fixture.state().await).notify(notify).build();
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiter = tokio::spawn({
        let (client, chain) = (client.clone(), started.chain());
        async move { client.wait(chain).poll_interval(LONG).await }
    });
    assert!(!is_done(&fixture, &mut waiter).await, "the chain is open");
    finish(&client, &started).await;
    let output = tokio::time::timeout(LONG / 4, waiter)
        .await
        .expect("it is woken before it looks again");
    assert_eq!(output.expect("the task ends").expect("it ended"), "done");
}

/// A wait that is over in time says so with its timeout, no earlier; the chain goes on. (AW4)
pub async fn a_timeout_ends_the_wait_only<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let limit = Duration::from_millis(150);
    let begun = Instant::now();
    let result = client.wait(&started).poll_interval(LONG).timeout(limit).await;
    let took = begun.elapsed();
    assert_error!(
        result,
        Error::WaitTimeout { chain, timeout, latest: Some(latest) }
            if chain == started.id() && timeout == limit && latest.id == started.id().first_job()
    );
    assert!(
        (limit..limit + Duration::from_secs(5)).contains(&took),
        "it took {took:?}"
    );
    assert_eq!(status(&client, &started).await, JobStatus::Pending);
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

/// A timeout of nothing looks once.
pub async fn a_timeout_of_zero_looks_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let result = client.wait(&started).timeout(Duration::ZERO).await;
    assert_error!(result, Error::WaitTimeout { .. });
}

/// The last look is at the deadline, so a chain that ended by then is given although no notice came.
pub async fn an_end_at_the_deadline_counts<F: PairFixture>(fixture: F) {
    let client = Client::builder(fixture.state().await).notify(NoNotify).build();
    let started = client.start(greet("Ada")).await.expect("it starts");
    let timeout = 4 * fixture.patience() + Duration::from_millis(1_500);
    let mut waiter = tokio::spawn({
        let (client, chain) = (client.clone(), started.chain());
        async move { client.wait(chain).poll_interval(LONG).timeout(timeout).await }
    });
    assert!(
        !is_done(&fixture, &mut waiter).await,
        "it has looked, and the chain was open"
    );
    finish(&client, &started).await;
    assert_eq!(waiter.await.expect("the task ends").expect("it ended in time"), "done");
}

/// A chain that died gives the failure that it died of, also to who waits already.
pub async fn a_dead_chain_gives_its_failure<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start(Fail {
            because: "the disk is full".into(),
        })
        .await
        .expect("it starts");
    let waiter = tokio::spawn({
        let (client, chain) = (client.clone(), started.chain());
        async move { client.wait(chain).poll_interval(POLL).await }
    });
    run_all(&client).await;
    for result in [waiter.await.expect("the task ends"), client.wait(&started).await] {
        assert_error!(
            result,
            Error::ChainDead { chain, last_error: Some(ref error) }
                if chain == started.id() && error.message == "the disk is full" && error.attempt == 1
        );
    }
}

/// A chain that is cancelled gives that, also to who waits already.
pub async fn a_cancelled_chain_gives_that<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiter = waiting(&client, &started);
    assert!(!is_done(&fixture, &mut waiter).await, "the chain is open");
    client.cancel(&started).await.expect("it can be cancelled");
    for result in [waiter.await.expect("the task ends"), client.wait(&started).await] {
        assert_error!(result, Error::ChainCancelled(chain) if chain == started.id());
    }
}

/// A chain that is deleted while somebody waits is not found.
pub async fn a_chain_deleted_meanwhile_is_not_found<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiter = waiting(&client, &started);
    assert!(!is_done(&fixture, &mut waiter).await, "the chain is open");
    client.delete(&started).await.expect("it can be deleted");
    let result = waiter.await.expect("the task ends");
    assert_error!(result, Error::ChainNotFound(chain) if chain == started.id());
}

/// A chain that never was is not found, at once. (AW5)
pub async fn an_unknown_chain_is_not_found<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let nobody = ChainRef::<Greet>::new(unknown_chain());
    let result = client.wait(nobody).poll_interval(LONG).await;
    assert_error!(result, Error::ChainNotFound(chain) if chain == unknown_chain());
}

/// A chain of another type than the caller said is refused at once, also while it is open. (WL11)
pub async fn a_chain_of_another_type_is_refused<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let result = client
        .wait(ChainRef::<Count>::new(started.id()))
        .poll_interval(LONG)
        .await;
    assert_error!(
        result,
        Error::TypeMismatch { id, expected, actual }
            if id == started.id().first_job() && expected.as_str() == Count::NAME && actual.as_str() == Greet::NAME
    );
}

/// A wait that is dropped leaves the chain alone. (AW3)
pub async fn a_dropped_wait_leaves_the_chain_alone<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiter = waiting(&client, &started);
    assert!(!is_done(&fixture, &mut waiter).await, "the chain is open");
    waiter.abort();
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

/// A wait does not see an end that is not committed.
pub async fn an_uncommitted_end_is_no_end<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut waiter = waiting(&client, &started);
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Greet>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("never".to_owned()).await.expect("it finishes");
    assert!(!is_done(&fixture, &mut waiter).await, "it is not committed");
    tx.rollback().await.expect("it rolls back");
    assert!(!is_done(&fixture, &mut waiter).await, "it was rolled back");
    smuggle_output(&client, started.id(), "\"at last\"").await;
    assert_eq!(waiter.await.expect("the task ends").expect("it ended"), "at last");
}

/// How an adapter may misbehave for who subscribes.
#[derive(Clone, Copy)]
enum Subscribing {
    Counts,
    Fails,
    Ends,
}

/// Never wakes anybody.
struct Odd {
    subscribing: Subscribing,
    live: Arc<AtomicUsize>,
    /// Without its sender a subscription would end.
    kept: Lock<Vec<NoticeSender>>,
}

struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl NotifyAdapter for Odd {
    fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async { Ok(()) })
    }

    fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(async {
            if let Subscribing::Fails = self.subscribing {
                return Err(NotifyError::new("nobody listens"));
            }
            self.live.fetch_add(1, Ordering::SeqCst);
            let (sender, subscription) = Subscription::new(Live(Arc::clone(&self.live)));
            if let Subscribing::Counts = self.subscribing {
                self.kept.lock().push(sender);
            }
            Ok(subscription)
        })
    }
}

async fn oddly<F: PairFixture>(fixture: &F, subscribing: Subscribing) -> (Client<F::State>, Arc<AtomicUsize>) {
    let live = Arc::new(AtomicUsize::new(0));
    let odd = Odd {
        subscribing,
        live: Arc::clone(&live),
        kept: Lock::default(),
    };
    (Client::builder(fixture.state().await).notify(odd).build(), live)
}

/// A wait that is over, in whatever way, leaves no subscription behind. (AW2)
pub async fn no_subscription_is_left_behind<F: PairFixture>(fixture: F) {
    let (client, live) = oddly(&fixture, Subscribing::Counts).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let mut dropped = waiting(&client, &started);
    let mut finished = waiting(&client, &started);
    assert!(!is_done(&fixture, &mut dropped).await && !is_done(&fixture, &mut finished).await);
    assert_eq!(live.load(Ordering::SeqCst), 2, "both listen");
    dropped.abort();
    dropped.await.expect_err("it was aborted");
    let result = client.wait(&started).timeout(Duration::from_millis(10)).await;
    assert_error!(result, Error::WaitTimeout { .. });
    finish(&client, &started).await;
    finished.await.expect("the task ends").expect("it ended");
    assert_eq!(live.load(Ordering::SeqCst), 0);
}

/// A notify adapter that cannot be listened to, or goes away, costs latency only, and an event says so. (LG10)
pub async fn a_broken_notify_adapter_costs_latency_only<F: PairFixture>(fixture: F) {
    for subscribing in [Subscribing::Fails, Subscribing::Ends] {
        let (client, _) = oddly(&fixture, subscribing).await;
        let mut events = client.events();
        let started = client.start(greet("Ada")).await.expect("it starts");
        let mut waiter = waiting(&client, &started);
        assert!(!is_done(&fixture, &mut waiter).await, "the chain is open");
        finish(&client, &started).await;
        assert_eq!(waiter.await.expect("the task ends").expect("it ended"), "done");
        let failed = std::iter::from_fn(|| events.try_next()).any(|event| {
            matches!(
                event,
                Event::NotifyFailed {
                    operation: "subscribe",
                    ..
                }
            )
        });
        assert_eq!(failed, matches!(subscribing, Subscribing::Fails));
    }
}
