//! Transactions at both ends. A chain exists if and only if the transaction that started it commits. A processor's writes,
//! the output and the completion of its job are committed together or not at all.
//!
//! `cargo run -p patterns --bin transactional` prints:
//!
//! ```text
//! ada has 100, bob has 0
//! A request that is rolled back leaves 0 requests and 0 chains.
//! One that is committed leaves 1 request and 1 chain.
//!   attempt 1: 30 taken from ada, and then the power fails
//!   attempt 2: ada has 100, bob has 0, as if nothing had happened
//!   attempt 2: 30 taken from ada, 30 given to bob
//! ada has 70, bob has 30
//! A transfer of 500 is refused: ada has only 70.
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use queuert::JobTypes;
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState, Transaction};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Serialize, Deserialize)]
struct Transfer {
    amount: i64,
}

#[derive(Serialize, Deserialize)]
enum Outcome {
    Done,
    Refused { has: i64 },
}

#[derive(JobTypes)]
enum Bank {
    #[job(entry, output = Outcome, retry(initial = "20ms"))]
    Transfer(Transfer),
}

async fn transfer(job: Attempt<Transfer>) -> JobResult {
    // From here on everything is in one transaction. `&mut *tx` is a connection of sqlx.
    let mut tx = job.begin().await?;
    let (ada, bob) = balances(&mut tx).await?;
    if job.number() > 1 {
        println!(
            "  attempt {}: ada has {ada}, bob has {bob}, as if nothing had happened",
            job.number()
        );
    }
    if ada < job.amount {
        return tx.finish(Outcome::Refused { has: ada }).await;
    }
    change(&mut tx, "ada", -job.amount).await?;
    if job.number() == 1 && job.amount == 30 {
        println!("  attempt 1: 30 taken from ada, and then the power fails");
        return Err("the power fails".into()); // any error, also one through `?`, rolls back
    }
    change(&mut tx, "bob", job.amount).await?;
    println!(
        "  attempt {}: {1} taken from ada, {1} given to bob",
        job.number(),
        job.amount
    );
    tx.finish(Outcome::Done).await // the worker commits, after it has checked that the job is still this attempt's
}

async fn balances(connection: &mut SqliteConnection) -> sqlx::Result<(i64, i64)> {
    sqlx::query_as(
        "SELECT (SELECT balance FROM accounts WHERE name = 'ada'), (SELECT balance FROM accounts WHERE name = 'bob')",
    )
    .fetch_one(connection)
    .await
}

async fn change(connection: &mut SqliteConnection, name: &str, amount: i64) -> sqlx::Result<()> {
    sqlx::query("UPDATE accounts SET balance = balance + ? WHERE name = ?")
        .bind(amount)
        .bind(name)
        .execute(connection)
        .await
        .map(drop)
}

/// A request handler: it writes a row of its own and starts the chain in one transaction.
async fn request(client: &Client, amount: i64) -> Result<(Transaction, queuert::Started<Transfer>)> {
    let mut tx = client.begin().await?;
    sqlx::query("INSERT INTO requests (amount) VALUES (?)")
        .bind(amount)
        .execute(&mut *tx)
        .await?;
    let chain = client.start(Transfer { amount }).within(&mut tx).await?;
    Ok((tx, chain))
}

async fn print_balances(client: &Client) -> Result<()> {
    let mut tx = client.begin().await?;
    let (ada, bob) = balances(&mut tx).await?;
    println!("ada has {ada}, bob has {bob}");
    Ok(()) // dropped, a transaction is rolled back
}

async fn counts(client: &Client) -> Result<(i64, usize)> {
    let mut tx = client.begin().await?;
    let requests = sqlx::query_scalar("SELECT count(*) FROM requests")
        .fetch_one(&mut *tx)
        .await?;
    let chains = client.list_chains().within(&mut tx).await?.items.len();
    Ok((requests, chains))
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let mut tx = client.begin().await?;
    for statement in [
        "CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)",
        "CREATE TABLE requests (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
        "INSERT INTO accounts VALUES ('ada', 100), ('bob', 0)",
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    print_balances(&client).await?;

    let (tx, _) = request(&client, 30).await?;
    tx.rollback().await?;
    let (requests, chains) = counts(&client).await?;
    println!("A request that is rolled back leaves {requests} requests and {chains} chains.");

    let (tx, chain) = request(&client, 30).await?;
    tx.commit().await?;
    let (requests, chains) = counts(&client).await?;
    println!("One that is committed leaves {requests} request and {chains} chain.");

    let workers = client.worker().process(transfer).start().await?;
    client.wait(&chain).await?;
    print_balances(&client).await?;

    let (tx, chain) = request(&client, 500).await?;
    tx.commit().await?;
    if let Outcome::Refused { has } = client.wait(&chain).await? {
        println!("A transfer of 500 is refused: ada has only {has}.");
    }
    workers.stop().await;
    Ok(())
}
