//! Deduplication: of all callers that start a chain with the same key, one starts it, and the others get that chain. It
//! is a constraint of the database, so it holds between processes too.
//!
//! `cargo run -p patterns --bin deduplication` prints:
//!
//! ```text
//! While a chain is open:
//!   8 clicks at once started 1 chain, and all have its output: synced
//!   once it has ended, the key is free: deduplicated = false
//! For ever, as an idempotency key:
//!   the first request: invoice 1
//!   the same request again: invoice 1, deduplicated = true
//! At most once in a while:
//!   the first digest: deduplicated = false
//!   another one within the hour: deduplicated = true
//! A chain that starts its own successor:
//!   clean up, run 1
//!   clean up, run 2
//!   clean up, run 3
//!   starting a second such series: deduplicated = true
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queuert::{Deduplication, JobTypes};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

#[derive(Serialize, Deserialize)]
struct Sync;

#[derive(Serialize, Deserialize)]
struct Invoice;

#[derive(Serialize, Deserialize)]
struct Digest;

#[derive(Serialize, Deserialize)]
struct CleanUp {
    run: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = String)]
    Sync(Sync),
    #[job(entry, output = u32)]
    Invoice(Invoice),
    #[job(entry, output = ())]
    Digest(Digest),
    #[job(entry, output = ())]
    CleanUp(CleanUp),
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A series that never ends: each run starts the next one in the transaction in which it ends.
async fn clean_up(job: Attempt<CleanUp>) -> JobResult {
    println!("  clean up, run {}", job.run);
    let next = CleanUp { run: job.run + 1 };
    // The third pause is long enough for this example to end. Yours would be a day.
    let pause = if next.run > 3 { HOUR } else { Duration::from_millis(20) };
    // The key is this run's own until it ends, so it does not count for its successor.
    let series = Deduplication::while_open("clean-up").except_ids([job.chain_id()]);
    let mut tx = job.begin().await?;
    job.client()
        .start(next)
        .delay(pause)
        .deduplicate(series)
        .within(&mut tx)
        .await?;
    tx.finish(()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(SqliteState::open(":memory:").await?);
    let invoices = AtomicU32::new(0);
    let worker = client
        .worker()
        .process(|job: Attempt<Sync>| async move { job.finish("synced".to_owned()) })
        .process(move |job: Attempt<Invoice>| {
            let number = invoices.fetch_add(1, Ordering::Relaxed) + 1;
            async move { job.finish(number) }
        })
        .process(|job: Attempt<Digest>| async move { job.finish(()) })
        .process(clean_up);

    println!("While a chain is open:");
    let mut clicks = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        // Without a scope, a key counts while its chain is open, with all its jobs.
        clicks.spawn(async move { client.start(Sync).deduplicate("customer-7").await });
    }
    let chains = clicks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let started = chains.iter().filter(|chain| !chain.deduplicated()).count();
    let workers = worker.start().await?;
    for chain in &chains {
        assert_eq!(client.wait(chain).await?, "synced");
    }
    println!("  8 clicks at once started {started} chain, and all have its output: synced");
    let known = client.start(Sync).deduplicate("customer-7").await?.deduplicated();
    println!("  once it has ended, the key is free: deduplicated = {known}");

    println!("For ever, as an idempotency key:");
    let once = || Deduplication::forever("request-1");
    let first = client.start(Invoice).deduplicate(once()).await?;
    println!("  the first request: invoice {}", client.wait(&first).await?);
    let again = client.start(Invoice).deduplicate(once()).await?;
    let (number, known) = (client.wait(&again).await?, again.deduplicated());
    println!("  the same request again: invoice {number}, deduplicated = {known}");

    println!("At most once in a while:");
    let hourly = || Deduplication::within("digest-of-ada", HOUR);
    let first = client.start(Digest).deduplicate(hourly()).await?;
    client.wait(&first).await?;
    println!("  the first digest: deduplicated = {}", first.deduplicated());
    let known = client.start(Digest).deduplicate(hourly()).await?.deduplicated();
    println!("  another one within the hour: deduplicated = {known}");

    println!("A chain that starts its own successor:");
    client.start(CleanUp { run: 1 }).deduplicate("clean-up").await?;
    // An example has to end, so it looks until three runs are done; a service would just go on.
    while client.list_chains().starting_with::<CleanUp>().await?.items.len() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let known = client
        .start(CleanUp { run: 1 })
        .deduplicate("clean-up")
        .await?
        .deduplicated();
    println!("  starting a second such series: deduplicated = {known}");
    workers.stop().await;
    Ok(())
}
