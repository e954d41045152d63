//! Renewing leases.

use std::pin::pin;
use std::time::Duration;

use queuert::adapter::{RenewLease, Renewal, StateAdapter};
use queuert::{AbortReason, JobStatus};

use crate::bench::{Bench, LONG, SHORT, answer};
use crate::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// A renewed lease ends the given time from now, as stored; nothing else changes. (S63)
pub async fn a_renewed_lease_counts_from_now<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt_for("mail", Duration::from_secs(5)).await;
    let before = bench.now().await;
    let renewal = bench.renew_for(&attempt, Duration::from_secs(10)).await;
    let after = bench.now().await;
    let Renewal::Renewed(until) = renewal else {
        panic!("not renewed: {renewal:?}")
    };
    assert!(before.saturating_add(Duration::from_secs(10)) <= until);
    assert!(until <= after.saturating_add(Duration::from_secs(10)));
    let mut expected = attempt.job.clone();
    expected.lease.as_mut().expect("leased").until = until;
    assert_eq!(bench.job(attempt.id()).await, expected);
}

/// A later, longer renewal moves the end further. (S64)
pub async fn a_longer_renewal_moves_the_end_further<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let (first, second) = (
        bench.renew_for(&attempt, LONG).await,
        bench.renew_for(&attempt, LONG * 2).await,
    );
    let (Renewal::Renewed(first), Renewal::Renewed(second)) = (first, second) else {
        panic!("not renewed: {first:?}, {second:?}")
    };
    assert!(second > first);
}

/// A lease that expired is renewed if nobody took it, and is then safe from the reaper.
pub async fn an_expired_lease_that_nobody_took_is_renewed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    assert!(matches!(bench.renew(&attempt).await, Renewal::Renewed(_)));
    assert!(bench.reap("mail").await.is_empty());
    assert_eq!(bench.job(attempt.id()).await.status, JobStatus::Running);
}

/// Many leases are renewed in one call, each with its own answer, in the order of the request.
pub async fn every_renewal_of_a_batch_has_its_own_answer<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 3).await;
    let (first, second, third) = (
        bench.attempt("mail").await,
        bench.attempt("mail").await,
        bench.attempt("mail").await,
    );
    bench.finish(&second).await;
    let renewals = [&third, &second, &first].map(|attempt| RenewLease {
        job: attempt.id(),
        fence: attempt.fence,
        lease: LONG,
    });
    let renewed = answer(bench.state().renew_leases(None, &renewals).await);
    assert_eq!(renewed.len(), 3);
    assert!(matches!(renewed[0], Renewal::Renewed(_)));
    assert_eq!(renewed[1], Renewal::Lost(AbortReason::AlreadyCompleted));
    assert!(matches!(renewed[2], Renewal::Renewed(_)));
    assert!(answer(bench.state().renew_leases(None, &[]).await).is_empty());
}

/// A job that does not exist any more is lost as not found.
pub async fn the_lease_of_a_deleted_job_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.delete(&[attempt.chain()]).await.expect("nothing depends on it");
    assert_eq!(bench.renew(&attempt).await, Renewal::Lost(AbortReason::NotFound));
    let mut unknown = attempt;
    unknown.job.id = identity::job_id();
    assert_eq!(bench.renew(&unknown).await, Renewal::Lost(AbortReason::NotFound));
}

/// A job that was completed from outside is lost as already completed.
pub async fn the_lease_of_a_completed_job_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.complete_outside(attempt.chain(), "1").await;
    assert_eq!(
        bench.renew(&attempt).await,
        Renewal::Lost(AbortReason::AlreadyCompleted)
    );
    assert_eq!(bench.job(attempt.id()).await.lease, None);
}

/// A job that was cancelled is lost as cancelled.
pub async fn the_lease_of_a_cancelled_job_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.cancel(&[attempt.chain()]).await.expect("the chain is open");
    assert_eq!(bench.renew(&attempt).await, Renewal::Lost(AbortReason::Cancelled));
}

