//! Completion from outside: by whoever locked the chain, without an attempt.

use std::pin::pin;

use queuert::adapter::{Applied, Settled};
use queuert::{AbortReason, JobStatus};

use crate::bench::{Bench, End};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A pending chain can be completed from outside; nobody is named as the one who did it. (S77)
pub async fn a_pending_chain_can_be_completed_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("approval").await;
    assert_eq!(bench.complete_outside(chain, "\"yes\"").await, Applied::default());
    let job = bench.job(chain.first_job()).await;
    assert_eq!(
        (job.status, job.completed_by, job.attempt),
        (JobStatus::Completed, None, 0)
    );
    assert_eq!(job.output.as_ref().map(|output| output.as_str()), Some("\"yes\""));
    assert!(job.ended_at.is_some());
    let record = bench.chain(chain).await;
    assert_eq!((record.status, record.output), (JobStatus::Completed, job.output));
    assert!(bench.claim(&["approval"], 1).await.jobs.is_empty());
}

/// A blocked chain can be completed from outside; its blocker's end does not bring it back.
pub async fn a_blocked_chain_can_be_completed_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let chain = bench.start_blocked("approval", &[blocker]).await;
    assert!(!bench.complete_outside(chain, "1").await.interrupted);
    assert_eq!(
        bench.finish(&bench.attempt("blocker").await).await.unblocked,
        Vec::new()
    );
    assert_eq!(bench.status(chain).await, JobStatus::Completed);
    assert!(bench.claim(&["approval"], 1).await.jobs.is_empty());
}

/// A running chain can be completed from outside; its attempt is to be told.
pub async fn a_running_chain_can_be_completed_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("approval").await;
    let attempt = bench.attempt("approval").await;
    assert!(bench.complete_outside(chain, "1").await.interrupted);
    let job = bench.job(attempt.id()).await;
    assert_eq!(
        (job.status, job.lease, job.completed_by),
        (JobStatus::Completed, None, None)
    );
}

/// Completion from outside unblocks the jobs that wait for the chain. (I6)
pub async fn completion_from_outside_unblocks<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("approval").await;
    let dependant = bench.start_blocked("dependant", &[chain]).await;
    let applied = bench.complete_outside(chain, "\"yes\"").await;
    assert_eq!(applied.unblocked.len(), 1);
    let attempt = bench.attempt("dependant").await;
    assert_eq!(attempt.chain(), dependant);
    assert_eq!(
        attempt.blockers[0].output.as_ref().expect("completed").as_str(),
        "\"yes\""
    );
}

/// A chain can be continued from outside, and several steps can be taken in one transaction.
pub async fn several_steps_can_be_taken_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("one").await;
    let mut open = bench.begin().await;
    let job = open.lock(chain).await.expect("the chain is there");
    let next = draft("two").trace("step");
    let next_id = next.id();
    let settled = open.settle_outside(job.id, next.next()).await;
    assert!(matches!(settled, Settled::Applied(applied) if applied.next == Some(JobStatus::Pending)));
    let job = open.lock(chain).await.expect("the chain is there");
    assert_eq!((job.id, job.trace_context.as_deref()), (next_id, Some("step")));
    let settled = open.settle_outside(next_id, draft::finish("2")).await;
    assert_eq!(settled, Settled::Applied(Applied::default()));
    open.commit().await;
    let record = bench.chain(chain).await;
    assert_eq!((record.status, record.length), (JobStatus::Completed, 2));
}

/// Within one transaction a job is completed once: the second time it is lost. (H30, I5)
pub async fn a_job_is_completed_from_outside_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("approval").await;
    let mut open = bench.begin().await;
    let job = open.lock(chain).await.expect("the chain is there");
    assert!(matches!(
        open.settle_outside(job.id, draft::finish("1")).await,
        Settled::Applied(_)
    ));
    for outcome in [draft::finish("2"), draft("next").next()] {
        let settled = open.settle_outside(job.id, outcome).await;
        assert_eq!(settled, Settled::Lost(AbortReason::AlreadyCompleted));
    }
    open.commit().await;
    let record = bench.chain(chain).await;
    assert_eq!((record.output.expect("completed").as_str(), record.length), ("1", 1));
}

