//! Holding a lease for the time of a transaction.

use std::pin::pin;

use queuert::adapter::Settled;
use queuert::{AbortReason, JobStatus};

use crate::bench::{Bench, End, SHORT};
use crate::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// A lease is held while the job runs under its fence, expired or not.
pub async fn a_running_job_can_be_held<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let mut open = bench.begin().await;
    assert_eq!(open.hold(&attempt).await, Ok(()));
    open.finish(&attempt).await;
    open.commit().await;
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Completed);
}

/// A lost lease says why: not found, already completed, cancelled, taken.
pub async fn a_lost_lease_says_why<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 4).await;
    let mut attempts = Vec::new();
    for _ in 0..4 {
        attempts.push(bench.attempt_for("mail", SHORT).await);
    }
    bench.elapse(SHORT * 2).await;
    bench
        .delete(&[attempts[0].chain()])
        .await
        .expect("nothing depends on it");
    bench.complete_outside(attempts[1].chain(), "1").await;
    bench.cancel(&[attempts[2].chain()]).await.expect("the chain is open");
    assert_eq!(bench.reap("mail").await.len(), 1);
    let mut open = bench.begin().await;
    let mut reasons = Vec::new();
    for attempt in &attempts {
        reasons.push(open.hold(attempt).await.expect_err("every lease is lost"));
    }
    use AbortReason::{AlreadyCompleted, Cancelled, NotFound, TakenByAnotherWorker};
    assert_eq!(reasons, [NotFound, AlreadyCompleted, Cancelled, TakenByAnotherWorker]);
    let mut unknown = attempts[0].clone();
    unknown.job.id = identity::job_id();
    assert_eq!(open.hold(&unknown).await, Err(NotFound));
    open.rollback().await;
}

/// While a lease is held, completion from outside waits, and then finds what the holder left.
pub async fn a_held_job_cannot_be_completed_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut holder = bench.begin().await;
    holder.hold(&attempt).await.expect("the attempt holds its job");
    let mut outside = pin!(async {
        let mut open = bench.begin().await;
        let job = open.lock(attempt.chain()).await.expect("the chain is there");
        let settled = open.settle_outside(job.id, draft::finish("outside")).await;
        open.commit().await;
        (job.status, settled)
    });
    bench.assert_waits(outside.as_mut()).await;
    holder.apply(&attempt, draft::finish("inside")).await;
    holder.commit().await;
    let (seen, settled) = outside.await;
    assert_eq!(seen, JobStatus::Completed);
    assert_eq!(settled, Settled::Lost(AbortReason::AlreadyCompleted));
    assert_eq!(
        bench.chain(attempt.chain()).await.output.expect("completed").as_str(),
        "inside"
    );
}

/// While a lease is held, cancelling and deleting wait for the end of the transaction.
pub async fn a_held_job_cannot_be_cancelled_or_deleted<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let chain = [attempt.chain()];
    let mut holder = bench.begin().await;
    holder.hold(&attempt).await.expect("the attempt holds its job");
    let mut cancelling = pin!(bench.cancel(&chain));
    let cancelled = bench.overlap_waiting(holder, End::Rollback, cancelling.as_mut()).await;
    assert_eq!(cancelled.expect("the chain is open")[0].interrupted, Some(attempt.id()));

    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let chain = [attempt.chain()];
    let mut holder = bench.begin().await;
    holder.hold(&attempt).await.expect("the attempt holds its job");
    let mut deleting = pin!(bench.delete(&chain));
    let deleted = bench.overlap_waiting(holder, End::Commit, deleting.as_mut()).await;
    assert_eq!(deleted.expect("nothing depends on it").len(), 1);
}

/// While a lease is held, the reaper leaves the job alone.
pub async fn a_held_job_is_not_reaped<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    let mut holder = bench.begin().await;
    holder.hold(&attempt).await.expect("nobody took it");
    assert!(bench.reap("mail").await.is_empty());
    holder.finish(&attempt).await;
    holder.commit().await;
    assert!(bench.reap("mail").await.is_empty());
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Completed);
}

/// Who waits to hold a lease sees what became of the job meanwhile, not what it was. (H6)
pub async fn who_waits_to_hold_sees_the_job_as_it_is_then<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut outside = bench.begin().await;
    outside.complete_outside(attempt.chain(), "outside").await;
    let mut holding = pin!(async {
        let mut open = bench.begin().await;
        let held = open.hold(&attempt).await;
        open.rollback().await;
        held
    });
    let held = bench.overlap_waiting(outside, End::Commit, holding.as_mut()).await;
    assert_eq!(held, Err(AbortReason::AlreadyCompleted));
}
