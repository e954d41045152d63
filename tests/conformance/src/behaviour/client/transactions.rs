//! Transactions: nothing is announced before the commit, and nothing at all after a rollback.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{
    AttemptSpan, AttemptStart, BoxFuture, CommitSpan, Creation, Delivery, Notice, NotifyAdapter, ObservabilityAdapter,
    StateAdapter, Subscription, Topic,
};
use queuert::{Client, Error, Event, JobStatus, JobType, NotifyError, Transaction};

use super::jobs::{AfterOne, Count, Fail, Greet, greet, greeting, run_all};
use super::probe::{chain_count, own_id, status};
use super::recorder::{Recorder, available};
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

/// Nothing is announced, emitted or visible before the commit; all of it is after. (H6, H7, H39, LG1)
pub async fn nothing_is_announced_before_the_commit<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let started = client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    client
        .start_many(["b", "c"].map(greet))
        .within(&mut tx)
        .await
        .expect("they start");
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("before the commit");
    tx.commit().await.expect("it commits");
    assert_eq!(chain_count(&client).await, 3);
    assert_eq!(recorder.notices(), [available(Greet::NAME, 3)], "added up per type");
    let events = recorder.named_events();
    assert_eq!(events.len(), 6);
    assert_eq!(
        events[..2],
        [("chain created", started.id()), ("job created", started.id())]
    );
}

/// Nothing is announced, emitted or written after a rollback. (H13, H18, H40, LG11, LG12)
pub async fn nothing_is_announced_after_a_rollback<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    let blocker = client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    client
        .start(AfterOne.blocked_by(&blocker))
        .within(&mut tx)
        .await
        .expect("it starts");
    tx.rollback().await.expect("it rolls back");
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("after a rollback");
    assert!(run_all(&client).await.is_empty());
}

/// A transaction that is dropped is rolled back, and frees what it held.
pub async fn a_dropped_transaction_is_rolled_back<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .start(greet("Ada"))
        .deduplicate("key")
        .id(own_id(1))
        .within(&mut tx)
        .await
        .expect("it starts");
    drop(tx);
    recorder.assert_silent("after a dropped transaction");
    let again = client
        .start(greet("Ada"))
        .deduplicate("key")
        .id(own_id(1))
        .await
        .expect("key and id are free");
    assert!(!again.deduplicated());
    assert_eq!(chain_count(&client).await, 1);
}

/// A transaction that did nothing announces nothing. (H27)
pub async fn an_empty_transaction_is_silent<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    client
        .begin()
        .await
        .expect("a transaction opens")
        .commit()
        .await
        .expect("it commits");
    recorder.assert_silent("for nothing");
}

