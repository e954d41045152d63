//! Deduplication keys in transactions with one snapshot for all of their statements: the constraint holds although the
//! transaction does not see what it has to do with. What it cannot decide is a conflict, and the caller runs it again.

use std::time::Duration;

use queuert::adapter::{CreatedChain, NewChain, Refusal, StateAdapter as _};
use queuert::{ChainId, Deduplication, JobStatus, StateError, StateErrorKind};

use crate::arena::{Arena, Held, LONG, bury, chain, continue_with, finish, keyed, well};

pub(crate) const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

const HOUR: Duration = Duration::from_secs(3_600);

/// A start with a key, as a test wants it.
fn wanting(deduplication: Deduplication) -> NewChain {
    let mut chain = chain("entry", &[]);
    chain.deduplication = Some(deduplication);
    chain
}

fn scopes(key: &str) -> [Deduplication; 3] {
    [
        Deduplication::while_open(key),
        Deduplication::within(key, HOUR),
        Deduplication::forever(key),
    ]
}

/// A transaction that sees what there is now, and nothing later.
pub(crate) async fn frozen(arena: &Arena, level: &str) -> Held {
    let mut held = arena.begin().await;
    held.freeze_at(level).await;
    held
}

#[track_caller]
pub(crate) fn assert_conflict<T: std::fmt::Debug>(answer: Result<T, StateError>) {
    let error = answer.expect_err("the transaction cannot know");
    assert_eq!(error.kind(), StateErrorKind::Conflict, "{error:?}");
    assert!(error.to_string().contains("run"), "it says what to do: {error}");
}

/// Makes the key one that chains have had before.
async fn use_up(arena: &Arena, key: &str) -> ChainId {
    let used = arena.start_as(keyed("entry", key)).await;
    arena.cancel(used).await;
    used
}

type Answer = Result<Result<CreatedChain, Refusal>, StateError>;

