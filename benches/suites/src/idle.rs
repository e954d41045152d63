//! What a fleet with nothing to do costs the server, and how late a job runs that no announcement told of.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queuert::{Attempt, Client, JobTypes, RetryPolicy, Workers};
use queuert_measured::Figure;
use queuert_postgres::{PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::Options;
use crate::measure::{BoxError, Case, Limit, Report, Suite, quantile, sorted};
use crate::postgres::server::Server;

/// Processes, each a store with connections of its own, a notifier and a set of workers.
#[derive(Clone, Copy)]
struct Fleet {
    size: usize,
    /// Whether each runs a job type that no other one runs.
    disjoint: bool,
    /// Promised: statements a second and process.
    statements: f64,
}

const FLEETS: [Fleet; 5] = [
    Fleet::of(1, 1.0),
    Fleet::of(2, 1.0),
    Fleet::of(5, 1.0),
    // Seventeen a second for all of them.
    Fleet::of(20, 0.85),
    Fleet {
        disjoint: true,
        ..Fleet::of(5, 1.0)
    },
];

const CONCURRENCY: usize = 10;
/// Until all know each other and the first upkeep is over.
const WARM_UP: Duration = Duration::from_secs(10);
const SECONDS: usize = 30;
const SAMPLES: usize = 12;
/// Of a delayed start.
const DELAY: Duration = Duration::from_millis(1_200);
/// No job may be this late.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct First(u64);
#[derive(Debug, Serialize, Deserialize)]
struct Second(u64);
#[derive(Debug, Serialize, Deserialize)]
struct Third(u64);
#[derive(Debug, Serialize, Deserialize)]
struct Fourth(u64);
#[derive(Debug, Serialize, Deserialize)]
struct Fifth(u64);
/// Keeps a worker busy.
#[derive(Debug, Serialize, Deserialize)]
struct Occupy;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    First(First),
    #[job(entry, output = ())]
    Second(Second),
    #[job(entry, output = ())]
    Third(Third),
    #[job(entry, output = ())]
    Fourth(Fourth),
    #[job(entry, output = ())]
    Fifth(Fifth),
    #[job(entry, output = ())]
    Occupy(Occupy),
}

impl Fleet {
    const fn of(size: usize, statements: f64) -> Self {
        Self {
            size,
            disjoint: false,
            statements,
        }
    }

    fn name(self) -> String {
        let types = if self.disjoint { " of different types" } else { "" };
        format!("{} idle processes{types}", self.size)
    }

    fn per_process(self) -> String {
        format!("statements a second and process: {}", self.name())
    }

    fn late(self, what: &str, part: &str) -> String {
        format!("{what}, late, {part}: {}", self.name())
    }

    /// What may be late. A process that is alone has no other one to run its retries.
    fn kinds(self) -> &'static [&'static str] {
        match self.size > 1 && !self.disjoint {
            true => &[SILENT, DELAYED, RETRIED],
            false => &[SILENT, DELAYED],
        }
    }
}

const SILENT: &str = "start";
const DELAYED: &str = "delayed start";
const RETRIED: &str = "retry";

pub(crate) fn suite(options: &Options) -> Suite {
    let seconds = (SECONDS / options.divide).max(5);
    let samples = (SAMPLES / options.divide).max(5);
    let cases = FLEETS.map(|fleet| Case::new(fleet.name(), move || idle(fleet, seconds, samples)));
    let mut limits = Vec::new();
    for fleet in FLEETS {
        let statements = "statements a second and process";
        limits.push(Limit::at_most(statements, fleet.per_process(), fleet.statements));
        for kind in fleet.kinds() {
            // A process that is alone looks every 1.1 seconds, because it may send one statement per second in all, and nothing
            // but a look finds such a start.
            let late = if fleet.size == 1 && *kind == SILENT {
                1_150.0
            } else {
                1_000.0
            };
            limits.push(Limit::at_most("ms late at most", fleet.late(kind, "worst"), late));
        }
    }
    Suite {
        name: "idle",
        rounds: 1,
        settings: vec![
            (
                "queuert",
                format!(
                    "the defaults, Postgres notify, concurrency {CONCURRENCY}; every process is a store of its own"
                ),
            ),
            ("counted for", format!("{seconds} s after {WARM_UP:?}")),
            (
                "late",
                format!(
                    "{samples} chains of each kind at random times: started by a client that announces nothing; the same with a \
                     delay of {DELAY:?}; failed once, with a backoff of about a second, in a process that is busy afterwards"
                ),
            ),
        ],
        cases: cases.into(),
        ratios: Vec::new(),
        limits,
        plots: Vec::new(),
    }
}

