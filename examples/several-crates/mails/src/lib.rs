//! A library with jobs that need no tables of their own: it works on any store.

use queuert::adapter::StateAdapter;
use queuert::{Attempt, JobResult, JobTypes, WorkerBuilder};
use serde::{Deserialize, Serialize};

/// Sends a mail.
#[derive(Debug, Serialize, Deserialize)]
pub struct Send {
    /// The address.
    pub to: String,
    /// The subject.
    pub subject: String,
}

/// The jobs of this library.
///
/// All applications on one database share the names of job types, so those of a library have its name in front.
#[derive(Debug, JobTypes)]
pub enum Mails {
    /// Its output is the address.
    #[job(entry, output = String, name = "mails.send")]
    Send(Send),
}

/// Adds the processors of this library to a worker of the application. Printing stands for sending.
pub fn processors<S: StateAdapter>(worker: WorkerBuilder<S>) -> WorkerBuilder<S> {
    worker.process(send)
}

#[expect(clippy::print_stdout, reason = "an example talks to its reader")]
async fn send<S: StateAdapter>(job: Attempt<Send, S>) -> JobResult<S> {
    println!("  mails.send       to {}: {}", job.to, job.subject);
    let to = job.to.clone();
    job.finish(to)
}
