//! Everything that a run has left: the store as its public interface tells it, the user's tables, the logs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use queuert::{ChainId, ChainRecord, Client, JobId, JobRecord};

use crate::jobs::WAITING;
use crate::log::{self, Line};
use crate::plan::{Database, Fault, faults};
use crate::store::{self, Store};
use crate::{Result, history};

/// A row that was written in the transaction that started a chain.
#[derive(Debug)]
pub(crate) struct StartedRow {
    pub(crate) chain: ChainId,
    pub(crate) type_name: String,
    pub(crate) starter: String,
    /// Whether the chain was there already, under its key.
    pub(crate) existing: bool,
}

/// A row that a job wrote in the transaction in which it completed.
#[derive(Debug)]
pub(crate) struct EffectRow {
    pub(crate) job: JobId,
    pub(crate) chain: ChainId,
    pub(crate) worker: String,
    pub(crate) attempt: i64,
}

/// One run of a processor. Its beginning by the store's clock tells it from all others of the job.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) process: String,
    pub(crate) started: i64,
    /// Which claim of the job it was.
    pub(crate) claim: u32,
    /// When, by the clock of the logs.
    pub(crate) at: i64,
    /// How it ended, by the account of its process: no end, one, or a broken rule.
    pub(crate) ends: Vec<String>,
    /// Whether the processor returned a completion, which then was or was not written.
    pub(crate) returned: bool,
    /// Whether the processor asked to snooze.
    pub(crate) snoozing: bool,
    /// The number of the attempt, if the processor returned an error.
    pub(crate) failing: Option<u32>,
    /// Whether the processor was told that it may not write.
    pub(crate) refused: bool,
}

pub(crate) struct Facts {
    pub(crate) database: Database,
    pub(crate) faults: BTreeSet<Fault>,
    pub(crate) integrity: String,
    pub(crate) chains: HashMap<ChainId, ChainRecord>,
    /// In the order of chains and their indexes.
    pub(crate) jobs: Vec<JobRecord>,
    pub(crate) blockers: HashMap<JobId, Vec<ChainRecord>>,
    pub(crate) started: Vec<StartedRow>,
    pub(crate) effects: Vec<EffectRow>,
    pub(crate) reserved: HashSet<JobId>,
    pub(crate) balances: BTreeMap<i64, i64>,
    /// What was noted about chains, word by word.
    pub(crate) noted: HashMap<ChainId, Vec<String>>,
    pub(crate) runs: HashMap<JobId, Vec<Run>>,
    /// What was reaped, and whose it was.
    pub(crate) reaped: HashMap<JobId, Vec<String>>,
    /// What processes were told has happened: the word, the id, and who.
    pub(crate) events: HashMap<(String, String), Vec<(String, String)>>,
    pub(crate) killed: HashMap<String, i64>,
    /// Calls to the store that failed.
    pub(crate) failures: Vec<Line>,
    /// What a process found to be broken itself.
    pub(crate) broken: Vec<String>,
    /// The units of work of a backlog, if there was one.
    pub(crate) backlog: Option<u64>,
    /// How often the server crashed, which forgets claims that had not reached the disk.
    pub(crate) crashes: usize,
    pub(crate) lines: Vec<Line>,
}

const PAGE: usize = 1_000;

impl Facts {
    pub(crate) async fn read<S: Store>(url: &str, directory: &Path) -> Result<Self> {
        let client = store::look::<S>(url).await?;
        let jobs = all_jobs(&client).await?;
        let mut blockers = HashMap::new();
        for job in jobs.iter().filter(|job| WAITING.contains(&job.type_name.as_str())) {
            blockers.insert(job.id, client.get_blockers(job.id).await?);
        }
        let chains = all_chains(&client).await?;
        let mut tx = client.begin().await?;
        let started = S::fetch(
            &mut tx,
            "SELECT chain, type, starter, CAST(existing AS TEXT) FROM started",
        )
        .await?;
        let effects = S::fetch(&mut tx, "SELECT job, chain, worker, CAST(attempt AS TEXT) FROM effect").await?;
        let reserved = S::fetch(&mut tx, "SELECT job FROM reserved").await?;
        let accounts = "SELECT CAST(id AS TEXT), CAST(balance AS TEXT) FROM account";
        let accounts = S::fetch(&mut tx, accounts).await?;
        tx.rollback().await?;
        let integrity = integrity::<S>(&client).await?;
        client.state().close().await;
        let mut facts = Self {
            database: match url.starts_with("sqlite:") {
                true => Database::Sqlite,
                false => Database::Postgres,
            },
            faults: BTreeSet::new(),
            integrity,
            chains,
            jobs,
            blockers,
            started: Vec::new(),
            effects: Vec::new(),
            reserved: HashSet::new(),
            balances: BTreeMap::new(),
            noted: HashMap::new(),
            runs: HashMap::new(),
            reaped: HashMap::new(),
            events: HashMap::new(),
            killed: HashMap::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            backlog: None,
            crashes: 0,
            lines: log::read(directory)?,
        };
        for row in &started {
            facts.started.push(StartedRow {
                chain: row[0].parse()?,
                type_name: row[1].clone(),
                starter: row[2].clone(),
                existing: row[3] == "1",
            });
        }
        for row in &effects {
            facts.effects.push(EffectRow {
                job: row[0].parse()?,
                chain: row[1].parse()?,
                worker: row[2].clone(),
                attempt: row[3].parse()?,
            });
        }
        for row in &reserved {
            facts.reserved.insert(row[0].parse()?);
        }
        for row in &accounts {
            facts.balances.insert(row[0].parse()?, row[1].parse()?);
        }
        for line in facts.lines.clone() {
            facts.read_line(&line)?;
        }
        Ok(facts)
    }

