//! Attempts that are not alone: completion from outside, and zombies.

use std::time::Duration;

use queuert::adapter::{Outcome, Renewal, Repeated, Settled};
use queuert::{AbortReason, JobStatus};

use crate::arena::{Arena, Attempt, ENDS, End, LONG, applied, bury, collide, continue_with, finish, retry, snooze};

/// Every way in which an attempt can end.
fn outcomes() -> [Outcome; 6] {
    [
        finish(),
        continue_with("step", &[]),
        retry(),
        bury(),
        Outcome::Release,
        snooze(),
    ]
}

/// A worker has ended its attempt and not committed; who completes from outside waits, and comes too late or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completion_from_outside_after_a_workers_end() {
    let arena = Arena::new().await;
    for end in ENDS {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        first.hold(&attempt).await.expect("the attempt has its job");
        first.apply(&attempt, finish()).await;
        let answer = collide!(arena, first, end, |held| held.settle_outside(chain, finish()));
        match end {
            End::Commit => assert_eq!(answer, Settled::Lost(AbortReason::AlreadyCompleted)),
            End::Rollback => assert!(applied(answer).interrupted, "the attempt is to be told"),
        }
        let job = arena.latest(chain).await;
        assert_eq!(job.status, JobStatus::Completed);
        assert_eq!(
            job.completed_by.is_some(),
            end == End::Commit,
            "by the worker, or by nobody"
        );
        assert_eq!(
            arena.renew(&attempt).await,
            Renewal::Lost(AbortReason::AlreadyCompleted)
        );
        arena.assert_sound().await;
    }
}

/// The other order: the worker's end waits for the one from outside, and is lost or not. By itself it does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workers_end_after_completion_from_outside() {
    let arena = Arena::new().await;
    for (outcome, end) in outcomes()
        .into_iter()
        .flat_map(|one| ENDS.map(|end| (one.clone(), end)))
    {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        assert!(applied(first.settle_outside(chain, finish()).await).interrupted);
        assert_eq!(arena.settle_at_once(&attempt, outcome.clone()).await, Settled::Busy);
        assert_eq!(arena.renew(&attempt).await, Renewal::Busy);
        let worker = attempt.clone();
        let answer = collide!(arena, first, end, |held| held.settle(&worker, outcome));
        match end {
            End::Commit => {
                assert_eq!(answer, Settled::Lost(AbortReason::AlreadyCompleted));
                let job = arena.latest(chain).await;
                assert_eq!((job.status, job.completed_by), (JobStatus::Completed, None));
                assert_eq!(job.id, attempt.id(), "no successor");
            }
            End::Rollback => drop(applied(answer)),
        }
        arena.assert_sound().await;
        arena.cancel_if_open(chain).await;
    }
}

/// Both continue the chain: it has one successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_is_continued_from_both_sides_has_one_successor() {
    let arena = Arena::new().await;
    for outside_first in [true, false] {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        let worker = attempt.clone();
        if outside_first {
            applied(first.settle_outside(chain, continue_with("outside", &[])).await);
            let answer = collide!(arena, first, End::Commit, |held| held
                .settle(&worker, continue_with("inside", &[])));
            assert_eq!(answer, Settled::Lost(AbortReason::AlreadyCompleted));
        } else {
            first.apply(&attempt, continue_with("inside", &[])).await;
            // Who asks for the current job gets the next one, once it is there.
            let locked = collide!(arena, first, End::Commit, |held| held.lock(chain));
            assert_eq!(locked.expect("the chain exists").chain_index, 1);
            // The same end again is a repetition, not another successor.
            let again = arena.settle_at_once(&worker, continue_with("inside", &[])).await;
            assert_eq!(again, Settled::Repeated(Repeated::new(JobStatus::Completed)));
        }
        let latest = arena.latest(chain).await;
        assert_eq!(latest.chain_index, 1);
        let winner = if outside_first { "outside" } else { "inside" };
        assert_eq!(latest.type_name.as_str(), winner);
        arena.assert_claimable_once(winner, latest.id).await;
        arena.assert_sound().await;
    }
}

