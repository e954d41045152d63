//! Upkeep, which a store may do or not: what nobody else may notice of it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use queuert::WorkerId;
use queuert::adapter::{Maintain, StateAdapter};

use crate::bench::{Bench, LONG, answer};
use crate::draft::draft;
use crate::fixture::StateFixture;

/// Offers upkeep often enough that whatever there is to do is done, by two workers.
async fn maintain<F: StateFixture>(bench: &Bench<F>) {
    for worker in ["first", "second", "first", "second"] {
        let done = answer(bench.state().maintain(&Maintain::new(WorkerId::new(worker))).await);
        assert_eq!(done.findings, Vec::<String>::new());
        assert!(done.deleted.is_empty() && done.unblocked.is_empty(), "{done:?}");
    }
}

/// Upkeep deletes and changes nothing that it was not told to.
pub async fn upkeep_changes_no_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("mail", "1").await;
    let dead = bench.start_dead("mail").await;
    let running = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let later = bench.start_as(draft("mail").after(LONG)).await;
    let blocked = bench.start_blocked("mail", &[later]).await;
    let unblocked = bench.start_blocked("mail", &[completed]).await;
    let cancelled = bench.start_as(draft("mail").deduplicate("k")).await;
    bench.cancel(&[cancelled]).await.expect("it is open");
    let all = [completed, dead, running, later, blocked, unblocked, cancelled];
    let before = bench.chains(&all).await;
    assert_eq!(before.len(), all.len());
    maintain(&bench).await;
    assert_eq!(bench.chains(&all).await, before);
    assert_eq!(bench.claim_ids(&["mail"], 10).await, [unblocked.first_job()]);
    bench.finish(&attempt).await;
}

/// Upkeep waits for no transaction.
pub async fn upkeep_waits_for_no_lock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let completed = bench.start_completed("mail", "1").await;
    let pending = bench.start("mail").await;
    let mut open = bench.begin().await;
    open.lock(completed).await;
    open.lock(pending).await;
    maintain(&bench).await;
    open.commit().await;
}

/// Upkeep that is dropped somewhere in the middle leaves a store that works, and in which upkeep goes on.
pub async fn upkeep_may_be_dropped<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    let offer = Maintain::new(WorkerId::new("first"));
    for polls in 1..4 {
        let mut call = pin!(bench.state().maintain(&offer));
        for _ in 0..polls {
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    maintain(&bench).await;
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}
