//! Deduplication keys that two want at once.

use queuert::JobStatus;
use queuert::adapter::Refusal;

use crate::arena::{Arena, ENDS, End, bury, collide, finish, keyed};

/// The second starter waits for the first one: it gets that one's chain, or, if there is none after all, its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_starters_of_one_key() {
    let arena = Arena::new().await;
    for (key, end) in [("kept", End::Commit), ("undone", End::Rollback)] {
        let mut first = arena.begin().await;
        let early = first.create(keyed("entry", key)).await.expect("it can be created");
        assert!(!early.deduplicated);
        let new = keyed("entry", key);
        let own = new.job.id.as_chain();
        let late = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
        match end {
            End::Commit => assert_eq!((late.id, late.deduplicated), (early.id, true)),
            End::Rollback => {
                assert_eq!((late.id, late.deduplicated), (own, false));
                assert_eq!(arena.status(early.id).await, None);
            }
        }
        arena.assert_claimable_once("entry", late.id.first_job()).await;
        arena.assert_sound().await;
    }
}

/// Of three starters the first rolls back: of the two that waited, one starts a chain, and the other one gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_starters_wait_for_one_that_rolls_back() {
    let arena = Arena::new().await;
    let mut first = arena.begin().await;
    first.create(keyed("entry", "key")).await.expect("it can be created");
    let (mut second, mut third) = (arena.begin().await, arena.begin().await);
    let second = tokio::spawn(async move {
        let created = second.create(keyed("entry", "key")).await;
        second.commit().await;
        created.expect("it can be created")
    });
    arena.until_blocked(&second, first.backend).await;
    let backend = third.backend;
    let third = tokio::spawn(async move {
        let created = third.create(keyed("entry", "key")).await;
        third.commit().await;
        created.expect("it can be created")
    });
    arena.until_waiting(&third, backend).await;
    first.rollback().await;
    let (second, third) = (second.await.expect("no panic"), third.await.expect("no panic"));
    assert_eq!(second.id, third.id);
    assert_ne!(second.deduplicated, third.deduplicated, "one of them started it");
    arena.assert_claimable_once("entry", second.id.first_job()).await;
    arena.assert_sound().await;
}

/// A dead chain is retried while its key is taken, in both orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_against_a_starter() {
    let arena = Arena::new().await;
    for (order, end) in ["retry", "start"]
        .into_iter()
        .flat_map(|order| ENDS.map(|end| (order, end)))
    {
        let key = format!("{order} {end:?}");
        let dead = arena.start_as(keyed("entry", &key)).await;
        let attempt = arena.claim("entry", crate::arena::LONG).await;
        arena.apply(&attempt, bury()).await;
        let mut first = arena.begin().await;
        let new = keyed("entry", &key);
        let own = new.job.id.as_chain();
        if order == "retry" {
            first.retry(&[dead]).await.expect("it can be retried");
            let started = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
            match end {
                End::Commit => assert_eq!((started.id, started.deduplicated), (dead, true)),
                End::Rollback => assert_eq!((started.id, started.deduplicated), (own, false)),
            }
        } else {
            first.create(new).await.expect("it can be created");
            let retried = collide!(arena, first, end, |held| held.retry(&[dead]));
            match end {
                End::Commit => {
                    let taken = Refusal::KeyTaken {
                        chain: dead,
                        holder: own,
                    };
                    assert_eq!(retried.map(|_| ()), Err(taken));
                    assert_eq!(arena.status(dead).await, Some(JobStatus::Dead));
                }
                End::Rollback => assert_eq!(retried.expect("it can be retried")[0].status, JobStatus::Pending),
            }
        }
        arena.assert_sound().await;
        let attempt = arena.claim("entry", crate::arena::LONG).await;
        arena.apply(&attempt, finish()).await;
        assert!(
            arena.try_claim("entry", crate::arena::LONG).await.is_none(),
            "one was open"
        );
    }
}

/// The chain that has the key is deleted while another one is started with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_against_a_starter() {
    let arena = Arena::new().await;
    for (key, end) in [("gone", End::Commit), ("there", End::Rollback)] {
        let holder = arena.start_as(keyed("entry", key)).await;
        let mut first = arena.begin().await;
        assert_eq!(first.delete(&[holder], false).await, Ok(vec![holder]));
        let new = keyed("entry", key);
        let own = new.job.id.as_chain();
        let started = collide!(arena, first, end, |held| held.create(new)).expect("it can be created");
        match end {
            End::Commit => assert_eq!((started.id, started.deduplicated), (own, false)),
            End::Rollback => assert_eq!((started.id, started.deduplicated), (holder, true)),
        }
        arena.assert_claimable_once("entry", started.id.first_job()).await;
        arena.assert_sound().await;
    }
}
