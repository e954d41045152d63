//! A dependant that is created while something happens to its blocker, in both orders: either the one sees the dependant,
//! or the dependant sees what happened.

use queuert::adapter::{Refusal, Settled};
use queuert::{BlockerReference, ChainId, JobStatus, StateErrorKind};

use crate::arena::{Arena, Attempt, ENDS, End, LONG, bury, chain, collide, continue_with, finish};

/// The blocker's last job ends, and that alone makes the dependant pending.
async fn assert_released_by(arena: &Arena, last: &Attempt, dependant: ChainId) {
    assert_eq!(arena.status(dependant).await, Some(JobStatus::Blocked));
    arena.assert_sound().await;
    let unblocked = arena.apply(last, finish()).await.unblocked;
    assert_eq!(unblocked.iter().map(|job| job.chain).collect::<Vec<_>>(), [dependant]);
    arena.assert_claimable_once("dependant", dependant.first_job()).await;
    arena.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocker_completes_first() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let new = chain("dependant", &[blocker.job.chain_id]);
        let mut first = arena.begin().await;
        assert_eq!(first.apply(&blocker, finish()).await.unblocked, Vec::new());
        let created = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
        match end {
            End::Commit => {
                assert_eq!(created.status, JobStatus::Pending);
                arena.assert_claimable_once("dependant", created.id.first_job()).await;
                arena.assert_sound().await;
            }
            End::Rollback => {
                assert_eq!(created.status, JobStatus::Blocked);
                assert_released_by(&arena, &blocker, created.id).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dependant_is_created_before_the_blocker_completes() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let mut first = arena.begin().await;
        let created = first.create(chain("dependant", &[blocker.job.chain_id])).await;
        let created = created.expect("it can be created");
        assert_eq!(created.status, JobStatus::Blocked);
        let answer = collide!(arena, first, end, |held| held.apply(&blocker, finish()));
        match end {
            End::Commit => {
                assert_eq!(answer.unblocked.len(), 1);
                arena.assert_claimable_once("dependant", created.id.first_job()).await;
            }
            End::Rollback => {
                assert_eq!(answer.unblocked, Vec::new());
                assert_eq!(arena.status(created.id).await, None);
            }
        }
        arena.assert_sound().await;
    }
}

/// A worker that ends the blocker by itself does not wait for the creation: it is told to ask again, and its end is the
/// one that unblocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_does_not_wait_for_the_creation() {
    let arena = Arena::new().await;
    let blocker = arena.running("blocker").await;
    let mut first = arena.begin().await;
    let created = first.create(chain("dependant", &[blocker.job.chain_id])).await;
    let created = created.expect("it can be created");
    assert_eq!(arena.settle_at_once(&blocker, finish()).await, Settled::Busy);
    assert_eq!(arena.settle_at_once(&blocker, bury()).await, Settled::Busy);
    first.commit().await;
    assert_released_by(&arena, &blocker, created.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocker_continues_first() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let new = chain("dependant", &[blocker.job.chain_id]);
        let mut first = arena.begin().await;
        first.apply(&blocker, continue_with("step", &[])).await;
        let created = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
        assert_eq!(created.status, JobStatus::Blocked);
        let last = match end {
            End::Commit => arena.claim("step", LONG).await,
            End::Rollback => blocker,
        };
        assert_released_by(&arena, &last, created.id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dependant_is_created_before_the_blocker_continues() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let mut first = arena.begin().await;
        let created = first.create(chain("dependant", &[blocker.job.chain_id])).await;
        let created = created.expect("it can be created");
        let answer = collide!(arena, first, end, |held| held
            .apply(&blocker, continue_with("step", &[])));
        assert_eq!(answer.next, Some(JobStatus::Pending));
        let last = arena.claim("step", LONG).await;
        match end {
            End::Commit => assert_released_by(&arena, &last, created.id).await,
            End::Rollback => assert_eq!(arena.apply(&last, finish()).await.unblocked, Vec::new()),
        }
        arena.assert_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocker_dies_first() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let new = chain("dependant", &[blocker.job.chain_id]);
        let mut first = arena.begin().await;
        first.apply(&blocker, bury()).await;
        let created = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
        assert_eq!(created.status, JobStatus::Blocked, "it waits, visibly");
        let last = match end {
            End::Commit => {
                assert_eq!(arena.retry(blocker.job.chain_id).await.status, JobStatus::Pending);
                arena.claim("blocker", LONG).await
            }
            End::Rollback => blocker,
        };
        assert_released_by(&arena, &last, created.id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dependant_is_created_before_the_blocker_dies() {
    let arena = Arena::new().await;
    for end in ENDS {
        let blocker = arena.running("blocker").await;
        let mut first = arena.begin().await;
        let created = first.create(chain("dependant", &[blocker.job.chain_id])).await;
        let created = created.expect("it can be created");
        let chain = blocker.job.chain_id;
        collide!(arena, first, end, |held| held.apply(&blocker, bury()));
        assert_eq!(arena.status(chain).await, Some(JobStatus::Dead));
        arena.retry(chain).await;
        let last = arena.claim("blocker", LONG).await;
        match end {
            End::Commit => assert_released_by(&arena, &last, created.id).await,
            End::Rollback => assert_eq!(arena.apply(&last, finish()).await.unblocked, Vec::new()),
        }
        arena.assert_sound().await;
    }
}

/// In every status that a chain can be in when it is deleted.
async fn deletable(arena: &Arena, which: usize) -> ChainId {
    match which {
        0 => arena.start("blocker", &[]).await,
        1 => arena.running("blocker").await.job.chain_id,
        2 => {
            let attempt = arena.running("blocker").await;
            arena.apply(&attempt, finish()).await;
            attempt.job.chain_id
        }
        _ => {
            let attempt = arena.running("blocker").await;
            arena.apply(&attempt, bury()).await;
            attempt.job.chain_id
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocker_is_deleted_first() {
    for (which, end) in (0..4).flat_map(|which| ENDS.map(|end| (which, end))) {
        let arena = Arena::new().await;
        let blocker = deletable(&arena, which).await;
        let mut first = arena.begin().await;
        assert_eq!(first.delete(&[blocker], false).await, Ok(vec![blocker]));
        let new = chain("dependant", &[blocker]);
        let job = new.job.id;
        let created = collide!(arena, first, end, |held| held.create(new));
        match end {
            End::Commit => {
                let missing = Refusal::BlockerNotFound { job, chain: blocker };
                assert_eq!(created, Err(missing));
                assert_eq!(arena.status(job.as_chain()).await, None);
            }
            End::Rollback => {
                let completed = arena.status(blocker).await == Some(JobStatus::Completed);
                let status = created.expect("it can be created").status;
                assert_eq!(status == JobStatus::Pending, completed);
            }
        }
        arena.assert_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dependant_is_created_before_the_blocker_is_deleted() {
    for (which, end) in (0..4).flat_map(|which| ENDS.map(|end| (which, end))) {
        let arena = Arena::new().await;
        let blocker = deletable(&arena, which).await;
        let before = arena.status(blocker).await;
        let mut first = arena.begin().await;
        let created = first.create(chain("dependant", &[blocker])).await;
        let created = created.expect("it can be created");
        let deleted = collide!(arena, first, end, |held| held.delete(&[blocker], false));
        match end {
            End::Commit => {
                let reference = BlockerReference {
                    chain: blocker,
                    job: created.id.first_job(),
                };
                assert_eq!(deleted, Err(Refusal::Referenced(vec![reference])));
                assert_eq!(arena.status(blocker).await, before);
                assert_eq!(arena.status(created.id).await, Some(created.status));
            }
            End::Rollback => {
                assert_eq!(deleted, Ok(vec![blocker]));
                assert_eq!(arena.status(blocker).await, None);
            }
        }
        arena.assert_sound().await;
    }
}

/// A transaction with one snapshot for all of its statements cannot see a dependant that came after it. It must not end
/// the blocker then, even if somebody else waits for that already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stricter_transaction_does_not_end_what_a_later_dependant_waits_for() {
    let arena = Arena::new().await;
    for retried in [false, true] {
        let blocker = arena.running("blocker").await;
        let chain = blocker.job.chain_id;
        arena.start("early", &[chain]).await;
        let cancelled = arena.start("dependant", &[chain]).await;
        arena.cancel(cancelled).await;
        let mut strict = arena.begin().await;
        strict.freeze().await;
        let dependant = match retried {
            true => arena.retry(cancelled).await.chain_id,
            false => arena.start("dependant", &[chain]).await,
        };
        let error = strict
            .try_settle(&blocker, finish())
            .await
            .expect_err("it sees nothing of the dependant");
        assert_eq!(error.kind(), StateErrorKind::Conflict);
        strict.rollback().await;
        let unblocked = arena.apply(&blocker, finish()).await.unblocked;
        assert!(unblocked.iter().any(|job| job.chain == dependant), "{unblocked:?}");
        arena.assert_sound().await;
    }
}