/// Only the latest job of an open chain can be completed from outside.
pub async fn only_the_latest_open_job_can_be_completed_from_outside<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    bench.continue_with(&bench.attempt("first").await, "second").await;
    let cancelled = bench.start("other").await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    let dead = bench.start_dead("other").await;
    let mut open = bench.begin().await;
    open.lock(chain).await;
    let early = open.settle_outside(chain.first_job(), draft::finish("1")).await;
    assert_eq!(early, Settled::Lost(AbortReason::AlreadyCompleted));
    open.lock(cancelled).await;
    let settled = open.settle_outside(cancelled.first_job(), draft::finish("1")).await;
    assert_eq!(settled, Settled::Lost(AbortReason::Cancelled));
    open.lock(dead).await;
    let settled = open.settle_outside(dead.first_job(), draft::finish("1")).await;
    assert!(matches!(settled, Settled::Lost(_)), "{settled:?}");
    let settled = open.settle_outside(identity::job_id(), draft::finish("1")).await;
    assert_eq!(settled, Settled::Lost(AbortReason::NotFound));
    open.commit().await;
    use JobStatus::{Cancelled, Dead, Pending};
    let statuses = [
        bench.status(chain).await,
        bench.status(cancelled).await,
        bench.status(dead).await,
    ];
    assert_eq!(statuses, [Pending, Cancelled, Dead]);
}

/// Completion from outside that waited for a worker's settlement finds the job completed and overwrites nothing. (H6)
pub async fn completion_from_outside_after_a_settlement_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut worker = bench.begin().await;
    worker.apply(&attempt, draft::finish("worker")).await;
    let mut outside = pin!(async {
        let mut open = bench.begin().await;
        let job = open.lock(chain).await.expect("the chain is there");
        let settled = open.settle_outside(job.id, draft::finish("outside")).await;
        open.commit().await;
        (job.status, settled)
    });
    let (seen, settled) = bench.overlap_waiting(worker, End::Commit, outside.as_mut()).await;
    assert_eq!(
        seen,
        JobStatus::Completed,
        "the lock shows the job as it is after the wait"
    );
    assert_eq!(settled, Settled::Lost(AbortReason::AlreadyCompleted));
    assert_eq!(bench.chain(chain).await.output.expect("completed").as_str(), "worker");
}

/// A worker's settlement that waited for completion from outside is lost. (H6)
pub async fn a_settlement_after_completion_from_outside_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (end, expected) in [(End::Commit, "outside"), (End::Rollback, "worker")] {
        let chain = bench.start("mail").await;
        let attempt = bench.attempt("mail").await;
        let mut outside = bench.begin().await;
        outside.complete_outside(chain, "outside").await;
        let mut worker = pin!(bench.settle(&attempt, draft::finish("worker")));
        let settled = bench.overlap_waiting(outside, end, worker.as_mut()).await;
        match end {
            End::Commit => assert_eq!(settled, Settled::Lost(AbortReason::AlreadyCompleted)),
            End::Rollback => assert_eq!(settled, Settled::Applied(Applied::default())),
        }
        assert_eq!(bench.chain(chain).await.output.expect("completed").as_str(), expected);
    }
}

/// Of many who complete a chain at the same moment, from outside and by its attempt, one does. (H6, I5)
pub async fn of_many_completions_at_once_one_counts<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut tasks = Vec::new();
    for index in 0..6 {
        let (bench, attempt) = (bench.clone(), attempt.clone());
        tasks.push(tokio::spawn(async move {
            let outcome = draft::finish(&index.to_string());
            if index % 3 == 0 {
                return (index, bench.settle(&attempt, outcome).await);
            }
            let mut open = bench.begin().await;
            let job = open.lock(chain).await.expect("the chain is there");
            let settled = open.settle_outside(job.id, outcome).await;
            open.commit().await;
            (index, settled)
        }));
    }
    let mut winners = Vec::new();
    for task in tasks {
        let (index, settled) = task.await.expect("no completion fails");
        if matches!(settled, Settled::Applied(_)) {
            winners.push(index.to_string());
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(bench.chain(chain).await.output.expect("completed").as_str(), winners[0]);
}
