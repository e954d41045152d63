//! Worker processes that are killed, stopped and cut off while they run one job each, and how soon the jobs run again.
//!
//! All leases last ten minutes. A job that runs again within the patience of a test does so because the store knew that the
//! process that ran it had died.

mod process;
mod worker;

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

pub use process::Process;
pub use worker::{RETRY, Role, work};

/// A job that one process hangs on and another process finishes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// The number that the process prints.
    pub n: u32,
}

/// How a [`Task`] ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The number of the attempt.
    pub attempt: u32,
    /// The operating system's number of the process that ended it.
    pub process: u32,
    /// The error of the attempt before.
    pub error: Option<String>,
}

/// The job types.
#[derive(Debug, JobTypes)]
pub enum Tasks {
    /// The only type.
    #[job(entry, output = Ended)]
    Task(Task),
}
