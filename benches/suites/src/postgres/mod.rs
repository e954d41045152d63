//! The Postgres adapter against its own statements run bare, and what a job costs the server.

mod bare;
mod flat;
mod ours;
mod server;

use queuert_measured::CORES;

use crate::Options;
use crate::measure::{Case, Limit, Ratio, Suite};

/// How many jobs wait before something is timed, and how many are started or drained.
const JOBS: usize = 100_000;
const BATCH: usize = 1_000;

const START: &str = "start, batches of 1,000: queuert";
const BARE_START: &str = "start, batches of 1,000: bare statements";
const DRAIN: &str = "drain, concurrency 200: queuert";
const NARROW_DRAIN: &str = "drain, concurrency 100: queuert";
const VERBS: &str = "drain, adapter verbs without worker, 2 x 100: queuert";
const BARE_ONE: &str = "drain, 1 connection x 200: bare statements";
const BARE_TWO: &str = "drain, 2 connections x 100: bare statements";
const WHOLE: &str = "start and drain, concurrency 100: queuert";

/// Takes long, and is about plans rather than rates: runs only when it is asked for.
const FLAT: &str = "flat claims";

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = (JOBS / options.divide).max(BATCH);
    let divide = options.divide;
    let mut cases = vec![
        Case::new(START, move || ours::start(jobs)),
        Case::new(BARE_START, move || bare::start(jobs)),
        Case::new(DRAIN, move || ours::drain(DRAIN, jobs, 200)),
        Case::new(BARE_ONE, move || bare::drain(BARE_ONE, jobs, 1, 200)),
        Case::new(BARE_TWO, move || bare::drain(BARE_TWO, jobs, 2, 100)),
        Case::new(VERBS, move || ours::verbs(jobs)),
        Case::new(NARROW_DRAIN, move || ours::drain(NARROW_DRAIN, jobs, 100)),
        Case::new("drain, concurrency 10: queuert", move || {
            ours::drain("drain, concurrency 10: queuert", jobs, 10)
        }),
        Case::new(WHOLE, move || ours::whole(jobs)),
    ];
    let asked = |name: &String| name.contains("flat");
    if asked(&options.only) || options.case.as_ref().is_some_and(asked) {
        cases.push(Case::new(FLAT, move || flat::run(divide)));
    }
    Suite {
        name: "postgres",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!(
                    "multi-thread, {CORES} threads, every side a process of its own, the server on the same machine"
                ),
            ),
            (
                "client and workers",
                "the defaults, except the concurrency in the name; no notifications".into(),
            ),
            ("backlog, and jobs started or drained per round", jobs.to_string()),
            (
                "payload",
                "about 150 bytes of JSON in, 50 out; decoded, answered and kept".into(),
            ),
        ],
        cases,
        ratios: vec![
            Ratio::new("batched starts / bare", START, &[BARE_START], Some(0.7)),
            Ratio::new("drain / bare", DRAIN, &[BARE_ONE, BARE_TWO], Some(0.6)),
            Ratio::new("adapter verbs / bare", VERBS, &[BARE_TWO], None),
        ],
        limits: vec![
            Limit {
                name: "statements per drained job, concurrency 100",
                of: NARROW_DRAIN,
                cost: |cost| cost.statements,
                at_most: 0.1,
            },
            Limit {
                name: "WAL bytes per job, started and drained",
                of: WHOLE,
                cost: |cost| cost.wal_bytes,
                at_most: 1_500.0,
            },
            Limit {
                name: "connections, concurrency 100",
                of: NARROW_DRAIN,
                cost: |cost| cost.connections,
                at_most: 5.0,
            },
        ],
    }
}
