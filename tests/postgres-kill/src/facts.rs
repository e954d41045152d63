//! Everything that a run has left: the store as its public interface tells it, the user's tables, the logs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, Timestamp};
use queuert_postgres::Client;
use sqlx::{Connection, PgConnection};

use crate::{Result, log, process};

/// A row that a job wrote in the transaction in which it completed.
#[derive(Debug)]
pub(crate) struct EffectRow {
    pub(crate) job: JobId,
    pub(crate) worker: String,
    pub(crate) attempt: i64,
}

/// One run of a processor.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) process: String,
    /// Which claim of the job it was.
    pub(crate) claim: u32,
}

/// How a run ended, by the account of its process.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) process: String,
    pub(crate) claim: u32,
    pub(crate) how: String,
}

/// A restart of the server.
#[derive(Debug)]
pub(crate) struct Restart {
    pub(crate) at: Timestamp,
    /// The processes that lived from then until the next one, or until the end.
    pub(crate) survivors: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) chains: HashMap<ChainId, ChainRecord>,
    /// In the order of chains and their indexes.
    pub(crate) jobs: Vec<JobRecord>,
    /// The chains that each `gather` waited for.
    pub(crate) blockers: HashMap<JobId, Vec<ChainRecord>>,
    pub(crate) started: Vec<ChainId>,
    pub(crate) effects: Vec<EffectRow>,
    /// The latest attempt of each job that failed, or whose lease expired, as the store keeps it.
    pub(crate) failures: HashMap<JobId, u32>,
    pub(crate) runs: HashMap<JobId, Vec<Run>>,
    /// Runs whose processor was about to fail.
    pub(crate) failing: HashMap<JobId, Vec<Run>>,
    pub(crate) ends: HashMap<JobId, Vec<End>>,
    /// What was reaped, and whose it was.
    pub(crate) reaped: HashMap<JobId, Vec<String>>,
    pub(crate) killed: HashSet<String>,
    pub(crate) restarts: Vec<Restart>,
    /// How often the server crashed, which forgets claims that had not reached the disk.
    pub(crate) crashes: usize,
    /// How many units of work were to be started.
    pub(crate) planned: Option<u64>,
}

const PAGE: usize = 1_000;

impl Facts {
    pub(crate) async fn read(url: &str, directory: &Path) -> Result<Self> {
        let client = Client::new(process::connect(url).await?);
        let jobs = all_jobs(&client).await?;
        let mut blockers = HashMap::new();
        for job in jobs.iter().filter(|job| job.type_name.as_str() == "gather") {
            blockers.insert(job.id, client.get_blockers(job.id).await?);
        }
        let chains = all_chains(&client).await?;
        client.state().close().await;
        let mut connection = PgConnection::connect(url).await?;
        let started: Vec<String> = sqlx::query_scalar("SELECT chain FROM started")
            .fetch_all(&mut connection)
            .await?;
        let effects: Vec<(String, String, i64)> = sqlx::query_as("SELECT job, worker, attempt FROM effect")
            .fetch_all(&mut connection)
            .await?;
        let failures: Vec<(String, i32)> = sqlx::query_as("SELECT id::text, attempt FROM queuert.failure")
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        let mut facts = Self {
            chains,
            jobs,
            blockers,
            started: started.iter().map(|id| Ok(id.parse()?)).collect::<Result<_>>()?,
            effects: Vec::new(),
            failures: HashMap::new(),
            runs: HashMap::new(),
            failing: HashMap::new(),
            ends: HashMap::new(),
            reaped: HashMap::new(),
            killed: HashSet::new(),
            restarts: Vec::new(),
            crashes: 0,
            planned: None,
        };
        for (job, worker, attempt) in effects {
            let job = job.parse()?;
            facts.effects.push(EffectRow { job, worker, attempt });
        }
        for (job, attempt) in failures {
            facts.failures.insert(job.parse()?, attempt.try_into()?);
        }
        facts.read_logs(directory)?;
        Ok(facts)
    }