/// What every operation causes is held until the commit, and comes in the order in which it was caused. (H10, H47)
pub async fn every_operation_holds_its_effects<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let later = client
        .start(Count { number: 1 })
        .delay(Duration::from_secs(60))
        .await
        .expect("it starts");
    let (opened, cancelled, deleted) = client
        .start_each((greet("a"), greet("b"), greet("c")))
        .await
        .expect("they start");
    let dead = client.start(Fail { because: "so".into() }).await.expect("it starts");
    client.cancel(&dead).await.expect("it can be cancelled");
    recorder.forget();

    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .trigger(later.id().first_job())
        .within(&mut tx)
        .await
        .expect("it can be triggered");
    client
        .cancel(&cancelled)
        .within(&mut tx)
        .await
        .expect("it can be cancelled");
    client.retry(&dead).within(&mut tx).await.expect("it can be retried");
    client
        .delete(&deleted)
        .within(&mut tx)
        .await
        .expect("it can be deleted");
    let open = client
        .open::<Greet>(&opened)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.finish("done".to_owned()).await.expect("it finishes");
    let new = client
        .start(greet("d"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it starts");
    client
        .start(greet("e"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it is answered");
    recorder.assert_silent("before the commit");
    tx.commit().await.expect("it commits");

    assert_eq!(
        recorder.named_events(),
        [
            ("job triggered", later.id()),
            ("job cancelled", cancelled.id()),
            ("chain cancelled", cancelled.id()),
            ("chain retried", dead.id()),
            ("chain deleted", deleted.id()),
            ("job completed", opened.id()),
            ("chain completed", opened.id()),
            ("chain created", new.id()),
            ("job created", new.id()),
            ("chain deduplicated", new.id()),
        ]
    );
    assert_eq!(
        recorder.notices(),
        [
            available(Count::NAME, 1),
            Notice::ChainEnded(cancelled.id()),
            available(Fail::NAME, 1),
            Notice::ChainEnded(deleted.id()),
            Notice::ChainEnded(opened.id()),
            available(Greet::NAME, 1),
        ]
    );
}

/// A request that is refused leaves the transaction usable and holds nothing. (9.5 H20)
pub async fn a_refused_request_holds_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    client.start(greet("Ada")).id(own_id(1)).await.expect("it starts");
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let refused = client
        .start_each((Count { number: 1 }, queuert::Step::new(greet("Eve")).id(own_id(1))))
        .within(&mut tx)
        .await;
    assert_item_refused!(refused, 1, Error::IdTaken(_));
    assert_error!(
        client.cancel(own_id(9).as_chain()).within(&mut tx).await,
        Error::ChainNotFound(_)
    );
    let started = client
        .start(greet("Grace"))
        .within(&mut tx)
        .await
        .expect("the transaction is usable");
    tx.commit().await.expect("it commits");
    assert_eq!(chain_count(&client).await, 2);
    assert_eq!(
        recorder.named_events(),
        [("chain created", started.id()), ("job created", started.id())]
    );
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}

/// Two transactions at the same time hold their effects apart.
pub async fn transactions_do_not_mix<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().concurrent_writers {
        eprintln!("left out: the store has one writer at a time");
        return;
    }
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut kept = client.begin().await.expect("a transaction opens");
    let mut lost = client.begin().await.expect("a transaction opens");
    client.start(greet("a")).within(&mut lost).await.expect("it starts");
    client
        .start(Count { number: 1 })
        .within(&mut kept)
        .await
        .expect("it starts");
    client.start(greet("b")).within(&mut lost).await.expect("it starts");
    lost.rollback().await.expect("it rolls back");
    recorder.assert_silent("after a rollback");
    kept.commit().await.expect("it commits");
    assert_eq!(recorder.notices(), [available(Count::NAME, 1)]);
    assert_eq!(chain_count(&client).await, 1);
}

/// The caller's own writes commit and roll back together with the chains.
pub async fn own_writes_commit_with_the_chains<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().markers {
        eprintln!("left out: the fixture writes no rows of its own");
        return;
    }
    let client = fixture.client().await;
    for (marker, commits) in [("kept", true), ("lost", false)] {
        let mut tx = client.begin().await.expect("a transaction opens");
        fixture.write_marker(&mut tx, marker).await;
        let started = client.start(greet(marker)).within(&mut tx).await.expect("it starts");
        match commits {
            true => tx.commit().await.expect("it commits"),
            false => tx.rollback().await.expect("it rolls back"),
        }
        assert_eq!(fixture.read_marker(client.state(), marker).await, commits);
        let found = client.get_chain(&started).await.expect("it can be read");
        assert_eq!(found.is_some(), commits);
    }
}

/// An error of the application's own.
#[derive(Debug)]
enum Mishap {
    OutOfStock,
    Queue(Error),
}

impl From<Error> for Mishap {
    fn from(error: Error) -> Self {
        Self::Queue(error)
    }
}

/// `transaction` commits when the work is done, and gives its result. (H11)
pub async fn work_that_succeeds_is_committed<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let work = async |tx: &mut Transaction<F::State>| {
        let started = client.start(greet("Ada")).within(tx).await?;
        recorder.assert_silent("before the commit");
        Ok::<_, Mishap>(started)
    };
    let started = client.transaction(work).await.expect("it commits");
    assert_eq!(status(&client, &started).await, JobStatus::Pending);
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}

