//! Listing jobs: filters and order.

use queuert::adapter::{JobQuery, JobSort, Order};
use queuert::{JobId, JobStatus};

use crate::bench::{Bench, TICK};
use crate::draft::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// Everything, newest first.
pub(super) fn query() -> JobQuery {
    let mut query = JobQuery::default();
    query.limit = 100;
    query
}

async fn ids<F: StateFixture>(bench: &Bench<F>, query: &JobQuery) -> Vec<JobId> {
    bench.list_jobs(query).await.iter().map(|job| job.id).collect()
}

/// An empty store has no jobs to list. (S103)
pub async fn an_empty_store_lists_no_jobs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert!(bench.list_jobs(&query()).await.is_empty());
}

/// All jobs of all chains are listed, as they are read one by one. (S104)
pub async fn listed_jobs_are_whole<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench
        .start_as(draft("first").input("1").trace("t").deduplicate("k"))
        .await;
    let attempt = bench.attempt("first").await;
    bench.elapse(TICK).await;
    let next = bench.continue_with(&attempt, "second").await;
    bench.attempt("second").await;
    let expected = [bench.job(next).await, bench.job(chain.first_job()).await];
    assert_eq!(bench.list_jobs(&query()).await, expected);
}

/// Newest first, or oldest first. (S111)
pub async fn jobs_are_listed_in_both_orders<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 4).await;
    let mut jobs: Vec<_> = chains.iter().map(|chain| chain.first_job()).collect();
    let mut query = query();
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, jobs);
    query.order = Order::NewestFirst;
    jobs.reverse();
    assert_eq!(ids(&bench, &query).await, jobs);
}

/// Jobs are filtered by id. (S109)
pub async fn jobs_are_filtered_by_id<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    let mut query = query();
    query.ids = Some(vec![chains[0].first_job(), identity::job_id(), chains[2].first_job()]);
    assert_eq!(
        ids(&bench, &query).await,
        [chains[2].first_job(), chains[0].first_job()]
    );
}

/// Jobs are filtered by their own type. (S107)
pub async fn jobs_are_filtered_by_type<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    let mut query = query();
    query.types = Some(vec!["second".into(), "never".into()]);
    assert_eq!(ids(&bench, &query).await, [next]);
}

/// Jobs are filtered by the type of their chain, continuations included. (S108)
pub async fn jobs_are_filtered_by_the_type_of_their_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    bench.start("second").await;
    let attempt = bench.attempt("first").await;
    bench.elapse(TICK).await;
    let next = bench.continue_with(&attempt, "second").await;
    let mut query = query();
    query.chain_types = Some(vec!["first".into()]);
    assert_eq!(ids(&bench, &query).await, [next, chain.first_job()]);
}

/// Jobs are filtered by their own status. (S106)
pub async fn jobs_are_filtered_by_status<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let pending = bench.continue_with(&bench.attempt("first").await, "second").await;
    let blocked = bench.start_blocked("other", &[chain]).await.first_job();
    let running = bench.start("running").await.first_job();
    bench.attempt("running").await;
    let dead = bench.start_dead("dead").await.first_job();
    let cancelled = bench.start("other").await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    let mut query = query();
    let all = [
        blocked,
        pending,
        running,
        chain.first_job(),
        dead,
        cancelled.first_job(),
    ];
    for (job, status) in all.into_iter().zip(JobStatus::ALL) {
        query.statuses = Some(vec![status]);
        assert_eq!(ids(&bench, &query).await, [job], "{status}");
    }
}

/// The jobs of a chain are listed by their place in it, in both directions, without those of others. (S105, S113, S114,
/// S115, S117)
pub async fn the_jobs_of_a_chain_are_listed_by_their_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("loop").await;
    let mut expected = vec![chain.first_job()];
    for _ in 0..3 {
        expected.push(bench.continue_with(&bench.attempt("loop").await, "loop").await);
    }
    bench.start("loop").await;
    let mut query = query();
    query.chains = Some(vec![chain]);
    query.sort = JobSort::ChainIndex;
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, expected);
    query.order = Order::NewestFirst;
    expected.reverse();
    assert_eq!(ids(&bench, &query).await, expected);
    query.chains = Some(vec![identity::chain_id()]);
    assert!(ids(&bench, &query).await.is_empty(), "an unknown chain has no jobs");
}

/// The dependants of a chain are listed, also those that wait no more; others are not. (S118, S119, S120)
pub async fn the_dependants_of_a_chain_are_listed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let other = bench.start("other").await;
    let first = bench.start_blocked("dependant", &[other, blocker]).await.first_job();
    bench.elapse(TICK).await;
    bench.start("chain").await;
    let next = draft("second").blocked_by(&[blocker]);
    let second = next.id();
    bench.apply(&bench.attempt("chain").await, next.next()).await;
    let mut query = query();
    query.blocked_by = Some(blocker);
    assert_eq!(ids(&bench, &query).await, [second, first]);
    query.order = Order::OldestFirst;
    assert_eq!(ids(&bench, &query).await, [first, second]);
    bench.finish(&bench.attempt("blocker").await).await;
    bench.finish(&bench.attempt("second").await).await;
    assert_eq!(ids(&bench, &query).await, [first, second], "also if they wait no more");
    query.statuses = Some(vec![JobStatus::Blocked]);
    assert_eq!(ids(&bench, &query).await, [first]);
    query.blocked_by = Some(first.as_chain());
    assert!(ids(&bench, &query).await.is_empty());
}

/// The range of creation times includes both ends. (S112)
pub async fn jobs_are_filtered_by_the_time_of_creation<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    let jobs: Vec<_> = chains.iter().map(|chain| chain.first_job()).collect();
    let middle = bench.job(jobs[1]).await.created_at;
    let mut query = query();
    query.created_from = Some(middle);
    assert_eq!(ids(&bench, &query).await, [jobs[2], jobs[1]]);
    query.created_to = Some(middle);
    assert_eq!(ids(&bench, &query).await, [jobs[1]]);
    query.created_from = None;
    assert_eq!(ids(&bench, &query).await, [jobs[1], jobs[0]]);
}

/// All filters hold together.
pub async fn filters_of_jobs_hold_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = bench.continue_with(&bench.attempt("first").await, "second").await;
    bench.start("second").await;
    let mut query = query();
    query.chains = Some(vec![chain]);
    query.types = Some(vec!["second".into()]);
    query.chain_types = Some(vec!["first".into()]);
    query.statuses = Some(vec![JobStatus::Pending]);
    query.ids = Some(vec![next, chain.first_job()]);
    assert_eq!(ids(&bench, &query).await, [next]);
    query.statuses = Some(vec![JobStatus::Completed]);
    assert!(ids(&bench, &query).await.is_empty());
}

/// An empty list matches nothing, whichever filter it is. (H24)
pub async fn an_empty_filter_matches_no_job<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let filters: [fn(&mut JobQuery); 5] = [
        |query| query.ids = Some(Vec::new()),
        |query| query.chains = Some(Vec::new()),
        |query| query.types = Some(Vec::new()),
        |query| query.chain_types = Some(Vec::new()),
        |query| query.statuses = Some(Vec::new()),
    ];
    for (index, filter) in filters.into_iter().enumerate() {
        let mut query = query();
        filter(&mut query);
        assert!(bench.list_jobs(&query).await.is_empty(), "filter {index}");
    }
    assert_eq!(bench.list_jobs(&query()).await.len(), 1);
}
