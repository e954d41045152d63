//! Approval: a chain waits for a person, and goes on without an answer at a deadline.
//!
//! The job that waits is due at the deadline. If a person answers before, the handler completes the job from outside, in
//! the transaction that stores the answer. If a worker runs the job, there was no answer in time. Either way the job is
//! completed exactly once.
//!
//! `cargo run -p patterns --bin approval` prints (ids are new each time):
//!
//! ```text
//! Travel for 300: waits for an answer
//!   grace approves
//!   300 paid for travel
//!   => Paid, approved by grace
//!   bob approves: too late, chain <id> is completed, it cannot be changed any more; look at it with `get_chain`, or start another chain
//! Hotel for 900: waits for an answer
//!   nobody answered in time
//!   => Refused
//! 1 answer is written down.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use queuert::{ChainHandle, ChainRef, Error, JobTypes};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct AwaitApproval {
    what: String,
    amount: u32,
}

#[derive(Serialize, Deserialize)]
struct Pay {
    what: String,
    amount: u32,
    approved_by: String,
}

#[derive(Serialize, Deserialize)]
enum Decision {
    Paid { approved_by: String },
    Refused,
}

#[derive(JobTypes)]
enum Expenses {
    #[job(entry, continues = [Pay], output = Decision)]
    AwaitApproval(AwaitApproval),
    #[job(output = Decision)]
    Pay(Pay),
}

/// Runs only if there was no answer before the deadline.
async fn time_is_over(job: Attempt<AwaitApproval>) -> JobResult {
    println!("  nobody answered in time");
    job.finish(Decision::Refused)
}

async fn pay(job: Attempt<Pay>) -> JobResult {
    println!("  {} paid for {}", job.amount, job.what);
    let approved_by = job.approved_by.clone();
    job.finish(Decision::Paid { approved_by })
}

/// The handler of the button. The answer and its effect on the chain are one transaction.
async fn approve(
    client: &Client,
    chain: ChainRef<AwaitApproval>,
    person: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = client.begin().await?;
    sqlx::query("INSERT INTO answers (person) VALUES (?)")
        .bind(person)
        .execute(&mut *tx)
        .await?;
    // Locks the chain: of two people who press the button at the same moment, the second one gets an error.
    let job = client.open::<AwaitApproval>(chain).within(&mut tx).await?;
    let payment = Pay {
        what: job.what.clone(),
        amount: job.amount,
        approved_by: person.to_owned(),
    };
    job.continue_with(payment).await?;
    tx.commit().await?;
    Ok(())
}

async fn file(client: &Client, what: &str, amount: u32, time: Duration) -> Result<ChainRef<AwaitApproval>, Error> {
    println!("{what} for {amount}: waits for an answer");
    let what = what.to_lowercase();
    let chain = client.start(AwaitApproval { what, amount }).delay(time).await?;
    Ok(chain.chain_ref()) // plain data: its id can be part of a link
}

async fn print_decision(client: &Client, chain: ChainRef<AwaitApproval>) -> Result<(), Error> {
    match client.wait(chain).await? {
        Decision::Paid { approved_by } => println!("  => Paid, approved by {approved_by}"),
        Decision::Refused => println!("  => Refused"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let mut tx = client.begin().await?;
    sqlx::query("CREATE TABLE answers (person TEXT NOT NULL)")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    let workers = client.worker().process(time_is_over).process(pay).start().await?;

    const DAY: Duration = Duration::from_secs(86_400);
    let travel = file(&client, "Travel", 300, 3 * DAY).await?;
    println!("  grace approves");
    approve(&client, travel, "grace").await?;
    print_decision(&client, travel).await?;
    if let Err(error) = approve(&client, travel, "bob").await {
        println!("  bob approves: too late, {error}");
    }

    let hotel = file(&client, "Hotel", 900, Duration::from_millis(100)).await?;
    print_decision(&client, hotel).await?;
    workers.stop().await;

    let mut tx = client.begin().await?;
    let answers: i64 = sqlx::query_scalar("SELECT count(*) FROM answers")
        .fetch_one(&mut *tx)
        .await?;
    println!("{answers} answer is written down.");
    Ok(())
}
