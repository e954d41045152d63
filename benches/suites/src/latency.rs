//! How long a job waits while everybody is idle, on Postgres with notifications: ours and peers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queuert::{Attempt, Client};
use queuert_measured::{CORES, Figure, Letter, Receipt};
use queuert_postgres::{PostgresNotify, PostgresState};
use tokio::time::{Instant, sleep};

use crate::Options;
use crate::measure::{BoxError, Case, Ratio, Report, Suite, quantile, sorted};
use crate::peers::Peer;
use crate::postgres::ours::SendLetter;
use crate::postgres::server::Server;
use crate::work::check_completed;

const SAMPLES: usize = 300;
const WARM_UP: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// Until the last job has been seen.
const PATIENCE: f64 = 20.0;
const CONCURRENCY: usize = 10;

const OURS: &str = "queuert, one client";
const THROUGH: &str = "queuert, through Postgres";

const PEERS: [Peer; 9] = [
    Peer::new("graphile-worker", "defaults", CONCURRENCY),
    Peer::new("graphile-worker", "fastest", CONCURRENCY),
    Peer::new("sqlxmq", "defaults", CONCURRENCY),
    Peer::new("riverqueue", "defaults", CONCURRENCY),
    Peer::new("riverqueue", "fastest", CONCURRENCY),
    Peer::new("apalis-postgres", "fastest", CONCURRENCY),
    Peer::new("underway", "defaults", CONCURRENCY),
    Peer::new("awa", "defaults", CONCURRENCY),
    Peer::new("pgqrs", "fastest", CONCURRENCY),
];

pub(crate) fn suite(options: &Options) -> Suite {
    let samples = (SAMPLES / options.divide).max(20);
    let mut cases = vec![
        Case::new(OURS, move || ours(OURS, samples, false)),
        Case::new(THROUGH, move || ours(THROUGH, samples, true)),
    ];
    for peer in PEERS {
        cases.push(Case::peer(peer.name(), move || peer.run("latency", samples, PATIENCE)));
    }
    let figure = |part: &str, name: &str| format!("start returned to processor, {part}: {name}");
    let mut ratios = Vec::new();
    for part in ["p50", "p99"] {
        let peers: Vec<String> = PEERS.iter().map(|peer| figure(part, &peer.name())).collect();
        for name in [THROUGH, OURS] {
            let text = format!("best peer's {part} / ours, {}", name.trim_start_matches("queuert, "));
            ratios.push(Ratio::lower(&text, &figure(part, name), &peers, Some(1.0)));
        }
    }
    Suite {
        name: "latency",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!("multi-thread, {CORES} threads, the server on the same machine; a job every {PAUSE:?}"),
            ),
            (
                "queuert",
                format!(
                    "the defaults, Postgres notify, concurrency {CONCURRENCY}; through Postgres: the client that starts \
                     and the one that works share nothing but the database"
                ),
            ),
            (
                "peers",
                "start and work in one process, with a client each where they have several".into(),
            ),
            ("samples per round", samples.to_string()),
        ],
        cases,
        ratios,
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

type Seen = Arc<Mutex<BTreeMap<u64, Instant>>>;

async fn ours(name: &'static str, samples: usize, through: bool) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let (client, state) = client(&server).await?;
    let starter = match through {
        true => self::client(&server).await?.0,
        false => client.clone(),
    };
    let seen = Seen::default();
    let seeing = Arc::clone(&seen);
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, PostgresState>| {
            let now = Instant::now();
            let mut seen = seeing.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(job.0.number).or_insert(now);
            drop(seen);
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(CONCURRENCY)
        .start()
        .await?;
    sleep(Duration::from_secs(1)).await;
    let mut started = Vec::new();
    let mut chains = Vec::new();
    for number in 0..(WARM_UP + samples) as u64 {
        let called = Instant::now();
        chains.push(starter.start(SendLetter(Letter::new(number))).await?.id());
        started.push((called, Instant::now()));
        sleep(PAUSE).await;
    }
    let last = Instant::now();
    while seen.lock().unwrap_or_else(PoisonError::into_inner).len() < started.len() {
        if last.elapsed().as_secs_f64() > PATIENCE {
            return Err("some jobs were not processed".into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    workers.stop().await;
    check_completed(&state, &chains).await?;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let measured = started.iter().zip(seen.values()).skip(WARM_UP);
    let from_call = sorted(measured.clone().map(|((called, _), seen)| millis(*called, *seen)));
    let from_return = sorted(measured.map(|((_, returned), seen)| millis(*returned, *seen)));
    let figure = |what: &str, times: &[f64], part: f64, text: &str| Figure {
        name: format!("start {what} to processor, {text}: {name}"),
        unit: "ms".to_owned(),
        value: quantile(times, part),
        cost: None,
    };
    let figures = vec![
        figure("returned", &from_return, 0.5, "p50"),
        figure("returned", &from_return, 0.99, "p99"),
        figure("called", &from_call, 0.5, "p50"),
        figure("called", &from_call, 0.99, "p99"),
    ];
    state.close().await;
    server.described(Report::from(figures)).await
}

async fn client(server: &Server) -> Result<(Client<PostgresState>, PostgresState), BoxError> {
    let state = server.state(None).await?;
    let notify = PostgresNotify::new(&state);
    Ok((Client::builder(state.clone()).notify(notify).build(), state))
}

/// Below zero if the processor was faster than the answer to whoever started the job.
fn millis(from: Instant, to: Instant) -> f64 {
    let ahead = to.saturating_duration_since(from).as_secs_f64();
    let behind = from.saturating_duration_since(to).as_secs_f64();
    (ahead - behind) * 1e3
}