/// How late each job was when it was claimed, by the server's clock.
type Seen = Arc<Mutex<BTreeMap<u64, Duration>>>;

fn note<J: queuert::JobType>(seen: &Seen, number: u64, job: &Attempt<J, PostgresState>) {
    let record = job.record();
    let started_at = record.started_at.unwrap_or(record.scheduled_at);
    let late = started_at.saturating_duration_since(record.scheduled_at);
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.entry(number).or_insert(late);
}

/// Waits until the job has run, and says how late in milliseconds.
async fn late(seen: &Seen, number: u64) -> Result<f64, BoxError> {
    let begun = Instant::now();
    loop {
        if let Some(late) = seen.lock().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Ok(late.as_secs_f64() * 1e3);
        }
        if begun.elapsed() > PATIENCE {
            return Err("a job was not run".into());
        }
        sleep(Duration::from_millis(2)).await;
    }
}

async fn client(server: &Server) -> Result<Client<PostgresState>, BoxError> {
    let state = server.state(None).await?;
    let notify = PostgresNotify::new(&state);
    Ok(Client::builder(state).notify(notify).build())
}

macro_rules! work {
    ($client:expr, $seen:expr, $job:ty) => {{
        let seen = Arc::clone($seen);
        let worker = $client.worker().process(move |job: Attempt<$job, PostgresState>| {
            note(&seen, job.0, &job);
            async move { job.finish(()) }
        });
        worker.concurrency(CONCURRENCY).start().await?
    }};
}

async fn work(client: &Client<PostgresState>, seen: &Seen, kind: usize) -> Result<Workers<PostgresState>, BoxError> {
    Ok(match kind {
        0 => work!(client, seen, First),
        1 => work!(client, seen, Second),
        2 => work!(client, seen, Third),
        3 => work!(client, seen, Fourth),
        _ => work!(client, seen, Fifth),
    })
}

/// Starts a chain of one of the types that the fleet runs.
async fn start(
    client: &Client<PostgresState>,
    kind: usize,
    number: u64,
    delay: Option<Duration>,
) -> Result<(), BoxError> {
    let delay = delay.unwrap_or_default();
    match kind {
        0 => client.start(First(number)).delay(delay).await.map(drop)?,
        1 => client.start(Second(number)).delay(delay).await.map(drop)?,
        2 => client.start(Third(number)).delay(delay).await.map(drop)?,
        3 => client.start(Fourth(number)).delay(delay).await.map(drop)?,
        _ => client.start(Fifth(number)).delay(delay).await.map(drop)?,
    }
    Ok(())
}

