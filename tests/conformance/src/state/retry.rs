//! An operator's retry of dead and cancelled chains.

use queuert::adapter::Refusal;
use queuert::{JobStatus, Schedule};

use crate::bench::{Bench, TICK};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A dead chain goes on: pending now, with no attempt spent; its claims and its last error are kept.
pub async fn a_dead_chain_goes_on<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    bench
        .apply(&bench.attempt("mail").await, draft::retry(Schedule::Now, "one"))
        .await;
    bench.apply(&bench.attempt("mail").await, draft::bury("two")).await;
    bench.elapse(TICK).await;
    let before = bench.now().await;
    let retried = bench.retry(&[chain]).await.expect("the chain is dead");
    let job = bench.job(chain.first_job()).await;
    assert_eq!(retried, std::slice::from_ref(&job));
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 0, 2));
    assert!(before <= job.scheduled_at && job.scheduled_at <= bench.now().await);
    assert_eq!((job.ended_at, job.lease), (None, None));
    let error = job.last_error.expect("history is kept");
    assert_eq!((error.attempt, error.message.as_str()), (2, "two"));
    let record = bench.chain(chain).await;
    assert_eq!((record.status, record.ended_at), (JobStatus::Pending, None));
    let attempt = bench.attempt("mail").await;
    assert_eq!(
        (attempt.chain(), attempt.job.attempt, attempt.job.claims),
        (chain, 1, 3)
    );
    bench.finish(&attempt).await;
    assert_eq!(bench.status(chain).await, JobStatus::Completed);
}

/// A cancelled chain goes on, whatever it was cancelled from.
pub async fn a_cancelled_chain_goes_on<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (pending, running) = (bench.start("pending").await, bench.start("running").await);
    bench.attempt("running").await;
    bench.cancel(&[pending, running]).await.expect("the chains are open");
    let retried = bench
        .retry(&[running, pending])
        .await
        .expect("the chains were cancelled");
    assert_eq!(
        retried.iter().map(|job| job.chain_id).collect::<Vec<_>>(),
        [running, pending]
    );
    assert!(
        retried
            .iter()
            .all(|job| job.status == JobStatus::Pending && job.attempt == 0)
    );
    assert_eq!((retried[0].claims, retried[1].claims), (1, 0));
    assert_eq!(bench.claim(&["pending", "running"], 5).await.jobs.len(), 2);
}

/// The latest job goes on; those before it stay completed.
pub async fn the_latest_job_goes_on<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    bench.apply(&bench.attempt("second").await, draft::bury("fatal")).await;
    assert_eq!(bench.retry(&[chain]).await.expect("the chain is dead")[0].id, next);
    assert_eq!(bench.job(chain.first_job()).await.status, JobStatus::Completed);
    assert_eq!(bench.attempt("second").await.id(), next);
}

/// A retried job waits again while a blocker is open, and is unblocked by its end.
pub async fn a_retried_job_waits_for_its_blockers_again<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("mail", &[blocker]).await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    let retried = bench.retry(&[chain]).await.expect("the chain was cancelled");
    assert_eq!(retried[0].status, JobStatus::Blocked);
    assert_eq!(bench.status(chain).await, JobStatus::Blocked);
    let applied = bench.finish(&bench.attempt("blocker").await).await;
    assert_eq!(
        applied
            .unblocked
            .iter()
            .map(|unblocked| unblocked.chain)
            .collect::<Vec<_>>(),
        [chain]
    );
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}

/// A retried job whose blockers have all completed meanwhile is pending, and gets their outputs.
pub async fn a_retried_job_with_completed_blockers_is_pending<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("mail", &[blocker]).await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    bench.apply(&bench.attempt("blocker").await, draft::finish("7")).await;
    assert_eq!(
        bench.retry(&[chain]).await.expect("the chain was cancelled")[0].status,
        JobStatus::Pending
    );
    let attempt = bench.attempt("mail").await;
    assert_eq!(attempt.blockers[0].output.as_ref().expect("completed").as_str(), "7");
}

