//! Transactions with one snapshot for all of their statements, and what others did since: each verb does what is right, or
//! fails with a conflict. None of them decides by what its snapshot shows.

use queuert::adapter::{Authority, DeleteChains, Outcome, Settled, Settlement, StateAdapter as _};
use queuert::{ChainId, Fence, JobStatus, Schedule};

use crate::arena::{Arena, Attempt, LONG, bury, chain, continue_with, finish, retry, well};
use crate::frozen_keys::{LEVELS, assert_conflict, frozen};

/// A chain in each status that it can have before it is ended from outside, or deleted.
const STATUSES: [&str; 6] = ["ready", "later", "blocked", "running", "completed", "dead"];

async fn in_status(arena: &Arena, status: &str) -> ChainId {
    match status {
        "later" => {
            let mut later = chain("blocker", &[]);
            later.job.schedule = Schedule::After(LONG);
            arena.start_as(later).await
        }
        "blocked" => {
            let first = arena.start("first", &[]).await;
            arena.start("blocker", &[first]).await
        }
        "running" => arena.running("blocker").await.job.chain_id,
        "completed" => {
            let attempt = arena.running("blocker").await;
            arena.apply(&attempt, finish()).await;
            attempt.job.chain_id
        }
        "dead" => {
            let attempt = arena.running("blocker").await;
            arena.apply(&attempt, bury()).await;
            attempt.job.chain_id
        }
        _ => arena.start("blocker", &[]).await,
    }
}

fn outside(attempt: ChainId) -> Settlement {
    Settlement {
        job: attempt.first_job(),
        authority: Authority::Outside,
        outcome: finish(),
    }
}

/// The end from outside of a chain for which others wait already, while one more begins to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_from_outside_forgets_no_dependant() {
    for (level, status) in LEVELS
        .into_iter()
        .flat_map(|level| STATUSES.map(|status| (level, status)))
    {
        if matches!(status, "completed" | "dead") {
            continue;
        }
        let arena = Arena::new().await;
        let blocker = in_status(&arena, status).await;
        arena.start("early", &[blocker]).await;
        let mut held = frozen(&arena, level).await;
        let dependant = arena.start("dependant", &[blocker]).await;
        let (state, connection) = held.parts();
        assert_conflict(state.settle_jobs(Some(connection), &[outside(blocker)]).await);
        held.rollback().await;
        let mut again = arena.begin().await;
        assert!(matches!(
            again.settle_outside(blocker, finish()).await,
            Settled::Applied(_)
        ));
        again.commit().await;
        assert_eq!(arena.status(dependant).await, Some(JobStatus::Pending));
        arena.assert_sound().await;
    }
}

/// Nothing is deleted for which a job has begun to wait, or has its output, since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_forgets_no_dependant() {
    for (level, status) in LEVELS
        .into_iter()
        .flat_map(|level| STATUSES.map(|status| (level, status)))
    {
        let arena = Arena::new().await;
        let blocker = in_status(&arena, status).await;
        let early = arena.start("early", &[blocker]).await;
        arena.cancel(early).await;
        let mut delete = arena.begin().await;
        assert_eq!(delete.delete(&[early], false).await, Ok(vec![early]));
        delete.commit().await;
        let mut held = frozen(&arena, level).await;
        let dependant = arena.start("dependant", &[blocker]).await;
        let (state, connection) = held.parts();
        let delete = DeleteChains::new(vec![blocker], false);
        assert_conflict(state.delete_chains(Some(connection), &delete).await);
        held.rollback().await;
        assert!(
            well(arena.state.delete_chains(None, &delete).await).is_err(),
            "it is referenced"
        );
        assert!(arena.status(dependant).await.is_some());
        arena.assert_sound().await;
    }
}

