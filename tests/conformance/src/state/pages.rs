//! Pages: found by value, so that rows that come or go do not shift them.

use queuert::adapter::{ChainQuery, JobQuery, JobSort, Order, Position};
use queuert::{ChainId, ChainRecord, JobId, JobRecord};

use crate::bench::Bench;
use crate::fixture::StateFixture;

/// A moment after everything that a case creates.
const YEAR_3000: i64 = 32_503_680_000_000_000;

fn chain_position(chain: &ChainRecord) -> Position {
    Position {
        value: chain.created_at.as_micros(),
        id: chain.id.first_job(),
    }
}

fn job_position(job: &JobRecord, sort: JobSort) -> Position {
    let value = match sort {
        JobSort::CreatedAt => job.created_at.as_micros(),
        JobSort::ChainIndex => i64::from(job.chain_index),
    };
    Position { value, id: job.id }
}

/// Reads all pages: the ids, and how many were on each page.
async fn chain_pages<F: StateFixture>(bench: &Bench<F>, mut query: ChainQuery) -> (Vec<ChainId>, Vec<usize>) {
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = bench.list_chains(&query).await;
        let Some(last) = page.last() else {
            return (ids, sizes);
        };
        query.after = Some(chain_position(last));
        ids.extend(page.iter().map(|chain| chain.id));
        sizes.push(page.len());
        assert!(sizes.len() < 100, "the pages never end");
    }
}

async fn job_pages<F: StateFixture>(bench: &Bench<F>, mut query: JobQuery) -> (Vec<JobId>, Vec<usize>) {
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = bench.list_jobs(&query).await;
        let Some(last) = page.last() else {
            return (ids, sizes);
        };
        query.after = Some(job_position(last, query.sort));
        ids.extend(page.iter().map(|job| job.id));
        sizes.push(page.len());
        assert!(sizes.len() < 100, "the pages never end");
    }
}

/// Pages of chains add up to the whole list, in both orders, with nothing repeated. (S96, S99)
pub async fn pages_of_chains_add_up<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut chains = bench.start_in_turn("mail", 5).await;
    let mut query = super::list_chains::query();
    query.limit = 2;
    query.order = Order::OldestFirst;
    assert_eq!(
        chain_pages(&bench, query.clone()).await,
        (chains.clone(), vec![2, 2, 1])
    );
    chains.reverse();
    query.order = Order::NewestFirst;
    assert_eq!(chain_pages(&bench, query).await, (chains, vec![2, 2, 1]));
}

/// Pages of jobs add up to the whole list, in both orders, with nothing repeated. (S110)
pub async fn pages_of_jobs_add_up<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 4).await;
    let mut jobs: Vec<_> = chains.iter().map(|chain| chain.first_job()).collect();
    let mut query = super::list_jobs::query();
    query.limit = 2;
    query.order = Order::OldestFirst;
    assert_eq!(job_pages(&bench, query.clone()).await, (jobs.clone(), vec![2, 2]));
    jobs.reverse();
    query.order = Order::NewestFirst;
    assert_eq!(job_pages(&bench, query).await, (jobs, vec![2, 2]));
}

/// Pages of a chain's jobs go by their place in it. (S116)
pub async fn pages_of_a_chain_go_by_place<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("loop").await;
    let mut expected = vec![chain.first_job()];
    for _ in 0..4 {
        expected.push(bench.continue_with(&bench.attempt("loop").await, "loop").await);
    }
    let mut query = super::list_jobs::query();
    (query.chains, query.limit, query.sort) = (Some(vec![chain]), 2, JobSort::ChainIndex);
    query.order = Order::OldestFirst;
    assert_eq!(
        job_pages(&bench, query.clone()).await,
        (expected.clone(), vec![2, 2, 1])
    );
    query.order = Order::NewestFirst;
    expected.reverse();
    assert_eq!(job_pages(&bench, query).await, (expected, vec![2, 2, 1]));
}

/// Pages of dependants add up. (S121)
pub async fn pages_of_dependants_add_up<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(bench.start_blocked("dependant", &[blocker]).await.first_job());
        bench.start("other").await;
    }
    let mut query = super::list_jobs::query();
    (query.blocked_by, query.limit, query.order) = (Some(blocker), 2, Order::OldestFirst);
    assert_eq!(job_pages(&bench, query).await, (expected, vec![2, 2]));
}

