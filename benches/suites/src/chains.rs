//! Chains of three steps on Postgres, next to jobs of one step and to peers that have chains; and a wide fan-in.

use queuert::{Attempt, ChainId, Client, JobType, JobTypes};
use queuert_measured::{CORES, Figure, Letter, Receipt};
use queuert_postgres::PostgresState;
use serde::{Deserialize, Serialize};

use crate::Options;
use crate::measure::{BoxError, Case, Limit, Ratio, Report, Stopwatch, Suite};
use crate::peers::Peer;
use crate::postgres::BATCH;
use crate::postgres::ours::{drain, report};
use crate::postgres::server::Server;
use crate::work::{Countdown, batches, check_completed};

const CHAINS: usize = 20_000;
/// Peers are slow enough with fewer; they are cut off.
const PEER_CHAINS: usize = 5_000;
const SECONDS: f64 = 8.0;
const STEPS: usize = 3;
const BLOCKERS: usize = 1_000;

const STEP_10: &str = "steps of chains of three: queuert, concurrency 10";
const STEP_100: &str = "steps of chains of three: queuert, concurrency 100";
const CHAIN_10: &str = "chains of three: queuert, concurrency 10";
const CHAIN_100: &str = "chains of three: queuert, concurrency 100";
const ONE_10: &str = "jobs of one step: queuert, concurrency 10";
const ONE_100: &str = "jobs of one step: queuert, concurrency 100";
const FAN_IN: &str = "fan-in of 1,000 chains: queuert";
const NO_FAN_IN: &str = "the same 1,000 chains without fan-in: queuert";

const PEERS: [Peer; 2] = [
    Peer::new("apalis-postgres", "fastest", 100),
    Peer::new("underway", "defaults", 10),
];

/// Passes its letter on.
#[derive(Debug, Serialize, Deserialize)]
struct First(Letter);

#[derive(Debug, Serialize, Deserialize)]
struct Second(Letter);

#[derive(Debug, Serialize, Deserialize)]
struct Third(Letter);

/// One of many that somebody waits for.
#[derive(Debug, Serialize, Deserialize)]
struct Part(Letter);

/// Waits for all.
#[derive(Debug, Serialize, Deserialize)]
struct Sum;

#[derive(JobTypes)]
enum Steps {
    #[job(entry, continues = [Second])]
    First(First),
    #[job(continues = [Third])]
    Second(Second),
    #[job(output = Receipt)]
    Third(Third),
    #[job(entry, output = u64)]
    Part(Part),
    #[job(entry, output = u64, blockers = [Part])]
    Sum(Sum),
}

pub(crate) fn suite(options: &Options) -> Suite {
    let chains = (CHAINS / options.divide).max(BATCH);
    let peer_chains = (PEER_CHAINS / options.divide).max(200);
    let seconds = (SECONDS / options.divide as f64).max(3.0);
    let mut cases = vec![
        Case::new(STEP_10, move || three_steps([CHAIN_10, STEP_10], chains, 10)),
        Case::new(ONE_10, move || drain(ONE_10, STEPS * chains, 10)),
        Case::new(STEP_100, move || three_steps([CHAIN_100, STEP_100], chains, 100)),
        Case::new(ONE_100, move || drain(ONE_100, STEPS * chains, 100)),
        Case::new(FAN_IN, move || fan_in(FAN_IN, true)),
        Case::new(NO_FAN_IN, move || fan_in(NO_FAN_IN, false)),
    ];
    for peer in PEERS {
        let name = format!("chains: {}", peer.name());
        cases.push(Case::peer(name, move || peer.run("chains", peer_chains, seconds)));
    }
    let peers: Vec<String> = PEERS
        .iter()
        .map(|peer| format!("chains of three: {}", peer.name()))
        .collect();
    Suite {
        name: "chains",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!(
                    "multi-thread, {CORES} threads, every side a process of its own, the server on the same machine"
                ),
            ),
            (
                "queuert",
                "the defaults, except the concurrency in the name; no notifications".into(),
            ),
            (
                "chains per round",
                format!("{chains}, started before the clock runs; {peer_chains} for peers"),
            ),
            ("a peer is cut off after", format!("{seconds} s")),
            ("peers", "those that have chains: apalis-workflow, underway".into()),
        ],
        cases,
        ratios: vec![
            Ratio::new("chains, concurrency 10 / best peer's", CHAIN_10, &peers, Some(10.0)),
            Ratio::new("chains, concurrency 100 / best peer's", CHAIN_100, &peers, Some(10.0)),
            Ratio::new("steps / one-step drain, concurrency 10", STEP_10, &[ONE_10], Some(0.6)),
            Ratio::new(
                "steps / one-step drain, concurrency 100",
                STEP_100,
                &[ONE_100],
                Some(0.6),
            ),
        ],
        limits: vec![Limit::of_cost(
            "statements for 1,000 chains and their fan-in",
            FAN_IN,
            |cost| cost.statements.map(|statements| statements * cost.units as f64),
            60.0,
        )],
        plots: Vec::new(),
    }
}

