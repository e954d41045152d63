//! Savepoints.

use queuert::JobStatus;

use crate::bench::{Bench, has};
use crate::draft::draft;
use crate::fixture::StateFixture;

/// What was done since a released savepoint is kept. (S122)
pub async fn a_released_savepoint_keeps_its_work<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    let chain = open.start("mail").await;
    open.release_savepoint(1).await;
    open.commit().await;
    assert!(bench.exists(chain).await);
}

/// Going back to a savepoint undoes what was done since, and nothing before or after. (S123, S124)
pub async fn going_back_undoes_what_was_done_since<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    let before = open.start("mail").await;
    open.savepoint(1).await;
    let since = open.start("mail").await;
    open.rollback_to_savepoint(1).await;
    assert!(open.exists(before).await && !open.exists(since).await);
    let after = open.start("mail").await;
    open.commit().await;
    assert!(bench.exists(before).await && bench.exists(after).await);
    assert!(!bench.exists(since).await);
    assert_eq!(bench.claim(&["mail"], 5).await.jobs.len(), 2);
}

/// Going back from an inner savepoint leaves the work of the outer one. (S125)
pub async fn an_inner_savepoint_leaves_the_outer_one<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    let outer = open.start("mail").await;
    open.savepoint(2).await;
    let inner = open.start("mail").await;
    open.rollback_to_savepoint(2).await;
    open.release_savepoint(1).await;
    open.commit().await;
    assert!(bench.exists(outer).await && !bench.exists(inner).await);
}

/// Going back from an outer savepoint undoes what an inner one had kept.
pub async fn going_back_undoes_released_inner_savepoints<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    open.savepoint(2).await;
    let inner = open.start("mail").await;
    open.release_savepoint(2).await;
    assert!(open.exists(inner).await);
    open.rollback_to_savepoint(1).await;
    open.commit().await;
    assert!(!bench.exists(inner).await);
}

/// A depth can be used again after its savepoint is gone.
pub async fn a_depth_can_be_used_again<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    let first = open.start("mail").await;
    open.release_savepoint(1).await;
    open.savepoint(1).await;
    let second = open.start("mail").await;
    open.rollback_to_savepoint(1).await;
    open.savepoint(1).await;
    let third = open.start("mail").await;
    open.release_savepoint(1).await;
    open.commit().await;
    let found = [
        bench.exists(first).await,
        bench.exists(second).await,
        bench.exists(third).await,
    ];
    assert_eq!(found, [true, false, true]);
}

/// A released savepoint is undone with its transaction.
pub async fn a_rollback_undoes_released_savepoints<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    let chain = open.start("mail").await;
    open.release_savepoint(1).await;
    open.rollback().await;
    assert!(!bench.exists(chain).await);
}

/// Going back undoes settlements with all their effects: the attempt holds its job again. (S31)
pub async fn going_back_undoes_settlements<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench
        .start_as(draft("mail").blocked_by(&[blocker]).deduplicate("key"))
        .await;
    let attempt = bench.attempt("blocker").await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    assert_eq!(open.finish(&attempt).await.unblocked.len(), 1);
    open.cancel(&[dependant]).await.expect("the chain is open");
    open.delete(&[dependant]).await.expect("nothing depends on it");
    open.rollback_to_savepoint(1).await;
    assert_eq!(open.job(attempt.id()).await, attempt.job);
    assert_eq!(open.status(dependant).await, JobStatus::Blocked);
    assert_eq!(open.finish(&attempt).await.unblocked.len(), 1, "it unblocks again");
    open.commit().await;
    assert_eq!(bench.status(dependant).await, JobStatus::Pending);
    assert!(
        bench
            .create_one(draft("mail").deduplicate("key"))
            .await
            .expect("no refusal")
            .deduplicated
    );
}

/// A key that was taken since the savepoint is free again.
pub async fn going_back_frees_keys<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.savepoint(1).await;
    open.start_as(draft("mail").deduplicate("key")).await;
    open.rollback_to_savepoint(1).await;
    let chain = open.start_as(draft("mail").deduplicate("key")).await;
    open.commit().await;
    assert!(bench.exists(chain).await);
}

/// A transaction in which a statement failed is usable again after going back. (S127)
pub async fn going_back_heals_a_poisoned_transaction<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !has(bench.capabilities().poison, "the fixture cannot poison a transaction") {
        return;
    }
    let mut open = bench.begin().await;
    let before = open.start("mail").await;
    open.savepoint(1).await;
    let since = open.start("mail").await;
    open.poison().await;
    open.rollback_to_savepoint(1).await;
    let after = open.start("mail").await;
    open.commit().await;
    let found = [
        bench.exists(before).await,
        bench.exists(since).await,
        bench.exists(after).await,
    ];
    assert_eq!(found, [true, false, true]);
}
