//! Fills the queue, and lets the peer work until its own tables say that everything is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert_measured::{Arguments, BoxError, Letter, Report, Stopwatch};

use crate::calls::Calls;
use crate::database::Database;
use crate::{Peer, Settings};

const BATCH: usize = 1_000;
/// Filling is not measured.
const FILLERS: usize = 4;

pub(crate) async fn run<P: Peer>(
    peer: &P,
    database: &mut Database,
    settings: &Settings,
    arguments: &Arguments,
) -> Result<Report, BoxError> {
    let jobs: usize = arguments.value("jobs")?;
    let limit = Duration::from_secs_f64(arguments.value("seconds")?);
    let jobs = fill(peer, jobs).await?;
    database.analyze().await?;
    let calls = Calls::new(jobs);
    let before = database.observer.counts().await?;
    let stopwatch = Stopwatch::start();
    peer.work(calls.clone()).await?;
    let ended = wait(peer, database, &calls, &stopwatch, limit, jobs).await?;
    let name = format!("drain: {}", settings.name);
    let mut figure = stopwatch.rate_over(ended.elapsed, name, "jobs/s", ended.done);
    database.observer.cost_since(&before, &mut figure).await?;
    Ok(Report::from(vec![figure]).fact(
        format!("{}: jobs done", settings.name),
        format!(
            "{} of {jobs}{}",
            ended.done,
            if ended.in_time { "" } else { ", cut off" }
        ),
    ))
}

pub(crate) struct Ended {
    pub(crate) in_time: bool,
    pub(crate) done: usize,
    /// When the look began that saw it.
    pub(crate) elapsed: Duration,
}

/// Until all calls have been made and the tables say so too, or until the time is over.
pub(crate) async fn wait<P: Peer>(
    peer: &P,
    database: &mut Database,
    calls: &Calls,
    stopwatch: &Stopwatch,
    limit: Duration,
    jobs: usize,
) -> Result<Ended, BoxError> {
    let in_time = tokio::time::timeout(limit, calls.all_made()).await.is_ok();
    let mut elapsed = stopwatch.elapsed();
    let mut done = peer.done(&mut database.checks, jobs).await?;
    while in_time && done < jobs && elapsed < 2 * limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
        elapsed = stopwatch.elapsed();
        done = peer.done(&mut database.checks, jobs).await?;
    }
    if done == 0 || (in_time && done != jobs) {
        return Err(format!("{done} of {jobs} jobs were done").into());
    }
    Ok(Ended { in_time, done, elapsed })
}

/// Gives how many there are: a peer that needs long for them gets fewer.
async fn fill<P: Peer>(peer: &P, jobs: usize) -> Result<usize, BoxError> {
    let filled = Arc::new(AtomicUsize::new(0));
    let stopwatch = Arc::new(Stopwatch::start());
    let running: Vec<_> = (0..FILLERS)
        .map(|_| {
            let (peer, filled, stopwatch) = (peer.clone(), Arc::clone(&filled), Arc::clone(&stopwatch));
            tokio::spawn(async move {
                let mut mine = 0;
                while stopwatch.elapsed() < Duration::from_secs(6) {
                    let first = filled.fetch_add(BATCH, Ordering::Relaxed);
                    if first >= jobs {
                        break;
                    }
                    let letters = (first..first + BATCH).map(|number| Letter::new(number as u64));
                    peer.start_many(letters.collect()).await?;
                    mine += BATCH;
                }
                Ok::<_, BoxError>(mine)
            })
        })
        .collect();
    let mut all = 0;
    for task in running {
        all += task.await??;
    }
    Ok(all)
}