/// The start has conflicted; run again, it finds the chain.
async fn assert_found_when_run_again(arena: &Arena, held: Held, answer: Answer, key: &str, chain: ChainId) {
    assert_conflict(answer);
    held.rollback().await;
    let mut again = arena.begin().await;
    let found = again
        .create(keyed("entry", key))
        .await
        .expect("nothing is wrong with it");
    assert_eq!((found.id, found.deduplicated), (chain, true));
    again.commit().await;
    arena.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_one_open_chain_although_the_starter_does_not_see_it() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        for used in [false, true] {
            for (number, _) in scopes("").into_iter().enumerate() {
                let key = format!("{place} {used} {number}");
                if used {
                    use_up(&arena, &key).await;
                }
                let mut held = frozen(&arena, level).await;
                let other = arena.start_as(keyed("entry", &key)).await;
                let mut wanted = scopes(&key).into_iter().nth(number).expect("there are three");
                if used {
                    // Else the chain that was there before would be found.
                    wanted.scope = queuert::DeduplicationScope::Open;
                }
                let answer = held.try_create(wanting(wanted)).await;
                assert_found_when_run_again(&arena, held, answer, &key, other).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_such_starters_one_starts_the_chain() {
    let arena = Arena::new().await;
    for (first_level, level) in LEVELS
        .into_iter()
        .chain(["READ COMMITTED"])
        .flat_map(|first| LEVELS.map(|second| (first, second)))
    {
        for used in [false, true] {
            let key = format!("{first_level} {level} {used}");
            if used {
                use_up(&arena, &key).await;
            }
            let (mut first, mut held) = (frozen(&arena, first_level).await, frozen(&arena, level).await);
            let started = first.create(keyed("entry", &key)).await.expect("it can be created");
            let new = keyed("entry", &key);
            let rival = tokio::spawn(async move {
                let answer = held.try_create(new).await;
                (held, answer)
            });
            arena.until_blocked(&rival, first.backend).await;
            first.commit().await;
            let (held, answer) = rival.await.expect("the starter came to its end");
            assert_found_when_run_again(&arena, held, answer, &key, started.id).await;
        }
    }
}

/// The first one starts a chain and undoes it, by a savepoint or altogether: the second one is not disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_was_undone_is_no_conflict() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        for savepoint in [false, true] {
            let key = format!("{place} {savepoint}");
            let mut held = frozen(&arena, level).await;
            let mut first = arena.begin().await;
            first.savepoint().await;
            first.create(keyed("entry", &key)).await.expect("it can be created");
            if savepoint {
                first.rollback_to_savepoint().await;
                first.commit().await;
            } else {
                first.rollback().await;
            }
            let started = well(held.try_create(keyed("entry", &key)).await).expect("it can be created");
            assert!(!started.deduplicated);
            held.commit().await;
            arena.assert_sound().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_misses_one_chain_starts_none() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        let keys = ["a", "b", "c"].map(|key| format!("{key} {place}"));
        let mut held = frozen(&arena, level).await;
        let other = arena.start_as(keyed("entry", &keys[1])).await;
        let batch = keys.clone().map(|key| keyed("entry", &key));
        let (state, connection) = held.parts();
        let answer = state.create_chains(Some(connection), &batch).await;
        assert_conflict(answer);
        held.rollback().await;
        for chain in &batch {
            assert_eq!(arena.status(chain.job.id.as_chain()).await, None);
        }
        let created = well(arena.state.create_chains(None, &batch).await).expect("nothing is wrong with them");
        let flags = created.iter().map(|created| created.deduplicated);
        assert_eq!(flags.collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(created[1].id, other);
        arena.assert_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_does_not_open_a_second_chain_of_a_key() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        // Against a starter, and against another retry.
        for by_retry in [false, true] {
            let key = format!("{place} {by_retry}");
            let stopped = use_up(&arena, &key).await;
            let other = use_up(&arena, &key).await;
            let mut held = frozen(&arena, level).await;
            let holder = if by_retry {
                arena.retry(other).await.chain_id
            } else {
                arena.start_as(keyed("entry", &key)).await
            };
            let (state, connection) = held.parts();
            assert_conflict(state.retry_chains(Some(connection), &[stopped]).await);
            held.rollback().await;
            let refused = well(arena.state.retry_chains(None, &[stopped]).await).map(drop);
            assert_eq!(refused, Err(Refusal::KeyTaken { chain: stopped, holder }));
            arena.assert_sound().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_does_not_open_a_second_chain_beside_a_retried_one() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        let key = format!("{place}");
        let stopped = use_up(&arena, &key).await;
        let mut held = frozen(&arena, level).await;
        arena.retry(stopped).await;
        let answer = held.try_create(keyed("entry", &key)).await;
        assert_found_when_run_again(&arena, held, answer, &key, stopped).await;
    }
}

/// A chain that was started, and has ended, since the snapshot counts where ended chains do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_chain_counts_although_the_starter_never_saw_it() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        for used in [false, true] {
            for number in 1..3 {
                let key = format!("{place} {used} {number}");
                if used {
                    // Deleted, so that it does not count itself; a key that is locked meanwhile stays known.
                    let used = use_up(&arena, &key).await;
                    let mut other = arena.begin().await;
                    other.create(keyed("entry", &key)).await.expect("it can be created");
                    let mut delete = arena.begin().await;
                    assert_eq!(delete.delete(&[used], false).await, Ok(vec![used]));
                    delete.commit().await;
                    other.rollback().await;
                }
                let mut held = frozen(&arena, level).await;
                let ended = use_up(&arena, &key).await;
                let wanted = scopes(&key).into_iter().nth(number).expect("there are three");
                assert_conflict(held.try_create(wanting(wanted.clone())).await);
                held.rollback().await;
                let created = well(arena.state.create_chains(None, &[wanting(wanted)]).await).expect("no refusal");
                assert_eq!((created[0].id, created[0].deduplicated), (ended, true));
                arena.assert_sound().await;
            }
        }
    }
}

