//! The SQLite adapter against bare statements of the same layout, and against peers on SQLite.

mod layout;
mod ours;
mod wake;

use queuert::JobType;
use queuert_measured::CORES;
use tempfile::TempDir;

use crate::Options;
use crate::measure::{BoxError, Case, Ratio, Report, Suite};
use crate::peer;

/// How many jobs wait before something is timed, and how many are drained.
const BACKLOG: usize = 100_000;
const BATCH: usize = 1_000;
const CONCURRENCY: usize = 100;
const SINGLE_STARTS: usize = 8_000;
const SINGLE_TASKS: usize = 16;
/// A peer that needs longer for the backlog is stopped, and what it has done by then counts.
const PEER_SECONDS: usize = 12;
const IDLE_SECONDS: usize = 5;

/// Starts whose way to another process is measured.
const WAKE_SAMPLES: usize = 100;

const ENQUEUE: &str = "start, batches of 1,000: queuert";
const RAW_ENQUEUE: &str = "start, batches of 1,000: raw rusqlite";
const DRAIN: &str = "drain, concurrency 100: queuert";
const WIDE_DRAIN: &str = "drain, concurrency 1,000: queuert";
const VERBS: &str = "drain, adapter verbs without worker: queuert";
const RAW_DRAIN: &str = "drain, complete 100 + claim 100: raw rusqlite";
const SINGLE: &str = "single starts, 1 task: queuert";
const SINGLES: &str = "single starts, 16 tasks: queuert";
const RAW_SINGLE: &str = "single starts: raw rusqlite";
const IDLE: &str = "idle worker process: queuert";
const WAKE: &str = "start in one process to claim in another";

/// Program, and the name of its settings.
const PEERS: [(&str, &str); 5] = [
    ("apalis-sqlite", "defaults"),
    ("apalis-sqlite", "fastest"),
    ("effectum", "defaults"),
    ("effectum", "concurrency 100"),
    ("effectum", "concurrency 1000"),
];

