//! How long an urgent job waits while very many very short ones are drained, on Postgres.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queuert::{Attempt, Client};
use queuert_measured::{CORES, Figure, Letter, Receipt};
use queuert_postgres::PostgresState;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Options;
use crate::measure::{BoxError, Case, Limit, Report, Stopwatch, Suite, quantile, sorted};
use crate::postgres::BATCH;
use crate::postgres::ours::SendLetter;
use crate::postgres::server::Server;
use crate::work::batches;

const JOBS: usize = 800_000;
const CONCURRENCIES: [usize; 2] = [10, 100];
/// From one urgent job to the next.
const PAUSE: Duration = Duration::from_millis(500);
/// Ten minutes before all others.
const PRIORITY: i16 = 10;
/// What is promised, in milliseconds.
const BOUND: f64 = 200.0;
/// Until the last job has been seen.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = (JOBS / options.divide).max(BATCH);
    let mut limits = Vec::new();
    for concurrency in CONCURRENCIES {
        for (text, part) in [("ms in the median", "p50"), ("ms at most", "worst")] {
            limits.push(Limit::at_most(text, waited(concurrency, part), BOUND));
        }
    }
    Suite {
        name: "urgent",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!("multi-thread, {CORES} threads, the server on the same machine"),
            ),
            (
                "client and workers",
                "the defaults, except the concurrency in the name; no notifications".into(),
            ),
            ("jobs that wait, each of 0 ms", jobs.to_string()),
            (
                "urgent",
                format!("one every {PAUSE:?} with priority {PRIORITY}, from the answer to its start to its processor"),
            ),
        ],
        cases: CONCURRENCIES
            .map(|concurrency| Case::new(name(concurrency), move || run(concurrency, jobs)))
            .into(),
        ratios: Vec::new(),
        limits,
        plots: Vec::new(),
    }
}

fn name(concurrency: usize) -> String {
    format!("drain of short jobs, concurrency {concurrency}")
}

fn waited(concurrency: usize, part: &str) -> String {
    format!("an urgent job waits, {part}: {}", name(concurrency))
}

/// What the processors have seen.
#[derive(Default)]
struct Seen {
    ordinary: AtomicUsize,
    urgent: Mutex<BTreeMap<u64, Instant>>,
}

async fn run(concurrency: usize, jobs: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    for batch in batches(jobs, BATCH) {
        let letters = batch.map(|number| SendLetter(Letter::new(number)));
        client.start_many(letters).await?;
    }
    let seen = Arc::new(Seen::default());
    let seeing = Arc::clone(&seen);
    let stopwatch = Stopwatch::start();
    let begun = Instant::now();
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, PostgresState>| {
            // The numbers of urgent ones come after all others.
            if job.0.number < jobs as u64 {
                seeing.ordinary.fetch_add(1, Ordering::Relaxed);
            } else {
                let now = Instant::now();
                let mut urgent = seeing.urgent.lock().unwrap_or_else(PoisonError::into_inner);
                urgent.entry(job.0.number).or_insert(now);
            }
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(concurrency)
        .start()
        .await?;
    let mut started = BTreeMap::new();
    let drained = || seen.ordinary.load(Ordering::Relaxed) >= jobs;
    let mut next = begun + PAUSE;
    // At least one, also in a quick look.
    while started.is_empty() || !drained() {
        sleep_until(next).await;
        next += PAUSE;
        let number = (jobs + started.len()) as u64;
        client.start(SendLetter(Letter::new(number))).priority(PRIORITY).await?;
        started.insert(number, Instant::now());
        if begun.elapsed() > PATIENCE {
            return Err("the jobs were not drained".into());
        }
    }
    let figure = stopwatch.rate(name(concurrency), "jobs/s", jobs);
    let urgent = || seen.urgent.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ran = loop {
        let ran = urgent();
        if ran.len() == started.len() {
            break ran;
        }
        if begun.elapsed() > PATIENCE {
            return Err("an urgent job was not run".into());
        }
        sleep(Duration::from_millis(10)).await;
    };
    workers.stop().await;
    let finished = server.maker().count_finished().await?;
    if finished != jobs + started.len() {
        return Err(format!("{finished} of {} jobs are finished", jobs + started.len()).into());
    }
    let waits = started.iter().filter_map(|(number, started)| {
        let ran = ran.get(number)?;
        Some(ran.saturating_duration_since(*started).as_secs_f64() * 1e3)
    });
    let waits = sorted(waits);
    let wait = |part: &str, value: f64| Figure {
        name: waited(concurrency, part),
        unit: "ms".to_owned(),
        value,
        cost: None,
    };
    let figures = vec![
        figure,
        wait("p50", quantile(&waits, 0.5)),
        wait("worst", quantile(&waits, 1.0)),
    ];
    state.close().await;
    server.described(Report::from(figures)).await
}
