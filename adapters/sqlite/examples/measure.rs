//! Measures this adapter on a file in a temporary directory: `cargo run --release -p queuert-sqlite --example measure`.
//! With `idle <file> <seconds>` as arguments it is one idle worker process, whose use of the processor `time` tells.
#![expect(clippy::print_stdout, reason = "a program that prints its figures")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, Settlement, StateAdapter};
use queuert::{Client, Fence, JobId, JobTypes, Payload, WorkerId};
use queuert_sqlite::{Attempt, SqliteNotify, SqliteState, Synchronous};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
struct Nothing {
    number: u64,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Nothing(Nothing),
}

type Failure = Box<dyn std::error::Error>;

const BACKLOG: u64 = 100_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, file, seconds] = arguments.as_slice()
        && mode == "idle"
    {
        return idle(file, Duration::from_secs(seconds.parse()?)).await;
    }
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        println!("{synchronous:?}");
        let directory = tempfile::tempdir()?;
        let state = SqliteState::options()
            .synchronous(synchronous)
            .open(directory.path().join("measure.db"))
            .await?;
        enqueue(&state).await?;
        verbs(&state).await?;
        singles(&state).await?;
        drain(state).await?;
    }
    Ok(())
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
    NewChain::new(NewJob::new(id, "Nothing", Payload::from_text("{\"number\":1}")))
}

async fn enqueue(state: &SqliteState) -> Result<(), Failure> {
    let began = Instant::now();
    for _ in 0..BACKLOG / 1_000 {
        let chains: Vec<NewChain> = (0..1_000).map(|_| chain()).collect();
        state
            .create_chains(None, &chains)
            .await?
            .map_err(|refusal| format!("{refusal:?}"))?;
    }
    report("enqueue in batches of 1,000", BACKLOG, began);
    Ok(())
}

/// What the store gives without a worker: complete a hundred and claim a hundred, again and again.
async fn verbs(state: &SqliteState) -> Result<(), Failure> {
    let worker = WorkerId::new("measure");
    let types = vec![ClaimType {
        name: "Nothing".into(),
        lease: Duration::from_secs(60),
    }];
    let began = Instant::now();
    let mut done = 0;
    let mut ends: Vec<Settlement> = Vec::new();
    for _ in 0..200 {
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types.clone(), 100, worker.clone(), fence);
        // Both wait for the writer at the same time, so they share a transaction.
        let (settled, claimed) = tokio::join!(state.settle_jobs(None, &ends), state.claim_jobs(&claim));
        settled?;
        let claimed = claimed?;
        done += u64::try_from(claimed.jobs.len())?;
        ends = claimed
            .jobs
            .iter()
            .map(|claimed| Settlement {
                job: claimed.job.id,
                authority: Authority::Fence {
                    fence,
                    worker: worker.clone(),
                },
                outcome: Outcome::Finish {
                    output: Payload::from_text("null"),
                },
            })
            .collect();
    }
    state.settle_jobs(None, &ends).await?;
    report("complete 100 + claim 100", done, began);
    Ok(())
}

async fn singles(state: &SqliteState) -> Result<(), Failure> {
    for tasks in [1, 16] {
        let began = Instant::now();
        let each = 8_000 / tasks;
        let starters: Vec<_> = (0..tasks)
            .map(|_| {
                let state = state.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        state
                            .create_chains(None, &[chain()])
                            .await
                            .map_err(|error| error.to_string())?
                            .ok();
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        for starter in starters {
            starter.await??;
        }
        report(&format!("single starts from {tasks} task(s)"), each * tasks, began);
    }
    Ok(())
}

async fn drain(state: SqliteState) -> Result<(), Failure> {
    let client = Client::new(state.clone());
    let began = Instant::now();
    let workers = client
        .worker()
        .process(|job: Attempt<Nothing>| async move { job.finish(()) })
        .concurrency(100)
        .start()
        .await?;
    let left = BACKLOG - 20_000;
    let mut query = queuert::adapter::JobQuery::default();
    query.statuses = Some(vec![queuert::JobStatus::Pending]);
    query.limit = 1;
    while !state.list_jobs(None, &query).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    report("drain of no-op jobs at concurrency 100", left + 16_000, began);
    workers.stop().await;
    Ok(())
}

async fn idle(file: &str, time: Duration) -> Result<(), Failure> {
    let state = SqliteState::open(file).await?;
    let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
    let workers = client
        .worker()
        .process(|job: Attempt<Nothing>| async move { job.finish(()) })
        .concurrency(8)
        .start()
        .await?;
    tokio::time::sleep(time).await;
    workers.stop().await;
    Ok(())
}