pub(crate) fn suite(options: &Options) -> Suite {
    let divide = options.divide;
    let backlog = (BACKLOG / divide).max(BATCH);
    let seconds = (PEER_SECONDS / divide).max(2);
    let singles = (SINGLE_STARTS / divide).max(SINGLE_TASKS);
    let mut cases = vec![
        Case::new(ENQUEUE, move || ours::enqueue(backlog)),
        Case::peer(RAW_ENQUEUE, move || raw(RAW_ENQUEUE, "enqueue", backlog, backlog)),
        Case::new(DRAIN, move || ours::drain(DRAIN, backlog, CONCURRENCY)),
        Case::peer(RAW_DRAIN, move || raw(RAW_DRAIN, "drain", backlog, backlog)),
        Case::new(WIDE_DRAIN, move || ours::drain(WIDE_DRAIN, backlog, 10 * CONCURRENCY)),
        Case::new(VERBS, move || ours::verbs(backlog)),
        Case::new(SINGLE, move || ours::singles(SINGLE, backlog, singles, 1)),
        Case::new(SINGLES, move || ours::singles(SINGLES, backlog, singles, SINGLE_TASKS)),
        Case::peer(RAW_SINGLE, move || raw(RAW_SINGLE, "single", backlog, singles)),
        Case::new(IDLE, move || ours::idle((IDLE_SECONDS / divide).max(1))),
        Case::new(WAKE, move || wake::between_processes((WAKE_SAMPLES / divide).max(5))),
    ];
    for (program, settings) in PEERS {
        cases.push(Case::peer(format!("{program}, {settings}"), move || {
            peer_drain(program, settings, backlog, seconds)
        }));
    }
    Suite {
        name: "sqlite",
        rounds: 3,
        settings: vec![
            (
                "runtime",
                format!("multi-thread, {CORES} threads, every side a process of its own"),
            ),
            (
                "client and workers",
                "the defaults, except the concurrency in the name".into(),
            ),
            (
                "durability",
                "ours and raw: WAL, synchronous FULL; peers: see the facts below".into(),
            ),
            ("backlog, and jobs started or drained per round", backlog.to_string()),
            ("single starts per round", singles.to_string()),
            ("a peer's drain is cut off after", format!("{seconds} s")),
            (
                "payload",
                "about 150 bytes of JSON in, 50 out; decoded, answered and kept".into(),
            ),
        ],
        cases,
        ratios: ratios(),
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

fn ratios() -> Vec<Ratio> {
    let apalis = ["drain: apalis-sqlite, defaults", "drain: apalis-sqlite, fastest"];
    let effectum = ["drain: effectum, defaults", "drain: effectum, concurrency 100"];
    let wide = ["drain: effectum, concurrency 1000"];
    let starts = [
        "start, batches of 1,000: apalis-sqlite, defaults",
        "start, batches of 1,000: apalis-sqlite, fastest",
        "start, batches of 1,000: effectum, defaults",
        "start, batches of 1,000: effectum, concurrency 100",
        "start, batches of 1,000: effectum, concurrency 1000",
    ];
    vec![
        Ratio::new("batched starts / raw", ENQUEUE, &[RAW_ENQUEUE], Some(0.6)),
        Ratio::new("drain / raw", DRAIN, &[RAW_DRAIN], Some(0.45)),
        Ratio::new("adapter verbs / raw", VERBS, &[RAW_DRAIN], None),
        Ratio::new("drain / adapter verbs", DRAIN, &[VERBS], None),
        Ratio::new("single starts, 16 tasks / 1 task", SINGLES, &[SINGLE], Some(3.0)),
        Ratio::new("single starts, 1 task / raw", SINGLE, &[RAW_SINGLE], None),
        Ratio::new("drain / apalis-sqlite's best", DRAIN, &apalis, Some(5.0)),
        Ratio::new("drain / effectum at the same concurrency", DRAIN, &effectum, Some(2.0)),
        Ratio::new("drain at 1,000 / effectum at 1,000", WIDE_DRAIN, &wide, Some(2.0)),
        Ratio::new("batched starts / best peer's", ENQUEUE, &starts, Some(1.2)),
    ]
}

/// A directory on the disk of the build: `/tmp` may be memory, where a flush costs nothing.
fn directory() -> Result<TempDir, BoxError> {
    let program = std::env::current_exe()?;
    let place = program.parent().ok_or("a program has a directory")?;
    Ok(tempfile::tempdir_in(place)?)
}

/// Bare statements on a file that our adapter has made, with the settings that our adapter uses.
async fn raw(name: &'static str, work: &'static str, backlog: usize, jobs: usize) -> Result<Report, BoxError> {
    let directory = directory()?;
    let file = directory.path().join("raw.db");
    let pragmas = layout::write(&file).await?;
    let arguments = [
        ("name", name.to_owned()),
        ("work", work.to_owned()),
        ("type", ours::SendLetter::NAME.to_owned()),
        ("file", file.display().to_string()),
        ("pragmas", pragmas),
        ("backlog", backlog.to_string()),
        ("jobs", jobs.to_string()),
        ("batch", if work == "drain" { CONCURRENCY } else { BATCH }.to_string()),
    ];
    peer::run("raw-sqlite", &arguments).await
}

async fn peer_drain(
    program: &'static str,
    settings: &'static str,
    jobs: usize,
    seconds: usize,
) -> Result<Report, BoxError> {
    let directory = directory()?;
    let arguments = [
        ("settings", settings.to_owned()),
        ("file", directory.path().join("peer.db").display().to_string()),
        ("jobs", jobs.to_string()),
        ("batch", BATCH.to_string()),
        ("concurrency", CONCURRENCY.to_string()),
        ("seconds", seconds.to_string()),
    ];
    peer::run(program, &arguments).await
}