/// An attempt whose lease expired, was taken back, and was given to the same worker again.
async fn zombie_and_successor(arena: &Arena) -> (Attempt, Attempt) {
    arena.start("entry", &[]).await;
    let zombie = arena.claim("entry", Duration::ZERO).await;
    assert_eq!(arena.reap("entry", 25).await.len(), 1);
    let successor = arena.claim("entry", LONG).await;
    assert_eq!(
        (zombie.id(), zombie.job.chain_id),
        (successor.id(), successor.job.chain_id)
    );
    (zombie, successor)
}

/// Whatever a zombie does while its successor, of the same worker, holds the job, is refused at once: renewing,
/// preparing, and every end, by itself and in a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_while_its_successor_holds_the_job() {
    let arena = Arena::new().await;
    let taken = AbortReason::TakenByAnotherWorker;
    for outcome in outcomes() {
        let (zombie, successor) = zombie_and_successor(&arena).await;
        let chain = successor.job.chain_id;
        let mut first = arena.begin().await;
        first.hold(&successor).await.expect("the successor has the job");
        // Nothing of this may wait for the transaction above, which nobody ends before.
        assert_eq!(arena.renew(&zombie).await, Renewal::Lost(taken));
        let mut other = arena.begin().await;
        assert_eq!(other.hold(&zombie).await, Err(taken));
        assert_eq!(other.settle(&zombie, outcome.clone()).await, Settled::Lost(taken));
        assert_eq!(
            arena.settle_at_once(&zombie, outcome.clone()).await,
            Settled::Lost(taken)
        );
        other.commit().await;
        assert_eq!(
            arena.renew(&successor).await,
            Renewal::Busy,
            "its own transaction has it"
        );
        first.commit().await;
        let before = arena.latest(chain).await;
        assert_eq!((before.status, before.attempt), (JobStatus::Running, 2));
        assert_eq!(before.lease.map(|lease| lease.fence), Some(successor.fence));
        arena.apply(&successor, finish()).await;
        // The successor's end is not the zombie's.
        let late = Settled::Lost(AbortReason::AlreadyCompleted);
        assert_eq!(arena.settle_at_once(&zombie, outcome).await, late);
        arena.assert_sound().await;
    }
}

/// A zombie's end arrives when its successor's end is written and not committed, and the zombie is one of the careful
/// kind: somebody waits for the chain. The end happens once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_against_its_successors_end() {
    let arena = Arena::new().await;
    for end in ENDS {
        let (zombie, successor) = zombie_and_successor(&arena).await;
        let dependant = arena.start("dependant", &[successor.job.chain_id]).await;
        let mut first = arena.begin().await;
        assert_eq!(first.apply(&successor, finish()).await.unblocked.len(), 1);
        let taken = Settled::Lost(AbortReason::TakenByAnotherWorker);
        assert_eq!(arena.settle_at_once(&zombie, finish()).await, taken);
        assert_eq!(
            arena.renew(&zombie).await,
            Renewal::Lost(AbortReason::TakenByAnotherWorker)
        );
        first.end(end).await;
        if end == End::Rollback {
            assert_eq!(arena.settle_at_once(&zombie, finish()).await, taken);
            assert_eq!(arena.apply(&successor, finish()).await.unblocked.len(), 1);
        }
        let late = Settled::Lost(AbortReason::AlreadyCompleted);
        assert_eq!(arena.settle_at_once(&zombie, finish()).await, late);
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}

/// An attempt waits for a transaction that gives its job back: when it wakes up it is a zombie.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_becomes_a_zombie_while_it_waits() {
    let arena = Arena::new().await;
    for end in ENDS {
        let attempt = arena.running("entry").await;
        let chain = attempt.job.chain_id;
        let mut first = arena.begin().await;
        applied(first.settle_outside(chain, Outcome::Release).await);
        let worker = attempt.clone();
        let held = collide!(arena, first, end, |held| held.hold(&worker));
        match end {
            End::Commit => {
                assert_eq!(held, Err(AbortReason::TakenByAnotherWorker));
                let successor = arena.claim("entry", LONG).await;
                assert_eq!(successor.job.attempt, 1, "the attempt was not spent");
                let lost = Settled::Lost(AbortReason::TakenByAnotherWorker);
                assert_eq!(arena.settle_at_once(&attempt, finish()).await, lost);
                arena.apply(&successor, finish()).await;
            }
            End::Rollback => {
                assert_eq!(held, Ok(()));
                arena.apply(&attempt, finish()).await;
            }
        }
        arena.assert_sound().await;
    }
}
