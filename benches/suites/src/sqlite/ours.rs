//! What is measured of our own adapter.

use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, Outcome, Settlement, StateAdapter};
use queuert::{Attempt, ChainId, Client, Fence, JobType, JobTypes, Payload, WorkerId};
use queuert_measured::{Letter, Receipt};
use queuert_sqlite::{SqliteNotify, SqliteState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{BATCH, CONCURRENCY, ENQUEUE, IDLE, VERBS, directory, layout};
use crate::counted::Counted;
use crate::measure::{BoxError, Figure, Report, Stopwatch};
use crate::work::{Countdown, batches, check_completed};

/// Does nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SendLetter(pub(super) Letter);

#[derive(JobTypes)]
enum Letters {
    #[job(entry, output = Receipt)]
    SendLetter(SendLetter),
}

async fn fill<S: StateAdapter>(client: &Client<S>, chains: usize) -> Result<Vec<ChainId>, BoxError> {
    let mut ids = Vec::with_capacity(chains);
    for batch in batches(chains, BATCH) {
        let letters = batch.map(|number| SendLetter(Letter::new(number)));
        let started = client.start_many(letters).await?;
        ids.extend(started.iter().map(|chain| chain.id()));
    }
    Ok(ids)
}

/// Adds how many transactions were committed per unit since `before`.
fn with_transactions(mut figure: Figure, state: &SqliteState, before: u64, units: usize) -> Figure {
    if let Some(cost) = &mut figure.cost {
        cost.transactions = Some((state.commits() - before) as f64 / units as f64);
    }
    figure
}

async fn report(figure: Figure, state: &SqliteState) -> Result<Report, BoxError> {
    let settings = layout::facts(state).await?;
    state.close().await?;
    Ok(Report::from(vec![figure]).fact("queuert", settings))
}

pub(super) async fn enqueue(chains: usize) -> Result<Report, BoxError> {
    let directory = directory()?;
    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    let client = Client::new(state.clone());
    fill(&client, chains).await?;
    let before = state.commits();
    let stopwatch = Stopwatch::start();
    fill(&client, chains).await?;
    let figure = stopwatch.rate(ENQUEUE, "chains/s", chains);
    report(with_transactions(figure, &state, before, chains), &state).await
}

pub(super) async fn drain(name: &'static str, jobs: usize, concurrency: usize) -> Result<Report, BoxError> {
    let directory = directory()?;
    // The calls are counted in a small round of their own: the counter's lock has no place in the measured one.
    let counted = Counted::new(SqliteState::open(directory.path().join("counted.db")).await?);
    let few = (jobs / 20).max(1);
    let client = Client::new(counted.clone());
    let started = fill(&client, few).await?;
    counted.take(1);
    run_out(&client, few, concurrency).await?;
    let verbs = counted.take(few);
    check_completed(client.state(), &started).await?;

    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    let client = Client::new(state.clone());
    let started = fill(&client, jobs).await?;
    let before = state.commits();
    let stopwatch = Stopwatch::start();
    run_out(&client, jobs, concurrency).await?;
    let mut figure = with_transactions(stopwatch.rate(name, "jobs/s", jobs), &state, before, jobs);
    check_completed(&state, &started).await?;
    if let Some(cost) = &mut figure.cost {
        cost.verbs = Some(verbs);
    }
    report(figure, &state).await
}

async fn run_out<S: StateAdapter>(client: &Client<S>, jobs: usize, concurrency: usize) -> Result<(), BoxError> {
    let countdown = Countdown::new(jobs);
    let counting = countdown.clone();
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, S>| {
            counting.one();
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(concurrency)
        .start()
        .await?;
    countdown.done().await;
    // The processors have run; stopping waits until what they returned is committed.
    workers.stop().await;
    Ok(())
}

/// What the store gives without a worker: complete a hundred and claim a hundred at once, again and again. The distance
/// to the raw figure is the adapter's, that to the drain the worker's.
pub(super) async fn verbs(jobs: usize) -> Result<Report, BoxError> {
    let directory = directory()?;
    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    let started = fill(&Client::new(state.clone()), jobs).await?;
    let worker = WorkerId::new("benchmark");
    let types = vec![ClaimType {
        name: SendLetter::NAME.into(),
        lease: Duration::from_secs(60),
    }];
    let receipt = serde_json::to_string(&Receipt::of(&Letter::new(1)))?;
    let before = state.commits();
    let stopwatch = Stopwatch::start();
    let mut ends: Vec<Settlement> = Vec::new();
    loop {
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types.clone(), CONCURRENCY, worker.clone(), fence);
        // Both wait for the writer at the same time, so that they can share a transaction.
        let (settled, claimed) = tokio::join!(state.settle_jobs(None, &ends), state.claim_jobs(&claim));
        settled?;
        let settlement = |claimed: &queuert::adapter::ClaimedJob| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence,
                worker: worker.clone(),
            },
            outcome: Outcome::Finish {
                output: Payload::from_text(receipt.as_str()),
            },
        };
        ends = claimed?.jobs.iter().map(settlement).collect();
        if ends.is_empty() {
            break;
        }
    }
    let figure = with_transactions(stopwatch.rate(VERBS, "jobs/s", jobs), &state, before, jobs);
    check_completed(&state, &started).await?;
    report(figure, &state).await
}

pub(super) async fn singles(
    name: &'static str,
    backlog: usize,
    chains: usize,
    tasks: usize,
) -> Result<Report, BoxError> {
    let directory = directory()?;
    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    let client = Client::new(state.clone());
    fill(&client, backlog).await?;
    let share = chains / tasks;
    let before = state.commits();
    let stopwatch = Stopwatch::start();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..share as u64 {
                    client.start(SendLetter(Letter::new(number))).await?;
                }
                Ok::<_, queuert::Error>(())
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    let figure = stopwatch.rate(name, "chains/s", share * tasks);
    report(with_transactions(figure, &state, before, share * tasks), &state).await
}

/// What a worker process costs that has nothing to do and listens for other processes.
pub(super) async fn idle(seconds: usize) -> Result<Report, BoxError> {
    let directory = directory()?;
    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    let client = Client::builder(state.clone()).notify(SqliteNotify::new(&state)).build();
    let workers = client
        .worker()
        .process(|job: Attempt<SendLetter, SqliteState>| {
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(CONCURRENCY)
        .start()
        .await?;
    // What is done once, at the start, is not what an idle process costs.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let stopwatch = Stopwatch::start();
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    let figure = stopwatch.busy(IDLE).ok_or("the processor time is not known")?;
    workers.stop().await;
    report(figure, &state).await
}
