//! How long it takes until a process that has nothing to do notices what another one has started.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use queuert::{Attempt, Client, JobStatus};
use queuert_measured::{Letter, Receipt};
use queuert_sqlite::{SqliteNotify, SqliteState};
use tokio::process::Command;

use super::ours::SendLetter;
use super::{CONCURRENCY, WAKE, directory};
use crate::measure::{BoxError, Figure, Report, quantile, sorted};

/// Names the file to the other process.
const FILE: &str = "QUEUERT_WAKE_FILE";

/// Between two starts, so that everybody is idle again, and not in step with whoever looks at the file.
const PAUSE: [u64; 5] = [61, 73, 89, 97, 113];

/// The time between the creation and the claim of a job, both as stored: this process works, another one starts.
pub(super) async fn between_processes(samples: usize) -> Result<Report, BoxError> {
    if let Some(file) = std::env::var_os(FILE) {
        return start(file.as_ref(), samples).await;
    }
    let directory = directory()?;
    let path = directory.path().join("queue.db");
    let state = SqliteState::open(&path).await?;
    let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
    let workers = client
        .worker()
        .process(|job: Attempt<SendLetter, SqliteState>| {
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(CONCURRENCY)
        // A poll must not pass for a wake-up.
        .poll_interval(Duration::from_secs(3_600))
        .start()
        .await?;
    let starter = Command::new(std::env::current_exe()?)
        .args(["sqlite", "--case", WAKE])
        .env(FILE, &path)
        .stdout(Stdio::null())
        .status()
        .await?;
    if !starter.success() {
        return Err("the process that starts chains failed".into());
    }
    let mut micros = Vec::with_capacity(samples);
    while micros.len() < samples {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let jobs = client
            .list_jobs()
            .statuses([JobStatus::Completed])
            .limit(samples)
            .await?;
        micros = jobs
            .items
            .iter()
            .filter_map(|job| job.started_at.map(|at| at.saturating_duration_since(job.created_at)))
            .map(|waited| waited.as_secs_f64() * 1e6)
            .collect();
    }
    workers.stop().await;
    state.close().await?;
    let micros = sorted(micros);
    let figure = |name: &str, part| Figure {
        name: format!("{WAKE}, {name}"),
        unit: "µs".to_owned(),
        value: quantile(&micros, part),
        cost: None,
    };
    Ok(Report::from(vec![figure("p50", 0.5), figure("p99", 0.99)]))
}

/// The other process.
async fn start(file: &Path, samples: usize) -> Result<Report, BoxError> {
    let state = SqliteState::open(file).await?;
    let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
    for number in 0..samples {
        tokio::time::sleep(Duration::from_millis(PAUSE[number % PAUSE.len()])).await;
        client.start(SendLetter(Letter::new(number as u64))).await?;
    }
    state.close().await?;
    Ok(Report::from(Vec::new()))
}
