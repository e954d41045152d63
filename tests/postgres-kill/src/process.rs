//! What the processes that are killed do.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use queuert::adapter::{Delivery, ObservabilityAdapter};
use queuert::{Event, LeaseSettings, RetryPolicy};
use queuert_postgres::{Client, PostgresNotify, PostgresState};
use tokio::sync::oneshot;

use crate::Result;
use crate::jobs::{Jobs, run};
use crate::log::Log;

/// Workers in each process.
pub(crate) const WORKERS: usize = 10;

/// Runs jobs until its standard input ends: because the parent wants it, or because the parent has gone.
///
/// # Errors
///
/// If the store cannot be opened at all, or a log cannot be written.
///
/// # Cancel safety
///
/// A dropped future leaves attempts to their leases.
pub async fn work(url: &str, directory: &Path, name: &str) -> Result<()> {
    let (sender, stop) = oneshot::channel::<()>();
    // A thread of its own, because a blocking read would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    let state = connect(url).await?;
    let notify = PostgresNotify::new(&state);
    let log = Log::create(directory, name)?;
    let client = Client::builder(state)
        .notify(notify)
        .observability(Noted(log.clone()))
        .build();
    let _told = client
        .worker()
        .process_all::<Jobs, _, _>(run)
        .provide(log)
        .name(name)
        .concurrency(WORKERS)
        // Attempts that were cut off are counted, and there will be many.
        .retry(
            RetryPolicy::new()
                .initial(Duration::from_millis(50))
                .maximum(Duration::from_secs(1))
                .max_attempts(1_000_000),
        )
        // Short, so that what a killed process ran goes on while others are being killed.
        .lease(LeaseSettings::of(Duration::from_secs(6)))
        .reap_interval(Duration::from_secs(1))
        .run_until(stop)
        .await?;
    client.state().close().await;
    Ok(())
}

/// Notes how attempts end and what is reaped, at the moment at which the process learns of it.
struct Noted(Log);

impl ObservabilityAdapter for Noted {
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn event(&self, event: &Event) {
        let line = match event {
            Event::JobReaped { job, owner, .. } => format!("reaped {} {}", job.id, owner.as_str()),
            Event::AttemptEnded { attempt, outcome, .. } => {
                let outcome = format!("{outcome:?}");
                let word = outcome.split([' ', '(', '{']).next().unwrap_or_default();
                format!("ended {} {} {word}", attempt.job.id, attempt.attempt)
            }
            _ => return,
        };
        // A line that is missing is a broken rule.
        let _ = self.0.note(&line);
    }
}

/// A process that is born while the server restarts waits for it.
pub(crate) async fn connect(url: &str) -> Result<PostgresState> {
    for _ in 0..300 {
        match PostgresState::options().max_connections(8).connect(url).await {
            Err(error) if error.kind() == queuert::StateErrorKind::Transient => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            other => return Ok(other?),
        }
    }
    Err("the server does not come back".into())
}
