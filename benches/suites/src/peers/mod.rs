//! Peers on Postgres and ours, in the same rounds, on the same server, with the same payloads.

mod ours;

use std::time::Duration;

use queuert_measured::CORES;

use crate::Options;
use crate::measure::{BoxError, Case, Ratio, Report, Suite};
use crate::peer;
use crate::postgres::BATCH;
use crate::postgres::ours::drain;
use crate::postgres::server;

/// How many jobs wait before a drain.
const JOBS: usize = 50_000;
/// A drain that is not over by then is cut off, and what is done counts.
const SECONDS: f64 = 5.0;
/// As long as single starts are timed, and half as long as batches at most.
const START_SECONDS: f64 = 2.0;
const SINGLE_TASKS: usize = 16;

const DEFAULT_DRAIN: &str = "drain: queuert, defaults, concurrency 10";
const DRAIN: &str = "drain: queuert, defaults, concurrency 100";
const STARTS: &str = "starts: queuert";

/// A program of `benches/peers/postgres` with the settings that it is run with.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    program: &'static str,
    /// `defaults` or `fastest`; what that means for each is written in its program.
    settings: &'static str,
    concurrency: usize,
}

impl Peer {
    pub(crate) const fn new(program: &'static str, settings: &'static str, concurrency: usize) -> Self {
        Self {
            program,
            settings,
            concurrency,
        }
    }

    /// In the names of figures.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}, concurrency {}", self.program, self.settings, self.concurrency)
    }

    pub(crate) async fn run(self, work: &str, jobs: usize, seconds: f64) -> Result<Report, BoxError> {
        let arguments = [
            ("url", server::url()?),
            ("work", work.to_owned()),
            ("settings", self.settings.to_owned()),
            ("concurrency", self.concurrency.to_string()),
            ("name", self.name()),
            ("jobs", jobs.to_string()),
            ("seconds", seconds.to_string()),
        ];
        peer::run(self.program, &arguments).await
    }
}

/// Each with its defaults at ten, and with its fastest settings at ten and at its best, where they differ.
const DRAINS: [Peer; 14] = [
    Peer::new("graphile-worker", "defaults", 10),
    Peer::new("graphile-worker", "fastest", 10),
    Peer::new("graphile-worker", "fastest", 100),
    Peer::new("pgqrs", "defaults", 10),
    Peer::new("pgqrs", "fastest", 10),
    Peer::new("awa", "defaults", 10),
    Peer::new("awa", "fastest", 200),
    Peer::new("apalis-postgres", "defaults", 10),
    Peer::new("apalis-postgres", "fastest", 10),
    Peer::new("riverqueue", "defaults", 10),
    Peer::new("riverqueue", "fastest", 500),
    Peer::new("sqlxmq", "defaults", 10),
    Peer::new("sqlxmq", "fastest", 50),
    Peer::new("underway", "defaults", 10),
];

/// What is started does not depend on how it would be worked on.
const STARTERS: [Peer; 7] = [
    Peer::new("graphile-worker", "defaults", 10),
    Peer::new("pgqrs", "defaults", 10),
    Peer::new("awa", "defaults", 10),
    Peer::new("apalis-postgres", "defaults", 10),
    Peer::new("riverqueue", "defaults", 10),
    Peer::new("sqlxmq", "defaults", 10),
    Peer::new("underway", "defaults", 10),
];

/// The peers that the drain must be four times as fast as.
const FOUR_TIMES: [&str; 4] = ["apalis-postgres", "riverqueue", "awa", "pgqrs"];

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = (JOBS / options.divide).max(BATCH);
    let divide = options.divide as f64;
    let seconds = (SECONDS / divide).max(2.0);
    let start_seconds = (START_SECONDS / divide).max(0.3);
    let time = Duration::from_secs_f64(start_seconds);
    let mut cases = vec![
        Case::new(STARTS, move || ours::starts(jobs, SINGLE_TASKS, time)),
        Case::new(DEFAULT_DRAIN, move || drain(DEFAULT_DRAIN, jobs, 10)),
        Case::new(DRAIN, move || drain(DRAIN, jobs, 100)),
    ];
    for peer in STARTERS {
        let name = format!("starts: {}", peer.program);
        cases.push(Case::peer(name, move || peer.run("starts", jobs, start_seconds)));
    }
    for peer in DRAINS {
        let name = format!("drain: {}", peer.name());
        cases.push(Case::peer(name, move || peer.run("drain", jobs, seconds)));
    }
    Suite {
        name: "peers",
        rounds: 3,
        settings: settings(jobs, seconds, start_seconds),
        cases,
        ratios: ratios(),
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

fn settings(jobs: usize, seconds: f64, start_seconds: f64) -> Vec<(&'static str, String)> {
    vec![
        (
            "runtime",
            format!("multi-thread, {CORES} threads, every side a process of its own, the server on the same machine"),
        ),
        ("queuert", "the defaults, and the concurrency in the name".into()),
        (
            "peers",
            "see the first lines of benches/peers/postgres/*/src/main.rs; at most 20 connections".into(),
        ),
        (
            "jobs waiting before a drain",
            format!("{jobs}; fewer for a peer that needs more than 6 s to start them"),
        ),
        ("a peer's drain is cut off after", format!("{seconds} s")),
        ("single starts are timed for", format!("{start_seconds} s")),
        (
            "payload",
            "about 150 bytes of JSON in, 50 out; decoded and answered; kept by queuert and apalis".into(),
        ),
    ]
}

fn ratios() -> Vec<Ratio> {
    let drains = |wanted: &dyn Fn(&Peer) -> bool| -> Vec<String> {
        let chosen = DRAINS.iter().filter(|peer| wanted(peer));
        chosen.map(|peer| format!("drain: {}", peer.name())).collect()
    };
    let starts =
        |what: &str| -> Vec<String> { STARTERS.iter().map(|peer| format!("{what}: {}", peer.name())).collect() };
    let defaults = drains(&|peer| peer.settings == "defaults");
    let four = drains(&|peer| FOUR_TIMES.contains(&peer.program));
    let all = drains(&|_| true);
    let single = "single starts, 1 task";
    let singles = "single starts, 16 tasks";
    let batches = "start, batches of 1,000";
    let ours = |what: &str| format!("{what}: queuert");
    vec![
        Ratio::new(
            "drain at 10 / best peer's defaults",
            DEFAULT_DRAIN,
            &defaults,
            Some(10.0),
        ),
        Ratio::new("drain at 10 / fastest peer", DEFAULT_DRAIN, &all, Some(1.0)),
        Ratio::new("drain at 100 / fastest peer", DRAIN, &all, Some(1.5)),
        Ratio::new("drain at 100 / apalis, River, awa, pgqrs", DRAIN, &four, Some(4.0)),
        Ratio::new(
            "batched starts / best peer's",
            &ours(batches),
            &starts(batches),
            Some(2.0),
        ),
        Ratio::new(
            "single starts, 1 task / best peer's",
            &ours(single),
            &starts(single),
            Some(1.0),
        ),
        Ratio::new(
            "single starts, 16 tasks / best peer's",
            &ours(singles),
            &starts(singles),
            Some(3.0),
        ),
    ]
}
