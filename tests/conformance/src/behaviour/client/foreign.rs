//! Transactions that the caller opens and commits without this library.

use queuert::adapter::{Notice, StateAdapter};
use queuert::{JobStatus, JobType};

use super::jobs::{AfterOne, Greet, greet, greeting, run_all};
use super::probe::{chain_count, status};
use super::recorder::{Recorder, available};
use crate::behaviour::PairFixture;

/// What happens in a foreign transaction exists with its commit, and is announced when the caller publishes it. (H17)
pub async fn effects_are_published_by_the_caller<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut own = client.state().begin().await.expect("a transaction opens");
    let mut foreign = client.adopt(&mut own);
    let started = client
        .start(greet("Ada"))
        .within(&mut foreign)
        .await
        .expect("it starts");
    client
        .start_many([greet("Eve")])
        .within(&mut foreign)
        .await
        .expect("they start");
    let held = foreign.into_effects();
    assert_eq!(chain_count(&client).await, 0);
    client.state().commit(own).await.expect("it commits");
    assert_eq!(chain_count(&client).await, 2);
    recorder.assert_silent("before the caller publishes it");
    held.publish().await;
    assert_eq!(recorder.notices(), [available(Greet::NAME, 2)]);
    let events = recorder.named_events();
    assert_eq!(
        events[..2],
        [("chain created", started.id()), ("job created", started.id())]
    );
    assert_eq!(events.len(), 4);
}

/// Effects that the caller drops are left to the polls: nobody is told, and the work is found all the same. (H18)
pub async fn dropped_effects_are_left_to_the_polls<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut own = client.state().begin().await.expect("a transaction opens");
    let mut foreign = client.adopt(&mut own);
    let started = client
        .start(greet("Ada"))
        .within(&mut foreign)
        .await
        .expect("it starts");
    drop(foreign.into_effects());
    client.state().commit(own).await.expect("it commits");
    recorder.assert_silent("although the effects were dropped");
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

/// A foreign transaction that is rolled back leaves nothing.
pub async fn a_foreign_rollback_leaves_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut own = client.state().begin().await.expect("a transaction opens");
    let mut foreign = client.adopt(&mut own);
    client
        .start(greet("Ada"))
        .within(&mut foreign)
        .await
        .expect("it starts");
    drop(foreign);
    client.state().rollback(own).await.expect("it rolls back");
    assert_eq!(chain_count(&client).await, 0);
    recorder.assert_silent("after a rollback");
}

/// A chain can be completed in a foreign transaction.
pub async fn a_chain_is_completed_in_a_foreign_transaction<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    recorder.forget();
    let mut own = client.state().begin().await.expect("a transaction opens");
    let mut foreign = client.adopt(&mut own);
    let open = client
        .open::<Greet>(&blocker)
        .within(&mut foreign)
        .await
        .expect("it can be opened");
    open.finish("by hand".to_owned()).await.expect("it finishes");
    let held = foreign.into_effects();
    client.state().commit(own).await.expect("it commits");
    held.publish().await;
    assert_eq!(status(&client, &waiting).await, JobStatus::Pending);
    assert_eq!(
        recorder.notices(),
        [Notice::ChainEnded(blocker.id()), available(AfterOne::NAME, 1)]
    );
}

/// A foreign transaction may be adopted several times; each time holds its own effects.
pub async fn a_transaction_may_be_adopted_again<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let mut own = client.state().begin().await.expect("a transaction opens");
    let mut held = Vec::new();
    for name in ["a", "b"] {
        let mut foreign = client.adopt(&mut own);
        client.start(greet(name)).within(&mut foreign).await.expect("it starts");
        held.push(foreign.into_effects());
    }
    client.state().commit(own).await.expect("it commits");
    for held in held {
        held.publish().await;
        assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
    }
}
