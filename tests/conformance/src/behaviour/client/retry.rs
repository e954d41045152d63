//! Sending dead and cancelled chains on their way again.

use std::time::Duration;

use queuert::{Attempt, ChainId, Deduplication, Error, JobError, JobStatus, JobType, RetryPolicy};

use super::jobs::{AfterOne, Count, Fail, First, Greet, Second, Third, greet, greeting, hasty, run_all};
use super::probe::{chain, claim, latest, smuggle_output, status, unknown_chain};
use super::recorder::{Recorder, available};
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

/// A dead chain goes on with all its attempts, its failure on record.
pub async fn a_dead_chain_goes_on<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let policy = RetryPolicy::new().max_attempts(2);
    let worker = |healthy: bool| {
        hasty(&client)
            .retry(policy)
            .process(move |job: Attempt<Greet, F::State>| async move {
                match healthy {
                    false => Err(JobError::retry_after(Duration::ZERO, "broken")),
                    true => job.finish("mended".to_owned()),
                }
            })
    };
    assert_eq!(worker(false).drain().await.expect("the store answers").len(), 2);
    let dead = latest(&client, &started).await;
    assert_eq!((dead.status, dead.attempt), (JobStatus::Dead, 2));
    let retried = client.retry(&started).await.expect("it can be retried");
    assert_eq!((retried.id, retried.status), (dead.id, JobStatus::Pending));
    assert_eq!((retried.attempt, retried.claims, retried.ended_at), (0, 2, None));
    assert_eq!(retried.last_error, dead.last_error, "the history is kept");
    assert!(retried.scheduled_at >= dead.scheduled_at);
    assert_eq!(chain(&client, &started).await.ended_at, None);
    assert_eq!(
        worker(false).drain().await.expect("the store answers").len(),
        2,
        "all attempts again"
    );
    client.retry(&started).await.expect("it can be retried again");
    worker(true).drain().await.expect("the store answers");
    assert_eq!(client.wait(&started).await.expect("it ended"), "mended");
    assert_eq!(latest(&client, &started).await.last_error, None, "completion wipes it");
}

/// A cancelled chain goes on where it stood.
pub async fn a_cancelled_chain_goes_on_where_it_stood<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Second { number: 10 }).await.expect("it continues");
    tx.commit().await.expect("it commits");
    client.cancel(&started).await.expect("it can be cancelled");
    recorder.forget();
    let retried = client.retry(&started).await.expect("it can be retried");
    assert_eq!((retried.type_name.as_str(), retried.chain_index), (Second::NAME, 1));
    assert_eq!(recorder.notices(), [available(Second::NAME, 1)]);
    assert_eq!(run_all(&client).await.types(), [Second::NAME, Third::NAME]);
    assert_eq!(client.wait(&started).await.expect("it ended"), 11);
}

/// A chain that was cancelled while it was blocked is blocked again, as long as what it waits for is open.
pub async fn a_blocked_chain_is_blocked_again<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    client.cancel(&waiting).await.expect("it can be cancelled");
    recorder.forget();
    let retried = client.retry(&waiting).await.expect("it can be retried");
    assert_eq!(retried.status, JobStatus::Blocked);
    assert!(recorder.notices().is_empty(), "a blocked job is not available");
    client.cancel(&waiting).await.expect("it can be cancelled");
    smuggle_output(&client, blocker.id(), "\"done\"").await;
    let retried = client.retry(&waiting).await.expect("it can be retried");
    assert_eq!(
        retried.status,
        JobStatus::Pending,
        "what it waits for has completed meanwhile"
    );
    run_all(&client).await;
    assert_eq!(client.wait(&waiting).await.expect("it ended"), "done");
}

