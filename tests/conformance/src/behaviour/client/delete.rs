//! Deleting chains.

use queuert::adapter::{Notice, Settled, StateAdapter};
use queuert::{AbortReason, BlockerReference, ChainRef, Client, Error, Event, JobStatus, JobType, Started};

use super::assert_error;
use super::jobs::{
    AfterAfter, AfterAll, AfterOne, Count, Early, First, Greet, Knot, Late, NO_KNOTS, Second, greet, run_all,
};
use super::probe::{Stubborn, chain_count, claim, finish_as_worker, job_count, status, unknown_chain};
use super::recorder::Recorder;
use crate::behaviour::PairFixture;

/// A deleted chain is returned as it was, and is gone with all its jobs. (DL1, DL15)
pub async fn a_deleted_chain_is_gone<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let before = super::probe::chain(&client, &started).await;
    let deleted = client.delete(&started).await.expect("it can be deleted");
    assert_eq!(deleted, [before]);
    assert!(client.get_chain(&started).await.expect("it can be asked").is_none());
    assert_eq!((chain_count(&client).await, job_count(&client).await), (0, 0));
}

/// A chain is returned with the status of its latest job. (DL2)
pub async fn the_status_is_that_of_the_latest_job<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&started)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Second { number: 2 }).await.expect("it continues");
    tx.commit().await.expect("it commits");
    let deleted = client.delete(&started).await.expect("it can be deleted");
    assert_eq!((deleted[0].status, deleted[0].length), (JobStatus::Pending, 2));
    assert_eq!(job_count(&client).await, 0);
}

/// A running attempt whose chain is deleted is told, and leaves nothing behind. (DL3, DL11)
pub async fn a_running_attempt_is_told<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let worker = Stubborn::start(&client).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    worker.runs().await;
    let deleted = client.delete(&started).await.expect("it can be deleted");
    assert_eq!(deleted[0].status, JobStatus::Running);
    assert_eq!(worker.told().await, AbortReason::NotFound);
    assert_eq!(job_count(&client).await, 0);
    let events = recorder.events();
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::ChainCompleted { .. } | Event::JobDead { .. }))
    );
    assert!(
        recorder
            .notices()
            .contains(&Notice::LeaseLost(started.id().first_job()))
    );
}

/// An attempt whose chain was deleted cannot commit, also if it was not told. (DL11)
pub async fn a_running_attempt_cannot_commit<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    client.delete(&started).await.expect("it can be deleted");
    let late = finish_as_worker(&client, started.id().first_job()).await;
    assert_eq!(late, Settled::Lost(AbortReason::NotFound));
    assert_eq!(job_count(&client).await, 0);
}

/// A chain that others wait for is not deleted without them; together they are. (DL4, DL18)
pub async fn a_blocker_is_protected<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    recorder.forget();
    let refused = client.delete(&blocker).await;
    let reference = BlockerReference {
        chain: blocker.id(),
        job: waiting.id().first_job(),
    };
    assert_error!(refused, Error::BlockerReference(ref list) if list[..] == [reference]);
    assert_eq!(chain_count(&client).await, 2);
    recorder.assert_silent("for a refused deletion");
    let deleted = client
        .delete_many([blocker.id(), waiting.id()])
        .await
        .expect("they can be deleted");
    let mut statuses: Vec<_> = deleted.iter().map(|chain| (chain.id, chain.status)).collect();
    statuses.sort_unstable();
    assert_eq!(
        statuses,
        [(blocker.id(), JobStatus::Pending), (waiting.id(), JobStatus::Blocked)]
    );
    assert_eq!(chain_count(&client).await, 0);
}

/// A blocker stays protected until the job that reads it has completed, not just until it is unblocked.
pub async fn a_blocker_is_protected_until_it_was_read<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    super::probe::smuggle_output(&client, blocker.id(), "\"done\"").await;
    assert_eq!(status(&client, &waiting).await, JobStatus::Pending);
    assert_error!(client.delete(&blocker).await, Error::BlockerReference(_));
    run_all(&client).await;
    let deleted = client.delete(&blocker).await.expect("it can be deleted");
    assert_eq!(deleted.len(), 1);
    let blockers = client
        .get_blockers(waiting.id().first_job())
        .await
        .expect("they can be read");
    assert!(blockers.is_empty(), "a deleted blocker is left out");
    assert_eq!(client.wait(&waiting).await.expect("it ended"), "done");
}

/// A cascade goes down to what a chain waits for, never up to what waits for it. (DL5, DL6, DL17)
pub async fn a_cascade_goes_down_only<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let other = client.start(Count { number: 1 }).await.expect("it starts");
    assert_error!(client.delete(&blocker).cascade().await, Error::BlockerReference(_));
    assert_eq!(chain_count(&client).await, 3);
    let deleted = client.delete(&waiting).cascade().await.expect("they can be deleted");
    assert_eq!(deleted.len(), 2);
    assert_eq!(status(&client, &other).await, JobStatus::Pending);
    assert_eq!(chain_count(&client).await, 1);
}

/// Without a cascade only the named chains go.
pub async fn without_a_cascade_blockers_stay<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    let deleted = client.delete(&waiting).await.expect("it can be deleted");
    assert_eq!(deleted.len(), 1);
    assert_eq!(status(&client, &blocker).await, JobStatus::Pending);
    client.delete(&blocker).await.expect("nobody waits for it any more");
}

