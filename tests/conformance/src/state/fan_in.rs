//! Fan-in while things happen at the same time: a blocked job becomes pending once and only once, in every interleaving.

use std::pin::pin;

use queuert::adapter::Refusal;
use queuert::{ChainId, JobStatus};

use crate::bench::{Bench, End};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// The job became pending once: it can be claimed, once.
async fn assert_released<F: StateFixture>(bench: &Bench<F>, chain: ChainId) {
    assert_eq!(bench.status(chain).await, JobStatus::Pending);
    assert_eq!(bench.claim_ids(&["dependant"], 5).await, [chain.first_job()]);
}

/// Two blockers that complete in overlapping transactions unblock once, whichever of them is first. (H1, I6)
pub async fn two_blockers_in_overlapping_transactions_unblock_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (first, second) in [("left", "right"), ("right", "left")] {
        let (left, right) = (bench.start("left").await, bench.start("right").await);
        let dependant = bench.start_blocked("dependant", &[left, right]).await;
        let (first, second) = (bench.attempt(first).await, bench.attempt(second).await);
        let mut holder = bench.begin().await;
        let mut unblocked = holder.finish(&first).await.unblocked;
        let mut other = pin!(async {
            let mut open = bench.begin().await;
            let unblocked = open.finish(&second).await.unblocked;
            open.commit().await;
            unblocked
        });
        unblocked.extend(bench.overlap(holder, End::Commit, other.as_mut()).await);
        assert_eq!(unblocked.len(), 1, "exactly one of the two unblocks");
        assert_released(&bench, dependant).await;
    }
}

/// The same when both transactions had begun, and looked, before either of them settled. (H1, I6)
pub async fn two_blockers_unblock_once_although_both_had_begun<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let dependant = bench.start_blocked("dependant", &[left, right]).await;
    let (left, right) = (bench.attempt("left").await, bench.attempt("right").await);
    let (mut first, mut second) = (bench.begin().await, bench.begin().await);
    first.hold(&left).await.expect("the attempt holds its job");
    second.hold(&right).await.expect("the attempt holds its job");
    assert_eq!(second.status(dependant).await, JobStatus::Blocked);
    let mut unblocked = first.finish(&left).await.unblocked;
    let mut other = pin!(async {
        let unblocked = second.finish(&right).await.unblocked;
        second.commit().await;
        unblocked
    });
    unblocked.extend(bench.overlap(first, End::Commit, other.as_mut()).await);
    assert_eq!(unblocked.len(), 1);
    assert_released(&bench, dependant).await;
}

/// When the first of two blockers rolls back, the job waits on, and its real end unblocks it. (I6)
pub async fn a_blocker_that_rolls_back_does_not_count<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (left, right) = (bench.start("left").await, bench.start("right").await);
    let dependant = bench.start_blocked("dependant", &[left, right]).await;
    let (left, right) = (bench.attempt("left").await, bench.attempt("right").await);
    let mut holder = bench.begin().await;
    holder.finish(&left).await;
    let mut other = pin!(bench.finish(&right));
    let applied = bench.overlap(holder, End::Rollback, other.as_mut()).await;
    assert_eq!(applied.unblocked, Vec::new());
    assert_eq!(bench.status(dependant).await, JobStatus::Blocked);
    assert_eq!(bench.finish(&left).await.unblocked.len(), 1);
    assert_released(&bench, dependant).await;
}

/// Many blockers of one job that complete at the same moment unblock it once. (H1, I6)
pub async fn many_blockers_at_once_unblock_once<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for _ in 0..5 {
        let blockers = bench.start_at_once("blocker", 8).await;
        let dependant = bench.start_blocked("dependant", &blockers).await;
        let mut tasks = Vec::new();
        for _ in &blockers {
            let (bench, attempt) = (bench.clone(), bench.attempt("blocker").await);
            tasks.push(tokio::spawn(
                async move { bench.finish(&attempt).await.unblocked.len() },
            ));
        }
        let mut unblocked = 0;
        for task in tasks {
            unblocked += task.await.expect("no settlement fails");
        }
        assert_eq!(unblocked, 1);
        assert_released(&bench, dependant).await;
    }
}

/// A dependant that is created while its blocker completes sees the end, or its rollback. (S132, I6)
pub async fn a_dependant_created_while_its_blocker_completes<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (end, expected) in [(End::Commit, JobStatus::Pending), (End::Rollback, JobStatus::Blocked)] {
        let blocker = bench.start("blocker").await;
        let attempt = bench.attempt("blocker").await;
        let mut holder = bench.begin().await;
        assert_eq!(holder.finish(&attempt).await.unblocked, Vec::new());
        let mut creating = pin!(bench.create_one(draft("dependant").blocked_by(&[blocker])));
        let created = bench
            .overlap_waiting(holder, end, creating.as_mut())
            .await
            .expect("the chain exists");
        assert_eq!(created.status, expected);
        assert_eq!(bench.status(created.id).await, expected);
        if end == End::Rollback {
            assert_eq!(bench.finish(&attempt).await.unblocked.len(), 1);
        }
        assert_released(&bench, created.id).await;
    }
}

/// A blocker that completes while its dependant is created sees the dependant, unless that rolls back. (S132, I6)
pub async fn a_blocker_that_completes_while_a_dependant_is_created<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for (end, expected) in [(End::Commit, 1), (End::Rollback, 0)] {
        let blocker = bench.start("blocker").await;
        let attempt = bench.attempt("blocker").await;
        let mut holder = bench.begin().await;
        let dependant = holder.start_blocked("dependant", &[blocker]).await;
        let mut finishing = pin!(bench.finish(&attempt));
        let applied = bench.overlap_waiting(holder, end, finishing.as_mut()).await;
        assert_eq!(applied.unblocked.len(), expected);
        match end {
            End::Commit => assert_released(&bench, dependant).await,
            End::Rollback => assert!(!bench.exists(dependant).await),
        }
    }
}

