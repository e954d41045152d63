//! Starts and drains at the same time for a minute, with a million finished jobs already there: nothing may wear out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::{Attempt, Client, JobType};
use queuert_measured::{Figure, Letter, Receipt};
use queuert_postgres::PostgresState;
use tokio::time::{Instant, sleep};

use super::BATCH;
use super::bare::{AMONG_OTHERS, Bare, Ends, FIRST_ID, Starts, id};
use super::ours::{SendLetter, report};
use super::server::Server;
use crate::measure::{BoxError, Report, Stopwatch};

/// Nobody starts more while this many wait: it is the pace of both that is measured, not how deep a backlog becomes.
const AHEAD: usize = 10_000;

/// Over which the pace is compared.
const WINDOWS: u32 = 12;

/// How many were started, and how many are done.
#[derive(Default)]
struct Pace {
    started: AtomicUsize,
    done: AtomicUsize,
}

impl Pace {
    async fn may_start(&self) {
        while self.started.load(Ordering::Relaxed) >= self.done.load(Ordering::Relaxed) + AHEAD {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many were done in each part of the time.
    async fn windows(&self, time: Duration) -> Vec<f64> {
        let begun = Instant::now();
        let mut counts = Vec::new();
        let mut before = 0;
        for window in 1..=WINDOWS {
            tokio::time::sleep_until(begun + time * window / WINDOWS).await;
            let done = self.done.load(Ordering::Relaxed);
            counts.push((done - before) as f64);
            before = done;
        }
        counts
    }
}

/// The pace, and that of the slowest window as a share of the first one's.
fn figures(name: &str, figure: Figure, windows: &[f64]) -> Vec<Figure> {
    let slowest = windows.iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = Figure {
        name: format!("{name}: slowest window / first"),
        unit: "share".to_owned(),
        // A first window without any is one of a quick look.
        value: slowest / windows[0].max(1.0),
        cost: None,
    };
    vec![figure, slowest]
}

async fn prepared(finished: usize) -> Result<(Server, PostgresState), BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    server.maker().finished(SendLetter::NAME, finished).await?;
    server.maker().check_finished(&state).await?;
    Ok((server, state))
}

/// Everything that was started is finished, by the store's own word.
async fn check(server: &mut Server, finished: usize, started: usize) -> Result<(), BoxError> {
    let found = server.maker().count_finished().await?;
    match found == finished + started {
        true => Ok(()),
        false => Err(format!("{started} were started, {} are finished", found - finished).into()),
    }
}

pub(super) async fn ours(
    name: &'static str,
    finished: usize,
    time: Duration,
    concurrency: usize,
) -> Result<Report, BoxError> {
    let (mut server, state) = prepared(finished).await?;
    let client = Client::new(state.clone());
    let pace = Arc::new(Pace::default());
    let counting = Arc::clone(&pace);
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, PostgresState>| {
            counting.done.fetch_add(1, Ordering::Relaxed);
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(concurrency)
        .start()
        .await?;
    let starting = tokio::spawn({
        let (client, pace) = (client.clone(), Arc::clone(&pace));
        async move {
            let begun = Instant::now();
            while begun.elapsed() < time {
                pace.may_start().await;
                let letters = (0..BATCH as u64).map(|number| SendLetter(Letter::new(number)));
                client.start_many(letters).await?;
                pace.started.fetch_add(BATCH, Ordering::Relaxed);
            }
            Ok::<_, queuert::Error>(())
        }
    });
    let windows = pace.windows(time).await;
    let done = pace.done.load(Ordering::Relaxed);
    let mut figure = stopwatch.rate(name, "jobs/s", done);
    server.cost_since(&before, &mut figure).await?;
    starting.await??;
    let started = pace.started.load(Ordering::Relaxed);
    while pace.done.load(Ordering::Relaxed) < started {
        sleep(Duration::from_millis(10)).await;
    }
    workers.stop().await;
    check(&mut server, finished, started).await?;
    let mut figures = figures(name, figure, &windows).into_iter();
    let first = figures.next().ok_or("there are two figures")?;
    let mut report = report(first, &state, server).await?;
    report.figures.extend(figures);
    Ok(report)
}

/// One connection starts, two claim and complete.
pub(super) async fn bare(name: &'static str, finished: usize, time: Duration) -> Result<Report, BoxError> {
    const CLAIMED: usize = 100;
    const DRAINERS: usize = 2;
    let mut server = Server::clean().await?;
    let bare = Arc::new(Bare::capture(&mut server, AMONG_OTHERS).await?);
    let state = server.state(None).await?;
    let once = server.maker().count_finished().await?;
    server.maker().finished(SendLetter::NAME, finished).await?;
    let mut starter = bare.connect().await?;
    let mut held = Vec::new();
    for _ in 0..DRAINERS {
        held.push((bare.connect().await?, Ends::new(CLAIMED)?));
    }
    let pace = Arc::new(Pace::default());
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let starting = tokio::spawn({
        let (bare, pace) = (Arc::clone(&bare), Arc::clone(&pace));
        async move {
            let begun = Instant::now();
            let mut first = 0;
            while begun.elapsed() < time {
                pace.may_start().await;
                let starts = Starts::new(FIRST_ID, first..first + BATCH as u64)?;
                starts.run(&bare, &mut starter).await?;
                first += BATCH as u64;
                pace.started.fetch_add(BATCH, Ordering::Relaxed);
            }
            Ok::<_, BoxError>(())
        }
    });
    let draining: Vec<_> = held
        .into_iter()
        .map(|(mut connection, ends)| {
            let (bare, pace) = (Arc::clone(&bare), Arc::clone(&pace));
            tokio::spawn(async move {
                let begun = Instant::now();
                loop {
                    let fence = id();
                    let jobs = bare.claim(&mut connection, CLAIMED, fence).await?;
                    if jobs.is_empty() {
                        if begun.elapsed() > time {
                            return Ok::<_, BoxError>(());
                        }
                        sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    bare.settle(&mut connection, &ends, &jobs, fence).await?;
                    pace.done.fetch_add(jobs.len(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let windows = pace.windows(time).await;
    let done = pace.done.load(Ordering::Relaxed);
    let mut figure = stopwatch.rate(name, "jobs/s", done);
    server.cost_since(&before, &mut figure).await?;
    starting.await??;
    for task in draining {
        task.await??;
    }
    let started = pace.started.load(Ordering::Relaxed);
    check(&mut server, finished + once, started).await?;
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some((DRAINERS + 1) as f64);
    }
    state.close().await;
    server.described(Report::from(figures(name, figure, &windows))).await
}