/// A job that waits for a dead or cancelled chain stays blocked until that chain is retried and completes. (I6)
pub async fn dependants_wait_until_a_stopped_chain_completes<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for cancelled in [true, false] {
        let blocker = bench.start("blocker").await;
        let dependant = bench.start_blocked("dependant", &[blocker]).await;
        match cancelled {
            true => drop(bench.cancel(&[blocker]).await.expect("the chain is open")),
            false => drop(bench.apply(&bench.attempt("blocker").await, draft::bury("fatal")).await),
        }
        assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
        bench.retry(&[blocker]).await.expect("the chain was stopped");
        assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
        assert_eq!(bench.finish(&bench.attempt("blocker").await).await.unblocked.len(), 1);
        assert_eq!(bench.attempt("dependant").await.chain(), dependant);
    }
}

/// Only dead and cancelled chains can be retried; one other refuses the whole call.
pub async fn only_stopped_chains_can_be_retried<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let dead = bench.start_dead("dead").await;
    let completed = bench.start_completed("other", "1").await;
    let blocker = bench.start("blocker").await;
    let blocked = bench.start_blocked("other", &[blocker]).await;
    let running = bench.start("running").await;
    bench.attempt("running").await;
    use JobStatus::{Blocked, Completed, Dead, Pending, Running};
    for (chain, status) in [
        (completed, Completed),
        (blocked, Blocked),
        (running, Running),
        (blocker, Pending),
    ] {
        let refused = bench.retry(&[dead, chain]).await;
        assert_eq!(refused, Err(Refusal::NotRetryable(chain, status)));
    }
    let missing = identity::chain_id();
    assert_eq!(
        bench.retry(&[dead, missing]).await,
        Err(Refusal::ChainNotFound(missing))
    );
    assert_eq!(bench.status(dead).await, Dead);
    assert_eq!(bench.retry(&[]).await, Ok(Vec::new()));
}

/// A chain cannot be retried while another open chain has its key; once that one ended it can. (I7)
pub async fn a_chain_whose_key_is_taken_cannot_be_retried<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let first = bench.start_as(draft("mail").deduplicate("key")).await;
    bench.cancel(&[first]).await.expect("the chain is open");
    let second = bench.start_as(draft("mail").deduplicate("key")).await;
    let refused = bench.retry(&[first]).await;
    assert_eq!(
        refused,
        Err(Refusal::KeyTaken {
            chain: first,
            holder: second
        })
    );
    assert_eq!(bench.status(first).await, JobStatus::Cancelled);
    bench.complete_outside(second, "1").await;
    bench.retry(&[first]).await.expect("the key is free");
    let third = bench
        .create_one(draft("mail").deduplicate("key"))
        .await
        .expect("no refusal");
    assert_eq!(
        (third.id, third.deduplicated),
        (first, true),
        "the retried chain has its key again"
    );
}

/// Two stopped chains with one key cannot both be retried by one call. (I7)
pub async fn two_chains_with_one_key_cannot_both_be_retried<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let first = bench.start_as(draft("mail").deduplicate("key")).await;
    bench.cancel(&[first]).await.expect("the chain is open");
    let second = bench.start_as(draft("mail").deduplicate("key")).await;
    bench.cancel(&[second]).await.expect("the chain is open");
    let refused = bench.retry(&[first, second]).await;
    assert!(matches!(refused, Err(Refusal::KeyTaken { .. })), "{refused:?}");
    let statuses = [bench.status(first).await, bench.status(second).await];
    assert_eq!(statuses, [JobStatus::Cancelled; 2]);
}

/// A retry in a transaction that rolls back never was.
pub async fn a_rolled_back_retry_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_dead("mail").await;
    let before = bench.job(chain.first_job()).await;
    let mut open = bench.begin().await;
    open.retry(&[chain]).await.expect("the chain is dead");
    open.rollback().await;
    assert_eq!(bench.job(chain.first_job()).await, before);
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
}
