//! The Postgres adapter against its own statements run bare, and what a job costs the server.

mod bare;
mod endless;
mod flat;
mod made;
mod memory;
pub(crate) mod ours;
mod own;
pub(crate) mod server;

use std::time::Duration;

use queuert_measured::CORES;

use crate::Options;
use crate::measure::{Case, Limit, Ratio, Suite};

/// How many jobs wait before something is timed, and how many are started or drained.
const JOBS: usize = 100_000;
/// Jobs that have a transaction of their own.
const OWN_JOBS: usize = 20_000;
pub(crate) const BATCH: usize = 1_000;
const SINGLE_TIME: Duration = Duration::from_secs(2);
const SINGLE_TASKS: usize = 16;

const START: &str = "start, batches of 1,000: queuert";
const BARE_START: &str = "start, batches of 1,000: bare statements";
const DRAIN: &str = "drain, concurrency 200: queuert";
const NARROW_DRAIN: &str = "drain, concurrency 100: queuert";
const DEFAULT_DRAIN: &str = "drain, defaults, concurrency 10: queuert";
const VERBS: &str = "drain, adapter verbs without worker, 2 x 100: queuert";
const BARE_ONE: &str = "drain, 1 connection x 200: bare statements";
const BARE_TWO: &str = "drain, 2 connections x 100: bare statements";
const WHOLE: &str = "start and drain, concurrency 100: queuert";
const OWN: &str = "drain, own transactions, concurrency 10: queuert";
const BARE_OWN: &str = "drain, own transactions, 10 connections: bare statements";
const SINGLE: &str = "single starts, 1 task: queuert";
const SINGLES: &str = "single starts, 16 tasks: queuert";
const BARE_SINGLE: &str = "single starts, 1 connection: bare statements";
const BARE_SINGLES: &str = "single starts, 16 connections: bare statements";

/// These take long: they run only when they are asked for, by a part of their name.
const FLAT: &str = "flat claims";
const ENDLESS: &str = "end to end for a minute, 1M finished: queuert";
const BARE_ENDLESS: &str = "end to end for a minute, 1M finished: bare statements";
const MEMORY: &str = "memory, drain of 1M, concurrency 100: queuert";
const ASKED_FOR: [&str; 3] = ["flat", "end to end", "memory"];

const FINISHED: usize = 1_000_000;
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = (JOBS / options.divide).max(BATCH);
    Suite {
        name: "postgres",
        rounds: 3,
        settings: settings(jobs),
        cases: cases(options, jobs),
        ratios: ratios(),
        limits: limits(),
        plots: Vec::new(),
    }
}

fn cases(options: &Options, jobs: usize) -> Vec<Case> {
    let divide = options.divide;
    let own_jobs = (OWN_JOBS / divide).max(BATCH);
    let time = (SINGLE_TIME / u32::try_from(divide).unwrap_or(u32::MAX)).max(Duration::from_millis(300));
    let mut cases = vec![
        Case::new(START, move || ours::start(jobs)),
        Case::new(BARE_START, move || bare::start(jobs)),
        Case::new(DRAIN, move || ours::drain(DRAIN, jobs, 200)),
        Case::new(BARE_ONE, move || bare::drain(BARE_ONE, jobs, 1, 200)),
        Case::new(BARE_TWO, move || bare::drain(BARE_TWO, jobs, 2, 100)),
        Case::new(VERBS, move || ours::verbs(jobs)),
        Case::new(NARROW_DRAIN, move || ours::drain(NARROW_DRAIN, jobs, 100)),
        Case::new(DEFAULT_DRAIN, move || ours::drain(DEFAULT_DRAIN, jobs, 10)),
        Case::new(WHOLE, move || ours::whole(jobs)),
        Case::new(OWN, move || own::ours(OWN, own_jobs, 10)),
        Case::new(BARE_OWN, move || own::bare(BARE_OWN, own_jobs, 10)),
        Case::new(SINGLE, move || ours::singles(SINGLE, own_jobs, 1, time)),
        Case::new(BARE_SINGLE, move || bare::singles(BARE_SINGLE, own_jobs, 1, time)),
        Case::new(SINGLES, move || ours::singles(SINGLES, own_jobs, SINGLE_TASKS, time)),
        Case::new(BARE_SINGLES, move || {
            bare::singles(BARE_SINGLES, own_jobs, SINGLE_TASKS, time)
        }),
    ];
    let is_asked_for = |case: &str| {
        let wish = options.case.as_ref().unwrap_or(&options.only);
        ASKED_FOR.iter().any(|name| case.contains(name) && wish.contains(name))
    };
    let finished = FINISHED / divide;
    let minute = (MINUTE / u32::try_from(divide).unwrap_or(u32::MAX)).max(Duration::from_secs(3));
    let long = [
        Case::new(FLAT, move || flat::run(divide)),
        Case::new(ENDLESS, move || endless::ours(ENDLESS, finished, minute, 100)),
        Case::new(BARE_ENDLESS, move || endless::bare(BARE_ENDLESS, finished, minute)),
        Case::new(MEMORY, move || memory::run(MEMORY, finished, 100)),
    ];
    cases.extend(long.into_iter().filter(|case| is_asked_for(&case.name)));
    cases
}

fn settings(jobs: usize) -> Vec<(&'static str, String)> {
    vec![
        (
            "runtime",
            format!("multi-thread, {CORES} threads, every side a process of its own, the server on the same machine"),
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
    ]
}

fn ratios() -> Vec<Ratio> {
    let per_connection = |name: &str| format!("{name}, per connection");
    let bare = [BARE_ONE, BARE_TWO];
    vec![
        Ratio::new("batched starts / bare", START, &[BARE_START], Some(0.7)),
        Ratio::new("drain / bare", DRAIN, &bare, Some(0.6)),
        Ratio::new("drain, concurrency 100 / bare", NARROW_DRAIN, &bare, Some(0.6)),
        Ratio::new("drain, defaults, concurrency 10 / bare", DEFAULT_DRAIN, &bare, None),
        Ratio::new("adapter verbs / bare", VERBS, &[BARE_TWO], None),
        Ratio::new("own transactions / bare", OWN, &[BARE_OWN], None),
        Ratio::new(
            "own transactions / bare, per connection used",
            &per_connection(OWN),
            &[per_connection(BARE_OWN)],
            Some(0.8),
        ),
        Ratio::new("single starts, 1 task / bare", SINGLE, &[BARE_SINGLE], None),
        Ratio::new("single starts, 16 tasks / bare", SINGLES, &[BARE_SINGLES], None),
        Ratio::new("single starts, 16 tasks / 1 task", SINGLES, &[SINGLE], None),
        Ratio::new("end to end / bare", ENDLESS, &[BARE_ENDLESS], Some(0.5)),
    ]
}

fn limits() -> Vec<Limit> {
    vec![
        Limit::of_cost(
            "statements per drained job, concurrency 100",
            NARROW_DRAIN,
            |cost| cost.statements,
            0.1,
        ),
        Limit::of_cost(
            "WAL bytes per job, started and drained",
            WHOLE,
            |cost| cost.wal_bytes,
            1_500.0,
        ),
        Limit::of_cost(
            "connections, concurrency 100",
            NARROW_DRAIN,
            |cost| cost.connections,
            5.0,
        ),
        Limit::of_cost(
            "peak MB while draining 1M, concurrency 100",
            MEMORY,
            |cost| cost.peak_megabytes,
            60.0,
        ),
        Limit::at_least(
            "slowest 5 s / first 5 s, end to end",
            format!("{ENDLESS}: slowest window / first"),
            0.7,
        ),
    ]
}
