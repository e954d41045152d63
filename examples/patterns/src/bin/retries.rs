//! Retries and dead jobs. Every error, panic or timeout in a processor is a failed attempt: it is stored with its error, and
//! retried by the policy of the job type. After the last attempt, or after an error that no retry can fix, the job is dead:
//! it stays, with its error, until its chain is retried or deleted.
//!
//! `cargo run -p patterns --bin retries` prints:
//!
//! ```text
//! flaky: fails twice, then succeeds
//!   attempt 1
//!   attempt 2, after: connection reset
//!   attempt 3, after: connection reset
//!   => fetched flaky
//! busy: says itself when to try again
//!   attempt 1
//!   attempt 2, after: come back in 20 ms
//!   => fetched busy
//! early: is not ready yet, which is no failure
//!   attempt 1
//!   attempt 1
//!   => fetched early
//! slow: takes longer than the timeout of its type, at first
//!   attempt 1
//!   attempt 2, after: timed out after 200ms
//!   => fetched slow
//! buggy: panics, at first
//!   attempt 1
//!   attempt 2, after: panicked: index out of bounds
//!   => fetched buggy
//! gone: no retry would help
//!   attempt 1
//!   => chain <id> is dead: 404, no such page; once that is mended, `retry` sends it on its way again
//! down: fails until its attempts are used up
//!   attempt 1
//!   attempt 2, after: the server is down
//!   attempt 3, after: the server is down
//!   => chain <id> is dead: the server is down; once that is mended, `retry` sends it on its way again
//! Dead chains:
//!   gone: 404, no such page
//!   down: the server is down
//! The server is up again, and somebody retries it:
//!   attempt 1, after: the server is down
//!   => fetched down
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queuert::{JobError, JobStatus, JobTypes, Started};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Fetch {
    page: String,
}

#[derive(JobTypes)]
enum Pages {
    // Delays grow from `initial` by `multiplier` to `maximum`. Without a policy: 25 attempts, from ten seconds to five
    // minutes.
    #[job(
        entry,
        output = String,
        timeout = "200ms",
        retry(max_attempts = 3, initial = "20ms", maximum = "1s", multiplier = 2.0)
    )]
    Fetch(Fetch),
}

/// Fetches a page.
#[derive(Default)]
struct Server {
    is_up: AtomicBool,
    was_asked: AtomicBool,
}

async fn fetch(job: Attempt<Fetch>, server: Arc<Server>) -> JobResult {
    match job.last_error() {
        None => println!("  attempt {}", job.number()),
        Some(error) => println!("  attempt {}, after: {}", job.number(), error.message),
    }
    match (job.page.as_str(), job.number()) {
        // Any error through `?` means: try again by the policy.
        ("flaky", 1 | 2) => Err(std::io::Error::other("connection reset"))?,
        ("busy", 1) => {
            return Err(JobError::retry_after(Duration::from_millis(20), "come back in 20 ms"));
        }
        ("early", _) if !server.was_asked.swap(true, Ordering::Relaxed) => {
            return job.snooze(Duration::from_millis(20)); // the attempt is not spent
        }
        ("slow", 1) => tokio::time::sleep(Duration::from_secs(3_600)).await,
        ("buggy", 1) => panic!("index out of bounds"),
        ("gone", _) => return Err(JobError::fatal("404, no such page")),
        ("down", _) if !server.is_up.load(Ordering::Relaxed) => return Err("the server is down".into()),
        _ => {}
    }
    let body = format!("fetched {}", job.page);
    job.finish(body)
}

async fn print_end(client: &Client, chain: &Started<Fetch>) {
    match client.wait(chain).await {
        Ok(body) => println!("  => {body}"),
        Err(error) => println!("  => {error}"), // `Error::ChainDead`, with the last failure
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The errors of the attempts contain the panics; the usual message on standard error would repeat them.
    std::panic::set_hook(Box::new(|_| {}));
    let client = Client::new(SqliteState::open(":memory:").await?);
    let server = Arc::new(Server::default());
    let workers = client.worker().process_with(Arc::clone(&server), fetch).start().await?;

    for (page, what) in [
        ("flaky", "fails twice, then succeeds"),
        ("busy", "says itself when to try again"),
        ("early", "is not ready yet, which is no failure"),
        ("slow", "takes longer than the timeout of its type, at first"),
        ("buggy", "panics, at first"),
        ("gone", "no retry would help"),
        ("down", "fails until its attempts are used up"),
    ] {
        println!("{page}: {what}");
        let chain = client.start(Fetch { page: page.into() }).await?;
        print_end(&client, &chain).await;
    }

    println!("Dead chains:");
    let dead = client
        .list_chains()
        .starting_with::<Fetch>()
        .statuses([JobStatus::Dead]);
    for chain in dead.oldest_first().await?.items {
        let chain = chain.typed::<Fetch>()?;
        let error = chain.last_error.as_ref().map_or("", |error| &error.message);
        println!("  {}: {error}", chain.input.page);
        if chain.input.page == "down" {
            println!("The server is up again, and somebody retries it:");
            server.is_up.store(true, Ordering::Relaxed);
            client.retry(&chain).await?; // with all its attempts; `retry_many` takes a list
            println!("  => {}", client.wait(&chain).await?);
        }
    }
    workers.stop().await;
    Ok(())
}