/// A job that was taken back is lost to another worker, whether that one has it yet or not.
pub async fn the_lease_of_a_reaped_job_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    assert_eq!(
        bench.renew(&attempt).await,
        Renewal::Lost(AbortReason::TakenByAnotherWorker)
    );
    assert_eq!(bench.job(attempt.id()).await.status, JobStatus::Pending);
    let next = bench.attempt_by("another", "mail", LONG).await;
    assert_eq!(
        bench.renew(&attempt).await,
        Renewal::Lost(AbortReason::TakenByAnotherWorker)
    );
    assert_eq!(
        bench.job(next.id()).await.lease,
        next.job.lease,
        "the new lease is untouched"
    );
}

/// An attempt that ended by itself has no lease to renew.
pub async fn an_ended_attempt_has_no_lease_to_renew<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for outcome in draft::every_outcome() {
        let chain = bench.start("mail").await;
        let attempt = bench.attempt("mail").await;
        bench.apply(&attempt, outcome.clone()).await;
        let renewal = bench.renew(&attempt).await;
        assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?} after {outcome:?}");
        assert_eq!(bench.job(attempt.id()).await.lease, None);
        bench.delete(&[chain]).await.expect("nothing depends on it");
    }
}

/// A renewal never waits: a job that another transaction has locked is busy, and the others are renewed.
pub async fn a_locked_job_is_busy<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    bench.start_at_once("mail", 2).await;
    let (held, free) = (bench.attempt("mail").await, bench.attempt("mail").await);
    let mut open = bench.begin().await;
    open.hold(&held).await.expect("the attempt holds its job");
    let renewals = [&held, &free].map(|attempt| RenewLease {
        job: attempt.id(),
        fence: attempt.fence,
        lease: LONG * 2,
    });
    let mut renewing = pin!(bench.state().renew_leases(None, &renewals));
    let renewed = bench.watch(renewing.as_mut()).await.expect("a renewal does not wait");
    let renewed = answer(renewed);
    assert_eq!(renewed[0], Renewal::Busy);
    assert!(matches!(renewed[1], Renewal::Renewed(_)));
    open.rollback().await;
    assert!(matches!(bench.renew_for(&held, SHORT).await, Renewal::Renewed(_)));
}

/// In a transaction that holds an expired lease, the lease is extended from now, and valid as soon as the transaction has
/// committed.
pub async fn a_transaction_extends_what_it_holds<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let mut open = bench.begin().await;
    assert_eq!(open.hold(&attempt).await, Ok(()));
    let renewal = open.renew(&attempt, LONG).await;
    let Renewal::Renewed(until) = renewal else {
        panic!("not renewed: {renewal:?}")
    };
    open.commit().await;
    assert!(bench.reap("mail").await.is_empty());
    let mut expected = attempt.job.clone();
    expected.lease.as_mut().expect("leased").until = until;
    assert_eq!(bench.job(attempt.id()).await, expected);
    let now = bench.now().await;
    assert!(until <= now.saturating_add(LONG) && until > now);
    bench.apply(&attempt, draft::finish("1")).await;
}

/// A renewal in a transaction that is rolled back has not extended anything.
pub async fn a_rolled_back_renewal_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let mut open = bench.begin().await;
    assert_eq!(open.hold(&attempt).await, Ok(()));
    assert!(matches!(open.renew(&attempt, LONG).await, Renewal::Renewed(_)));
    open.rollback().await;
    assert_eq!(bench.reap("mail").await.len(), 1);
}

/// A job that another transaction has locked is busy in a transaction too, which goes on; a lost one is lost.
pub async fn a_transaction_does_not_wait_to_renew<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 2).await;
    let (locked, ended) = (bench.attempt("mail").await, bench.attempt("mail").await);
    bench.finish(&ended).await;
    let mut open = bench.begin().await;
    assert_eq!(
        open.renew(&ended, LONG).await,
        Renewal::Lost(AbortReason::AlreadyCompleted)
    );
    if !bench.has_concurrent_writers() {
        return open.rollback().await;
    }
    let mut other = bench.begin().await;
    assert_eq!(other.hold(&locked).await, Ok(()));
    assert_eq!(open.renew(&locked, LONG).await, Renewal::Busy);
    other.rollback().await;
    assert!(matches!(open.renew(&locked, LONG).await, Renewal::Renewed(_)));
    open.commit().await;
}