/// Only a dead or cancelled chain can be retried; the error tells the status of the others.
pub async fn only_stopped_chains_can_be_retried<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(Count { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let running = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(claim(&client, Greet::NAME).await.len(), 1);
    let pending = client.start(greet("Eve")).await.expect("it starts");
    let blocked = client.start(AfterOne.blocked_by(&pending)).await.expect("it starts");
    for (id, expected) in [
        (completed.id(), JobStatus::Completed),
        (running.id(), JobStatus::Running),
        (pending.id(), JobStatus::Pending),
        (blocked.id(), JobStatus::Blocked),
    ] {
        let before = latest(&client, id).await;
        let refused = client.retry(id).await;
        assert_error!(refused, Error::NotRetryable { chain, status } if chain == id && status == expected);
        assert_eq!(latest(&client, id).await, before);
    }
    assert_error!(client.retry(unknown_chain()).await, Error::ChainNotFound(chain) if chain == unknown_chain());
}

/// A chain whose key another open chain has by now cannot be retried, until that one has ended.
pub async fn a_taken_key_refuses_the_retry<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let old = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    client.cancel(&old).await.expect("it can be cancelled");
    let new = client.start(greet("Eve")).deduplicate("key").await.expect("it starts");
    let refused = client.retry(&old).await;
    assert_error!(
        refused,
        Error::KeyTaken { chain, holder } if chain == old.id() && holder == new.id()
    );
    assert_eq!(status(&client, &old).await, JobStatus::Cancelled);
    run_all(&client).await;
    client.retry(&old).await.expect("the key is free");
    run_all(&client).await;
    assert_eq!(client.wait(&old).await.expect("it ended"), greeting("Ada"));
}

/// Two chains with one key cannot be retried together.
pub async fn one_key_is_retried_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut stopped = Vec::new();
    for _ in 0..2 {
        let started = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
        client.cancel(&started).await.expect("it can be cancelled");
        stopped.push(started.id());
    }
    let refused = client.retry_many(stopped.clone()).await;
    assert_item_refused!(
        refused,
        1,
        Error::KeyTaken { chain, holder } if chain == stopped[1] && holder == stopped[0]
    );
    for id in &stopped {
        assert_eq!(status(&client, *id).await, JobStatus::Cancelled);
    }
}

/// A retried chain holds its key again.
pub async fn a_retried_chain_holds_its_key<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start(Fail { because: "so".into() })
        .deduplicate("key")
        .await
        .expect("it starts");
    run_all(&client).await;
    client.retry(&started).await.expect("it can be retried");
    let again = client
        .start(Fail { because: "so".into() })
        .deduplicate("key")
        .await
        .expect("it is answered");
    assert_eq!((again.id(), again.deduplicated()), (started.id(), true));
    let other = Deduplication::while_open("key").except(&started);
    assert!(
        !client
            .start(Fail { because: "so".into() })
            .deduplicate(other)
            .await
            .expect("it starts")
            .deduplicated()
    );
}

/// A batch is retried in the order of the request: all of it, or none if one chain is refused.
pub async fn a_batch_is_retried_as_a_whole<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client
        .start_many([greet("Ada"), greet("Eve")])
        .await
        .expect("they start");
    client.cancel_many(&started).await.expect("they can be cancelled");
    let open = client.start(Count { number: 1 }).await.expect("it starts");
    recorder.forget();
    let refused = client.retry_many([started[0].id(), open.id()]).await;
    assert_item_refused!(refused, 1, Error::NotRetryable { chain, .. } if chain == open.id());
    let refused = client.retry_many([started[0].id(), unknown_chain()]).await;
    assert_item_refused!(refused, 1, Error::ChainNotFound(_));
    assert_eq!(status(&client, &started[0]).await, JobStatus::Cancelled);
    recorder.assert_silent("for a refused batch");
    let order = [started[1].id(), started[0].id()];
    let retried = client.retry_many(order).await.expect("they can be retried");
    assert_eq!(retried.iter().map(|job| job.chain_id).collect::<Vec<_>>(), order);
    assert_eq!(recorder.notices(), [available(Greet::NAME, 2)]);
    let none: [ChainId; 0] = [];
    assert!(client.retry_many(none).await.expect("nothing is refused").is_empty());
}

/// A retry that is rolled back leaves the chain stopped.
pub async fn a_rolled_back_retry_changes_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(greet("Ada")).deduplicate("key").await.expect("it starts");
    client.cancel(&started).await.expect("it can be cancelled");
    let before = latest(&client, &started).await;
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    client.retry(&started).within(&mut tx).await.expect("it can be retried");
    let inside = client
        .start(greet("Eve"))
        .deduplicate("key")
        .within(&mut tx)
        .await
        .expect("it is answered");
    assert_eq!(
        inside.id(),
        started.id(),
        "within the transaction the key is held again"
    );
    tx.rollback().await.expect("it rolls back");
    assert_eq!(latest(&client, &started).await, before);
    recorder.assert_silent("after a rollback");
    assert!(
        !client
            .start(greet("Eve"))
            .deduplicate("key")
            .await
            .expect("it starts")
            .deduplicated()
    );
}
