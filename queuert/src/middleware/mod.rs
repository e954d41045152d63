//! Middlewares that are ready to use.
//!
//! They are ordinary [`Middleware`](crate::Middleware)s: they wrap attempts in the given order, the first one
//! outermost, and none of them can lose a job.
//!
//! ```
//! use std::time::Duration;
//!
//! use queuert::memory::{Attempt, MemoryState};
//! use queuert::middleware::{LimitConcurrency, LogAttempts, ReportPanics, Timeout, TraceAttempts};
//! use queuert::{Client, Error};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct SendMail { to: String }
//! # #[derive(queuert::JobTypes)]
//! # enum Mails { #[job(entry, output = ())] SendMail(SendMail) }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let client = Client::new(MemoryState::new());
//! let chain = client.start(SendMail { to: "ada@example.com".into() }).await?;
//! client
//!     .worker()
//!     .middleware(TraceAttempts::new())
//!     .middleware(LogAttempts::new())
//!     .middleware(ReportPanics::new(|panic| eprintln!("{panic}")))
//!     .middleware(LimitConcurrency::of::<SendMail>(2))
//!     .middleware(Timeout::new(Duration::from_secs(60))) // does not count the time in the line
//!     .process(|job: Attempt<SendMail>| async move { job.finish(()) })
//!     .drain()
//!     .await?;
//! # client.wait(&chain).await?;
//! # Ok(()) }
//! ```
//!
//! With the feature `tower`, `TowerMiddleware` wraps attempts in any layer of tower.

mod limit;
mod log;
mod panics;
mod timeout;
#[cfg(feature = "tower")]
mod tower;
mod trace;

pub use limit::LimitConcurrency;
pub use log::LogAttempts;
pub use panics::{PanicReport, ReportPanics};
pub use timeout::Timeout;
#[cfg(feature = "tower")]
pub use tower::{AttemptFailure, AttemptRequest, AttemptService, TowerMiddleware};
pub use trace::TraceAttempts;

use crate::adapter::StateAdapter;
use crate::worker::{CompletionKind, JobResult};

/// How the layers inside ended, in a word.
fn outcome<S: StateAdapter>(result: &JobResult<S>) -> &'static str {
    match result {
        Ok(completion) => match completion.kind() {
            CompletionKind::Finish => "finished",
            CompletionKind::Continue { .. } => "continued",
            CompletionKind::Snooze => "snoozed",
        },
        Err(error) if error.lease_lost().is_some() => "aborted",
        Err(_) => "failed",
    }
}
