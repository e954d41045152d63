//! Worker processes that are killed, stopped and cut off, and how soon their jobs run again.
//!
//! All leases last ten minutes. So a job that runs again within the patience of a test does so because the store knew that
//! its worker had died.

mod process;
mod worker;

use std::error::Error;

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

pub use process::Process;
pub use worker::{RETRY, Role, work};

/// What can go wrong here.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A job that one process hangs on and another one finishes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// Which.
    pub n: u32,
}

/// Who ended a [`Task`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The number of the attempt.
    pub attempt: u32,
    /// The operating system's number of the process.
    pub process: u32,
    /// The error of the attempt before.
    pub error: Option<String>,
}

/// The job types.
#[derive(Debug, JobTypes)]
pub enum Tasks {
    /// The one there is.
    #[job(entry, output = Ended)]
    Task(Task),
}
