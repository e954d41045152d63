//! The watermark: a time before which no more jobs can appear.

use std::collections::BTreeSet;

use queuert::adapter::{JobQuery, Order, StateAdapter};
use queuert::{JobId, Timestamp};
use tokio::sync::watch;

use crate::bench::{Bench, Open, TICK, answer};
use crate::draft::draft;
use crate::fixture::StateFixture;

async fn watermark<F: StateFixture>(bench: &Bench<F>) -> Timestamp {
    answer(bench.state().watermark().await)
}

/// The jobs that were created before a time, and are visible now.
async fn created_before<F: StateFixture>(bench: &Bench<F>, time: Timestamp) -> BTreeSet<JobId> {
    let mut query = JobQuery::default();
    query.created_to = Some(Timestamp::from_micros(time.as_micros() - 1));
    query.order = Order::OldestFirst;
    query.limit = 10_000;
    bench.list_jobs(&query).await.iter().map(|job| job.id).collect()
}

/// Waits until the watermark has passed a job: it is the newest one, and nothing else goes on.
async fn passes<F: StateFixture>(bench: &Bench<F>, job: JobId) {
    let created = bench.job(job).await.created_at;
    for _ in 0..1_000 {
        if watermark(bench).await > created {
            return;
        }
        bench.elapse(TICK).await;
    }
    panic!("the watermark never passes {job}");
}

/// The watermark passes what is committed.
pub async fn a_committed_job_is_passed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    passes(&bench, chain.first_job()).await;
    let mut open = bench.begin().await;
    let chain = open.start("mail").await;
    open.commit().await;
    passes(&bench, chain.first_job()).await;
}

/// A store without jobs has a watermark, and the first job is not before it.
pub async fn an_empty_store_has_a_watermark<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let before = watermark(&bench).await;
    bench.elapse(TICK).await;
    let chain = bench.start("mail").await;
    assert!(bench.chain(chain).await.created_at >= before);
}

/// Starts one chain in each way in which chains are started.
async fn start_in_every_way<F: StateFixture>(bench: &Bench<F>, open: &mut Open<F>) -> Vec<JobId> {
    let first = open.start("mail").await;
    bench.elapse(TICK).await;
    let keyed = draft("mail");
    let key = keyed.id().to_string();
    let keyed = open.start_as(keyed.deduplicate(key)).await;
    bench.elapse(TICK).await;
    let blocked = open.start_blocked("mail", &[first]).await;
    [first, keyed, blocked].map(|chain| chain.first_job()).to_vec()
}

/// The watermark does not pass the chains of an open transaction before that commits, however late.
pub async fn an_uncommitted_chain_is_not_passed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let early = bench.start("mail").await;
    passes(&bench, early.first_job()).await;
    let mut open = bench.begin().await;
    let late = start_in_every_way(&bench, &mut open).await;
    bench.elapse(TICK).await;
    if bench.capabilities().concurrent_writers {
        bench.start("mail").await;
        bench.elapse(TICK).await;
    }
    let time = watermark(&bench).await;
    let seen = created_before(&bench, time).await;
    open.commit().await;
    assert_eq!(
        created_before(&bench, time).await,
        seen,
        "something appeared before {time}"
    );
    assert!(late.iter().all(|job| !seen.contains(job)));
    for job in late {
        passes(&bench, job).await;
    }
}

/// The same for jobs that continue chains, with blockers and without.
pub async fn an_uncommitted_continuation_is_not_passed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    bench.start_at_once("first", 2).await;
    let (plain, waiting) = (bench.attempt("first").await, bench.attempt("first").await);
    let mut open = bench.begin().await;
    let next = open.continue_with(&plain, "second").await;
    bench.elapse(TICK).await;
    let blocked = draft("second").blocked_by(&[blocker]);
    let blocked_id = blocked.id();
    open.apply(&waiting, blocked.next()).await;
    bench.elapse(TICK).await;
    let time = watermark(&bench).await;
    let seen = created_before(&bench, time).await;
    open.commit().await;
    assert_eq!(
        created_before(&bench, time).await,
        seen,
        "something appeared before {time}"
    );
    for job in [next, blocked_id] {
        assert!(!seen.contains(&job));
        passes(&bench, job).await;
    }
}

/// A transaction that was rolled back does not hold up the watermark, nor does one that has only read.
pub async fn only_open_writers_hold_it_up<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut open = bench.begin().await;
    open.start("mail").await;
    open.rollback().await;
    let chain = bench.start("mail").await;
    let mut idle = bench.begin().await;
    assert!(idle.exists(chain).await);
    passes(&bench, chain.first_job()).await;
    if bench.capabilities().concurrent_writers {
        let chain = bench.start("mail").await;
        passes(&bench, chain.first_job()).await;
    }
    idle.rollback().await;
}

/// How many tasks write at once, and how often each.
const WRITERS: usize = 6;
const ROUNDS: usize = 6;

/// Whatever writers do at the same moment, nothing appears before a watermark that was given. Transactions stay open
/// until the store has been asked meanwhile.
pub async fn nothing_appears_before_the_watermark<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (asked, _) = watch::channel(0_usize);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(bench.clone(), writer, asked.subscribe())))
        .collect();
    let mut observed = Vec::new();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let time = watermark(&bench).await;
        observed.push((time, created_before(&bench, time).await));
        asked.send_modify(|times| *times += 1);
        bench.elapse(TICK).await;
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.expect("no writer fails");
    }
    for (time, seen) in observed {
        assert_eq!(
            created_before(&bench, time).await,
            seen,
            "something appeared before {time}"
        );
    }
}

async fn write<F: StateFixture>(bench: Bench<F>, writer: usize, mut asked: watch::Receiver<usize>) {
    for round in 0..ROUNDS {
        if (writer + round).is_multiple_of(3) {
            bench.start("mail").await;
            continue;
        }
        let mut open = bench.begin().await;
        start_in_every_way(&bench, &mut open).await;
        let before = *asked.borrow();
        let again = asked.wait_for(|times| *times >= before + 2).await;
        again.expect("the store is asked until all have written");
        if (writer + round) % 3 == 1 {
            open.rollback().await;
        } else {
            open.commit().await;
        }
    }
}