async fn three_steps(names: [&'static str; 2], chains: usize, concurrency: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    let mut started: Vec<ChainId> = Vec::with_capacity(chains);
    for batch in batches(chains, BATCH) {
        let first = batch.map(|number| First(Letter::new(number)));
        started.extend(client.start_many(first).await?.iter().map(|chain| chain.id()));
    }
    let countdown = Countdown::new(STEPS * chains);
    let (one, two, three) = (countdown.clone(), countdown.clone(), countdown.clone());
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let workers = client
        .worker()
        .process(move |job: Attempt<First, PostgresState>| {
            one.one();
            let next = Second(job.0.clone());
            async move { job.continue_with(next) }
        })
        .process(move |job: Attempt<Second, PostgresState>| {
            two.one();
            let next = Third(job.0.clone());
            async move { job.continue_with(next) }
        })
        .process(move |job: Attempt<Third, PostgresState>| {
            three.one();
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(concurrency)
        .start()
        .await?;
    countdown.done().await;
    workers.stop().await;
    let [whole, steps] = names;
    let mut figure = stopwatch.rate(steps, "steps/s", STEPS * chains);
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    let chains = Figure {
        name: whole.to_owned(),
        unit: "chains/s".to_owned(),
        value: figure.value / STEPS as f64,
        cost: None,
    };
    let mut report = report(figure, &state, server).await?;
    report.figures.insert(0, chains);
    Ok(report)
}

/// A thousand chains and, if so wished, one that waits for all of them: started, and drained to the end.
async fn fan_in(name: &'static str, joined: bool) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    // Types are numbered and statements prepared by then.
    run_fan_in(&client, joined, 10).await?;
    let before = server.counts().await?;
    let stopwatch = Stopwatch::start();
    let started = run_fan_in(&client, joined, BLOCKERS).await?;
    let mut figure = stopwatch.rate(name, "chains/s", started.len());
    server.cost_since(&before, &mut figure).await?;
    check_completed(&state, &started).await?;
    report(figure, &state, server).await
}

async fn run_fan_in(client: &Client<PostgresState>, joined: bool, parts: usize) -> Result<Vec<ChainId>, BoxError> {
    let letters = (0..parts as u64).map(|number| Part(Letter::new(number)));
    let parts = client.start_many(letters).await?;
    let mut started: Vec<ChainId> = parts.iter().map(|chain| chain.id()).collect();
    if joined {
        started.push(client.start(Sum.blocked_by(&parts)).await?.id());
    }
    let countdown = Countdown::new(started.len());
    let (part, sum) = (countdown.clone(), countdown.clone());
    let workers = client
        .worker()
        .process(move |job: Attempt<Part, PostgresState>| {
            part.one();
            let number = job.0.number;
            async move { job.finish(number) }
        })
        .process(move |job: Attempt<Sum, PostgresState>| {
            sum.one();
            let all: u64 = job.blockers().iter().sum();
            async move { job.finish(all) }
        })
        .concurrency(100)
        .start()
        .await?;
    countdown.done().await;
    workers.stop().await;
    Ok(started)
}
