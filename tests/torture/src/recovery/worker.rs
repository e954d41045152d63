//! What the worker processes do with their jobs.

use std::io::Write;
use std::time::Duration;

use queuert::adapter::{NotifyAdapter, StateAdapter};
use queuert::{Attempt, Client, Event, LeaseSettings, RetryPolicy};
use queuert_postgres::{PostgresNotify, PostgresState};
use queuert_sqlite::{SqliteNotify, SqliteState};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;

use super::{Ended, Task};
use crate::Result;

/// Longer than any test: no lease ends by itself.
const LEASE: Duration = Duration::from_secs(600);

/// Short, for processes that are to lose a lease by its end.
const SHORT_LEASE: Duration = Duration::from_secs(3);

/// How often a process looks for expired leases that is to find one.
const SHORT_SWEEP: Duration = Duration::from_millis(500);

/// Longer than it takes until the job of a dead process runs again: it does so because its death is noticed.
const LONG_SWEEP: Duration = Duration::from_secs(15);

/// How failures are retried, a crash included.
pub const RETRY: RetryPolicy = RetryPolicy::new().initial(Duration::from_millis(200)).jitter(0.0);

/// What a process does with its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ends them at once.
    Finishes,
    /// The same, and looks for expired leases twice a second.
    Sweeps,
    /// Ends them when it is told to, with a line on its standard input.
    Hangs,
    /// Writes their ends in a transaction, and commits when it is told to. The leases of this process are short.
    Writes,
    /// Dies of them at once.
    Aborts,
}

impl Role {
    /// From an argument of the process.
    pub fn named(name: &str) -> Self {
        match name {
            "hangs" => Self::Hangs,
            "sweeps" => Self::Sweeps,
            "writes" => Self::Writes,
            "aborts" => Self::Aborts,
            _ => Self::Finishes,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hangs => "hangs",
            Self::Writes => "writes",
            Self::Aborts => "aborts",
            Self::Sweeps => "sweeps",
            Self::Finishes => "finishes",
        }
    }
}

/// Runs jobs until its standard input ends. The store is the path of a SQLite file or the URL of a Postgres server; with
/// `quiet+` in front, without wake-ups.
///
/// # Errors
///
/// If the store cannot be opened.
///
/// # Cancel safety
///
/// A dropped future leaves its jobs to their leases.
pub async fn work(store: &str, role: Role) -> Result<()> {
    let (store, quiet) = match store.strip_prefix("quiet+") {
        Some(store) => (store, true),
        None => (store, false),
    };
    if store.starts_with("postgres:") {
        let state = PostgresState::connect(store).await?;
        let notify = PostgresNotify::new(&state);
        run(state, (!quiet).then_some(notify), role).await
    } else {
        let state = SqliteState::open(store).await?;
        let notify = SqliteNotify::new(&state);
        run(state, (!quiet).then_some(notify), role).await
    }
}

async fn run<S: StateAdapter>(state: S, notify: Option<impl NotifyAdapter>, role: Role) -> Result<()> {
    let mut builder = Client::builder(state);
    if let Some(notify) = notify {
        builder = builder.notify(notify);
    }
    let client = builder.build();
    let mut events = client.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                Event::JobReaped { job, cause, .. } => tell(&format!("reaped {} {cause:?}", job.id)),
                Event::AttemptEnded { outcome, .. } => tell(&format!("ended {outcome:?}")),
                _ => {}
            }
        }
    });
    let (told, finish) = watch::channel(matches!(role, Role::Finishes | Role::Sweeps));
    let workers = client
        .worker()
        .process(move |job: Attempt<Task, S>| {
            let mut finish = finish.clone();
            async move {
                let n = job.n;
                tell(&format!("running {n}"));
                if role == Role::Aborts {
                    std::process::abort();
                }
                let ended = Ended {
                    attempt: job.number(),
                    process: std::process::id(),
                    error: job.last_error().map(|error| error.message.clone()),
                };
                // `wait_for` fails only if the process is about to end.
                if role == Role::Writes {
                    let written = job.begin().await?.finish(ended).await?;
                    tell(&format!("written {n}"));
                    let _ = finish.wait_for(|finish| *finish).await;
                    return Ok(written);
                }
                let _ = finish.wait_for(|finish| *finish).await;
                job.finish(ended)
            }
        })
        .lease(LeaseSettings::new(if role == Role::Writes {
            SHORT_LEASE
        } else {
            LEASE
        }))
        .retry(RETRY)
        .reap_interval(if role == Role::Sweeps { SHORT_SWEEP } else { LONG_SWEEP })
        .start()
        .await?;
    tell("started");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        told.send_replace(true);
    }
    workers.stop().await;
    Ok(())
}

/// One line for the parent.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