    fn read_logs(&mut self, directory: &Path) -> Result<()> {
        let mut living: BTreeSet<String> = BTreeSet::new();
        for (process, words) in log::read(directory)? {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["begun", job, claim] => {
                    let claim = claim.parse()?;
                    self.runs.entry(job.parse()?).or_default().push(Run { process, claim });
                }
                ["failing", job, claim] => {
                    let claim = claim.parse()?;
                    self.failing
                        .entry(job.parse()?)
                        .or_default()
                        .push(Run { process, claim });
                }
                ["ended", job, claim, how] => {
                    let (claim, how) = (claim.parse()?, (*how).to_owned());
                    self.ends
                        .entry(job.parse()?)
                        .or_default()
                        .push(End { process, claim, how });
                }
                ["reaped", job, owner] => self.reaped.entry(job.parse()?).or_default().push((*owner).to_owned()),
                ["planned", units] => self.planned = Some(units.parse()?),
                // These four come from one log, in their order.
                ["born", process] => drop(living.insert((*process).to_owned())),
                ["killed", process] => {
                    living.remove(*process);
                    if let Some(restart) = self.restarts.last_mut() {
                        restart.survivors.remove(*process);
                    }
                    self.killed.insert((*process).to_owned());
                }
                ["crashed"] => self.crashes += 1,
                ["restarted", micros] => self.restarts.push(Restart {
                    at: Timestamp::from_micros(micros.parse()?),
                    survivors: living.clone(),
                }),
                other => return Err(format!("a torn line: {other:?}").into()),
            }
        }
        Ok(())
    }

    /// All that is known about a chain, one fact per line.
    pub(crate) fn history(&self, chain: ChainId) -> String {
        let mut lines = vec![format!("chain {chain}: {:?}", self.chains.get(&chain))];
        let rows = self.started.iter().filter(|id| **id == chain).count();
        lines.push(format!("  {rows} rows in `started`"));
        for job in self.jobs.iter().filter(|job| job.chain_id == chain) {
            lines.push(format!("  {job:?}"));
            lines.push(format!("    run {:?}", self.runs.get(&job.id)));
            lines.push(format!("    about to fail {:?}", self.failing.get(&job.id)));
            for end in self.ends.get(&job.id).into_iter().flatten() {
                lines.push(format!("    {end:?}"));
            }
            let ran = self.runs.get(&job.id).into_iter().flatten().map(|run| &run.process);
            let killed: BTreeSet<&String> = ran.filter(|process| self.killed.contains(*process)).collect();
            lines.push(format!("    killed {killed:?}"));
            lines.push(format!("    reaped from {:?}", self.reaped.get(&job.id)));
            lines.push(format!(
                "    latest failure in attempt {:?}",
                self.failures.get(&job.id)
            ));
            for row in self.effects.iter().filter(|row| row.job == job.id) {
                lines.push(format!("    {row:?}"));
            }
        }
        lines.join("\n")
    }
}

async fn all_jobs(client: &Client) -> Result<Vec<JobRecord>> {
    let mut page = client.list_jobs().limit(PAGE).await?;
    let mut jobs = page.items;
    while let Some(cursor) = page.next {
        page = client.list_jobs().limit(PAGE).after(cursor).await?;
        jobs.append(&mut page.items);
    }
    jobs.sort_by_key(|job| (job.chain_id, job.chain_index, job.id));
    Ok(jobs)
}

async fn all_chains(client: &Client) -> Result<HashMap<ChainId, ChainRecord>> {
    let mut page = client.list_chains().limit(PAGE).await?;
    let mut chains = page.items;
    while let Some(cursor) = page.next {
        page = client.list_chains().limit(PAGE).after(cursor).await?;
        chains.append(&mut page.items);
    }
    Ok(chains.into_iter().map(|chain| (chain.id, chain)).collect())
}