/// A refusal for a reference that is gone, and a chain that is left out because the snapshot does not show it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_is_not_decided_by_what_was() {
    let arena = Arena::new().await;
    for level in LEVELS {
        let blocker = in_status(&arena, "completed").await;
        let dependant = arena.start("dependant", &[blocker]).await;
        let attempt = arena.claim("dependant", LONG).await;
        let (mut held, mut other) = (frozen(&arena, level).await, frozen(&arena, level).await);
        arena.apply(&attempt, finish()).await;
        let delete = DeleteChains::new(vec![blocker], false);
        let (state, connection) = held.parts();
        assert_conflict(state.delete_chains(Some(connection), &delete).await);
        held.rollback().await;
        let unseen = arena.start("unseen", &[]).await;
        let delete = DeleteChains::new(vec![unseen], false);
        let (state, connection) = other.parts();
        assert_conflict(state.delete_chains(Some(connection), &delete).await);
        other.rollback().await;
        assert_eq!(arena.status(dependant).await, Some(JobStatus::Completed));
        arena.assert_sound().await;
    }
}

/// Everything that can have happened to a blocker since the snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dependant_is_not_created_by_what_its_blocker_was() {
    let arena = Arena::new().await;
    for level in LEVELS {
        for how in ["created", "completed", "continued", "dead", "deleted"] {
            let blocker = arena.running("blocker").await;
            let mut held = frozen(&arena, level).await;
            let mut id = blocker.job.chain_id;
            match how {
                "created" => id = arena.start("unseen", &[]).await,
                "completed" => drop(arena.apply(&blocker, finish()).await),
                "continued" => drop(arena.apply(&blocker, continue_with("step", &[])).await),
                "dead" => drop(arena.apply(&blocker, bury()).await),
                _ => {
                    let mut delete = arena.begin().await;
                    assert_eq!(delete.delete(&[id], false).await, Ok(vec![id]));
                    delete.commit().await;
                }
            }
            let new = chain("dependant", &[id]);
            let unwanted = new.job.id.as_chain();
            assert_conflict(held.try_create(new).await);
            held.rollback().await;
            assert_eq!(arena.status(unwanted).await, None);
            arena.assert_sound().await;
        }
    }
}

/// An attempt that was claimed since the snapshot is not told that it has lost its job, nor one that has lost it since
/// that it has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_not_judged_by_what_its_job_was() {
    let arena = Arena::new().await;
    for level in LEVELS {
        for unseen in [false, true] {
            let early = match unseen {
                false => Some(arena.start("entry", &[]).await),
                true => None,
            };
            let mut helds = Vec::new();
            for _ in 0..4 {
                helds.push(frozen(&arena, level).await);
            }
            if early.is_none() {
                arena.start("entry", &[]).await;
            }
            let attempt = arena.claim("entry", LONG).await;
            let mut held = helds.remove(0);
            let (state, connection) = held.parts();
            assert_conflict(state.hold_lease(connection, attempt.id(), attempt.fence).await);
            held.rollback().await;
            for outcome in [finish(), retry(), continue_with("step", &[])] {
                let mut held = helds.remove(0);
                assert_conflict(held.try_settle(&attempt, outcome).await);
                held.rollback().await;
            }
            let mut late = frozen(&arena, level).await;
            arena.apply(&attempt, retry()).await;
            let next = arena.claim("entry", LONG).await;
            assert_conflict(late.try_settle(&attempt, finish()).await);
            late.rollback().await;
            arena.apply(&next, finish()).await;
            arena.assert_sound().await;
        }
    }
}

/// What the snapshot shows of an attempt is said as it is, and leaves the transaction usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_lost_before_is_told() {
    let arena = Arena::new().await;
    for level in LEVELS {
        let attempt = arena.running("entry").await;
        arena.apply(&attempt, retry()).await;
        let next = arena.claim("entry", LONG).await;
        let mut held = frozen(&arena, level).await;
        assert!(held.hold(&attempt).await.is_err());
        assert!(matches!(held.settle(&attempt, finish()).await, Settled::Repeated(_)));
        let stranger = Attempt {
            fence: Fence::from_uuid(next.id().as_uuid()),
            ..next.clone()
        };
        assert!(matches!(held.settle(&stranger, finish()).await, Settled::Lost(_)));
        let missing = chain("entry", &[]).job.id.as_chain();
        assert!(held.create(chain("entry", &[missing])).await.is_err());
        assert_eq!(held.lock(missing).await.map(|job| job.id), None);
        assert!(held.cancel(&[missing]).await.is_err());
        assert_eq!(held.delete(&[missing], false).await, Ok(Vec::new()));
        held.apply(&next, finish()).await;
        held.commit().await;
        assert_eq!(arena.status(next.job.chain_id).await, Some(JobStatus::Completed));
        arena.assert_sound().await;
    }
}