async fn idle(fleet: Fleet, seconds: usize, samples: usize) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let seen = Seen::default();
    let kinds = if fleet.disjoint { fleet.size } else { 1 };
    let mut processes = Vec::new();
    for place in 0..fleet.size {
        processes.push(work(&client(&server).await?, &seen, place % kinds).await?);
    }
    sleep(WARM_UP).await;
    let before = server.counts().await?;
    let cpu_before = server_cpu(&mut server).await;
    sleep(Duration::from_secs(seconds as u64)).await;
    let cpu = server_cpu(&mut server).await.zip(cpu_before);
    let statements = server.statements_since(&before).await?;

    let rate = statements / seconds as f64;
    let mut figures = vec![
        figure(format!("statements a second: {}", fleet.name()), "/s", rate),
        figure(fleet.per_process(), "/s", rate / fleet.size as f64),
    ];
    if let Some((after, before)) = cpu {
        let share = after.saturating_sub(before).as_secs_f64() / seconds as f64;
        figures.push(figure(
            format!("server: {}", fleet.name()),
            "% of a core",
            share * 100.0,
        ));
    }
    // The workers' own clients would announce what they start.
    let silent = Client::new(server.state(None).await?);
    let mut number = 0;
    for (name, delay) in [(SILENT, None), (DELAYED, Some(DELAY))] {
        let mut late_by = Vec::new();
        for _ in 0..samples {
            number += 1;
            sleep(Duration::from_millis(fastrand::u64(0..1_000))).await;
            start(&silent, fastrand::usize(0..kinds), number, delay).await?;
            late_by.push(late(&seen, number).await?);
        }
        figures.extend(lateness(fleet, name, late_by));
    }
    if fleet.kinds().contains(&RETRIED) {
        let late_by = retries(&server, &seen, samples, number).await?;
        figures.extend(lateness(fleet, RETRIED, late_by));
    }
    for workers in processes {
        workers.stop().await;
    }
    server.described(Report::from(figures)).await
}

/// How late retries are whose process is busy when they are due: one more process, with one worker, where every first attempt
/// fails.
async fn retries(server: &Server, seen: &Seen, samples: usize, mut number: u64) -> Result<Vec<f64>, BoxError> {
    let owner = client(server).await?;
    let (failed, occupied, free) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
    );
    let (fails, begins, ends) = (Arc::clone(&failed), Arc::clone(&occupied), Arc::clone(&free));
    let workers = owner
        .worker()
        .process(move |job: Attempt<First, PostgresState>| {
            let fails = Arc::clone(&fails);
            async move {
                fails.add_permits(1);
                if job.number() == 1 {
                    return Err("not yet".into());
                }
                job.finish(())
            }
        })
        .process(move |job: Attempt<Occupy, PostgresState>| {
            begins.add_permits(1);
            let ends = Arc::clone(&ends);
            async move {
                ends.acquire().await?.forget();
                job.finish(())
            }
        })
        .retry(RetryPolicy::new().initial(Duration::from_secs(1)))
        .concurrency(1)
        .start()
        .await?;
    let mut late_by = Vec::new();
    while late_by.len() < samples {
        number += 1;
        sleep(Duration::from_millis(fastrand::u64(0..1_000))).await;
        owner.start(First(number)).await?;
        tokio::select! {
            permit = failed.acquire() => permit?.forget(),
            // A look of another process came in between, and it was run there.
            late = late(seen, number) => {
                late?;
                continue;
            }
        }
        owner.start(Occupy).await?;
        occupied.acquire().await?.forget();
        late_by.push(late(seen, number).await?);
        free.add_permits(1);
    }
    workers.stop().await;
    Ok(late_by)
}

fn lateness(fleet: Fleet, what: &str, late_by: Vec<f64>) -> [Figure; 2] {
    let late_by = sorted(late_by);
    [
        figure(fleet.late(what, "p50"), "ms", quantile(&late_by, 0.5)),
        figure(fleet.late(what, "worst"), "ms", quantile(&late_by, 1.0)),
    ]
}

fn figure(name: String, unit: &str, value: f64) -> Figure {
    Figure {
        name,
        unit: unit.to_owned(),
        value,
        cost: None,
    }
}

/// The time on a processor of all sessions of the server that are there, if it runs on this machine. Sessions of an idle fleet
/// live longer than what is measured.
async fn server_cpu(server: &mut Server) -> Option<Duration> {
    let sessions = sqlx::query_scalar::<_, i32>(
        "SELECT /* observer */ pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let mut nanos = 0;
    for session in sessions.fetch_all(&mut server.connection).await.ok()? {
        let schedule = fs::read_to_string(format!("/proc/{session}/schedstat")).ok()?;
        nanos += schedule.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}
