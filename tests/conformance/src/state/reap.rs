//! Taking back expired leases.

use std::pin::pin;
use std::time::Duration;

use queuert::adapter::{Outcome, ReapType};
use queuert::{JobId, JobStatus, RetryPolicy, Schedule};

use crate::bench::{Bench, LONG, MANY_ATTEMPTS, SHORT, TICK};
use crate::draft::draft;
use crate::fixture::StateFixture;

/// An expired lease is taken back: the job is pending now, the attempt counted, the expiry stored as its error, and
/// the report says who had it until when. (S78, H27)
pub async fn an_expired_lease_is_taken_back<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let before = bench.now().await;
    let reaped = bench.reap("mail").await;
    assert_eq!(reaped.len(), 1);
    assert_eq!(reaped[0].owner, attempt.worker);
    assert_eq!(reaped[0].expired_at, attempt.job.lease.as_ref().expect("leased").until);
    let job = bench.job(attempt.id()).await;
    assert_eq!(reaped[0].job, job, "the report shows the job as it is now");
    assert_eq!((job.status, job.lease, job.attempt), (JobStatus::Pending, None, 1));
    assert!(
        before <= job.scheduled_at && job.scheduled_at <= bench.now().await,
        "pending now, not earlier"
    );
    let error = job.last_error.expect("the expiry is stored");
    assert_eq!(error.attempt, 1);
    assert!(error.at >= before && !error.message.is_empty());
    assert_eq!(bench.attempt("mail").await.job.attempt, 2);
}

/// The settings of a sweep in which expired jobs wait for so long after the last sign of life.
fn backing_off(delay: Duration) -> Vec<ReapType> {
    let retry = RetryPolicy::new().initial(delay).maximum(delay).jitter(0.0);
    vec![ReapType::new("mail", retry, SHORT)]
}

/// An attempt that was taken back has failed, so it backs off like any failure, from the last sign of life, which is the
/// last renewal. (I8)
pub async fn an_expired_attempt_backs_off_from_its_last_sign_of_life<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let reaped = bench.reap_as(backing_off(LONG), 10, &[]).await;
    let until = attempt.job.lease.as_ref().expect("leased").until;
    let due = until.saturating_sub(SHORT).saturating_add(LONG);
    assert_eq!(
        (reaped[0].job.status, reaped[0].job.scheduled_at),
        (JobStatus::Pending, due)
    );
    assert_eq!(bench.job(attempt.id()).await, reaped[0].job);
    let claimed = bench.claim(&["mail"], 1).await;
    assert!(claimed.jobs.is_empty(), "it is not due");
    let next_due = claimed.next_due.expect("the next job is known");
    assert!(next_due <= LONG && next_due > LONG / 2, "{next_due:?}");
}

/// A job whose lease was longer than its backoff has waited enough: it is due at once, with the place that it had, before
/// all that was to come after it. (I8)
pub async fn a_job_that_was_taken_back_keeps_its_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench.elapse(TICK).await;
    bench.start_at_once("mail", 3).await;
    let first = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    let again = bench.expired_attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 2));
    assert_eq!(bench.reap("mail").await.len(), 1);
    let again = bench.attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 3), "and the second time");
}

/// So does one that must wait for its backoff, once that is over: it is claimed before what had to come after it. It keeps
/// the place when it is given back, and when it is taken back again. (I8)
pub async fn a_job_that_waits_for_its_backoff_keeps_its_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench.elapse(TICK).await;
    bench.start_at_once("mail", 5).await;
    let first = bench.expired_attempt("mail").await;
    bench.reap_as(backing_off(SHORT * 6), 10, &[]).await;
    bench.elapse(SHORT * 6).await;
    let again = bench.attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 2));
    bench.apply(&again, Outcome::Release).await;
    let again = bench.expired_attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 2), "after a release");
    bench.reap_as(backing_off(SHORT * 6), 10, &[]).await;
    bench.elapse(SHORT * 6).await;
    let again = bench.attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 3), "and the second time");
}

/// A job that waits for its backoff can be triggered, and keeps its place then too. A failure takes the place from it: it
/// is scheduled anew.
pub async fn a_trigger_ends_the_backoff_and_a_failure_the_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench.elapse(TICK).await;
    bench.start_at_once("mail", 3).await;
    let first = bench.expired_attempt("mail").await;
    bench.reap_as(backing_off(LONG), 10, &[]).await;
    assert_ne!(
        bench.attempt("mail").await.id(),
        first.id(),
        "others do not wait for it"
    );
    let triggered = bench.trigger(&[first.id()]).await.expect("it is pending");
    assert!(triggered[0].scheduled_at <= bench.now().await);
    let again = bench.attempt("mail").await;
    assert_eq!((again.id(), again.job.attempt), (first.id(), 2));
    let failed = Outcome::Retry {
        schedule: Schedule::Now,
        error: "no luck".into(),
    };
    bench.apply(&again, failed).await;
    for _ in 0..2 {
        assert_ne!(
            bench.attempt("mail").await.id(),
            first.id(),
            "the others come first now"
        );
    }
    assert_eq!(bench.attempt("mail").await.id(), first.id());
}

/// A lease that has not expired stays. (S79)
pub async fn a_lease_that_has_not_expired_stays<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.elapse(SHORT).await;
    assert!(bench.reap("mail").await.is_empty());
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
}