    fn read_line(&mut self, line: &Line) -> Result<()> {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["planned", names] => self.faults = faults(self.database, names)?,
            ["planned"] => {}
            ["backlog", units] => self.backlog = Some(units.parse()?),
            ["begun", job, started, claim] => {
                self.runs.entry(job.parse()?).or_default().push(Run {
                    process: line.process.clone(),
                    started: started.parse()?,
                    claim: claim.parse()?,
                    at: line.at,
                    ends: Vec::new(),
                    returned: false,
                    snoozing: false,
                    failing: None,
                    refused: false,
                });
            }
            [
                what @ ("returned" | "snoozing" | "failing" | "refused" | "ended"),
                job,
                started,
                rest @ ..,
            ] => {
                let (job, started) = (job.parse()?, started.parse::<i64>()?);
                let mut runs = self.runs.get_mut(&job).into_iter().flatten();
                let run = runs.rfind(|run| run.started == started && run.process == line.process);
                match (run, *what, rest) {
                    (Some(run), "returned", _) => run.returned = true,
                    (Some(run), "snoozing", _) => run.snoozing = true,
                    (Some(run), "failing", [number]) => run.failing = Some(number.parse()?),
                    (Some(run), "refused", _) => run.refused = true,
                    (Some(run), _, [how]) => run.ends.push((*how).to_owned()),
                    // Claimed, and given back before its processor was asked.
                    (None, "ended", ["Aborted-Shutdown"]) => {}
                    _ => self.broken.push(format!(
                        "an attempt ends once: {} {what} job {job}, which it did not run: {rest:?}",
                        line.process
                    )),
                }
            }
            ["reaped", job, owner] => self.reaped.entry(job.parse()?).or_default().push((*owner).to_owned()),
            ["event", what, id, by @ ..] => {
                let who = (line.process.clone(), by.first().map_or("", |by| by).to_owned());
                let key = ((*what).to_owned(), (*id).to_owned());
                self.events.entry(key).or_default().push(who);
            }
            ["killed", process] => drop(self.killed.insert((*process).to_owned(), line.at)),
            ["crashed"] => self.crashes += 1,
            ["failed" | "error", ..] => self.failures.push(line.clone()),
            ["broken", ..] => self.broken.push(words.join(" ")),
            [
                "born" | "froze" | "thawed" | "skewed" | "restarted" | "accepting" | "ended-sessions" | "refused"
                | "network" | "snapshot" | "finding" | "failed-over" | "spoiled",
                ..,
            ] => {}
            [what, chain] => self.noted.entry(chain.parse()?).or_default().push((*what).to_owned()),
            other => return Err(format!("a torn line: {other:?}").into()),
        }
        Ok(())
    }

    pub(crate) fn has_noted(&self, chain: ChainId, what: &str) -> bool {
        let notes = self.noted.get(&chain);
        notes.is_some_and(|notes| notes.iter().any(|note| note == what))
    }

    /// Whether a worker is of a process that was killed.
    pub(crate) fn was_killed(&self, worker: &str) -> bool {
        self.killed.keys().any(|process| is_of(worker, process))
    }

    /// Whether answers of the store may have been lost, so that something is done and nobody knows.
    pub(crate) fn loses_answers(&self) -> bool {
        self.faults.iter().any(|fault| fault.excuses_failures())
    }

    /// Whether the store may have forgotten what it had acknowledged. It then is as it was at some earlier moment: its tables
    /// agree with each other, and may disagree with the logs.
    pub(crate) fn forgets(&self) -> bool {
        self.faults.iter().any(|fault| fault.forgets())
    }

    pub(crate) fn history(&self, chain: ChainId) -> String {
        history::of(self, chain)
    }
}

/// Whether a worker is of this process: the name of the process, and a number that the library adds.
pub(crate) fn is_of(worker: &str, process: &str) -> bool {
    worker.strip_prefix(process).is_some_and(|rest| rest.starts_with('-'))
}

async fn integrity<S: Store>(client: &Client<S>) -> Result<String> {
    let mut tx = client.begin().await?;
    let integrity = S::integrity(&mut tx).await?;
    tx.rollback().await?;
    Ok(integrity)
}

async fn all_jobs<S: Store>(client: &Client<S>) -> Result<Vec<JobRecord>> {
    let mut page = client.list_jobs().limit(PAGE).await?;
    let mut jobs = page.items;
    while let Some(cursor) = page.next {
        page = client.list_jobs().limit(PAGE).after(cursor).await?;
        jobs.append(&mut page.items);
    }
    jobs.sort_by_key(|job| (job.chain_id, job.chain_index, job.id));
    Ok(jobs)
}

async fn all_chains<S: Store>(client: &Client<S>) -> Result<HashMap<ChainId, ChainRecord>> {
    let mut page = client.list_chains().limit(PAGE).await?;
    let mut chains = page.items;
    while let Some(cursor) = page.next {
        page = client.list_chains().limit(PAGE).after(cursor).await?;
        chains.append(&mut page.items);
    }
    Ok(chains.into_iter().map(|chain| (chain.id, chain)).collect())
}
