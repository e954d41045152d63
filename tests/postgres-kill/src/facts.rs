//! Everything that a run has left: the store as its public interface tells it, the user's tables, the logs.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use queuert::{ChainId, ChainRecord, JobId, JobRecord};
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

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) chains: HashMap<ChainId, ChainRecord>,
    /// In the order of chains and their indexes.
    pub(crate) jobs: Vec<JobRecord>,
    /// The chains that each `gather` waited for.
    pub(crate) blockers: HashMap<JobId, Vec<ChainRecord>>,
    pub(crate) started: Vec<ChainId>,
    pub(crate) effects: Vec<EffectRow>,
    /// The latest failure of each job, as the store keeps it.
    pub(crate) failures: HashMap<JobId, String>,
    pub(crate) runs: HashMap<JobId, Vec<Run>>,
    /// How attempts ended, by process and job.
    pub(crate) ends: HashMap<(String, JobId), Vec<String>>,
    /// Who was reaped, and whose it was.
    pub(crate) reaped: HashMap<JobId, Vec<String>>,
    pub(crate) killed: HashSet<String>,
    /// How often the server crashed, which forgets claims that had not reached the disk.
    pub(crate) crashes: usize,
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
        let failures: Vec<(String, String)> = sqlx::query_as("SELECT id::text, message FROM queuert.failure")
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
            ends: HashMap::new(),
            reaped: HashMap::new(),
            killed: HashSet::new(),
            crashes: 0,
        };
        for (job, worker, attempt) in effects {
            let job = job.parse()?;
            facts.effects.push(EffectRow { job, worker, attempt });
        }
        for (job, message) in failures {
            facts.failures.insert(job.parse()?, message);
        }
        facts.read_logs(directory)?;
        Ok(facts)
    }

    fn read_logs(&mut self, directory: &Path) -> Result<()> {
        for (process, words) in log::read(directory)? {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["begun", job, claim] => {
                    let claim = claim.parse()?;
                    self.runs.entry(job.parse()?).or_default().push(Run { process, claim });
                }
                ["ended", job, _, how] => {
                    let ends = self.ends.entry((process, job.parse()?)).or_default();
                    ends.push((*how).to_owned());
                }
                ["reaped", job, owner] => self.reaped.entry(job.parse()?).or_default().push((*owner).to_owned()),
                ["killed", process] => {
                    self.killed.insert((*process).to_owned());
                }
                ["crashed"] => self.crashes += 1,
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
            for ((process, _), ends) in self.ends.iter().filter(|((_, id), _)| *id == job.id) {
                let killed = if self.killed.contains(process) { ", killed" } else { "" };
                lines.push(format!("    ended in {process}{killed}: {ends:?}"));
            }
            lines.push(format!("    reaped from {:?}", self.reaped.get(&job.id)));
            lines.push(format!("    latest failure {:?}", self.failures.get(&job.id)));
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
