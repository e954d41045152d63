//! Measures the verbs of this adapter on a server that nobody else uses:
//! `cargo run --release -p queuert-postgres --example measure -- postgres://postgres@127.0.0.1:5432/test`.
//! It uses the schema `queuert_measure`, and drops it first. A number after the URL is the size of the inputs in bytes.
#![expect(clippy::print_stdout, reason = "a program that prints its figures")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settlement, StateAdapter};
use queuert::{Fence, JobId, Payload, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;
use uuid::Uuid;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const BACKLOG: u64 = 100_000;

/// The size of the inputs, in bytes. Outputs have a third of it.
static INPUT: AtomicUsize = AtomicUsize::new(150);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("which server? give its URL")?;
    if let Some(size) = std::env::args().nth(2) {
        INPUT.store(size.parse()?, Ordering::Relaxed);
    }
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::raw_sql("DROP SCHEMA IF EXISTS queuert_measure CASCADE")
        .execute(&mut connection)
        .await?;
    let state = PostgresState::options().schema("queuert_measure").connect(&url).await?;
    let before = wal(&mut connection).await?;
    enqueue(&state, 1_000).await?;
    let enqueued = wal(&mut connection).await?;
    println!("  WAL per job: enqueue {} bytes", (enqueued - before) / BACKLOG);
    for tasks in [1, 2] {
        let before = wal(&mut connection).await?;
        let done = process(&state, tasks, 100, BACKLOG / 4).await?;
        let after = wal(&mut connection).await?;
        println!("  WAL per job: claim and finish {} bytes", (after - before) / done);
    }
    for tasks in [1, 10] {
        process(&state, tasks, 1, 4_000).await?;
    }
    Ok(())
}

async fn wal(connection: &mut PgConnection) -> Result<u64, Failure> {
    let bytes: i64 = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        .fetch_one(connection)
        .await?;
    Ok(u64::try_from(bytes)?)
}

fn report(what: &str, jobs: u64, began: Instant) {
    let rate = u64::try_from(u128::from(jobs) * 1_000_000 / began.elapsed().as_micros().max(1)).unwrap_or(u64::MAX);
    println!("  {what:<44} {rate:>9} jobs/s");
}

fn chain() -> NewChain {
    // Ascending, as the library's own ids are.
    static LAST: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(LAST.fetch_add(1, Ordering::Relaxed)) << 64 | u128::from(fastrand::u64(..));
    let id = JobId::from_uuid(Uuid::from_u128(number));
    let input = format!("\"{}\"", "x".repeat(INPUT.load(Ordering::Relaxed).saturating_sub(2)));
    NewChain::new(NewJob::new(id, "Nothing", Payload::from_text(input)))
}

async fn enqueue(state: &PostgresState, batch: u64) -> Result<(), Failure> {
    let began = Instant::now();
    for _ in 0..BACKLOG / batch {
        let chains: Vec<NewChain> = (0..batch).map(|_| chain()).collect();
        state
            .create_chains(None, &chains)
            .await?
            .map_err(|refusal| format!("{refusal:?}"))?;
    }
    report(&format!("enqueue in batches of {batch}"), BACKLOG, began);
    Ok(())
}

/// Claims and finishes, so many at a time, from several tasks.
async fn process(state: &PostgresState, tasks: u64, batch: u64, jobs: u64) -> Result<u64, Failure> {
    let began = Instant::now();
    let mut running = Vec::new();
    for task in 0..tasks {
        let state = state.clone();
        running.push(tokio::spawn(async move {
            let worker = WorkerId::new(format!("measure-{task}"));
            let mut done = 0;
            while done < jobs / tasks {
                done += round(&state, &worker, batch).await?;
            }
            Ok::<u64, Failure>(done)
        }));
    }
    let mut done = 0;
    for task in running {
        done += task.await??;
    }
    report(
        &format!("claim {batch} and finish {batch}, {tasks} at once"),
        done,
        began,
    );
    Ok(done)
}

async fn round(state: &PostgresState, worker: &WorkerId, batch: u64) -> Result<u64, Failure> {
    let types = vec![ClaimType {
        name: "Nothing".into(),
        lease: Duration::from_secs(60),
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(types, usize::try_from(batch)?, worker.clone(), fence);
    let claimed = state.claim_jobs(&claim).await?;
    let output = Payload::from_text(format!("\"{}\"", "y".repeat(INPUT.load(Ordering::Relaxed) / 3)));
    let ends: Vec<Settlement> = claimed
        .jobs
        .iter()
        .map(|claimed| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence,
                worker: worker.clone(),
            },
            outcome: Outcome::Finish { output: output.clone() },
        })
        .collect();
    state.settle_jobs(None, &ends).await?;
    Ok(u64::try_from(ends.len())?)
}