/// What the caller runs itself is left alone, and the others are taken. (S80, I10)
pub async fn what_the_caller_runs_itself_is_left_alone<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 2).await;
    let own = bench.attempt_for("mail", SHORT).await;
    let other = bench.attempt_for("mail", SHORT).await;
    bench.elapse(SHORT * 2).await;
    let reaped = bench.reap_with(&[("mail", MANY_ATTEMPTS)], 1, &[own.id()]).await;
    assert_eq!(
        reaped.iter().map(|reaped| reaped.job.id).collect::<Vec<_>>(),
        [other.id()]
    );
    assert_eq!(bench.job(own.id()).await.status, JobStatus::Running);
}

/// Only the given types are swept; none means none.
pub async fn only_the_given_types_are_swept<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    assert!(bench.reap("other").await.is_empty());
    assert!(bench.reap_with(&[], 10, &[]).await.is_empty());
    assert!(bench.reap_with(&[("mail", MANY_ATTEMPTS)], 0, &[]).await.is_empty());
    assert_eq!(bench.job(attempt.id()).await.status, JobStatus::Running);
}

/// The oldest expiry is taken first, across types, up to the limit.
pub async fn the_oldest_expiry_is_taken_first<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut attempts = Vec::new();
    for (type_name, lease) in [("a", SHORT * 2), ("b", SHORT), ("a", SHORT * 3 / 2)] {
        bench.start(type_name).await;
        attempts.push(bench.attempt_for(type_name, lease).await);
    }
    bench.elapse(SHORT * 4).await;
    let types = [("a", MANY_ATTEMPTS), ("b", MANY_ATTEMPTS)];
    let mut order: Vec<JobId> = Vec::new();
    for limit in [1, 5] {
        let reaped = bench.reap_with(&types, limit, &[]).await;
        order.extend(reaped.iter().map(|reaped| reaped.job.id));
    }
    let mut expected = attempts.clone();
    expected.sort_by_key(|attempt| attempt.job.lease.as_ref().map(|lease| lease.until));
    assert_eq!(order, expected.iter().map(|attempt| attempt.id()).collect::<Vec<_>>());
}

/// A job whose attempts are exhausted is dead, and so is its chain.
pub async fn a_job_whose_attempts_are_exhausted_is_dead<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    bench.expired_attempt("mail").await;
    assert_eq!(
        bench.reap_with(&[("mail", 2)], 10, &[]).await[0].job.status,
        JobStatus::Pending
    );
    bench.expired_attempt("mail").await;
    let reaped = bench.reap_with(&[("mail", 2)], 10, &[]).await;
    assert_eq!(reaped[0].job.status, JobStatus::Dead);
    let job = bench.job(chain.first_job()).await;
    assert_eq!(job, reaped[0].job);
    assert!(job.ended_at.is_some() && job.lease.is_none());
    assert_eq!(job.last_error.expect("the expiry is stored").attempt, 2);
    let record = bench.chain(chain).await;
    assert_eq!((record.status, record.ended_at), (JobStatus::Dead, job.ended_at));
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
}

/// A number of attempts of the job's own goes before that of the sweep, in both directions.
pub async fn a_job_may_have_its_own_number_of_attempts<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_as(draft("few").max_attempts(1)).await;
    bench.start_as(draft("many").max_attempts(5)).await;
    bench.attempt_for("few", SHORT).await;
    bench.expired_attempt("many").await;
    assert_eq!(bench.reap("few").await[0].job.status, JobStatus::Dead);
    assert_eq!(
        bench.reap_with(&[("many", 1)], 10, &[]).await[0].job.status,
        JobStatus::Pending
    );
}

/// A job that died by the reaper keeps its dependants blocked.
pub async fn a_job_that_died_by_the_reaper_unblocks_nobody<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_as(draft("blocker").max_attempts(1)).await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    bench.expired_attempt("blocker").await;
    assert_eq!(bench.reap("blocker").await[0].job.status, JobStatus::Dead);
    assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
}

/// A taken lease is taken once.
pub async fn a_lease_is_taken_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    assert!(bench.reap("mail").await.is_empty());
}

/// A row that another transaction has locked does not stall the sweep. (I10)
pub async fn a_locked_row_does_not_stall_the_sweep<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    bench.start_at_once("mail", 2).await;
    let locked = bench.attempt_for("mail", SHORT).await;
    let other = bench.attempt_for("mail", SHORT).await;
    bench.elapse(SHORT * 2).await;
    let mut open = bench.begin().await;
    open.hold(&locked).await.expect("nobody took it");
    let mut sweep = pin!(bench.reap_with(&[("mail", MANY_ATTEMPTS)], 1, &[]));
    let reaped = bench.watch(sweep.as_mut()).await.expect("a sweep does not wait");
    assert_eq!(
        reaped.iter().map(|reaped| reaped.job.id).collect::<Vec<_>>(),
        [other.id()]
    );
    open.rollback().await;
    assert_eq!(bench.reap("mail").await[0].job.id, locked.id());
}

/// Sweeps at the same moment take every lease once.
pub async fn sweeps_at_the_same_moment_share_the_leases<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 20).await;
    bench.claim_as("worker", &[("mail", SHORT)], 20).await;
    bench.elapse(SHORT * 2).await;
    let sweeps: Vec<_> = (0..4)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move { bench.reap("mail").await })
        })
        .collect();
    let mut taken = Vec::new();
    for sweep in sweeps {
        taken.extend(sweep.await.expect("no sweep fails").iter().map(|reaped| reaped.job.id));
    }
    // A sweep skips what another one has locked, so what all of them skipped is left for the next.
    taken.extend(bench.reap("mail").await.iter().map(|reaped| reaped.job.id));
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 20);
    let claimed = bench.claim_as("worker", &[("mail", LONG)], 30).await;
    assert!(
        claimed.jobs.iter().all(|claimed| claimed.job.claims == 2),
        "every lease was taken once"
    );
}
