//! Kills the processes of a busy Postgres queue with SIGKILL at random moments, restarts the server under it, and checks
//! what is left. See the README beside it.
#![expect(clippy::print_stdout, reason = "its report is what it is for")]

mod check;
mod check_attempts;
mod check_order;
mod facts;
mod jobs;
mod log;
mod process;
mod tables;
mod torture;

pub use check::check;
pub use process::work;
pub use torture::{Plan, torture};

/// Anything that keeps it from doing its work, which is not a broken rule.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
