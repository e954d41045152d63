//! Cancelling chains.

use queuert::JobStatus;
use queuert::adapter::Refusal;

use crate::bench::Bench;
use crate::draft::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// A pending chain is cancelled: it has ended, and nobody claims its job.
pub async fn a_pending_chain_is_cancelled<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let stopped = bench.cancel(&[chain]).await.expect("the chain is open");
    assert_eq!(stopped.len(), 1);
    assert_eq!((stopped[0].chain.id, stopped[0].interrupted), (chain, None));
    let record = bench.chain(chain).await;
    assert_eq!(stopped[0].chain, record, "the answer shows the chain as it is now");
    assert_eq!((record.status, record.output.is_some()), (JobStatus::Cancelled, false));
    let job = bench.job(chain.first_job()).await;
    assert_eq!((job.status, job.ended_at), (JobStatus::Cancelled, record.ended_at));
    assert!(job.ended_at.is_some() && job.completed_by.is_none());
    let claimed = bench.claim(&["mail"], 1).await;
    assert!(claimed.jobs.is_empty() && claimed.next_due.is_none());
}

/// A blocked chain is cancelled, and the end of its blocker does not bring it back.
pub async fn a_blocked_chain_is_cancelled<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("mail", &[blocker]).await;
    assert_eq!(
        bench.cancel(&[chain]).await.expect("the chain is open")[0].interrupted,
        None
    );
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
    assert_eq!(bench.status(chain).await, JobStatus::Cancelled);
}

/// A running chain is cancelled: its lease is gone, and its attempt is to be told.
pub async fn a_running_chain_is_cancelled<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    assert_eq!(
        bench.cancel(&[chain]).await.expect("the chain is open")[0].interrupted,
        Some(attempt.id())
    );
    let job = bench.job(attempt.id()).await;
    assert_eq!((job.status, job.lease, job.claims), (JobStatus::Cancelled, None, 1));
}

/// The latest job is cancelled; those before it stay completed.
pub async fn the_latest_job_is_cancelled<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    bench.cancel(&[chain]).await.expect("the chain is open");
    assert_eq!(bench.job(chain.first_job()).await.status, JobStatus::Completed);
    assert_eq!(bench.job(next).await.status, JobStatus::Cancelled);
    assert_eq!(bench.status(chain).await, JobStatus::Cancelled);
}

/// The jobs that wait for a cancelled chain stay blocked.
pub async fn the_dependants_of_a_cancelled_chain_stay_blocked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    bench.cancel(&[blocker]).await.expect("the chain is open");
    assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
    let late = bench
        .create_one(draft("dependant").blocked_by(&[blocker]))
        .await
        .expect("the chain exists");
    assert_eq!(late.status, JobStatus::Blocked, "a cancelled chain has not completed");
}

/// Many chains are cancelled in one call, in the order of the request.
pub async fn many_chains_are_cancelled_in_order<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut chains = bench.start_at_once("mail", 3).await;
    chains.reverse();
    let stopped = bench.cancel(&chains).await.expect("the chains are open");
    assert_eq!(
        stopped.iter().map(|stopped| stopped.chain.id).collect::<Vec<_>>(),
        chains
    );
    assert!(bench.cancel(&[]).await.expect("nothing to refuse").is_empty());
}

/// One chain that does not exist refuses the whole call.
pub async fn a_missing_chain_refuses_the_cancellation<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let missing = identity::chain_id();
    let refused = bench.cancel(&[chain, missing]).await.expect_err("one is missing");
    assert_eq!(refused, Refusal::ChainNotFound(missing));
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
}

/// One chain that has ended refuses the whole call, with its status.
pub async fn an_ended_chain_refuses_the_cancellation<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("other", "1").await;
    let dead = bench.start_dead("other").await;
    let cancelled = bench.start("other").await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    let chain = bench.start("mail").await;
    use JobStatus::{Cancelled, Completed, Dead};
    for (ended, status) in [(completed, Completed), (dead, Dead), (cancelled, Cancelled)] {
        let refused = bench.cancel(&[chain, ended]).await.expect_err("one has ended");
        assert_eq!(refused, Refusal::NotOpen(ended, status));
    }
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
}

/// A cancellation in a transaction that rolls back never was: the attempt goes on.
pub async fn a_rolled_back_cancellation_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut open = bench.begin().await;
    open.cancel(&[chain]).await.expect("the chain is open");
    assert_eq!(open.status(chain).await, JobStatus::Cancelled);
    open.rollback().await;
    assert_eq!(bench.job(attempt.id()).await, attempt.job);
    bench.finish(&attempt).await;
}
