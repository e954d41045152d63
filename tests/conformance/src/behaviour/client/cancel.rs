//! Ending open chains where they stand.

use queuert::adapter::{Notice, Settled};
use queuert::{AbortReason, ChainId, Error, Event, JobStatus, JobType};

use super::jobs::{AfterOne, Count, Fail, First, Greet, Second, greet, run_all};
use super::probe::{Stubborn, chain, claim, finish_as_worker, latest, status, unknown_chain};
use super::recorder::Recorder;
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

/// A pending chain is cancelled: it has ended without output, and is not run any more.
pub async fn a_pending_chain_is_cancelled<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let cancelled = client.cancel(&started).await.expect("it can be cancelled");
    assert_eq!((cancelled.id, cancelled.status), (started.id(), JobStatus::Cancelled));
    assert!(cancelled.ended_at.is_some_and(|at| at >= cancelled.created_at));
    assert_eq!(cancelled.output, None);
    assert_eq!(chain(&client, &started).await, cancelled);
    let job = latest(&client, &started).await;
    assert_eq!((job.status, job.ended_at), (JobStatus::Cancelled, cancelled.ended_at));
    assert!(run_all(&client).await.is_empty());
}

/// Only the current job of a chain is cancelled: what was completed stays so.
pub async fn only_the_current_job_is_cancelled<F: PairFixture>(fixture: F) {
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
    client.cancel(&started).await.expect("it can be cancelled");
    let jobs = client
        .list_chain_jobs(&started)
        .await
        .expect("jobs can be listed")
        .items;
    let statuses: Vec<_> = jobs.iter().map(|job| job.status).collect();
    assert_eq!(statuses, [JobStatus::Completed, JobStatus::Cancelled]);
}

/// A running attempt whose chain is cancelled is told, and leaves nothing behind.
pub async fn a_running_attempt_is_told<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let worker = Stubborn::start(&client).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    worker.runs().await;
    client.cancel(&started).await.expect("it can be cancelled");
    assert_eq!(worker.told().await, AbortReason::Cancelled);
    let after = chain(&client, &started).await;
    assert_eq!((after.status, after.output), (JobStatus::Cancelled, None));
    assert_eq!(latest(&client, &started).await.lease, None);
    let events = recorder.events();
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::ChainCompleted { .. } | Event::JobDead { .. }))
    );
    let notices = recorder.notices();
    assert!(notices.contains(&Notice::ChainEnded(started.id())), "{notices:?}");
    assert!(
        notices.contains(&Notice::LeaseLost(started.id().first_job())),
        "{notices:?}"
    );
}

/// An attempt whose chain was cancelled cannot commit, also if it was not told.
pub async fn a_running_attempt_cannot_commit<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    client.cancel(&started).await.expect("it can be cancelled");
    let late = finish_as_worker(&client, started.id().first_job()).await;
    assert_eq!(late, Settled::Lost(AbortReason::Cancelled));
    assert_eq!(status(&client, &started).await, JobStatus::Cancelled);
}

/// What waits for a cancelled chain stays blocked, and goes on when the chain was retried and completes.
pub async fn dependants_stay_blocked<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    client.cancel(&blocker).await.expect("it can be cancelled");
    assert!(run_all(&client).await.is_empty());
    assert_eq!(status(&client, &waiting).await, JobStatus::Blocked);
    client.retry(&blocker).await.expect("it can be retried");
    run_all(&client).await;
    assert_eq!(status(&client, &waiting).await, JobStatus::Completed);
}

/// A chain that waits for a chain that was cancelled before is blocked too.
pub async fn a_cancelled_blocker_blocks<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    client.cancel(&blocker).await.expect("it can be cancelled");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    assert_eq!(waiting.status(), JobStatus::Blocked);
}

/// A blocked chain can be cancelled; the end of what it waited for does not bring it back.
pub async fn a_blocked_chain_is_cancelled<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("Ada")).await.expect("it starts");
    let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
    client.cancel(&waiting).await.expect("it can be cancelled");
    assert_eq!(run_all(&client).await.types(), [Greet::NAME]);
    assert_eq!(status(&client, &waiting).await, JobStatus::Cancelled);
}

/// A chain that has ended cannot be cancelled; the error tells how it ended.
pub async fn an_ended_chain_cannot_be_cancelled<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(Count { number: 1 }).await.expect("it starts");
    let dead = client.start(Fail { because: "so".into() }).await.expect("it starts");
    run_all(&client).await;
    let cancelled = client.start(Count { number: 2 }).await.expect("it starts");
    client.cancel(&cancelled).await.expect("it can be cancelled");
    for (id, expected) in [
        (completed.id(), JobStatus::Completed),
        (dead.id(), JobStatus::Dead),
        (cancelled.id(), JobStatus::Cancelled),
    ] {
        let before = chain(&client, id).await;
        let refused = client.cancel(id).await;
        assert_error!(refused, Error::ChainEnded { chain, status } if chain == id && status == expected);
        assert_eq!(chain(&client, id).await, before);
    }
    assert_error!(client.cancel(unknown_chain()).await, Error::ChainNotFound(chain) if chain == unknown_chain());
}

/// A batch is cancelled in the order of the request: all of it, or none if one chain is refused.
pub async fn a_batch_is_cancelled_as_a_whole<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client
        .start_many([greet("Ada"), greet("Eve")])
        .await
        .expect("they start");
    let ended = client.start(Count { number: 1 }).await.expect("it starts");
    client.cancel(&ended).await.expect("it can be cancelled");
    recorder.forget();
    let refused = client.cancel_many([started[0].id(), ended.id()]).await;
    assert_item_refused!(refused, 1, Error::ChainEnded { chain, .. } if chain == ended.id());
    let refused = client.cancel_many([started[0].id(), unknown_chain()]).await;
    assert_item_refused!(refused, 1, Error::ChainNotFound(_));
    assert_eq!(status(&client, &started[0]).await, JobStatus::Pending);
    recorder.assert_silent("for a refused batch");
    let order = [started[1].id(), started[0].id()];
    let cancelled = client.cancel_many(order).await.expect("they can be cancelled");
    assert_eq!(cancelled.iter().map(|chain| chain.id).collect::<Vec<_>>(), order);
    let none: [ChainId; 0] = [];
    assert!(client.cancel_many(none).await.expect("nothing is refused").is_empty());
}

/// A cancellation that is rolled back leaves the chain and its running attempt alone.
pub async fn a_rolled_back_cancellation_changes_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    let before = latest(&client, &started).await;
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .cancel(&started)
        .within(&mut tx)
        .await
        .expect("it can be cancelled");
    drop(tx);
    let settled = finish_as_worker(&client, before.id).await;
    assert!(
        matches!(settled, Settled::Applied(_)),
        "the attempt has its job still: {settled:?}"
    );
    recorder.assert_silent("after a rollback");
}
