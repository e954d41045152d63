//! What operators do, against what workers do.

use std::time::Duration;

use queuert::adapter::{Outcome, Refusal, Renewal, Settled};
use queuert::{AbortReason, JobStatus};

use crate::arena::{Arena, ENDS, End, LONG, applied, bury, chain, collide, continue_with, finish};

/// A chain is cancelled, and its attempt ends before that is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_after_a_cancellation() {
    let arena = Arena::new().await;
    for (outcome, end) in [finish(), continue_with("step", &[]), bury()]
        .into_iter()
        .flat_map(|one| ENDS.map(|end| (one.clone(), end)))
    {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        let cancelled = first.cancel(&[chain]).await.expect("it can be cancelled");
        assert_eq!(cancelled[0].interrupted, Some(attempt.id()));
        assert_eq!(arena.settle_at_once(&attempt, outcome.clone()).await, Settled::Busy);
        let worker = attempt.clone();
        let answer = collide!(arena, first, end, |held| held.settle(&worker, outcome));
        match end {
            End::Commit => {
                assert_eq!(answer, Settled::Lost(AbortReason::Cancelled));
                assert_eq!(arena.renew(&attempt).await, Renewal::Lost(AbortReason::Cancelled));
                let latest = arena.latest(chain).await;
                assert_eq!((latest.id, latest.status), (attempt.id(), JobStatus::Cancelled));
            }
            End::Rollback => drop(applied(answer)),
        }
        arena.assert_sound().await;
        arena.cancel_if_open(chain).await;
    }
}

/// The other order: who cancels a chain that has just completed is told so; one that went on is cancelled where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_after_a_completion() {
    let arena = Arena::new().await;
    for end in ENDS {
        let attempt = arena.running("entry").await;
        let dependant = arena.start("dependant", &[attempt.job.chain_id]).await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        assert_eq!(first.apply(&attempt, finish()).await.unblocked.len(), 1);
        let answer = collide!(arena, first, end, |held| held.cancel(&[chain]));
        match end {
            End::Commit => {
                let ended = Refusal::NotOpen(chain, JobStatus::Completed);
                assert_eq!(answer.map(|_| ()), Err(ended));
                arena.assert_claimable_once("dependant", dependant.first_job()).await;
            }
            End::Rollback => {
                assert_eq!(answer.expect("it can be cancelled")[0].interrupted, Some(attempt.id()));
                assert_eq!(arena.status(dependant).await, Some(JobStatus::Blocked));
                arena.cancel(dependant).await;
            }
        }
        arena.assert_sound().await;
    }
    let attempt = arena.running("entry").await;
    let chain = attempt.job.chain_id;
    let mut first = arena.begin().await;
    first.apply(&attempt, continue_with("step", &[])).await;
    let answer = collide!(arena, first, End::Commit, |held| held.cancel(&[chain]));
    let cancelled = answer.expect("it can be cancelled").remove(0);
    assert_eq!((cancelled.chain.length, cancelled.interrupted), (2, None));
    assert!(arena.try_claim("step", LONG).await.is_none());
    arena.assert_sound().await;
}

/// A job died because its lease expired once too often. It is retried, and its late attempt comes back: it is refused at
/// once, before and after the retry is committed, and when the next attempt runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_completion_after_a_retry() {
    let arena = Arena::new().await;
    for end in ENDS {
        arena.start("entry", &[]).await;
        let late = arena.claim("entry", Duration::ZERO).await;
        let chain = late.job.chain_id;
        assert_eq!(arena.reap("entry", 1).await[0].job.status, JobStatus::Dead);
        let refused = Settled::Lost(AbortReason::TakenByAnotherWorker);
        let mut first = arena.begin().await;
        assert_eq!(first.retry(&[chain]).await.expect("it can be retried")[0].attempt, 0);
        let mut other = arena.begin().await;
        assert_eq!(other.hold(&late).await, Err(AbortReason::TakenByAnotherWorker));
        assert_eq!(other.settle(&late, finish()).await, refused);
        other.rollback().await;
        assert_eq!(arena.settle_at_once(&late, finish()).await, refused);
        first.end(end).await;
        assert_eq!(arena.settle_at_once(&late, finish()).await, refused);
        if end == End::Rollback {
            assert_eq!(arena.status(chain).await, Some(JobStatus::Dead));
            arena.retry(chain).await;
        }
        let next = arena.claim("entry", LONG).await;
        assert_eq!((next.id(), next.job.attempt, next.job.claims), (late.id(), 1, 2));
        assert_eq!(arena.settle_at_once(&late, finish()).await, refused);
        assert_eq!(arena.settle_at_once(&late, continue_with("step", &[])).await, refused);
        arena.apply(&next, finish()).await;
        let latest = arena.latest(chain).await;
        assert_eq!((latest.status, latest.chain_index), (JobStatus::Completed, 0));
        arena.assert_sound().await;
    }
}