/// Another transaction is about to create what a verb calls missing: it is missing, and the verb does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_committed_does_not_exist() {
    let arena = Arena::new().await;
    for level in LEVELS {
        let mut held = frozen(&arena, level).await;
        let mut creating = arena.begin().await;
        let created = creating.create(chain("entry", &[])).await.expect("it can be created");
        assert!(held.create(chain("dependant", &[created.id])).await.is_err());
        assert_eq!(held.lock(created.id).await.map(|job| job.id), None);
        creating.commit().await;
        held.commit().await;
        arena.assert_sound().await;
        arena.cancel(created.id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_does_not_decide_by_what_a_chain_was() {
    let arena = Arena::new().await;
    for level in LEVELS {
        for unseen in [false, true] {
            let mut helds = Vec::new();
            let early = match unseen {
                false => Some(arena.start("entry", &[]).await),
                true => None,
            };
            for _ in 0..4 {
                helds.push(frozen(&arena, level).await);
            }
            let chain = match early {
                Some(chain) => chain,
                None => arena.start("entry", &[]).await,
            };
            let attempt = arena.claim("entry", LONG).await;
            arena.apply(&attempt, bury()).await;
            for (number, mut held) in helds.into_iter().enumerate() {
                let (state, connection) = held.parts();
                match number {
                    0 => assert_conflict(state.trigger_jobs(Some(connection), &[chain.first_job()]).await),
                    1 => assert_conflict(state.cancel_chains(Some(connection), &[chain]).await),
                    2 => assert_conflict(state.retry_chains(Some(connection), &[chain]).await),
                    _ => assert_conflict(state.lock_chain(connection, chain).await),
                }
                held.rollback().await;
            }
            assert_eq!(arena.status(chain).await, Some(JobStatus::Dead));
            arena.assert_sound().await;
        }
    }
}

/// Two continuations that close a circle together, of which the second does not see the first: directly, and through a
/// chain that lies between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_circle_is_closed_by_two_that_do_not_see_each_other() {
    for level in LEVELS {
        for between in [false, true] {
            let arena = Arena::new().await;
            let (one, two) = (arena.running("one").await, arena.running("two").await);
            let way = match between {
                true => arena.start("between", &[two.job.chain_id]).await,
                false => two.job.chain_id,
            };
            let mut held = frozen(&arena, level).await;
            let next: Outcome = continue_with("step", &[one.job.chain_id]);
            arena.apply(&two, next).await;
            assert_conflict(held.try_settle(&one, continue_with("step", &[way])).await);
            held.rollback().await;
            let settled = arena.settle_at_once(&one, continue_with("step", &[way])).await;
            assert!(matches!(settled, Settled::Refused(_)), "{settled:?}");
            arena.assert_sound().await;
        }
    }
}

/// Two blockers end in such transactions at the same time: one of the two ends is a conflict, and the job is released once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_ends_that_do_not_see_each_other_release_a_job_once() {
    let arena = Arena::new().await;
    for level in LEVELS {
        let (one, two) = (arena.running("one").await, arena.running("two").await);
        let dependant = arena.start("dependant", &[one.job.chain_id, two.job.chain_id]).await;
        let (mut first, mut second) = (frozen(&arena, level).await, frozen(&arena, level).await);
        first.apply(&one, finish()).await;
        let (end, finished) = (two.clone(), finish());
        let rival = tokio::spawn(async move {
            let answer = second.try_settle(&end, finished).await;
            (second, answer)
        });
        arena.until_blocked(&rival, first.backend).await;
        first.commit().await;
        let (second, answer) = rival.await.expect("the end came to its end");
        assert_conflict(answer);
        second.rollback().await;
        assert_eq!(arena.status(dependant).await, Some(JobStatus::Blocked));
        assert_eq!(arena.apply(&two, finish()).await.unblocked.len(), 1);
        arena.assert_claimable_once("dependant", dependant.first_job()).await;
        arena.assert_sound().await;
    }
}
