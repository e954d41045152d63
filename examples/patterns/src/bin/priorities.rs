//! Priorities that age: each unit of priority is worth one minute of waiting. So urgent jobs go first, a job that has
//! waited for long goes before a new urgent one, and no job starves.
//!
//! `cargo run -p patterns --bin priorities` prints:
//!
//! ```text
//! Started: newsletter, receipt, reset-password, alarm
//! Run by one worker, the most urgent first:
//!   alarm (priority 20)
//!   reset-password (priority 10)
//!   receipt (priority 0)
//!   newsletter (priority -5)
//! A newsletter that has waited for twelve steps goes before an alarm that is nine steps more urgent:
//!   newsletter (priority -5)
//!   alarm (priority 4)
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::{JobTypes, Step};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Mail {
    what: String,
}

#[derive(Serialize, Deserialize)]
struct Newsletter;

#[derive(JobTypes)]
enum Mails {
    #[job(entry, output = ())] // priority 0
    Mail(Mail),
    #[job(entry, output = (), priority = -5)] // the default of its type
    Newsletter(Newsletter),
}

async fn mail(job: Attempt<Mail>) -> JobResult {
    println!("  {} (priority {})", job.what, job.record().priority);
    job.finish(())
}

async fn newsletter(job: Attempt<Newsletter>) -> JobResult {
    println!("  newsletter (priority {})", job.record().priority);
    job.finish(())
}

fn named(what: &str) -> Mail {
    Mail { what: what.into() }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let newsletter_of_may = client.start(Newsletter).await?;
    client.start(named("receipt")).await?;
    client.start(named("reset-password")).priority(10).await?; // of this one job, instead of its type's
    client.start_many([Step::new(named("alarm")).priority(20)]).await?; // the same, in a list
    println!("Started: newsletter, receipt, reset-password, alarm");

    println!("Run by one worker, the most urgent first:");
    let workers = client.worker().process(mail).process(newsletter).start().await?;
    client.wait(&newsletter_of_may).await?; // the last one
    workers.stop().await;

    println!("A newsletter that has waited for twelve steps goes before an alarm that is nine steps more urgent:");
    let step = Duration::from_millis(50); // instead of a minute, so that you need not wait for twelve
    let client = Client::new(SqliteState::options().ageing_step(step).open(":memory:").await?);
    client.start(Newsletter).await?;
    tokio::time::sleep(12 * step).await;
    let alarm = client.start(named("alarm")).priority(4).await?;
    let workers = client.worker().process(mail).process(newsletter).start().await?;
    client.wait(&alarm).await?;
    workers.stop().await;
    Ok(())
}