/// The other order: the late attempt has its end refused in a transaction that is still open; the retry does not care.
/// And completion from outside meets the retry: it waits, and completes what is pending again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_a_late_completion() {
    let arena = Arena::new().await;
    arena.start("entry", &[]).await;
    let late = arena.claim("entry", Duration::ZERO).await;
    let chain = late.job.chain_id;
    assert_eq!(arena.reap("entry", 1).await[0].job.status, JobStatus::Dead);
    let mut first = arena.begin().await;
    let refused = Settled::Lost(AbortReason::TakenByAnotherWorker);
    assert_eq!(first.settle(&late, finish()).await, refused);
    assert_eq!(arena.retry(chain).await.status, JobStatus::Pending);
    assert_eq!(first.settle(&late, finish()).await, refused);
    first.commit().await;
    arena.assert_claimable_once("entry", late.id()).await;
    arena.cancel(chain).await;
    // The rollback first: it leaves the chain as it was.
    for end in [End::Rollback, End::Commit] {
        let mut first = arena.begin().await;
        first.retry(&[chain]).await.expect("it can be retried");
        let answer = collide!(arena, first, end, |held| held.settle_outside(chain, finish()));
        match end {
            // What is cancelled cannot be completed.
            End::Rollback => {
                assert_eq!(answer, Settled::Lost(AbortReason::Cancelled));
                assert_eq!(arena.status(chain).await, Some(JobStatus::Cancelled));
            }
            End::Commit => {
                assert!(!applied(answer).interrupted);
                assert_eq!(arena.status(chain).await, Some(JobStatus::Completed));
            }
        }
    }
    assert!(arena.try_claim("entry", LONG).await.is_none());
    arena.assert_sound().await;
}

/// Two operators retry the same chain: the second is told that it goes on already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_retries_of_one_chain() {
    let arena = Arena::new().await;
    let attempt = arena.running("entry").await;
    arena.apply(&attempt, bury()).await;
    let chain = attempt.job.chain_id;
    let mut first = arena.begin().await;
    first.retry(&[chain]).await.expect("it can be retried");
    let answer = collide!(arena, first, End::Commit, |held| held.retry(&[chain]));
    assert_eq!(
        answer.map(|_| ()),
        Err(Refusal::NotRetryable(chain, JobStatus::Pending))
    );
    arena.assert_claimable_once("entry", attempt.id()).await;
    arena.assert_sound().await;
}

/// A chain is deleted while its attempt ends, in both orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_against_a_completion() {
    let arena = Arena::new().await;
    for end in ENDS {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        assert_eq!(first.delete(&[chain], false).await, Ok(vec![chain]));
        let worker = attempt.clone();
        let answer = collide!(arena, first, end, |held| held
            .settle(&worker, continue_with("step", &[])));
        match end {
            End::Commit => {
                assert_eq!(answer, Settled::Lost(AbortReason::NotFound));
                assert_eq!(arena.renew(&attempt).await, Renewal::Lost(AbortReason::NotFound));
            }
            End::Rollback => drop(applied(answer)),
        }
        arena.assert_sound().await;
    }
    let attempt = arena.running("entry").await;
    let chain = attempt.job.chain_id;
    let mut first = arena.begin().await;
    first.apply(&attempt, continue_with("step", &[])).await;
    let answer = collide!(arena, first, End::Commit, |held| held.delete(&[chain], false));
    assert_eq!(answer, Ok(vec![chain]));
    assert_eq!(arena.status(chain).await, None);
    arena.assert_sound().await;
}

/// A chain gets a blocker while it is deleted with all its blockers: the new one goes too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cascade_against_a_continuation_with_a_blocker() {
    let arena = Arena::new().await;
    for end in ENDS {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let blocker = arena.start("blocker", &[]).await;
        let mut first = arena.begin().await;
        let answer = first.apply(&attempt, continue_with("step", &[blocker])).await;
        assert_eq!(answer.next, Some(JobStatus::Blocked));
        let deleted = collide!(arena, first, end, |held| held.delete(&[chain], true));
        let expected = match end {
            End::Commit => vec![chain, blocker],
            End::Rollback => vec![chain],
        };
        assert_eq!(deleted, Ok(expected));
        assert_eq!(arena.status(blocker).await.is_none(), end == End::Commit);
        arena.assert_sound().await;
    }
}

/// A job is triggered while another transaction cancels it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_against_a_cancellation() {
    let arena = Arena::new().await;
    for end in ENDS {
        let mut later = chain("entry", &[]);
        later.job.schedule = queuert::Schedule::After(Duration::from_secs(3600));
        let chain = arena.start_as(later).await;
        let job = chain.first_job();
        let mut first = arena.begin().await;
        first.cancel(&[chain]).await.expect("it can be cancelled");
        let answer = collide!(arena, first, end, |held| held.trigger(&[job]));
        match end {
            End::Commit => {
                let ended = Refusal::NotPending(job, JobStatus::Cancelled);
                assert_eq!(answer.map(|_| ()), Err(ended));
                assert!(arena.try_claim("entry", LONG).await.is_none());
            }
            End::Rollback => {
                answer.expect("it can be triggered");
                arena.assert_claimable_once("entry", job).await;
            }
        }
        arena.assert_sound().await;
    }
}

/// A release gives a job back while somebody cancels its chain: it is cancelled where it is then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_follows_a_job_that_moves() {
    let arena = Arena::new().await;
    let attempt = arena.running("entry").await;
    let chain = attempt.job.chain_id;
    let mut first = arena.begin().await;
    first.apply(&attempt, Outcome::Release).await;
    let answer = collide!(arena, first, End::Commit, |held| held.cancel(&[chain]));
    assert_eq!(answer.expect("it can be cancelled")[0].interrupted, None);
    assert_eq!(arena.status(chain).await, Some(JobStatus::Cancelled));
    assert!(arena.try_claim("entry", LONG).await.is_none());
    arena.assert_sound().await;
}
