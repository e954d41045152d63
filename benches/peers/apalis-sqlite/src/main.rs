//! apalis-sqlite: fills its queue in batches and drains it.
//!
//! `defaults`: `Config::default()`, a pool of one connection and the concurrency, nothing else. `fastest`: what its
//! documentation offers for throughput: larger batches, no separate locking of tasks, frequent polling, and
//! `parallelize`. As many in a batch as may run at once were the fastest: 459 jobs/s where 10, 50, 200 and 1,000 gave
//! 364, 417, 359 and 200.
//!
//! Its `setup` switches `synchronous` off, so a loss of power may lose commits or damage the file; the pool has one
//! connection, so that this holds for all of its statements, which is to its advantage.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use queuert_measured::{Arguments, BoxError, CORES, Letter, Receipt, Report, Stopwatch};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::Notify;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CORES)
        .enable_all()
        .build();
    let ran = runtime.map_err(BoxError::from).and_then(|runtime| {
        let report = runtime.block_on(async { tokio::spawn(run()).await? })?;
        // The worker is still polling; it ends with the process.
        runtime.shutdown_background();
        Ok(report.print()?)
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apalis-sqlite: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts calls, and tells when all have been made.
#[derive(Clone, Debug)]
struct Calls(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    made: AtomicUsize,
    all: usize,
    done: Notify,
}

async fn process(letter: Letter, calls: Data<Calls>) -> Result<Receipt, BoxDynError> {
    let Data(Calls(counts)) = &calls;
    if counts.made.fetch_add(1, Ordering::Relaxed) + 1 == counts.all {
        counts.done.notify_one();
    }
    Ok(Receipt::of(&letter))
}

async fn run() -> Result<Report, BoxError> {
    let arguments = Arguments::of_process()?;
    let settings = arguments.text("settings")?.to_owned();
    let jobs: usize = arguments.value("jobs")?;
    let batch: usize = arguments.value("batch")?;
    let concurrency: usize = arguments.value("concurrency")?;
    let limit = Duration::from_secs(arguments.value("seconds")?);
    let options = SqliteConnectOptions::new()
        .filename(arguments.text("file")?)
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options.clone())
        .await?;
    SqliteStorage::setup(&pool).await?;
    let facts = facts(&pool).await?;

    let config = Config::default().queue("letters");
    let config = match settings.as_str() {
        "defaults" => config,
        "fastest" => config.batch_size(concurrency).lock_tasks(false),
        other => return Err(format!("there are no settings `{other}`").into()),
    };
    let mut storage = SqliteStorage::<Letter>::new(&pool).with_config(config);
    let stopwatch = Stopwatch::start();
    for first in (0..jobs).step_by(batch) {
        let letters = first..(first + batch).min(jobs);
        let letters = letters.map(|number| Letter::new(number as u64)).collect();
        storage.push_bulk(letters).await?;
    }
    let name = format!("start, batches of 1,000: apalis-sqlite, {settings}");
    let started = stopwatch.rate(name, "chains/s", jobs);

    let calls = Calls(Arc::new(Counts {
        made: AtomicUsize::new(0),
        all: jobs,
        done: Notify::new(),
    }));
    // The checks have a connection of their own: they should not wait behind the worker's.
    let mut checks = options.read_only(true).connect().await?;
    let stopwatch = Stopwatch::start();
    if settings == "defaults" {
        let worker = WorkerBuilder::new("benchmark")
            .backend(storage)
            .data(calls.clone())
            .concurrency(concurrency)
            .build(process);
        tokio::spawn(worker.run());
    } else {
        let worker = WorkerBuilder::new("benchmark")
            .backend(storage.poll_with_interval(Duration::from_millis(10)))
            .data(calls.clone())
            .concurrency(concurrency)
            .parallelize(tokio::spawn)
            .build(process);
        tokio::spawn(worker.run());
    }
    let all_called = calls.0.done.notified();
    let in_time = tokio::time::timeout(limit, all_called).await.is_ok();
    let mut done = count_done(&mut checks).await?;
    while in_time && done < jobs && stopwatch.elapsed() < 2 * limit {
        tokio::time::sleep(Duration::from_millis(5)).await;
        done = count_done(&mut checks).await?;
    }
    if done == 0 || (in_time && done != jobs) {
        return Err(format!("{done} of {jobs} jobs were done").into());
    }
    let drained = stopwatch.rate(format!("drain: apalis-sqlite, {settings}"), "jobs/s", done);
    Ok(Report::from(vec![started, drained])
        .fact(format!("apalis-sqlite, {settings}"), facts)
        .fact(
            format!("apalis-sqlite, {settings}: jobs done"),
            format!("{done} of {jobs}{}", if in_time { "" } else { ", cut off" }),
        ))
}

/// By its own table, and only with the result that the processor gave.
async fn count_done(connection: &mut SqliteConnection) -> Result<usize, BoxError> {
    let count: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM Jobs WHERE status = 'Done' AND done_at IS NOT NULL AND last_result LIKE '%message-%'",
    )
    .fetch_one(connection)
    .await?;
    Ok(usize::try_from(count)?)
}

async fn facts(pool: &SqlitePool) -> Result<String, BoxError> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await?;
    let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(pool).await?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(pool).await?;
    let cache: i64 = sqlx::query_scalar("PRAGMA cache_size").fetch_one(pool).await?;
    Ok(format!(
        "SQLite {version}, journal {journal}, synchronous {synchronous}, cache_size {cache}"
    ))
}
