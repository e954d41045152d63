//! Attempts that do not complete their job: retry, bury, release, snooze.

use std::time::Duration;

use queuert::adapter::{Applied, Outcome};
use queuert::{JobStatus, Schedule};

use crate::bench::{Bench, LONG, SHORT, TICK};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// A failed attempt is counted and its error stored; the job is pending after the delay. (S65)
pub async fn a_failed_attempt_is_counted_and_its_error_stored<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let before = bench.now().await;
    let applied = bench
        .apply(&attempt, draft::retry(Schedule::After(LONG), "no route"))
        .await;
    assert_eq!(applied, Applied::default());
    let after = bench.now().await;
    let job = bench.job(attempt.id()).await;
    assert_eq!(
        (job.status, job.attempt, job.claims, job.lease),
        (JobStatus::Pending, 1, 1, None)
    );
    assert!(before.saturating_add(LONG) <= job.scheduled_at && job.scheduled_at <= after.saturating_add(LONG));
    assert_eq!((job.started_at, job.ended_at), (attempt.job.started_at, None));
    assert_eq!((job.completed_by, job.output), (None, None));
    let error = job.last_error.expect("the error is stored");
    assert_eq!((error.attempt, error.message.as_str()), (1, "no route"));
    assert!(before <= error.at && error.at <= after);
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Pending);
}

/// The chosen time of a retry is kept. (S66)
pub async fn a_retry_keeps_its_chosen_time<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let time = bench.now().await.saturating_add(Duration::from_micros(60_000_003));
    let attempt = bench.attempt("mail").await;
    bench.apply(&attempt, draft::retry(Schedule::At(time), "failed")).await;
    assert_eq!(bench.job(attempt.id()).await.scheduled_at, time);
}

/// A retry in the past means now. (S67)
pub async fn a_retry_in_the_past_means_now<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let before = bench.now().await;
    let past = before.saturating_sub(LONG);
    bench.apply(&attempt, draft::retry(Schedule::At(past), "failed")).await;
    let job = bench.job(attempt.id()).await;
    assert!(before <= job.scheduled_at && job.scheduled_at <= bench.now().await);
    assert_eq!(bench.attempt("mail").await.job.attempt, 2);
}

/// The backoff counts from the failure, not from the start of the transaction. (H15, I12)
pub async fn the_backoff_counts_from_the_failure<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let began = bench.now().await;
    let mut open = bench.begin().await;
    open.hold(&attempt).await.expect("the attempt holds its job");
    bench.elapse(TICK * 5).await;
    open.apply(&attempt, draft::retry(Schedule::After(LONG), "failed"))
        .await;
    open.commit().await;
    let job = bench.job(attempt.id()).await;
    assert!(job.scheduled_at >= began.saturating_add(TICK * 5).saturating_add(LONG));
    assert!(job.last_error.expect("stored").at >= began.saturating_add(TICK * 5));
}

/// A later failure replaces the error of an earlier one.
pub async fn the_latest_error_is_kept<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    for message in ["one", "two 🦀 ' \""] {
        bench
            .apply(&bench.attempt("mail").await, draft::retry(Schedule::Now, message))
            .await;
    }
    let error = bench.chain(chain).await.last_error.expect("stored");
    assert_eq!((error.attempt, error.message.as_str()), (2, "two 🦀 ' \""));
}

/// A buried job is dead, with its error and its end, and nobody claims it.
pub async fn a_buried_job_is_dead<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    assert_eq!(bench.apply(&attempt, draft::bury("fatal")).await, Applied::default());
    let job = bench.job(attempt.id()).await;
    assert_eq!((job.status, job.attempt, job.lease), (JobStatus::Dead, 1, None));
    assert_eq!((job.completed_by, job.output), (None, None));
    assert!(job.ended_at >= job.started_at && job.ended_at.is_some());
    let error = job.last_error.clone().expect("the error is stored");
    assert_eq!((error.attempt, error.message.as_str()), (1, "fatal"));
    let chain = bench.chain(attempt.chain()).await;
    assert_eq!(
        (chain.status, chain.ended_at, chain.last_error),
        (JobStatus::Dead, job.ended_at, job.last_error)
    );
    let claimed = bench.claim(&["mail"], 1).await;
    assert!(claimed.jobs.is_empty() && claimed.next_due.is_none());
}

/// A released job goes back at once to the place it had; its attempt is not spent, its claim is counted.
pub async fn a_released_job_keeps_its_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 2).await;
    let attempt = bench.attempt("mail").await;
    assert_eq!(bench.apply(&attempt, Outcome::Release).await, Applied::default());
    let job = bench.job(attempt.id()).await;
    assert_eq!(
        (job.status, job.attempt, job.claims, job.lease),
        (JobStatus::Pending, 0, 1, None)
    );
    assert_eq!((job.scheduled_at, job.last_error), (attempt.job.scheduled_at, None));
    let again = bench.attempt("mail").await;
    assert_eq!((again.chain(), again.job.attempt, again.job.claims), (chains[0], 1, 2));
}

/// A release gives back its own attempt only: earlier failures stay counted, and so does their error.
pub async fn a_release_gives_back_one_attempt<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench
        .apply(&bench.attempt("mail").await, draft::retry(Schedule::Now, "failed"))
        .await;
    let attempt = bench.attempt("mail").await;
    bench.apply(&attempt, Outcome::Release).await;
    let job = bench.job(attempt.id()).await;
    assert_eq!((job.attempt, job.claims), (1, 2));
    assert_eq!(job.last_error.expect("kept").message, "failed");
}

/// A snoozed job goes back until the given time; its attempt is not spent and no error is stored.
pub async fn a_snoozed_job_spends_no_attempt<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let before = bench.now().await;
    assert_eq!(bench.apply(&attempt, draft::snooze(SHORT)).await, Applied::default());
    let job = bench.job(attempt.id()).await;
    assert_eq!(
        (job.status, job.attempt, job.claims, job.lease),
        (JobStatus::Pending, 0, 1, None)
    );
    assert_eq!(job.last_error, None);
    assert!(job.scheduled_at >= before.saturating_add(SHORT));
    bench.elapse(SHORT * 2).await;
    let again = bench.attempt("mail").await;
    assert_eq!((again.job.attempt, again.job.claims), (1, 2));
}

/// None of them ends the chain: its dependants stay blocked.
pub async fn a_job_that_is_given_back_unblocks_nobody<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for outcome in draft::every_outcome() {
        if matches!(outcome, Outcome::Finish { .. }) {
            continue;
        }
        let blocker = bench.start("blocker").await;
        let dependant = bench.start_as(draft("dependant").blocked_by(&[blocker])).await;
        let applied = bench.apply(&bench.attempt("blocker").await, outcome.clone()).await;
        assert_eq!(applied.unblocked, Vec::new(), "after {outcome:?}");
        assert_eq!(bench.status(dependant).await, JobStatus::Blocked, "after {outcome:?}");
        bench
            .delete(&[dependant, blocker])
            .await
            .expect("they are deleted together");
    }
}
