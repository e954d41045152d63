//! Making pending jobs due now.

use std::time::Duration;

use queuert::{Attempt, Error, JobError, JobId, JobStatus, JobType};

use super::jobs::{AfterOne, Count, Fail, Greet, greet, greeting, hasty, run_all};
use super::probe::{chain, claim, job, latest, own_id};
use super::recorder::{Recorder, available};
use super::{assert_error, assert_item_refused};
use crate::behaviour::PairFixture;

const LONG: Duration = Duration::from_secs(3_600);

/// A job that is due later becomes due now, and nothing else about it changes. (TR1)
pub async fn a_later_job_becomes_due_now<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client
        .start(greet("Ada"))
        .delay(LONG)
        .priority(3)
        .await
        .expect("it starts");
    let before = latest(&client, &started).await;
    let triggered = client.trigger(before.id).await.expect("it can be triggered");
    let witness = client.start(Count { number: 1 }).await.expect("it starts");
    assert!(triggered.scheduled_at <= chain(&client, &witness).await.created_at);
    assert!(triggered.scheduled_at >= before.created_at);
    let mut expected = before;
    expected.scheduled_at = triggered.scheduled_at;
    assert_eq!(triggered, expected);
    assert_eq!(latest(&client, &started).await, expected);
}

/// A triggered job is run by a worker. (TR2)
pub async fn a_triggered_job_is_run<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    assert!(run_all(&client).await.is_empty());
    client
        .trigger(started.id().first_job())
        .await
        .expect("it can be triggered");
    run_all(&client).await;
    assert_eq!(client.wait(&started).await.expect("it ended"), greeting("Ada"));
}

/// A job that waits for its next attempt can be triggered; its failure stays on record.
pub async fn a_backoff_can_be_cut_short<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let worker = || {
        hasty(&client).process(|job: Attempt<Greet, F::State>| async move {
            match job.number() {
                1 => Err(JobError::retry_after(LONG, "not yet")),
                _ => job.finish("now".to_owned()),
            }
        })
    };
    assert_eq!(worker().drain().await.expect("the store answers").len(), 1);
    let triggered = client
        .trigger(started.id().first_job())
        .await
        .expect("it can be triggered");
    assert_eq!((triggered.status, triggered.attempt), (JobStatus::Pending, 1));
    assert_eq!(
        triggered.last_error.map(|error| error.message).as_deref(),
        Some("not yet")
    );
    worker().drain().await.expect("the store answers");
    assert_eq!(client.wait(&started).await.expect("it ended"), "now");
}

/// A job that is due already keeps the place that it has waited for.
pub async fn a_due_job_keeps_its_place<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    let before = latest(&client, &started).await;
    fixture.elapse(client.state(), Duration::from_millis(5)).await;
    let triggered = client.trigger(before.id).await.expect("it can be triggered");
    assert_eq!(triggered.scheduled_at, before.scheduled_at);
}

/// A job that was deleted, or never was, is not found. (TR3)
pub async fn a_missing_job_is_not_found<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    client.delete(&started).await.expect("it can be deleted");
    let deleted = started.id().first_job();
    assert_error!(client.trigger(deleted).await, Error::JobNotFound(id) if id == deleted);
    assert_error!(client.trigger(own_id(9)).await, Error::JobNotFound(id) if id == own_id(9));
}

/// Only pending jobs can be triggered; the error tells the status of the others. (TR4, TR6)
pub async fn only_pending_jobs_can_be_triggered<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(Count { number: 1 }).await.expect("it starts");
    let dead = client.start(Fail { because: "so".into() }).await.expect("it starts");
    run_all(&client).await;
    let cancelled = client.start(Count { number: 2 }).await.expect("it starts");
    client.cancel(&cancelled).await.expect("it can be cancelled");
    let running = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(claim(&client, Greet::NAME).await.len(), 1);
    let blocked = client.start(AfterOne.blocked_by(&running)).await.expect("it starts");
    for (chain, expected) in [
        (completed.id(), JobStatus::Completed),
        (dead.id(), JobStatus::Dead),
        (cancelled.id(), JobStatus::Cancelled),
        (running.id(), JobStatus::Running),
        (blocked.id(), JobStatus::Blocked),
    ] {
        let before = latest(&client, chain).await;
        let refused = client.trigger(before.id).await;
        assert_error!(refused, Error::NotTriggerable { job, status } if job == before.id && status == expected);
        assert_eq!(latest(&client, chain).await, before);
    }
}

/// A batch is triggered in the order of the request. (TR7)
pub async fn a_batch_keeps_its_order<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut ids: Vec<JobId> = Vec::new();
    for number in 0..3 {
        let started = client.start(Count { number }).delay(LONG).await.expect("it starts");
        ids.insert(0, started.id().first_job());
    }
    let triggered = client.trigger_many(ids.clone()).await.expect("they can be triggered");
    assert_eq!(triggered.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    assert_eq!(run_all(&client).await.len(), 3);
}

/// An empty batch does nothing. (TR8)
pub async fn an_empty_batch_does_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    assert!(client.trigger_many([]).await.expect("nothing is refused").is_empty());
    recorder.assert_silent("for an empty batch");
}

/// A job that is named twice is triggered once and given twice. (9.5 H24)
pub async fn a_job_named_twice_is_triggered_once<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    let id = started.id().first_job();
    let triggered = client.trigger_many([id, id]).await.expect("they can be triggered");
    assert_eq!(triggered.iter().map(|job| job.id).collect::<Vec<_>>(), [id, id]);
    assert_eq!(run_all(&client).await.len(), 1);
}

/// One missing job refuses the whole batch. (TR9)
pub async fn one_missing_job_refuses_the_batch<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    let before = latest(&client, &started).await;
    recorder.forget();
    let refused = client.trigger_many([before.id, own_id(9)]).await;
    assert_item_refused!(refused, 1, Error::JobNotFound(id) if id == own_id(9));
    assert_eq!(latest(&client, &started).await, before);
    recorder.assert_silent("for a refused batch");
}

/// One completed job refuses the whole batch. (TR10)
pub async fn one_completed_job_refuses_the_batch<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let completed = client.start(Count { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    let before = latest(&client, &started).await;
    let refused = client.trigger_many([before.id, completed.id().first_job()]).await;
    assert_item_refused!(
        refused,
        1,
        Error::NotTriggerable {
            status: JobStatus::Completed,
            ..
        }
    );
    assert_eq!(latest(&client, &started).await, before);
}

/// A trigger that is rolled back leaves the schedule, and wakes nobody.
pub async fn a_rolled_back_trigger_changes_nothing<F: PairFixture>(fixture: F) {
    let (recorder, client) = Recorder::client(&fixture).await;
    let started = client.start(greet("Ada")).delay(LONG).await.expect("it starts");
    let before = latest(&client, &started).await;
    recorder.forget();
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .trigger(before.id)
        .within(&mut tx)
        .await
        .expect("it can be triggered");
    tx.rollback().await.expect("it rolls back");
    assert_eq!(job(&client, before.id).await, before);
    recorder.assert_silent("after a rollback");
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .trigger(before.id)
        .within(&mut tx)
        .await
        .expect("it can be triggered");
    recorder.assert_silent("before the commit");
    tx.commit().await.expect("it commits");
    assert_eq!(recorder.notices(), [available(Greet::NAME, 1)]);
}
