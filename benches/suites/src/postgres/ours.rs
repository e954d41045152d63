//! What is measured of our own adapter.

use std::time::Duration;

use queuert::adapter::{Authority, ClaimJobs, ClaimType, Outcome, Settlement, StateAdapter};
use queuert::{Attempt, ChainId, Client, Fence, JobType, JobTypes, Payload, WorkerId};
use queuert_measured::{Letter, Receipt};
use queuert_postgres::PostgresState;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::server::Server;
use super::{BATCH, START, VERBS, WHOLE};
use crate::counted::Counted;
use crate::measure::{BoxError, Figure, Report, Stopwatch};
use crate::work::{Countdown, batches, check_completed};

/// How many jobs the store without a worker claims at once, and in how many tasks.
const VERB_BATCH: usize = 100;
const VERB_TASKS: usize = 2;

/// Statements are prepared and connections opened before the clock runs.
pub(crate) const WARM_UP: Duration = Duration::from_millis(200);

/// Does nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SendLetter(pub(crate) Letter);

#[derive(JobTypes)]
enum Letters {
    #[job(entry, output = Receipt)]
    SendLetter(SendLetter),
}

pub(crate) async fn fill<S: StateAdapter>(client: &Client<S>, chains: usize) -> Result<Vec<ChainId>, BoxError> {
    let mut ids = Vec::with_capacity(chains);
    for batch in batches(chains, BATCH) {
        let letters = batch.map(|number| SendLetter(Letter::new(number)));
        let started = client.start_many(letters).await?;
        ids.extend(started.iter().map(|chain| chain.id()));
    }
    Ok(ids)
}

pub(crate) async fn report(mut figure: Figure, state: &PostgresState, mut server: Server) -> Result<Report, BoxError> {
    if let Some(cost) = &mut figure.cost {
        cost.connections = Some(f64::from(state.pool().size()));
    }
    state.close().await;
    server.described(Report::from(vec![figure])).await
}

pub(super) async fn start(chains: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    fill(&client, chains).await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    fill(&client, chains).await?;
    let mut figure = stopwatch.rate(START, "chains/s", chains);
    server.cost_since(&before, &mut figure).await?;
    report(figure, &state, server).await
}

pub(crate) async fn drain(name: &'static str, jobs: usize, concurrency: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    // The calls are counted in a small round of their own: the counter's lock has no place in the measured one.
    let state = server.state(None).await?;
    let counted = Counted::new(state.clone());
    let few = (jobs / 20).max(1);
    let client = Client::new(counted.clone());
    fill(&client, few).await?;
    counted.take(1);
    run_out(&client, few, concurrency).await?;
    let verbs = counted.take(few);

    let client = Client::new(state.clone());
    let started = fill(&client, jobs).await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    run_out(&client, jobs, concurrency).await?;
    let mut figure = stopwatch.rate(name, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    if let Some(cost) = &mut figure.cost {
        cost.verbs = Some(verbs);
    }
    report(figure, &state, server).await
}

/// Single starts by so many tasks, for so long. Gives how many there were.
pub(crate) async fn start_singly<S: StateAdapter>(
    client: &Client<S>,
    tasks: usize,
    time: Duration,
) -> Result<Vec<ChainId>, BoxError> {
    let begun = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut started = Vec::new();
                while begun.elapsed() < time {
                    let letter = SendLetter(Letter::new(started.len() as u64));
                    started.push(client.start(letter).await?.id());
                }
                Ok::<_, queuert::Error>(started)
            })
        })
        .collect();
    let mut started = Vec::new();
    for task in running {
        started.extend(task.await??);
    }
    Ok(started)
}

/// Every one of them is stored.
pub(crate) async fn check_started<S: StateAdapter>(state: &S, chains: &[ChainId]) -> Result<(), BoxError> {
    let mut found = 0;
    for ids in chains.chunks(BATCH) {
        found += state.get_chains(None, ids).await?.len();
    }
    match found == chains.len() {
        true => Ok(()),
        false => Err(format!("{} chains were started, {found} are stored", chains.len()).into()),
    }
}

pub(super) async fn singles(
    name: &'static str,
    backlog: usize,
    tasks: usize,
    time: Duration,
) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    fill(&client, backlog).await?;
    start_singly(&client, tasks, WARM_UP).await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let started = start_singly(&client, tasks, time).await?;
    let mut figure = stopwatch.rate(name, "chains/s", started.len());
    server.cost_since(&before, &mut figure).await?;
    check_started(&state, &started).await?;
    report(figure, &state, server).await
}

/// Starts chains and drains them one after the other: all that a job writes.
pub(super) async fn whole(jobs: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let started = fill(&client, jobs).await?;
    run_out(&client, jobs, 100).await?;
    let mut figure = stopwatch.rate(WHOLE, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    report(figure, &state, server).await
}

pub(crate) async fn run_out<S: StateAdapter>(
    client: &Client<S>,
    jobs: usize,
    concurrency: usize,
) -> Result<(), BoxError> {
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

/// What the store gives without a worker: claim a hundred and complete a hundred, again and again, in two tasks. The
/// distance to the bare statements is the adapter's, that to the drain the worker's.
pub(super) async fn verbs(jobs: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let started = fill(&Client::new(state.clone()), jobs).await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let tasks: Vec<_> = (0..VERB_TASKS)
        .map(|_| tokio::spawn(work_through(state.clone())))
        .collect();
    for task in tasks {
        task.await??;
    }
    let mut figure = stopwatch.rate(VERBS, "jobs/s", jobs);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    report(figure, &state, server).await
}

async fn work_through(state: PostgresState) -> Result<(), BoxError> {
    let worker = WorkerId::new("benchmark");
    let types = vec![ClaimType {
        name: SendLetter::NAME.into(),
        lease: Duration::from_secs(60),
    }];
    let receipt = serde_json::to_string(&Receipt::of(&Letter::new(1)))?;
    loop {
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types.clone(), VERB_BATCH, worker.clone(), fence);
        let claimed = state.claim_jobs(&claim).await?;
        if claimed.jobs.is_empty() {
            return Ok(());
        }
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
        let ends: Vec<Settlement> = claimed.jobs.iter().map(settlement).collect();
        state.settle_jobs(None, &ends).await?;
    }
}