/// A dependant that is created while its blocker continues is blocked: the chain goes on. (H2, I6)
pub async fn a_dependant_created_while_its_blocker_continues<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("one").await;
    let attempt = bench.attempt("one").await;
    let mut holder = bench.begin().await;
    holder.continue_with(&attempt, "two").await;
    let mut creating = pin!(bench.create_one(draft("dependant").blocked_by(&[blocker])));
    let created = bench
        .overlap_waiting(holder, End::Commit, creating.as_mut())
        .await
        .expect("the chain exists");
    assert_eq!(created.status, JobStatus::Blocked);
    bench.apply(&bench.attempt("two").await, draft::finish("2")).await;
    assert_released(&bench, created.id).await;
}

/// A dependant that is created while its blocker is deleted is refused, or waits if the deletion rolls back. (H17, I6)
pub async fn a_dependant_created_while_its_blocker_is_deleted<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for end in [End::Commit, End::Rollback] {
        let blocker = bench.start("blocker").await;
        let mut holder = bench.begin().await;
        holder.delete(&[blocker]).await.expect("nothing depends on it");
        let dependant = draft("dependant").blocked_by(&[blocker]);
        let job = dependant.id();
        let mut creating = pin!(bench.create_one(dependant));
        let created = bench.overlap_waiting(holder, end, creating.as_mut()).await;
        match end {
            End::Commit => assert_eq!(created, Err(Refusal::BlockerNotFound { job, chain: blocker })),
            End::Rollback => assert_eq!(created.expect("the chain exists").status, JobStatus::Blocked),
        }
    }
}

/// A blocker cannot be deleted behind the back of a dependant that is just being created. (H17, I6)
pub async fn a_blocker_deleted_while_a_dependant_is_created<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for end in [End::Commit, End::Rollback] {
        let blocker = [bench.start("blocker").await];
        let mut holder = bench.begin().await;
        holder.start_blocked("dependant", &blocker).await;
        let mut deleting = pin!(bench.delete(&blocker));
        let deleted = bench.overlap_waiting(holder, end, deleting.as_mut()).await;
        match end {
            End::Commit => assert!(matches!(deleted, Err(Refusal::Referenced(_))), "{deleted:?}"),
            End::Rollback => assert_eq!(deleted.expect("nothing depends on it").len(), 1),
        }
    }
}

/// A job that is cancelled while its blocker completes is cancelled, whichever is first. (I6)
pub async fn a_dependant_cancelled_while_its_blocker_completes<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = [bench.start_blocked("dependant", &[blocker]).await];
    let attempt = bench.attempt("blocker").await;
    let mut holder = bench.begin().await;
    assert_eq!(holder.finish(&attempt).await.unblocked.len(), 1);
    let mut cancelling = pin!(bench.cancel(&dependant));
    let cancelled = bench.overlap_waiting(holder, End::Commit, cancelling.as_mut()).await;
    assert_eq!(cancelled.expect("the chain is open").len(), 1);
    assert_eq!(bench.status(dependant[0]).await, JobStatus::Cancelled);

    let blocker = bench.start("blocker").await;
    let dependant = [bench.start_blocked("dependant", &[blocker]).await];
    let attempt = bench.attempt("blocker").await;
    let mut holder = bench.begin().await;
    holder.cancel(&dependant).await.expect("the chain is open");
    let mut finishing = pin!(bench.finish(&attempt));
    let applied = bench.overlap(holder, End::Commit, finishing.as_mut()).await;
    assert_eq!(applied.unblocked, Vec::new());
    assert_eq!(bench.status(dependant[0]).await, JobStatus::Cancelled);
}

/// A job that is retried while its blocker completes is not forgotten, whichever is first. (I6)
pub async fn a_dependant_retried_while_its_blocker_completes<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for retry_first in [true, false] {
        let blocker = bench.start("blocker").await;
        let dependant = [bench.start_blocked("dependant", &[blocker]).await];
        bench.cancel(&dependant).await.expect("the chain is open");
        let attempt = bench.attempt("blocker").await;
        let mut holder = bench.begin().await;
        if retry_first {
            holder.retry(&dependant).await.expect("the chain was cancelled");
            let mut finishing = pin!(bench.finish(&attempt));
            bench.overlap(holder, End::Commit, finishing.as_mut()).await;
        } else {
            holder.finish(&attempt).await;
            let mut retrying = pin!(bench.retry(&dependant));
            let retried = bench.overlap(holder, End::Commit, retrying.as_mut()).await;
            retried.expect("the chain was cancelled");
        }
        assert_released(&bench, dependant[0]).await;
    }
}

/// Of twenty dependants that are created while their blocker completes, none stays blocked. (S132, I6)
pub async fn no_dependant_is_forgotten_in_a_storm<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let attempt = bench.attempt("blocker").await;
    let mut tasks = Vec::new();
    for index in 0..20 {
        let (bench, attempt) = (bench.clone(), attempt.clone());
        tasks.push(tokio::spawn(async move {
            if index == 10 {
                bench.finish(&attempt).await;
            }
            bench.start_blocked("dependant", &[blocker]).await
        }));
    }
    let mut chains = Vec::new();
    for task in tasks {
        chains.push(task.await.expect("no start fails"));
    }
    let chains = bench.chains(&chains).await;
    assert_eq!(
        chains.iter().filter(|chain| chain.status == JobStatus::Pending).count(),
        20
    );
    assert_eq!(bench.claim(&["dependant"], 50).await.jobs.len(), 20);
}
