//! Starts the processes, kills them, restarts the server, and waits for the end.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use postgres_support::{Cluster, Shutdown};
use queuert::JobStatus;
use queuert_postgres::{Client, PostgresNotify};
use sqlx::Connection;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::jobs::{UNIT, start_units};
use crate::log::Log;
use crate::process::{WORKERS, connect};
use crate::{Result, check, tables};

/// What is done to a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Processes with ten workers each.
    pub processes: usize,
    /// Jobs, in units of eleven.
    pub jobs: u64,
    /// SIGKILLs.
    pub kills: usize,
    /// Restarts of the server, fast and immediate by turns.
    pub restarts: usize,
    /// Decides who is killed when.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            processes: 20,
            jobs: 50_000,
            kills: 60,
            restarts: 2,
            seed: fastrand::u64(..),
        }
    }
}

/// Units that are started in one transaction.
const BATCH: u64 = 20;

/// Without any chain ending for so long, the rest is taken to be stuck.
const STUCK: Duration = Duration::from_secs(60);

/// How often is looked how far it is: counting costs the server time that the workers should have.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Whether everything held. The logs are kept in the directory; the program is the one that has `work`.
///
/// # Errors
///
/// If it cannot be done, which says nothing about the rules.
///
/// # Cancel safety
///
/// A dropped future kills the processes.
pub async fn torture(cluster: &Cluster, directory: &Path, program: &Path, plan: &Plan) -> Result<bool> {
    println!(
        "seed       {}; {} processes of {WORKERS} workers, {} jobs, {} kills, {} restarts of the server",
        plan.seed, plan.processes, plan.jobs, plan.kills, plan.restarts
    );
    tables::create(&mut cluster.connect().await).await?;
    let state = connect(&cluster.url()).await?;
    let notify = PostgresNotify::new(&state);
    let client = Client::builder(state).notify(notify).build();
    let mut torture = Torture {
        cluster,
        directory,
        program: program.to_owned(),
        client,
        log: Log::create(directory, "torture")?,
        random: fastrand::Rng::with_seed(plan.seed),
        processes: Vec::new(),
        births: 0,
    };
    let began = Instant::now();
    let units = plan.jobs.div_ceil(UNIT);
    torture.log.note(&format!("planned {units}"))?;
    // A part of the work lies there before anybody looks for it, so that priorities have something to decide.
    let ahead = units * 2 / 5;
    let mut again = start_all(torture.client.clone(), 0..ahead).await?;
    println!(
        "ahead      {} jobs after {:.1} s",
        ahead * UNIT,
        began.elapsed().as_secs_f64()
    );
    let starter = tokio::spawn(start_all(torture.client.clone(), ahead..units));
    let mut broken = torture.disturb(plan).await?;
    println!("disturbed  {:.1} s", began.elapsed().as_secs_f64());
    again += starter.await??;
    println!("started    all chains; {again} transactions were run again");
    broken.append(&mut torture.wait_for_all_ends().await?);
    println!("ended      {:.1} s after the beginning", began.elapsed().as_secs_f64());
    broken.append(&mut torture.stop().await?);
    torture.client.state().close().await;
    for line in &broken {
        println!("BROKEN: {line}");
    }
    let rules = check(&cluster.url(), directory).await?;
    Ok(rules.is_empty() && broken.is_empty())
}

/// Starts everything, in transactions with rows of the user's own; says how many had to be run again. A starter whose
/// commit was not answered looks whether its rows are there.
async fn start_all(client: Client, units: Range<u64>) -> Result<usize> {
    let mut again = 0;
    for first in units.clone().step_by(usize::try_from(BATCH)?) {
        let range = first..units.end.min(first + BATCH);
        while start_batch(&client, range.clone()).await.is_err() {
            again += 1;
            if is_started(&client, first).await? {
                break;
            }
        }
    }
    Ok(again)
}

async fn start_batch(client: &Client, units: Range<u64>) -> Result<()> {
    let mut tx = client.begin().await?;
    let batch = i64::try_from(units.start)?;
    let chains = start_units(client, &mut tx, units).await?;
    tables::started(&mut tx, &chains, batch).await?;
    tx.commit().await?;
    Ok(())
}

