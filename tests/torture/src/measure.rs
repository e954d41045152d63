//! What must hold and is measured rather than checked: how fast a fleet is back after a restart of its server, and what
//! an old snapshot costs.

use std::process::Stdio;
use std::time::Duration;

use postgres_support::{Cluster, ClusterOptions, Shutdown};
use queuert::adapter::{Authority, ClaimJobs, ClaimType, Outcome, Settlement, StateAdapter};
use queuert::{Client, Fence, JobType, WorkerId};
use queuert_postgres::{PostgresNotify, PostgresState};
use sqlx::{Connection, PgConnection};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Result;
use crate::jobs::Doomed;
use crate::plan::USAGE;
use crate::store::{Store, tables};
use crate::torture::Role;
use crate::work::Orders;

/// The fleet.
const PROCESSES: usize = 4;
const WORKERS: usize = 10;

/// Of its rate before, and within this time, a fleet is back.
const BACK_AT: f64 = 0.9;
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// How much longer a claim may take while somebody holds a snapshot.
const LONGER: f64 = 3.0;

/// A server, a queue and a fleet.
struct Fleet {
    cluster: Cluster,
    client: Client<PostgresState>,
    processes: Vec<Child>,
    /// Of the logs.
    directory: tempfile::TempDir,
}

impl Fleet {
    async fn start() -> Result<Self> {
        let cluster = ClusterOptions::default().start().await;
        let state = <PostgresState as Store>::open(&cluster.url()).await?;
        let notify = PostgresNotify::new(&state);
        let client = Client::builder(state).notify(notify).build();
        let mut tx = client.begin().await?;
        tables::create::<PostgresState>(&mut tx).await?;
        tx.commit().await?;
        Ok(Self {
            cluster,
            client,
            processes: Vec::new(),
            directory: tempfile::tempdir()?,
        })
    }

    fn give_births(&mut self) -> Result<()> {
        for number in 0..PROCESSES {
            let orders = Orders {
                url: self.cluster.url(),
                ears: self.cluster.url(),
                directory: self.directory.path().to_owned(),
                name: format!("worker-{number}"),
                seed: 0,
                rounds: Vec::new(),
                unreliable: 0,
                workers: WORKERS,
                lease: Duration::from_secs(30),
                poll: Duration::from_secs(5),
                role: Role::Working,
                effects_apart: false,
            };
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("work").arg(serde_json::to_string(&orders)?);
            self.processes
                .push(command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?);
        }
        Ok(())
    }

    /// Seconds by the server's clock.
    async fn now(&self) -> Result<f64> {
        now(&self.cluster.url()).await
    }

    /// Jobs a second that ended in a time.
    async fn rate(&self, from: f64, to: f64) -> Result<f64> {
        let mut connection = self.cluster.connect().await;
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM queuert.result WHERE ended_at / 1e6 BETWEEN $1 AND $2")
                .bind(from)
                .bind(to)
                .fetch_one(&mut connection)
                .await?;
        Ok(count as f64 / (to - from))
    }
}

async fn now(url: &str) -> Result<f64> {
    let mut connection = PgConnection::connect(url).await?;
    let now = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::float8")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(now)
}

