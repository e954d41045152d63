//! Sets of chains that are locked in orders that do not fit together. Each of these would be a deadlock if a verb held
//! one chain while it waits for another.

use queuert::JobStatus;
use queuert::adapter::Refusal;

use crate::arena::{Arena, End, LONG, chain, collide, continue_with, finish, id};

/// A blocker with an id above that of the job that waits for it, both to be locked by one operator; and a third
/// transaction that has the job locked, so that the operator waits at it before the blocker's end arrives.
macro_rules! operator_against_end {
    ($arena:expr, |$operator:ident, $dependant:ident, $blocker:ident| $verb:expr) => {{
        let arena = &$arena;
        let low = id();
        let attempt = arena.running("blocker").await;
        let $blocker = attempt.job.chain_id;
        let mut new = chain("dependant", &[$blocker]);
        new.job.id = low;
        let $dependant = arena.start_as(new).await;
        assert!($dependant < $blocker, "in order of id the dependant comes first");
        let mut holder = arena.begin().await;
        holder.lock($dependant).await.expect("it exists");
        let mut operator = arena.begin().await;
        let verb = tokio::spawn(async move {
            let $operator = &mut operator;
            let answer = $verb.await;
            operator.commit().await;
            answer
        });
        arena.until_blocked(&verb, holder.backend).await;
        // Gets the blocker, which the operator must not hold, and waits for the dependant.
        let mut ending = arena.begin().await;
        let backend = ending.backend;
        let end = tokio::spawn(async move {
            let applied = ending.apply(&attempt, finish()).await;
            ending.commit().await;
            applied
        });
        arena.until_waiting(&end, backend).await;
        holder.rollback().await;
        let unblocked = end.await.expect("no panic").unblocked.len();
        (verb.await.expect("no panic"), unblocked, $dependant, $blocker)
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_job_and_its_blocker_while_that_completes() {
    let arena = Arena::new().await;
    let (answer, unblocked, dependant, blocker) =
        operator_against_end!(arena, |held, dependant, blocker| held.cancel(&[dependant, blocker]));
    // The end was first, so the blocker cannot be cancelled, and nothing is.
    let ended = Refusal::NotOpen(blocker, JobStatus::Completed);
    assert_eq!(answer.map(|_| ()), Err(ended));
    assert_eq!(unblocked, 1);
    arena.assert_claimable_once("dependant", dependant.first_job()).await;
    arena.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_job_and_its_blocker_while_that_completes() {
    let arena = Arena::new().await;
    let (answer, unblocked, dependant, blocker) =
        operator_against_end!(arena, |held, dependant, _blocker| held.delete(&[dependant], true));
    assert_eq!(unblocked, 1);
    assert_eq!(answer, Ok(vec![dependant, blocker]));
    assert_eq!(
        (arena.status(dependant).await, arena.status(blocker).await),
        (None, None)
    );
    assert!(arena.try_claim("dependant", LONG).await.is_none());
    arena.assert_sound().await;
}

/// Two deleters of the same chains, in opposite orders: each chain is deleted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_deleters_in_opposite_orders() {
    let arena = Arena::new().await;
    let chains = [
        arena.start("entry", &[]).await,
        arena.running("other").await.job.chain_id,
        arena.start("entry", &[]).await,
    ];
    let mut holder = arena.begin().await;
    holder.lock(chains[1]).await.expect("it exists");
    let mut deleters = Vec::new();
    for reversed in [false, true] {
        let mut chains = chains.to_vec();
        if reversed {
            chains.reverse();
        }
        let mut held = arena.begin().await;
        let backend = held.backend;
        let deleter = tokio::spawn(async move {
            let deleted = held.delete(&chains, false).await.expect("nothing depends on them");
            held.commit().await;
            deleted
        });
        arena.until_waiting(&deleter, backend).await;
        deleters.push(deleter);
    }
    holder.rollback().await;
    let mut deleted = Vec::new();
    for deleter in deleters {
        deleted.extend(deleter.await.expect("no panic"));
    }
    deleted.sort_unstable();
    assert_eq!(deleted, chains, "each of them once");
    arena.assert_sound().await;
}

/// A deleter of two chains, and a dependant of both that is being created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleter_and_a_creation_with_the_same_chains() {
    let arena = Arena::new().await;
    let chains = [
        arena.running("entry").await.job.chain_id,
        arena.start("entry", &[]).await,
    ];
    let mut holder = arena.begin().await;
    holder.lock(chains[1]).await.expect("it exists");
    let mut creator = arena.begin().await;
    let backend = creator.backend;
    let creation = tokio::spawn(async move {
        let created = creator.create(chain("dependant", &[chains[1], chains[0]])).await;
        creator.commit().await;
        created
    });
    arena.until_waiting(&creation, backend).await;
    let mut deleter = arena.begin().await;
    let backend = deleter.backend;
    let deletion = tokio::spawn(async move {
        let deleted = deleter.delete(&[chains[1], chains[0]], false).await;
        deleter.commit().await;
        deleted
    });
    arena.until_waiting(&deletion, backend).await;
    holder.rollback().await;
    let (created, deleted) = (creation.await.expect("no panic"), deletion.await.expect("no panic"));
    match (created, deleted) {
        (Ok(created), Err(Refusal::Referenced(references))) => {
            assert_eq!(references.len(), 2);
            assert_eq!(arena.status(created.id).await, Some(JobStatus::Blocked));
        }
        (Err(Refusal::BlockerNotFound { .. }), Ok(deleted)) => assert_eq!(deleted.len(), 2),
        other => panic!("both or neither: {other:?}"),
    }
    arena.assert_sound().await;
}

/// A continuation looks at the whole way that its blocker waits for, upwards; an end unblocks downwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continuation_upwards_against_an_end_downwards() {
    let arena = Arena::new().await;
    let last = arena.running("last").await;
    let middle = arena.start("middle", &[last.job.chain_id]).await;
    let attempt = arena.running("entry").await;
    let mut ending = arena.begin().await;
    ending.hold(&last).await.expect("the attempt has its job");
    let mut continuing = arena.begin().await;
    let backend = continuing.backend;
    let continuation = tokio::spawn(async move {
        let applied = continuing.apply(&attempt, continue_with("step", &[middle])).await;
        continuing.commit().await;
        applied
    });
    arena.until_waiting(&continuation, backend).await;
    let unblocked = ending.apply(&last, finish()).await.unblocked;
    assert_eq!(unblocked.len(), 1);
    ending.commit().await;
    assert_eq!(continuation.await.expect("no panic").next, Some(JobStatus::Blocked));
    let middle = arena.claim("middle", LONG).await;
    assert_eq!(arena.apply(&middle, finish()).await.unblocked.len(), 1);
    arena.assert_sound().await;
}

/// A new job waits for a chain and for that chain's blocker, which completes meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_with_a_job_and_its_blocker_while_that_completes() {
    let arena = Arena::new().await;
    let (answer, unblocked, middle, blocker) = operator_against_end!(arena, |held, dependant, blocker| held
        .create(chain("last", &[dependant, blocker])));
    assert_eq!(unblocked, 1);
    let last = answer.expect("it can be created");
    assert_eq!(last.status, JobStatus::Blocked);
    assert_eq!(arena.status(blocker).await, Some(JobStatus::Completed));
    arena.assert_sound().await;
    let attempt = arena.claim("dependant", LONG).await;
    assert_eq!(attempt.job.chain_id, middle);
    assert_eq!(arena.apply(&attempt, finish()).await.unblocked.len(), 1);
    arena.assert_claimable_once("last", last.id.first_job()).await;
    arena.assert_sound().await;
}

/// Two retries that take each other's blockers: a dead chain that waits for the other, which is dead too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_dependant_against_a_retry_of_its_blocker() {
    let arena = Arena::new().await;
    let low = id();
    let blocker = arena.start("blocker", &[]).await;
    let mut new = chain("dependant", &[blocker]);
    new.job.id = low;
    let dependant = arena.start_as(new).await;
    arena.cancel(blocker).await;
    arena.cancel(dependant).await;
    let mut first = arena.begin().await;
    first.retry(&[blocker]).await.expect("it can be retried");
    let retried = collide!(arena, first, End::Commit, |held| held.retry(&[dependant]));
    assert_eq!(retried.expect("it can be retried")[0].status, JobStatus::Blocked);
    let attempt = arena.claim("blocker", LONG).await;
    assert_eq!(arena.apply(&attempt, finish()).await.unblocked.len(), 1);
    arena.assert_sound().await;
}
