//! Listing chains: filters and order.

use queuert::adapter::{ChainQuery, Order};
use queuert::{ChainId, JobStatus};

use crate::bench::{Bench, TICK};
use crate::draft::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// Everything, newest first.
pub(super) fn query() -> ChainQuery {
    let mut query = ChainQuery::default();
    query.limit = 100;
    query
}

async fn ids<F: StateFixture>(bench: &Bench<F>, query: &ChainQuery) -> Vec<ChainId> {
    bench.list_chains(query).await.iter().map(|chain| chain.id).collect()
}

/// An empty store has no chains to list. (S91)
pub async fn an_empty_store_lists_no_chains<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert!(bench.list_chains(&query()).await.is_empty());
}

/// Chains are listed as they are read one by one. (S93)
pub async fn listed_chains_are_whole<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench
        .start_as(draft("first").input("1").trace("t").deduplicate("k"))
        .await;
    bench.continue_with(&bench.attempt("first").await, "second").await;
    assert_eq!(bench.list_chains(&query()).await, [bench.chain(chain).await]);
    bench.finish(&bench.attempt("second").await).await;
    assert_eq!(bench.list_chains(&query()).await, [bench.chain(chain).await]);
}

/// Newest first, or oldest first. (S95, S98)
pub async fn chains_are_listed_in_both_orders<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut chains = bench.start_in_turn("mail", 4).await;
    let mut query = query();
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, chains);
    query.order = Order::NewestFirst;
    chains.reverse();
    assert_eq!(ids(&bench, &query).await, chains);
}

/// Chains are filtered by the type of their first job. (S94)
pub async fn chains_are_filtered_by_type<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let a = bench.start("a").await;
    let b = bench.start("b").await;
    bench.start("c").await;
    bench.continue_with(&bench.attempt("a").await, "c").await;
    let mut query = query();
    query.types = Some(vec!["a".into()]);
    assert_eq!(ids(&bench, &query).await, [a]);
    query.types = Some(vec!["b".into(), "a".into(), "never".into()]);
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, [a, b]);
}

/// Chains are filtered by id. (S97)
pub async fn chains_are_filtered_by_id<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    let mut query = query();
    query.ids = Some(vec![chains[0], identity::chain_id(), chains[2]]);
    assert_eq!(ids(&bench, &query).await, [chains[2], chains[0]]);
}

/// Chains are found by any of their jobs, and once. (S101)
pub async fn chains_are_found_by_any_of_their_jobs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let other = bench.start("other").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    let mut query = query();
    query.jobs = Some(vec![next]);
    assert_eq!(ids(&bench, &query).await, [chain]);
    query.jobs = Some(vec![next, chain.first_job(), identity::job_id()]);
    assert_eq!(ids(&bench, &query).await, [chain]);
    query.jobs = Some(vec![other.first_job()]);
    assert_eq!(ids(&bench, &query).await, [other]);
}

/// Chains are filtered by the status of their latest job. (S102)
pub async fn chains_are_filtered_by_the_status_of_their_latest_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("other", "1").await;
    let dead = bench.start_dead("other").await;
    let cancelled = bench.start("other").await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    let pending = bench.start("first").await;
    bench.continue_with(&bench.attempt("first").await, "second").await;
    let blocked = bench.start_blocked("other", &[pending]).await;
    let running = bench.start("running").await;
    bench.attempt("running").await;
    let mut query = query();
    let all = [blocked, pending, running, completed, dead, cancelled];
    for (chain, status) in all.into_iter().zip(JobStatus::ALL) {
        query.statuses = Some(vec![status]);
        assert_eq!(ids(&bench, &query).await, [chain], "{status}");
    }
    query.statuses = Some(vec![JobStatus::Dead, JobStatus::Completed]);
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, [completed, dead]);
}

/// Roots are the chains that are nobody's blocker, not even a continuation's or an ended chain's. (S92)
pub async fn roots_are_nobodys_blockers<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let used = bench.start_completed("blocker", "1").await;
    let root = bench.start_blocked("root", &[used]).await;
    let late = bench.start("late").await;
    let next = draft("second").blocked_by(&[late]);
    bench.apply(&bench.attempt("root").await, next.next()).await;
    let alone = bench.start_in_turn("alone", 1).await[0];
    assert_eq!(ids(&bench, &query()).await.len(), 4);
    let mut query = query();
    query.roots_only = true;
    assert_eq!(ids(&bench, &query).await, [alone, root]);
}

/// The range of creation times includes both ends. (S100)
pub async fn chains_are_filtered_by_the_time_of_creation<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    let middle = bench.chain(chains[1]).await.created_at;
    let mut query = query();
    query.created_from = Some(middle);
    assert_eq!(ids(&bench, &query).await, [chains[2], chains[1]]);
    query.created_to = Some(middle);
    assert_eq!(ids(&bench, &query).await, [chains[1]]);
    query.created_from = None;
    assert_eq!(ids(&bench, &query).await, [chains[1], chains[0]]);
    query.created_to = Some(middle.saturating_sub(TICK * 1_000));
    assert!(ids(&bench, &query).await.is_empty());
}

/// All filters hold together.
pub async fn filters_of_chains_hold_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    bench.start("other").await;
    bench.cancel(&chains[..2]).await.expect("the chains are open");
    let mut query = query();
    query.ids = Some(chains[1..].to_vec());
    query.types = Some(vec!["mail".into()]);
    query.statuses = Some(vec![JobStatus::Cancelled]);
    query.roots_only = true;
    assert_eq!(ids(&bench, &query).await, [chains[1]]);
}

/// An empty list matches nothing, whichever filter it is. (H24)
pub async fn an_empty_filter_matches_no_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let filters: [fn(&mut ChainQuery); 4] = [
        |query| query.ids = Some(Vec::new()),
        |query| query.jobs = Some(Vec::new()),
        |query| query.types = Some(Vec::new()),
        |query| query.statuses = Some(Vec::new()),
    ];
    for (index, filter) in filters.into_iter().enumerate() {
        let mut query = query();
        filter(&mut query);
        assert!(bench.list_chains(&query).await.is_empty(), "filter {index}");
    }
    assert_eq!(bench.list_chains(&query()).await.len(), 1);
}