/// `transaction` rolls back when the work fails, and gives the caller's own error. (H12, H13, H16)
pub async fn work_that_fails_is_rolled_back<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let result = client
        .transaction(async |tx| {
            client.start(greet("Ada")).within(tx).await?;
            Err::<(), _>(Mishap::OutOfStock)
        })
        .await;
    assert_error!(result, Mishap::OutOfStock);
    let result = client
        .transaction(async |tx| {
            client.start(greet("Ada")).within(tx).await?;
            client.cancel(own_id(9).as_chain()).within(tx).await?;
            Ok::<(), Mishap>(())
        })
        .await;
    assert_error!(result, Mishap::Queue(Error::ChainNotFound(_)));
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("after a rollback");
}

/// `transaction` rolls back when the work panics, or is dropped on its way.
pub async fn work_that_is_cut_short_is_rolled_back<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let reached = Arc::new(tokio::sync::Notify::new());
    for panics in [true, false] {
        let task = tokio::spawn({
            let (client, reached) = (client.clone(), Arc::clone(&reached));
            async move {
                let mut tx = client.begin().await.expect("a transaction opens");
                client
                    .start(greet("Ada"))
                    .deduplicate("key")
                    .within(&mut tx)
                    .await
                    .expect("it starts");
                reached.notify_one();
                assert!(!panics, "the application has a bug");
                std::future::pending::<()>().await;
                tx.commit().await.expect("it commits");
            }
        });
        reached.notified().await;
        if !panics {
            task.abort();
        }
        task.await.expect_err("it was cut short");
        assert_eq!(chain_count(&client).await, 0);
        recorder.assert_silent("although nothing was committed");
    }
    assert!(
        !client
            .start(greet("Eve"))
            .deduplicate("key")
            .await
            .expect("it starts")
            .deduplicated()
    );
}

struct Panics;

impl ObservabilityAdapter for Panics {
    fn event(&self, _: &Event) {
        panic!("the observability adapter has a bug");
    }

    fn creation_span(&self, _: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        panic!("the observability adapter has a bug");
    }

    fn attempt_span(&self, _: &AttemptStart<'_>) -> Option<Box<dyn AttemptSpan>> {
        panic!("the observability adapter has a bug");
    }

    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }
}

/// An observability adapter that panics hurts nobody: the write stands, and so does what depends on it. (9.5 H28)
pub async fn a_panicking_observability_adapter_hurts_nobody<F: PairFixture>(fixture: F) {
    let (state, notify) = (fixture.state().await, fixture.notify().await);
    let client = Client::builder(state).notify(notify).observability(Panics).build();
    let mut events = client.events();
    let mut tx = client.begin().await.expect("a transaction opens");
    let started = client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    tx.commit().await.expect("the commit stands");
    client.start_many([Count { number: 1 }]).await.expect("they start");
    assert!(matches!(events.try_next(), Some(Event::ChainCreated { chain, .. }) if chain == started.id()));
    assert_eq!(run_all(&client).await.len(), 2);
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

struct Mute;

impl NotifyAdapter for Mute {
    fn announce<'a>(&'a self, _: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        Box::pin(async { Err(NotifyError::new("the line is cut")) })
    }

    fn subscribe(&self, _: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        Box::pin(async { Err(NotifyError::new("the line is cut")) })
    }
}

async fn announce_failures<S: StateAdapter>(client: &Client<S>, work: impl AsyncFnOnce()) -> usize {
    let mut events = client.events();
    work().await;
    std::iter::from_fn(|| events.try_next())
        .filter(|event| match event {
            Event::NotifyFailed { operation, error } => *operation == "announce" && &**error == "the line is cut",
            _ => false,
        })
        .count()
}

/// A notify adapter that fails is an event, not an error: the write stands. (H9, LG10, NT7)
pub async fn a_failing_notify_adapter_hurts_nobody<F: PairFixture>(fixture: F) {
    let client = Client::builder(fixture.state().await).notify(Mute).build();
    let by_itself = announce_failures(&client, async || {
        client.start(greet("Ada")).await.expect("it starts");
    });
    assert_eq!(by_itself.await, 1);
    let with_a_commit = announce_failures(&client, async || {
        let mut tx = client.begin().await.expect("a transaction opens");
        client.start(greet("Eve")).within(&mut tx).await.expect("it starts");
        tx.commit().await.expect("the commit stands");
    });
    assert_eq!(with_a_commit.await, 1);
    assert_eq!(run_all(&client).await.len(), 2);
}