/// One greeting, two that wait for it, one that waits for both of them.
async fn diamond<S: StateAdapter>(client: &Client<S>) -> (Started<Greet>, Vec<Started<AfterOne>>, Started<AfterAfter>) {
    let bottom = client.start(greet("Ada")).await.expect("it starts");
    let sides = [AfterOne.blocked_by(&bottom), AfterOne.blocked_by(&bottom)];
    let sides = client.start_many(sides).await.expect("they start");
    let top = client.start(AfterAfter.blocked_by(&sides)).await.expect("it starts");
    (bottom, sides, top)
}

/// A cascade is transitive, and takes what it reaches on two ways once. (DL7, DL8, DL20)
pub async fn a_cascade_is_transitive<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (bottom, sides, top) = diamond(&client).await;
    let deleted = client.delete(&top).cascade().await.expect("they can be deleted");
    let mut ids: Vec<_> = deleted.iter().map(|chain| chain.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [bottom.id(), sides[0].id(), sides[1].id(), top.id()]);
    assert_eq!(job_count(&client).await, 0);
}

/// A cascade is refused as a whole when something that it reaches has another dependant. (DL10)
pub async fn a_cascade_is_refused_for_another_dependant<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (bottom, _, top) = diamond(&client).await;
    let other = client.start(AfterAll.blocked_by([&bottom])).await.expect("it starts");
    let refused = client.delete(&top).cascade().await;
    assert_error!(
        refused,
        Error::BlockerReference(ref list)
            if list[..] == [BlockerReference { chain: bottom.id(), job: other.id().first_job() }]
    );
    assert_eq!(chain_count(&client).await, 5);
    let deleted = client
        .delete_many([top.id(), other.id()])
        .cascade()
        .await
        .expect("they can be deleted");
    assert_eq!(deleted.len(), 5);
}

/// A cascade without anything to follow is a deletion. (DL9)
pub async fn a_cascade_may_have_nothing_to_follow<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start_many([greet("Ada"), greet("Eve")])
        .await
        .expect("they start");
    let deleted = client.delete(&started[0]).cascade().await.expect("it can be deleted");
    assert_eq!(deleted.len(), 1);
    assert_eq!(chain_count(&client).await, 1);
}

/// A cascade follows the blockers of all jobs of a chain, also of continuations. (9.5 H17)
pub async fn a_cascade_follows_continuations<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let knot = client
        .start(Knot.blocked_by([] as [ChainRef<Early>; 0]))
        .await
        .expect("it starts");
    let early = client.start(Early).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Early>(&early)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Late.blocked_by([&knot]))
        .await
        .expect("it continues");
    tx.commit().await.expect("it commits");
    assert_error!(client.delete(&knot).await, Error::BlockerReference(_));
    let deleted = client.delete(&early).cascade().await.expect("they can be deleted");
    assert_eq!(deleted.len(), 2);
    assert_eq!(job_count(&client).await, 0);
}

/// Many chains are deleted at once; ids that do not exist are skipped, and one that is named twice counts once.
/// (DL12, DL16)
pub async fn unknown_chains_are_skipped<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start_many([greet("Ada"), greet("Eve")])
        .await
        .expect("they start");
    let named = [started[1].id(), unknown_chain(), started[0].id(), started[1].id()];
    let deleted = client.delete_many(named).await.expect("they can be deleted");
    assert_eq!(deleted.len(), 2);
    assert!(client.delete_many(named).await.expect("nothing is refused").is_empty());
    assert!(
        client
            .delete_many([] as [queuert::ChainId; 0])
            .await
            .expect("nothing is refused")
            .is_empty()
    );
}

/// Chains that were started in one batch protect the chain that they wait for. (DL13)
pub async fn dependants_of_a_batch_protect_their_blocker<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let steps = [AfterOne.blocked_by(&blocker), AfterOne.blocked_by(&blocker)];
    let waiting = client.start_many(steps).await.expect("they start");
    let refused = client.delete_many([blocker.id(), waiting[0].id()]).await;
    assert_error!(
        refused,
        Error::BlockerReference(ref list)
            if list[..] == [BlockerReference { chain: blocker.id(), job: waiting[1].id().first_job() }]
    );
    assert_eq!(chain_count(&client).await, 3);
}

/// A job of the chain itself that waits does not keep the chain from being deleted.
pub async fn a_chain_does_not_protect_itself<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let early = client.start(Early).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<Early>(&early)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Late.blocked_by(NO_KNOTS))
        .await
        .expect("it continues");
    tx.commit().await.expect("it commits");
    assert_eq!(client.delete(&early).await.expect("it can be deleted").len(), 1);
}

/// A deletion that is rolled back leaves everything as it was, and tells nobody.
pub async fn a_rolled_back_deletion_changes_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let (bottom, _, top) = diamond(&client).await;
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    let deleted = client
        .delete(&top)
        .cascade()
        .within(&mut tx)
        .await
        .expect("they can be deleted");
    assert_eq!(deleted.len(), 4);
    let inside = client
        .get_chain(&bottom)
        .within(&mut tx)
        .await
        .expect("it can be asked");
    assert!(inside.is_none(), "the transaction sees its own deletion");
    tx.rollback().await.expect("it rolls back");
    recorder.assert_silent("after a rollback");
    run_all(&client).await;
    assert_eq!(client.wait(&top).await.expect("it ended"), 2);
}