/// Whether the fleet is back in time after a restart in good order, and after a crash.
pub(crate) async fn restart(settings: &[&str]) -> Result<bool> {
    let jobs: u64 = match settings {
        [] => 100_000,
        ["--jobs", jobs] => jobs.parse()?,
        _ => return Err(USAGE.into()),
    };
    let mut well = true;
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        let mut fleet = Fleet::start().await?;
        for first in (0..jobs).step_by(2_000) {
            let steps = (first..jobs.min(first + 2_000)).map(|n| Doomed { n });
            fleet.client.start_many(steps).await?;
        }
        fleet.give_births()?;
        // Long enough for everybody to be there, and to see how fast they are together.
        tokio::time::sleep(Duration::from_secs(7)).await;
        let stopped = fleet.now().await?;
        let before = fleet.rate(stopped - 4.0, stopped).await?;
        fleet.cluster.stop(how).await;
        let url = fleet.cluster.url();
        let accepting = tokio::spawn(async move {
            loop {
                match now(&url).await {
                    Ok(now) => return now,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        fleet.cluster.start().await;
        let accepting = accepting.await?;
        tokio::time::sleep(BACK_WITHIN + Duration::from_secs(5)).await;
        let mut back = None;
        for step in 0..40_u32 {
            let from = accepting + f64::from(step) * 0.25;
            if fleet.rate(from, from + 1.0).await? >= before * BACK_AT {
                back = Some(from - accepting);
                break;
            }
        }
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert.ready")
            .fetch_one(&mut fleet.cluster.connect().await)
            .await?;
        println!(
            "{how:?}: {before:.0} jobs a second before, down for {:.2} s; back at {:.0} % {}; {left} jobs left",
            accepting - stopped,
            BACK_AT * 100.0,
            back.map_or("never".to_owned(), |back| format!(
                "{back:.2} s after it accepted connections"
            )),
        );
        if left == 0 {
            return Err("there were too few jobs to tell: use more `--jobs`".into());
        }
        well &= back.is_some_and(|back| back <= BACK_WITHIN.as_secs_f64());
    }
    Ok(well)
}

/// Whether claims stay as fast while somebody holds a snapshot.
pub(crate) async fn snapshot(settings: &[&str]) -> Result<bool> {
    let (mut minutes, mut rate) = (10.0, 300);
    let mut rest = settings;
    while let [name, value, after @ ..] = rest {
        match *name {
            "--minutes" => minutes = value.parse()?,
            "--rate" => rate = value.parse()?,
            _ => return Err(USAGE.into()),
        }
        rest = after;
    }
    let mut fleet = Fleet::start().await?;
    fleet.give_births()?;
    let feeding = tokio::spawn(feed(fleet.client.clone(), rate));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let normal = Sample::take(&fleet, Duration::from_secs(60)).await?;
    println!("normally   {normal}");
    let hold = Duration::from_secs_f64(minutes * 60.0);
    let url = fleet.cluster.url();
    let held = tokio::spawn(async move { PostgresState::hold_snapshot(&url, hold, oneshot::channel().0).await });
    // The last part of it, when most has gone that cannot be forgotten.
    let last = (hold / 5).min(Duration::from_secs(60));
    tokio::time::sleep(hold - last - Duration::from_secs(1)).await;
    let during = Sample::take(&fleet, last).await?;
    println!("held       {during}, {minutes} minutes after the snapshot");
    held.await??;
    feeding.abort();
    let well = during.median <= normal.median * LONGER && during.late <= normal.late * LONGER;
    println!(
        "claims take {:.2} times as long, nineteen of twenty within {:.2} times the time",
        during.median / normal.median,
        during.late / normal.late
    );
    Ok(well)
}

/// Starts so many jobs a second.
async fn feed(client: Client<PostgresState>, rate: u64) {
    const EVERY: Duration = Duration::from_millis(20);
    let mut interval = tokio::time::interval(EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let count = rate * u64::try_from(EVERY.as_millis()).unwrap_or(1) / 1_000;
        // One that fails is one job less to claim.
        drop(client.start_many((0..count).map(|n| Doomed { n })).await);
    }
}

/// How long claims take, in milliseconds.
struct Sample {
    claims: usize,
    median: f64,
    /// Nineteen of twenty take no longer.
    late: f64,
    /// From the time a job is due until a worker has it.
    due: f64,
    due_late: f64,
}

impl Sample {
    async fn take(fleet: &Fleet, how_long: Duration) -> Result<Self> {
        let from = fleet.now().await?;
        let mut times = Vec::new();
        let end = Instant::now() + how_long;
        while Instant::now() < end {
            times.push(claim(fleet.client.state()).await?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        times.sort_by(f64::total_cmp);
        let waited = "SELECT coalesce(percentile_cont($3) WITHIN GROUP (ORDER BY (started_at - scheduled_at) / 1e3), 0) \
             FROM queuert.result WHERE started_at / 1e6 BETWEEN $1 AND $2";
        let to = fleet.now().await?;
        let mut due = [0.0, 0.0];
        for (place, share) in [0.5, 0.95].into_iter().enumerate() {
            due[place] = sqlx::query_scalar(waited)
                .bind(from)
                .bind(to)
                .bind(share)
                .fetch_one(&mut fleet.cluster.connect().await)
                .await?;
        }
        let [due, due_late] = due;
        Ok(Self {
            claims: times.len(),
            median: times[times.len() / 2],
            late: times[times.len() * 19 / 20],
            due,
            due_late,
        })
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} claims took {:.2} ms, nineteen of twenty no more than {:.2} ms; jobs were claimed {:.2} ms after they were \
             due, nineteen of twenty within {:.2} ms",
            self.claims, self.median, self.late, self.due, self.due_late
        )
    }
}

/// One claim beside those of the workers, and how long it took. What it takes it gives back.
async fn claim(state: &PostgresState) -> Result<f64> {
    let worker = WorkerId::new("probe");
    let fence = Fence::from_uuid(uuid::Uuid::from_u128(fastrand::u128(..)));
    let types = vec![ClaimType {
        name: Doomed::NAME.into(),
        lease: Duration::from_secs(30),
    }];
    let began = Instant::now();
    let claimed = state
        .claim_jobs(&ClaimJobs::new(types, 1, worker.clone(), fence))
        .await?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let back = claimed.jobs.iter().map(|claimed| Settlement {
        job: claimed.job.id,
        authority: Authority::Fence {
            fence,
            worker: worker.clone(),
        },
        outcome: Outcome::Release,
    });
    state.settle_jobs(None, &back.collect::<Vec<_>>()).await?;
    Ok(took)
}