/// A chain that has ended, or is gone, since the snapshot swallows no start, and keeps no other chain from being retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_has_ended_meanwhile_does_not_hold_its_key() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        for how in ["finished", "dead", "cancelled", "deleted"] {
            let key = format!("{place} {how}");
            let stopped = use_up(&arena, &key).await;
            let holder = arena.start_as(keyed("entry", &key)).await;
            let attempt = arena.claim("entry", LONG).await;
            let (mut held, mut retrying) = (frozen(&arena, level).await, frozen(&arena, level).await);
            match how {
                "finished" => drop(arena.apply(&attempt, finish()).await),
                "dead" => drop(arena.apply(&attempt, bury()).await),
                "cancelled" => arena.cancel(holder).await,
                _ => {
                    let mut delete = arena.begin().await;
                    assert_eq!(delete.delete(&[holder], false).await, Ok(vec![holder]));
                    delete.commit().await;
                }
            }
            assert_conflict(held.try_create(keyed("entry", &key)).await);
            held.rollback().await;
            let (state, connection) = retrying.parts();
            assert_conflict(state.retry_chains(Some(connection), &[stopped]).await);
            retrying.rollback().await;
            let fresh = arena.start_as(keyed("entry", &key)).await;
            arena.assert_sound().await;
            arena.cancel(fresh).await;
        }
    }
}

/// While the end of the holder is not committed, the chain is open: the starter gets it, waits for nobody, and keeps
/// nobody from committing the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_whose_end_is_not_committed_holds_its_key() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        let key = format!("{place}");
        let holder = arena.start_as(keyed("entry", &key)).await;
        let attempt = arena.claim("entry", LONG).await;
        let mut held = frozen(&arena, level).await;
        let mut ending = arena.begin().await;
        ending.apply(&attempt, finish()).await;
        let found = well(held.try_create(keyed("entry", &key)).await).expect("it is answered");
        assert_eq!((found.id, found.deduplicated), (holder, true));
        ending.commit().await;
        held.commit().await;
        assert_eq!(arena.status(holder).await, Some(JobStatus::Completed));
        arena.start_as(keyed("entry", &key)).await;
        arena.assert_sound().await;
        let attempt = arena.claim("entry", LONG).await;
        arena.apply(&attempt, finish()).await;
    }
}

/// A chain that goes on holds its key at every step, and is found by a starter that saw an earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_goes_on_meanwhile_holds_its_key() {
    let arena = Arena::new().await;
    for (place, level) in LEVELS.into_iter().enumerate() {
        let key = format!("{place}");
        let holder = arena.start_as(keyed("entry", &key)).await;
        let attempt = arena.claim("entry", LONG).await;
        let mut held = frozen(&arena, level).await;
        arena.apply(&attempt, continue_with("step", &[])).await;
        let found = well(held.try_create(keyed("entry", &key)).await).expect("it is answered");
        assert_eq!((found.id, found.deduplicated), (holder, true));
        held.commit().await;
        arena.assert_sound().await;
    }
}

/// A job that starts its own successor does so in the transaction in which it ends, at every level.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_starts_its_own_successor() {
    let arena = Arena::new().await;
    for level in LEVELS.into_iter().chain(["READ COMMITTED"]) {
        let first = arena.start_as(keyed("entry", level)).await;
        let mut last = first;
        for _ in 0..3 {
            let attempt = arena.claim("entry", LONG).await;
            assert_eq!(attempt.job.chain_id, last);
            let mut held = frozen(&arena, level).await;
            held.hold(&attempt).await.expect("it is held");
            let next = wanting(Deduplication::while_open(level).except_ids([last]));
            let next = held.create(next).await.expect("it can be created");
            assert!(!next.deduplicated);
            held.apply(&attempt, finish()).await;
            held.commit().await;
            arena.assert_sound().await;
            last = next.id;
        }
        // Two that leave out the same chain are two starters of one key.
        let (mut one, mut two) = (frozen(&arena, level).await, frozen(&arena, level).await);
        let beside = || wanting(Deduplication::while_open(level).except_ids([last]));
        let started = one.create(beside()).await.expect("it can be created");
        one.commit().await;
        let answer = two.try_create(beside()).await;
        match level {
            "READ COMMITTED" => assert_eq!(well(answer).expect("no refusal").id, started.id),
            _ => assert_conflict(answer),
        }
        two.rollback().await;
        arena.assert_sound().await;
        for chain in [last, started.id] {
            arena.cancel(chain).await;
        }
    }
}
