//! Single starts by one task and by sixteen, and batches of a thousand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert_measured::{Arguments, BoxError, Figure, Letter, Report, Stopwatch};
use tokio::time::Instant;

use crate::database::Database;
use crate::{Peer, Settings};

const BATCH: usize = 1_000;
const TASKS: usize = 16;
/// Statements are prepared and connections opened before the clock runs.
const WARM_UP: usize = 200;

pub(crate) async fn run<P: Peer>(
    peer: &P,
    database: &mut Database,
    settings: &Settings,
    arguments: &Arguments,
) -> Result<Report, BoxError> {
    let seconds = Duration::from_secs_f64(arguments.value("seconds")?);
    let jobs: usize = arguments.value("jobs")?;
    let numbers = Arc::new(AtomicU64::new(0));
    let mut figures = Vec::new();
    for (tasks, text) in [(1, "1 task"), (TASKS, "16 tasks")] {
        single(peer, tasks, &numbers, Limit::Count(WARM_UP / tasks)).await?;
        let before = database.observer.counts().await?;
        let stopwatch = Stopwatch::start();
        let started = single(peer, tasks, &numbers, Limit::Time(seconds)).await?;
        let name = format!("single starts, {text}: {}", settings.name);
        let mut figure = stopwatch.rate(name, "jobs/s", started);
        database.observer.cost_since(&before, &mut figure).await?;
        figures.push(figure);
    }
    figures.push(batches(peer, database, settings, &numbers, jobs, seconds).await?);
    let started = usize::try_from(numbers.load(Ordering::Relaxed))?;
    let stored = peer.stored(&mut database.checks).await?;
    if stored != started {
        return Err(format!("{started} jobs were started, {stored} are stored").into());
    }
    Ok(Report::from(figures))
}

#[derive(Clone, Copy)]
enum Limit {
    /// So many per task.
    Count(usize),
    Time(Duration),
}

async fn single<P: Peer>(peer: &P, tasks: usize, numbers: &Arc<AtomicU64>, limit: Limit) -> Result<usize, BoxError> {
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (peer, numbers) = (peer.clone(), Arc::clone(numbers));
            tokio::spawn(async move {
                let begun = Instant::now();
                let mut started = 0;
                while match limit {
                    Limit::Count(count) => started < count,
                    Limit::Time(time) => begun.elapsed() < time,
                } {
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    peer.start_one(Letter::new(number)).await?;
                    started += 1;
                }
                Ok::<_, BoxError>(started)
            })
        })
        .collect();
    let mut started = 0;
    for task in running {
        started += task.await??;
    }
    Ok(started)
}

/// As many as are wanted, or as there is time for.
async fn batches<P: Peer>(
    peer: &P,
    database: &mut Database,
    settings: &Settings,
    numbers: &AtomicU64,
    jobs: usize,
    seconds: Duration,
) -> Result<Figure, BoxError> {
    let before = database.observer.counts().await?;
    let stopwatch = Stopwatch::start();
    let mut started = 0;
    while started < jobs && stopwatch.elapsed() < 2 * seconds {
        let first = numbers.fetch_add(BATCH as u64, Ordering::Relaxed);
        let letters = (first..first + BATCH as u64).map(Letter::new).collect();
        peer.start_many(letters).await?;
        started += BATCH;
    }
    let name = format!("start, batches of 1,000: {}", settings.name);
    let mut figure = stopwatch.rate(name, "jobs/s", started);
    database.observer.cost_since(&before, &mut figure).await?;
    Ok(figure)
}
