//! Locking a chain.

use std::pin::pin;

use queuert::{ChainId, JobRecord, JobStatus};

use crate::bench::{Bench, End};
use crate::fixture::StateFixture;
use crate::identity;

async fn lock_alone<F: StateFixture>(bench: &Bench<F>, chain: ChainId) -> Option<JobRecord> {
    let mut open = bench.begin().await;
    let job = open.lock(chain).await;
    open.rollback().await;
    job
}

/// A locked chain is returned as its latest job. (S33, S35)
pub async fn a_lock_returns_the_latest_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    assert_eq!(
        lock_alone(&bench, chain).await,
        Some(bench.job(chain.first_job()).await)
    );
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    assert_eq!(lock_alone(&bench, chain).await, Some(bench.job(next).await));
}

/// A chain in any status can be locked.
pub async fn an_ended_chain_can_be_locked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("mail", "1").await;
    let dead = bench.start_dead("mail").await;
    let statuses = [lock_alone(&bench, completed).await, lock_alone(&bench, dead).await];
    let statuses = statuses.map(|job| job.expect("the chain is there").status);
    assert_eq!(statuses, [JobStatus::Completed, JobStatus::Dead]);
}

/// There is nothing to lock under an unknown id, nor under the id of a later job. (S36)
pub async fn an_unknown_chain_cannot_be_locked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert_eq!(lock_alone(&bench, identity::chain_id()).await, None);
    bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    assert_eq!(lock_alone(&bench, next.as_chain()).await, None);
}

/// A second locker waits until the first transaction ends. (S37, S90)
pub async fn a_second_locker_waits<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    for end in [End::Commit, End::Rollback] {
        let mut first = bench.begin().await;
        first.lock(chain).await.expect("the chain is there");
        let mut second = pin!(lock_alone(&bench, chain));
        let job = bench.overlap_waiting(first, end, second.as_mut()).await;
        assert_eq!(job.expect("the chain is there").id, chain.first_job());
    }
}

/// A transaction may lock a chain that it has locked already.
pub async fn a_lock_can_be_taken_twice_by_its_transaction<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let mut open = bench.begin().await;
    let first = open.lock(chain).await;
    assert_eq!(open.lock(chain).await, first);
    open.commit().await;
    assert!(first.is_some());
}

/// Who waited sees the chain as the lock's holder left it: completed, continued, deleted, or as it was. (H6)
pub async fn who_waited_sees_what_the_holder_left<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;

    let chain = bench.start("mail").await;
    let mut first = bench.begin().await;
    first.complete_outside(chain, "1").await;
    let job = bench
        .overlap_waiting(first, End::Commit, pin!(lock_alone(&bench, chain)))
        .await;
    assert_eq!(job.expect("the chain is there").status, JobStatus::Completed);

    let chain = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut first = bench.begin().await;
    let next = first.continue_with(&attempt, "second").await;
    let job = bench
        .overlap_waiting(first, End::Commit, pin!(lock_alone(&bench, chain)))
        .await;
    assert_eq!(
        job.expect("the chain is there").id,
        next,
        "the successor is the latest job"
    );

    let mut first = bench.begin().await;
    first.delete(&[chain]).await.expect("nothing depends on it");
    assert_eq!(
        bench
            .overlap_waiting(first, End::Commit, pin!(lock_alone(&bench, chain)))
            .await,
        None
    );

    let chain = bench.start("mail").await;
    let mut first = bench.begin().await;
    first.complete_outside(chain, "1").await;
    let job = bench
        .overlap_waiting(first, End::Rollback, pin!(lock_alone(&bench, chain)))
        .await;
    assert_eq!(job.expect("the chain is there").status, JobStatus::Pending);
}

/// Who gives up waiting leaves no lock behind.
pub async fn who_gives_up_waiting_leaves_no_lock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let mut first = bench.begin().await;
    first.lock(chain).await.expect("the chain is there");
    {
        let mut second = pin!(lock_alone(&bench, chain));
        bench.assert_waits(second.as_mut()).await;
    }
    first.commit().await;
    assert!(lock_alone(&bench, chain).await.is_some());
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}

/// A dropped transaction lets go of its locks.
pub async fn a_dropped_transaction_lets_go_of_its_locks<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let mut open = bench.begin().await;
    open.lock(chain).await.expect("the chain is there");
    drop(open);
    assert!(lock_alone(&bench, chain).await.is_some());
}

/// Chains are locked one by one: another chain is free meanwhile.
pub async fn a_lock_holds_one_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let (held, free) = (bench.start("held").await, bench.start("free").await);
    let mut first = bench.begin().await;
    first.lock(held).await.expect("the chain is there");
    let mut second = pin!(lock_alone(&bench, free));
    assert!(bench.watch(second.as_mut()).await.expect("nobody holds it").is_some());
    bench.finish(&bench.attempt("free").await).await;
    first.rollback().await;
}
