//! Blockers of one job that end at the same time.

use queuert::JobStatus;

use crate::arena::{Arena, ENDS, End, LONG, applied, chain, collide, finish, snooze};

/// Two blockers of one job complete in overlapping transactions, in either order: the second waits at the job, and
/// exactly one of the two makes it pending. If the first one rolls back, it has not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_blockers_complete_in_overlapping_transactions() {
    let arena = Arena::new().await;
    for (order, end) in [
        (0, End::Commit),
        (1, End::Commit),
        (0, End::Rollback),
        (1, End::Rollback),
    ] {
        let mut attempts = [arena.running("left").await, arena.running("right").await];
        let blockers = [attempts[0].job.chain_id, attempts[1].job.chain_id];
        let dependant = arena.start("dependant", &blockers).await;
        attempts.rotate_left(order);
        let [early, late] = attempts;
        let mut first = arena.begin().await;
        assert_eq!(first.apply(&early, finish()).await.unblocked, Vec::new(), "one is left");
        let second = late.clone();
        let answer = collide!(arena, first, end, |held| held.apply(&second, finish()));
        match end {
            End::Commit => assert_eq!(answer.unblocked.len(), 1, "the second is the last one"),
            End::Rollback => {
                assert_eq!(answer.unblocked, Vec::new(), "the first one is open still");
                assert_eq!(arena.status(dependant).await, Some(JobStatus::Blocked));
                assert_eq!(arena.apply(&early, finish()).await.unblocked.len(), 1);
            }
        }
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}

/// The same when one of the chains is a blocker twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocker_that_was_given_twice_counts_twice_at_once() {
    let arena = Arena::new().await;
    let (left, right) = (arena.running("left").await, arena.running("right").await);
    let (twice, once) = (left.job.chain_id, right.job.chain_id);
    let dependant = arena.start("dependant", &[twice, once, twice]).await;
    let mut first = arena.begin().await;
    assert_eq!(first.apply(&left, finish()).await.unblocked, Vec::new());
    let answer = collide!(arena, first, End::Commit, |held| held.apply(&right, finish()));
    assert_eq!(answer.unblocked.len(), 1);
    arena.assert_claimable_once("dependant", dependant.first_job()).await;
    arena.assert_sound().await;
}

/// A blocked job is cancelled while its last blocker completes: the end waits for the cancellation, and leaves a
/// cancelled job alone. Retried, the job waits for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_is_cancelled_while_its_blocker_completes() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
        let mut first = arena.begin().await;
        first.cancel(&[dependant]).await.expect("it can be cancelled");
        let answer = collide!(arena, first, end, |held| held.apply(&blocker, finish()));
        match end {
            End::Commit => {
                assert_eq!(answer.unblocked, Vec::new());
                assert_eq!(arena.status(dependant).await, Some(JobStatus::Cancelled));
                assert_eq!(arena.retry(dependant).await.status, JobStatus::Pending);
            }
            End::Rollback => assert_eq!(answer.unblocked.len(), 1),
        }
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}

/// A blocked job becomes a blocker itself while its own blocker completes: neither is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_gets_a_dependant_while_its_blocker_completes() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let middle = arena.start("middle", &[blocker.job.chain_id]).await;
        let mut first = arena.begin().await;
        let last = first
            .create(chain("last", &[middle]))
            .await
            .expect("it can be created")
            .id;
        let answer = collide!(arena, first, end, |held| held.apply(&blocker, finish()));
        assert_eq!(answer.unblocked.len(), 1);
        arena.assert_sound().await;
        let middle = arena.claim("middle", LONG).await;
        let unblocked = arena.apply(&middle, finish()).await.unblocked;
        match end {
            End::Commit => {
                assert_eq!(unblocked.len(), 1);
                arena.assert_claimable_once("last", last.first_job()).await;
            }
            End::Rollback => assert_eq!(unblocked, Vec::new()),
        }
        arena.assert_sound().await;
    }
}

/// A blocked job is put off from outside while its blocker completes. It stays blocked by that, and must be found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_is_put_off_while_its_blocker_completes() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
        let mut first = arena.begin().await;
        applied(first.settle_outside(dependant, snooze()).await);
        let answer = collide!(arena, first, end, |held| held.apply(&blocker, finish()));
        assert_eq!(answer.unblocked.len(), 1);
        assert_eq!(arena.status(dependant).await, Some(JobStatus::Pending));
        arena.assert_sound().await;
    }
}

/// A dead job is retried while its blocker completes, in both orders: it is blocked if the retry was first, and the end
/// unblocks it then; otherwise it is pending at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_is_retried_while_its_blocker_completes() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
        arena.cancel(dependant).await;
        let mut first = arena.begin().await;
        assert_eq!(
            first.apply(&blocker, finish()).await.unblocked,
            Vec::new(),
            "it does not wait"
        );
        let retried = collide!(arena, first, end, |held| held.retry(&[dependant]));
        let retried = retried.expect("it can be retried").remove(0).status;
        match end {
            End::Commit => assert_eq!(retried, JobStatus::Pending),
            End::Rollback => {
                assert_eq!(retried, JobStatus::Blocked);
                assert_eq!(arena.apply(&blocker, finish()).await.unblocked.len(), 1);
            }
        }
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let dependant = arena.start("dependant", &[blocker.job.chain_id]).await;
        arena.cancel(dependant).await;
        let mut first = arena.begin().await;
        let retried = first.retry(&[dependant]).await.expect("it can be retried");
        assert_eq!(retried[0].status, JobStatus::Blocked);
        let answer = collide!(arena, first, end, |held| held.apply(&blocker, finish()));
        match end {
            End::Commit => {
                assert_eq!(answer.unblocked.len(), 1);
                arena.assert_claimable_once("dependant", dependant.first_job()).await;
            }
            End::Rollback => {
                assert_eq!(answer.unblocked, Vec::new());
                assert_eq!(arena.status(dependant).await, Some(JobStatus::Cancelled));
            }
        }
        arena.assert_sound().await;
    }
}
