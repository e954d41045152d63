//! An old attempt can write nothing, whoever has the job now. The worker's name and the attempt's number prove nothing:
//! the same worker may have claimed the job again, and an operator may have reset the number.

use queuert::adapter::{Outcome, Renewal, Settled};
use queuert::{AbortReason, JobStatus, Schedule};

use crate::bench::{Attempt, Bench, LONG};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// Every write of the old attempt is refused for this reason, and the job is not touched.
async fn assert_useless<F: StateFixture>(bench: &Bench<F>, old: &Attempt, reason: AbortReason) {
    let before = bench.job(old.id()).await;
    assert_eq!(bench.renew(old).await, Renewal::Lost(reason));
    for outcome in draft::every_outcome() {
        let settled = bench.settle(old, outcome.clone()).await;
        assert_eq!(settled, Settled::Lost(reason), "by {outcome:?}");
    }
    let mut open = bench.begin().await;
    assert_eq!(open.hold(old).await, Err(reason));
    for outcome in draft::every_outcome() {
        assert_eq!(open.settle(old, outcome).await, Settled::Lost(reason));
    }
    open.commit().await;
    assert_eq!(bench.job(old.id()).await, before);
}

/// An attempt whose lease was taken back is refused, although nobody has the job yet. (I4)
pub async fn a_reaped_attempt_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let old = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
    assert_eq!(bench.status(old.chain()).await, JobStatus::Pending);
}

/// A stale attempt is refused while another worker has the job; that worker goes on. (I4)
pub async fn a_stale_attempt_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let old = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    let new = bench.attempt_by("another", "mail", LONG).await;
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
    bench.apply(&new, draft::finish("new")).await;
    assert_useless(&bench, &old, AbortReason::AlreadyCompleted).await;
    assert_eq!(
        bench.chain(old.chain()).await.output.expect("completed").as_str(),
        "new"
    );
}

/// A stale attempt of the very worker that has the job again is refused. (H7, I4)
pub async fn a_stale_attempt_of_the_same_worker_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let old = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await.len(), 1);
    let new = bench.attempt("mail").await;
    assert_eq!(new.worker, old.worker);
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
    assert!(matches!(bench.renew(&new).await, Renewal::Renewed(_)));
    bench.finish(&new).await;
}

/// A process that lost a job and has claimed it again may end both attempts in one call: each gets its own answer, in
/// whatever order they are. (I4)
pub async fn both_attempts_of_a_process_in_one_call_have_their_own_answers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (stale_first, outcome) in [
        (true, draft::finish("done")),
        (false, draft::finish("done")),
        (true, draft("next").next()),
        (false, draft("next").next()),
    ] {
        bench.start("mail").await;
        let old = bench.expired_attempt("mail").await;
        assert_eq!(bench.reap("mail").await.len(), 1);
        let new = bench.attempt("mail").await;
        let other = match &outcome {
            Outcome::Continue { .. } => draft("next").next(),
            _ => outcome.clone(),
        };
        let (old, new) = (old.settlement(other), new.settlement(outcome));
        let settlements = match stale_first {
            true => [old, new],
            false => [new, old],
        };
        let settled = bench.settle_all(&settlements).await;
        let (old, new) = match stale_first {
            true => (&settled[0], &settled[1]),
            false => (&settled[1], &settled[0]),
        };
        assert!(matches!(old, Settled::Lost(_)), "{old:?}");
        assert!(matches!(new, Settled::Applied(_)), "{new:?}");
    }
}

/// A stale attempt is refused although the new one has the same number, because an operator retried the job. (H7, I4)
pub async fn a_stale_attempt_with_the_same_number_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let old = bench.attempt("mail").await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    bench.retry(&[chain]).await.expect("the chain was cancelled");
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
    let new = bench.attempt("mail").await;
    assert_eq!(
        (new.worker.clone(), new.job.attempt),
        (old.worker.clone(), old.job.attempt)
    );
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
    bench.finish(&new).await;
}

/// A cancelled attempt is refused. (I4)
pub async fn a_cancelled_attempt_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let old = bench.attempt("mail").await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    assert_useless(&bench, &old, AbortReason::Cancelled).await;
}

/// An attempt of a job that was completed from outside is refused. (I4)
pub async fn an_overtaken_attempt_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let old = bench.attempt("mail").await;
    bench.complete_outside(chain, "outside").await;
    assert_useless(&bench, &old, AbortReason::AlreadyCompleted).await;
    assert_eq!(bench.chain(chain).await.output.expect("completed").as_str(), "outside");
}

/// An attempt that was reaped to death is refused. (I4)
pub async fn an_attempt_that_was_reaped_to_death_is_refused<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_as(draft("mail").max_attempts(1)).await;
    let old = bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await[0].job.status, JobStatus::Dead);
    assert_useless(&bench, &old, AbortReason::TakenByAnotherWorker).await;
}

/// What a stale attempt wrote in its transaction does not count: its settlement is lost, so it must roll back, and
/// nothing that it tried is there. (I1, I4)
pub async fn the_transaction_of_a_stale_attempt_leaves_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let old = bench.expired_attempt("mail").await;
    bench.reap("mail").await;
    let mut open = bench.begin().await;
    let side = open.start("side").await;
    let next = draft("next");
    let next_id = next.id();
    assert_eq!(
        open.settle(&old, next.next()).await,
        Settled::Lost(AbortReason::TakenByAnotherWorker)
    );
    open.rollback().await;
    assert!(!bench.exists(side).await);
    assert!(bench.jobs(&[next_id]).await.is_empty());
}

/// An attempt that ended by giving its job back is refused once the same worker has claimed it again. (H7)
pub async fn an_attempt_that_gave_its_job_back_cannot_write_to_the_next_one<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for outcome in [draft::retry(Schedule::Now, "failed"), Outcome::Release] {
        bench.start("mail").await;
        let old = bench.attempt("mail").await;
        bench.apply(&old, outcome).await;
        let new = bench.attempt("mail").await;
        assert_eq!(new.id(), old.id());
        // Repeated or lost: the contract leaves open how long a fence is remembered. Applied it must not be.
        let settled = bench.settle(&old, draft::finish("old")).await;
        assert!(
            matches!(settled, Settled::Repeated(_) | Settled::Lost(_)),
            "{settled:?}"
        );
        assert_eq!(bench.job(new.id()).await, new.job);
        bench.finish(&new).await;
    }
}
