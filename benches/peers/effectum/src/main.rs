//! effectum: fills its queue in batches and drains it.
//!
//! `defaults`: the concurrency of its own introduction, ten, and nothing else. Else the settings are a concurrency, and
//! new jobs are fetched when nine tenths of the slots are still busy.
//!
//! It asks for a write-ahead log through a pragma that does not exist, so it runs on a rollback journal, and sets
//! `synchronous` to normal: a loss of power may, rarely, damage the file.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use queuert_measured::{Arguments, BoxError, CORES, Letter, Receipt, Report, Stopwatch};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Notify;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CORES)
        .enable_all()
        .build();
    let ran = runtime.map_err(BoxError::from).and_then(|runtime| {
        let report = runtime.block_on(async { tokio::spawn(run()).await? })?;
        runtime.shutdown_background();
        Ok(report.print()?)
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("effectum: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts calls, and tells when all have been made.
#[derive(Debug)]
struct Calls {
    count: AtomicUsize,
    all: usize,
    done: Notify,
}

async fn process(job: RunningJob, calls: Arc<Calls>) -> Result<Receipt, effectum::Error> {
    let letter: Letter = job.json_payload()?;
    if calls.count.fetch_add(1, Ordering::Relaxed) + 1 == calls.all {
        calls.done.notify_one();
    }
    Ok(Receipt::of(&letter))
}

async fn run() -> Result<Report, BoxError> {
    let arguments = Arguments::of_process()?;
    let settings = arguments.text("settings")?.to_owned();
    let jobs: usize = arguments.value("jobs")?;
    let batch: usize = arguments.value("batch")?;
    let limit = Duration::from_secs(arguments.value("seconds")?);
    let file = Path::new(arguments.text("file")?);
    let queue = Queue::new(file).await?;

    let stopwatch = Stopwatch::start();
    for first in (0..jobs).step_by(batch) {
        let letters = first..(first + batch).min(jobs);
        let letters = letters.map(|number| {
            let job = Job::builder("letter").json_payload(&Letter::new(number as u64))?;
            Ok(job.build())
        });
        queue
            .add_jobs(letters.collect::<Result<Vec<_>, effectum::Error>>()?)
            .await?;
    }
    let name = format!("start, batches of 1,000: effectum, {settings}");
    let started = stopwatch.rate(name, "chains/s", jobs);

    let calls = Arc::new(Calls {
        count: AtomicUsize::new(0),
        all: jobs,
        done: Notify::new(),
    });
    let checks = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    checks.busy_timeout(Duration::from_secs(10))?;
    let journal: String = checks.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let builder = Worker::builder(&queue, Arc::clone(&calls)).jobs([JobRunner::builder("letter", process).build()]);
    let builder = match settings.strip_prefix("concurrency ") {
        Some(concurrency) => {
            let concurrency: u16 = concurrency.parse()?;
            builder
                .max_concurrency(concurrency)
                .min_concurrency(concurrency / 10 * 9)
        }
        None => builder.max_concurrency(10),
    };
    let stopwatch = Stopwatch::start();
    let worker = builder.build().await?;
    let in_time = tokio::time::timeout(limit, calls.done.notified()).await.is_ok();
    let mut elapsed = stopwatch.elapsed();
    let mut done = count_done(&checks)?;
    // A look holds its writer up, so it looks rarely, and the time is that before the look.
    while in_time && done < jobs && elapsed < 2 * limit {
        tokio::time::sleep(Duration::from_millis(10)).await;
        elapsed = stopwatch.elapsed();
        done = count_done(&checks)?;
    }
    if done == 0 || (in_time && done != jobs) {
        return Err(format!("{done} of {jobs} jobs were done").into());
    }
    let drained = stopwatch.rate_over(elapsed, format!("drain: effectum, {settings}"), "jobs/s", done);
    drop(worker);
    let version = rusqlite::version();
    Ok(Report::from(vec![started, drained])
        .fact(
            format!("effectum, {settings}"),
            format!("SQLite {version}, journal {journal}, synchronous 1 (set in its code)"),
        )
        .fact(
            format!("effectum, {settings}: jobs done"),
            format!("{done} of {jobs}{}", if in_time { "" } else { ", cut off" }),
        ))
}

/// By its own table, and only with the result that the processor gave.
fn count_done(connection: &Connection) -> Result<usize, BoxError> {
    let done = "SELECT count(*) FROM jobs WHERE status = 'succeeded' AND finished_at IS NOT NULL AND run_info LIKE '%message-%'";
    let count: i64 = connection.query_row(done, [], |row| row.get(0))?;
    Ok(usize::try_from(count)?)
}