/// Rows that were created at the same moment are told apart by id: none is skipped or repeated at the edge of a
/// page. (H19)
pub async fn rows_of_the_same_moment_are_neither_skipped_nor_repeated<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut chains = bench.start_at_once("mail", 11).await;
    chains.extend(bench.start_at_once("mail", 6).await);
    for (limit, order) in [
        (3, Order::OldestFirst),
        (3, Order::NewestFirst),
        (1, Order::NewestFirst),
    ] {
        let mut query = super::list_chains::query();
        (query.limit, query.order) = (limit, order);
        let (mut seen, _) = chain_pages(&bench, query).await;
        let mut jobs_query = super::list_jobs::query();
        (jobs_query.limit, jobs_query.order) = (limit, order);
        let (jobs, _) = job_pages(&bench, jobs_query).await;
        assert_eq!(jobs, seen.iter().map(|chain| chain.first_job()).collect::<Vec<_>>());
        if order == Order::NewestFirst {
            seen.reverse();
        }
        assert_eq!(seen, chains, "pages of {limit}, {order:?}");
    }
}

/// A page goes on where the one before ended, although rows came and went meanwhile.
pub async fn rows_that_come_or_go_do_not_shift_pages<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 6).await;
    let mut query = super::list_chains::query();
    query.limit = 2;
    let first = bench.list_chains(&query).await;
    assert_eq!(
        first.iter().map(|chain| chain.id).collect::<Vec<_>>(),
        [chains[5], chains[4]]
    );
    bench.start_at_once("mail", 3).await;
    bench
        .delete(&[chains[5], chains[2]])
        .await
        .expect("nothing depends on them");
    query.after = first.last().map(chain_position);
    let (rest, _) = chain_pages(&bench, query).await;
    assert_eq!(rest, [chains[3], chains[1], chains[0]]);
}

/// A page goes on where the one before ended, although the very row of the position was deleted.
pub async fn the_row_of_a_position_may_be_deleted<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("mail", 4).await;
    let mut query = super::list_chains::query();
    (query.limit, query.order) = (2, Order::OldestFirst);
    let first = bench.list_chains(&query).await;
    bench.delete(&[first[1].id]).await.expect("nothing depends on it");
    query.after = Some(chain_position(&first[1]));
    assert_eq!(chain_pages(&bench, query).await.0, chains[2..]);
    let mut query = super::list_jobs::query();
    query.order = Order::OldestFirst;
    query.after = Some(Position {
        value: first[1].created_at.as_micros(),
        id: first[1].id.first_job(),
    });
    let rest: Vec<_> = chains[2..].iter().map(|chain| chain.first_job()).collect();
    assert_eq!(job_pages(&bench, query).await.0, rest);
}

/// Filters hold on every page.
pub async fn filters_hold_on_every_page<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.extend(bench.start_in_turn("mail", 1).await);
        bench.start_in_turn("other", 1).await;
    }
    let mut query = super::list_chains::query();
    (query.limit, query.order, query.types) = (2, Order::OldestFirst, Some(vec!["mail".into()]));
    assert_eq!(chain_pages(&bench, query).await, (expected, vec![2, 2, 1]));
}

/// A position beyond everything gives an empty page, and a page of no rows has none.
pub async fn a_position_beyond_everything_gives_an_empty_page<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    for (order, value) in [(Order::OldestFirst, YEAR_3000), (Order::NewestFirst, 0)] {
        let mut query = super::list_chains::query();
        query.order = order;
        query.after = Some(Position {
            value,
            id: chain.first_job(),
        });
        assert!(bench.list_chains(&query).await.is_empty());
        let mut query = super::list_jobs::query();
        query.order = order;
        query.after = Some(Position {
            value,
            id: chain.first_job(),
        });
        assert!(bench.list_jobs(&query).await.is_empty());
    }
    let mut query = super::list_chains::query();
    query.limit = 0;
    assert!(bench.list_chains(&query).await.is_empty());
}