async fn is_started(client: &Client, first: u64) -> Result<bool> {
    let batch = i64::try_from(first)?;
    let deadline = Instant::now() + STUCK;
    loop {
        let found = sqlx::query_scalar("SELECT EXISTS (SELECT FROM started WHERE batch = $1)")
            .bind(batch)
            .fetch_one(client.state().pool())
            .await;
        match found {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

struct Torture<'t> {
    cluster: &'t Cluster,
    directory: &'t Path,
    program: PathBuf,
    client: Client,
    log: Log,
    random: fastrand::Rng,
    processes: Vec<Process>,
    births: usize,
}

struct Process {
    name: String,
    child: Child,
}

impl Torture<'_> {
    /// Kills and restarts; says what broke while it did.
    async fn disturb(&mut self, plan: &Plan) -> Result<Vec<String>> {
        for _ in 0..plan.processes {
            let process = self.give_birth()?;
            self.processes.push(process);
        }
        let mut restarts = 0;
        for kill in 1..=plan.kills {
            // Spread over the whole run, so that each finds something to disturb.
            let share = kill as u64 * plan.jobs * 9 / 10 / (plan.kills as u64 + 1);
            self.wait_for_completions(i64::try_from(share)?).await?;
            tokio::time::sleep(Duration::from_millis(self.random.u64(0..300))).await;
            let ended = self.ended_by_themselves()?;
            if !ended.is_empty() {
                return Ok(ended);
            }
            let victim = self.random.usize(0..self.processes.len());
            // Noted before: whoever is killed has an excuse for what is missing in its log.
            self.log.note(&format!("killed {}", self.processes[victim].name))?;
            self.processes[victim].child.start_kill()?;
            self.processes[victim].child.wait().await?;
            self.processes[victim] = self.give_birth()?;
            if kill * (plan.restarts + 1) / (plan.kills + 1) > restarts {
                self.restart(restarts).await?;
                restarts += 1;
            }
        }
        while restarts < plan.restarts {
            self.restart(restarts).await?;
            restarts += 1;
        }
        Ok(Vec::new())
    }

    async fn restart(&self, number: usize) -> Result<()> {
        let how = match number % 2 {
            0 => Shutdown::Fast,
            _ => Shutdown::Immediate,
        };
        if how == Shutdown::Immediate {
            self.log.note("crashed")?;
        }
        let completed = self.completed().await?;
        self.cluster.restart(how).await;
        let micros: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            .fetch_one(&mut self.cluster.connect().await)
            .await?;
        self.log.note(&format!("restarted {micros}"))?;
        println!("restarted  {how:?}, after {completed} completed jobs");
        Ok(())
    }

    fn give_birth(&mut self) -> Result<Process> {
        self.births += 1;
        let name = format!("worker-{}", self.births);
        self.log.note(&format!("born {name}"))?;
        let child = Command::new(&self.program)
            .arg("work")
            .arg(self.cluster.url())
            .arg(self.directory)
            .arg(&name)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Process { name, child })
    }

    /// No process ends unless it is killed or told to.
    fn ended_by_themselves(&mut self) -> Result<Vec<String>> {
        let mut ended = Vec::new();
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait()? {
                ended.push(format!("{} ended by itself: {status}", process.name));
            }
        }
        Ok(ended)
    }

    /// Ends processes gracefully.
    async fn stop(&mut self) -> Result<Vec<String>> {
        let mut broken = self.ended_by_themselves()?;
        for process in &mut self.processes {
            drop(process.child.stdin.take());
        }
        for process in &mut self.processes {
            match tokio::time::timeout(STUCK, process.child.wait()).await {
                Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => {}
                Ok(status) => broken.push(format!("{} stopped with {status:?}", process.name)),
                Err(_) => broken.push(format!("{} does not stop", process.name)),
            }
        }
        Ok(broken)
    }

    /// Waits until so many jobs are completed.
    async fn wait_for_completions(&self, wanted: i64) -> Result<()> {
        let deadline = Instant::now() + STUCK;
        while self.completed().await? < wanted {
            if Instant::now() > deadline {
                return Err(format!("{wanted} jobs are not completed after {STUCK:?}").into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn completed(&self) -> Result<i64> {
        let mut connection = self.cluster.connect().await;
        let completed = sqlx::query_scalar("SELECT count(*) FROM queuert.result")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(completed)
    }

    async fn wait_for_all_ends(&mut self) -> Result<Vec<String>> {
        let (mut completed, mut since) = (0, Instant::now());
        loop {
            let now = self.completed().await?;
            if !has_open_chains(&self.client).await? {
                return Ok(Vec::new());
            }
            if now != completed {
                (completed, since) = (now, Instant::now());
            } else if since.elapsed() > STUCK {
                return Ok(vec![format!("no job was completed for {STUCK:?}; {completed} are")]);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn has_open_chains(client: &Client) -> Result<bool> {
    let open = [JobStatus::Blocked, JobStatus::Pending, JobStatus::Running];
    let deadline = Instant::now() + STUCK;
    loop {
        match client.list_chains().statuses(open).limit(1).await {
            Ok(page) => return Ok(!page.items.is_empty()),
            // A pool that nobody used during a restart learns of its dead connections one by one.
            Err(_) if Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
            Err(error) => return Err(error.into()),
        }
    }
}
