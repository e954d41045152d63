//! Leases of a process that is known to have died.

use std::pin::pin;
use std::time::Duration;

use queuert::adapter::{ReapCause, ReapType, StateAdapter};
use queuert::{JobStatus, RetryPolicy};
use tokio::time::Instant;

use crate::bench::{Bench, LONG, MANY_ATTEMPTS, SHORT, TICK};
use crate::draft::draft;
use crate::fixture::StateFixture;

/// Whoever is not told within this time will not be.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the store has found out that somebody has died.
async fn told<F: StateFixture>(bench: &Bench<F>, since: Instant) {
    tokio::time::timeout(PATIENCE, bench.state().owner_died(since))
        .await
        .expect("the store finds out");
}

/// The leases of a dead process are taken back long before they expire: pending now, the attempt counted, its error
/// says that the owner died. (I10)
pub async fn the_leases_of_a_dead_owner_are_taken_back<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start("mail").await;
    let twin = bench.twin().await;
    let attempt = twin.attempt_by("the-dead", "mail", LONG).await;
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    let now = bench.now().await;
    let reaped = bench.reap("mail").await;
    assert_eq!(reaped.len(), 1);
    assert_eq!(
        (&reaped[0].owner, reaped[0].cause),
        (&attempt.worker, ReapCause::OwnerDied)
    );
    assert_eq!(reaped[0].expired_at, attempt.job.lease.as_ref().expect("leased").until);
    let job = bench.job(attempt.id()).await;
    assert_eq!(reaped[0].job, job, "the report shows the job as it is now");
    assert_eq!((job.status, job.lease, job.attempt), (JobStatus::Pending, None, 1));
    assert!(job.scheduled_at >= now, "pending now, not earlier");
    let error = job.last_error.expect("the death is stored");
    assert_eq!(error.attempt, 1);
    assert!(
        error.message.contains(attempt.worker.as_str()) && error.message.contains("died"),
        "{}",
        error.message
    );
    bench.elapse(TICK).await;
    assert_eq!(bench.attempt("mail").await.job.attempt, 2);
}

/// The attempt of a dead process has failed, so the job backs off like after any failure, from when the store found out.
/// (I8)
pub async fn the_job_of_a_dead_owner_backs_off<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start("mail").await;
    let twin = bench.twin().await;
    let attempt = twin.attempt_by("the-dead", "mail", LONG).await;
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    let delay = LONG / 2;
    let retry = RetryPolicy::new().initial(delay).maximum(delay).jitter(0.0);
    let reaped = bench.reap_as(vec![ReapType::new("mail", retry, LONG)], 10, &[]).await;
    let job = bench.job(attempt.id()).await;
    assert_eq!(reaped[0].job, job, "the report shows the job as it is now");
    let found_out = job.last_error.expect("the death is stored").at;
    assert_eq!(job.scheduled_at, found_out.saturating_add(delay));
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty(), "it is not due");
}

/// The leases of a living process stay, and nobody is told of its death.
pub async fn the_leases_of_a_living_owner_stay<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start_at_once("mail", 2).await;
    let twin = bench.twin().await;
    let own = bench.attempt_by("one", "mail", LONG).await;
    let other = twin.attempt_by("another", "mail", LONG).await;
    let mut death = pin!(bench.state().owner_died(Instant::now()));
    assert!(bench.watch(death.as_mut()).await.is_none());
    for sweeper in [&bench, &twin] {
        assert!(sweeper.reap("mail").await.is_empty());
    }
    assert_eq!(bench.job(own.id()).await, own.job);
    assert_eq!(bench.job(other.id()).await, other.job);
}

/// A death is told to everybody whose last sweep was before it, and to nobody else, also if some of the leases are of
/// types that the caller does not sweep; those are there for whoever does.
pub async fn a_death_is_told_to_those_who_have_not_swept_since<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start("mail").await;
    bench.start("other").await;
    let twin = bench.twin().await;
    twin.attempt_by("the-dead", "mail", LONG).await;
    twin.attempt_by("the-dead", "other", LONG).await;
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    told(&bench, before).await;
    let swept_at = Instant::now();
    assert_eq!(bench.reap("mail").await.len(), 1);
    let mut again = pin!(bench.state().owner_died(swept_at));
    assert!(bench.watch(again.as_mut()).await.is_none());
    assert_eq!(bench.reap("other").await.len(), 1);
    assert!(bench.reap("other").await.is_empty());
    assert!(bench.watch(again.as_mut()).await.is_none());
}

/// A sweep of the dead keeps the limit, after what has expired, and leaves alone what is excepted.
pub async fn a_sweep_of_the_dead_keeps_its_limit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start_at_once("mail", 4).await;
    let twin = bench.twin().await;
    let mut attempts = Vec::new();
    for lease in [LONG, SHORT, LONG, LONG] {
        attempts.push(twin.attempt_by("the-dead", "mail", lease).await);
    }
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    bench.elapse(SHORT * 2).await;
    let types = [("mail", MANY_ATTEMPTS)];
    let except = [attempts[0].id()];
    let first = bench.reap_with(&types, 2, &except).await;
    let causes: Vec<_> = first.iter().map(|reaped| reaped.cause).collect();
    assert_eq!(causes, [ReapCause::LeaseExpired, ReapCause::OwnerDied]);
    assert_eq!(first[0].job.id, attempts[1].id());
    assert_eq!(bench.reap_with(&types, 2, &except).await.len(), 1);
    assert_eq!(bench.reap_with(&types, 2, &except).await.len(), 0);
    assert_eq!(bench.job(attempts[0].id()).await.status, JobStatus::Running);
}

/// A job whose last attempt went with its process is dead.
pub async fn the_last_attempt_of_a_dead_owner_was_the_last<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    let chain = bench.start_as(draft("mail").max_attempts(1)).await;
    let twin = bench.twin().await;
    twin.attempt_by("the-dead", "mail", LONG).await;
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    assert_eq!(bench.reap("mail").await[0].job.status, JobStatus::Dead);
    assert_eq!(bench.status(chain).await, JobStatus::Dead);
}

/// A name that two processes use is not dead while one of them lives.
pub async fn a_name_lives_as_long_as_one_of_its_processes<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.knows_the_dead() {
        return;
    }
    bench.start_at_once("mail", 2).await;
    bench.start("other").await;
    let twin = bench.twin().await;
    bench.attempt_by("shared", "mail", LONG).await;
    twin.attempt_by("shared", "mail", LONG).await;
    twin.attempt_by("the-dead", "other", LONG).await;
    let before = Instant::now();
    bench.kill(twin).await;
    told(&bench, before).await;
    assert!(bench.reap("mail").await.is_empty());
    assert_eq!(bench.reap("other").await.len(), 1);
}
