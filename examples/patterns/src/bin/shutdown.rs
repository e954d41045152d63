//! Graceful shutdown: on SIGTERM or Ctrl-C the workers claim no new job. Running attempts have a grace period. Attempts
//! that have not ended by then are told to stop, and their jobs become pending without a spent attempt. The next process
//! that works on the database runs them.
//!
//! ```sh
//! cargo run -p patterns --bin shutdown -- shutdown.db    # press Ctrl-C while it runs, and run it again
//! ```
//!
//! A run that is told to stop prints something like:
//!
//! ```text
//!   mail    begins, attempt 1
//!   export  begins at row 0, attempt 1
//! Told to stop: what runs has half a second.
//!   mail    is sent
//!   export  stops at row 14: the worker is stopping
//! All workers have stopped. Run it again to go on, or delete shutdown.db to start afresh.
//! ```
//!
//! and the next one goes on:
//!
//! ```text
//!   export  begins at row 14, attempt 1
//!   export  is done
//! All is done, 60 rows.
//! All workers have stopped. Run it again to go on, or delete shutdown.db to start afresh.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::{Deduplication, JobTypes};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Mail;

#[derive(Serialize, Deserialize)]
struct Export {
    rows: i64,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Mail(Mail),
    #[job(entry, output = i64)]
    Export(Export),
}

/// Shorter than the grace period, so it ignores shutdowns.
async fn mail(job: Attempt<Mail>) -> JobResult {
    println!("  mail    begins, attempt {}", job.number());
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!("  mail    is sent");
    job.finish(())
}

/// Longer than the grace period, so it stores its progress and checks the signal.
async fn export(job: Attempt<Export>) -> JobResult {
    let mut row: i64 = job
        .prepare(async |tx| {
            sqlx::query_scalar("SELECT rows FROM progress")
                .fetch_one(&mut **tx)
                .await
        })
        .await?;
    println!("  export  begins at row {row}, attempt {}", job.number());
    let signal = job.signal();
    while row < job.rows {
        // `signal.aborted().await` waits for it, for use in `tokio::select!`.
        if let Some(reason) = signal.reason() {
            println!("  export  stops at row {row}: {reason}");
            return Err(reason.into()); // not a failure: the job goes back, the attempt is not spent
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        row = job
            .prepare(async |tx| {
                sqlx::query_scalar("UPDATE progress SET rows = rows + 1 RETURNING rows")
                    .fetch_one(&mut **tx)
                    .await
            })
            .await?;
    }
    println!("  export  is done");
    job.finish(row)
}

/// SIGTERM is what service managers send; Ctrl-C is for people.
async fn told_to_stop() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "shutdown.db".to_owned());
    let client = Client::new(SqliteState::open(&path).await?);

    // The first run on this file starts the work, the later ones find it.
    let mut tx = client.begin().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS progress (rows INTEGER NOT NULL)")
        .execute(&mut *tx)
        .await?;
    sqlx::query("INSERT INTO progress SELECT 0 WHERE NOT EXISTS (SELECT * FROM progress)")
        .execute(&mut *tx)
        .await?;
    let once = || Deduplication::forever("example");
    let sending = client.start(Mail).deduplicate(once()).within(&mut tx).await?;
    let exporting = client
        .start(Export { rows: 60 })
        .deduplicate(once())
        .within(&mut tx)
        .await?;
    tx.commit().await?;

    let workers = client
        .worker()
        .process(mail)
        .process(export)
        .concurrency(2)
        .grace(Duration::from_millis(500)) // half a minute by default: stay below what your service manager allows
        .start()
        .await?;
    let all_done = async {
        client.wait(&sending).await?;
        client.wait(&exporting).await
    };
    tokio::select! {
        told = told_to_stop() => {
            told?;
            println!("Told to stop: what runs has half a second.");
        }
        rows = all_done => println!("All is done, {} rows.", rows?),
    }
    workers.stop().await; // `.run_until(told_to_stop())` in place of `start` does both
    println!("All workers have stopped. Run it again to go on, or delete {path} to start afresh.");
    client.state().close().await?;
    Ok(())
}
