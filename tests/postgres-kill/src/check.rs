//! The rules, and the report.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use queuert::{ChainId, JobId, JobRecord, JobStatus};

use crate::Result;
use crate::facts::{EffectRow, Facts, Run};
use crate::jobs::{Number, WITH_EFFECT, path, result};

/// Histories beyond these are left out: the first tell enough.
const HISTORIES: usize = 10;

/// Looks at what a run has left in a database and in the logs beside it; prints the report, and says which rules are
/// broken.
///
/// # Errors
///
/// If it cannot be read.
///
/// # Cancel safety
///
/// It only reads.
pub async fn check(url: &str, directory: &Path) -> Result<Vec<&'static str>> {
    let facts = Facts::read(url, directory).await?;
    let mut audit = Audit {
        facts: &facts,
        chains: BTreeMap::new(),
        broken: Vec::new(),
        count: Count::default(),
    };
    for job in &facts.jobs {
        audit.chains.entry(job.chain_id).or_default().push(job);
    }
    audit.starts();
    audit.chains();
    audit.effects();
    audit.attempts();
    let Audit { broken, count, .. } = audit;
    println!(
        "chains     {}, jobs {}, rows of completing transactions {}",
        facts.chains.len(),
        facts.jobs.len(),
        facts.effects.len()
    );
    println!(
        "attempts   {} claims recorded = {} run by processors + {} that no processor saw, all of them reaped",
        count.claims,
        count.claims - count.unseen,
        count.unseen
    );
    println!(
        "           of those run: {} completed, {} failed or lost by their own account, {} cut off by a kill; {} more \
         were claims that a crash of the server forgot",
        count.completed, count.failed, count.killed, count.forgotten
    );
    for (rule, what, chain) in broken.iter().take(HISTORIES) {
        println!("\nBROKEN: {rule}: {what}");
        if let Some(chain) = chain {
            println!("{}", facts.history(*chain));
        }
    }
    match broken.len() {
        0 => {
            println!("all well: every chain ended, one successor each, every effect once, every attempt accounted for")
        }
        many => println!("\n{many} times a rule is broken"),
    }
    Ok(broken.into_iter().map(|(rule, _, _)| rule).collect())
}

#[derive(Default)]
struct Count {
    claims: usize,
    unseen: usize,
    completed: usize,
    failed: usize,
    killed: usize,
    forgotten: usize,
}

struct Audit<'f> {
    facts: &'f Facts,
    /// The jobs of each chain, by index.
    chains: BTreeMap<ChainId, Vec<&'f JobRecord>>,
    broken: Vec<(&'static str, String, Option<ChainId>)>,
    count: Count,
}

impl Audit<'_> {
    fn broken(&mut self, rule: &'static str, chain: ChainId, what: impl Into<String>) {
        self.broken.push((rule, what.into(), Some(chain)));
    }

    /// A chain exists if and only if the transaction that started it was committed.
    fn starts(&mut self) {
        let mut rows: HashMap<ChainId, usize> = HashMap::new();
        for chain in &self.facts.started {
            *rows.entry(*chain).or_default() += 1;
        }
        for (chain, count) in &rows {
            if !self.chains.contains_key(chain) || !self.facts.chains.contains_key(chain) {
                self.broken("no chain is lost", *chain, "its row is there, the chain is not");
            }
            if *count > 1 {
                self.broken("started once", *chain, format!("{count} rows"));
            }
        }
        let found: Vec<ChainId> = self.chains.keys().copied().collect();
        for chain in found.into_iter().filter(|chain| !rows.contains_key(chain)) {
            self.broken("nothing comes from nowhere", chain, "it has no row");
        }
    }

    /// One successor each, in the declared order, up to the right end.
    fn chains(&mut self) {
        let chains = std::mem::take(&mut self.chains);
        for (chain, jobs) in &chains {
            let indexes: Vec<u32> = jobs.iter().map(|job| job.chain_index).collect();
            let wanted: Vec<u32> = (0..).take(jobs.len()).collect();
            if indexes != wanted {
                self.broken("one successor", *chain, format!("the jobs are {indexes:?}"));
            }
            let types: Vec<&str> = jobs.iter().map(|job| job.type_name.as_str()).collect();
            if types != path(types[0]) {
                self.broken("the declared way", *chain, format!("it went {types:?}"));
            }
            for job in jobs {
                if job.status != JobStatus::Completed || job.lease.is_some() || job.ended_at.is_none() {
                    self.broken("every chain ends", *chain, format!("{} is {}", job.id, job.status));
                }
            }
            let Some(record) = self.facts.chains.get(chain) else {
                continue;
            };
            let n = jobs[0]
                .input
                .decode::<Number>()
                .map(|input| input.n)
                .unwrap_or_default();
            let output = record.output.as_ref().and_then(|output| output.decode::<u64>().ok());
            if record.status != JobStatus::Completed || record.length as usize != jobs.len() {
                self.broken("every chain ends", *chain, format!("the chain is {}", record.status));
            } else if output != Some(result(types[0], n)) {
                self.broken("the right output", *chain, format!("{output:?} for {n}"));
            }
        }
        self.chains = chains;
        for (job, blockers) in &self.facts.blockers {
            let record = self.facts.jobs.iter().find(|record| record.id == *job);
            let started = record.and_then(|record| record.started_at);
            let late = |ended: Option<queuert::Timestamp>| ended > started || ended.is_none();
            if blockers.len() != 2 || blockers.iter().any(|blocker| late(blocker.ended_at)) {
                self.broken("fan-in", job.as_chain(), format!("it did not wait for {blockers:?}"));
            }
        }
    }

    /// What a job wrote in its completing transaction is there once, by the attempt that completed it.
    fn effects(&mut self) {
        let facts = self.facts;
        let mut rows: HashMap<JobId, Vec<&EffectRow>> = HashMap::new();
        for row in &facts.effects {
            rows.entry(row.job).or_default().push(row);
        }
        for job in &facts.jobs {
            let rows = rows.remove(&job.id).unwrap_or_default();
            let wanted = usize::from(WITH_EFFECT.contains(&job.type_name.as_str()));
            if rows.len() != wanted {
                self.broken(
                    "effects once",
                    job.chain_id,
                    format!("{} has {} rows", job.id, rows.len()),
                );
            }
            let completed_by = job.completed_by.as_ref().map(|worker| worker.as_str());
            for row in rows {
                if row.attempt != i64::from(job.attempt) || completed_by != Some(row.worker.as_str()) {
                    let what = format!("{row:?}, but attempt {} of {completed_by:?} was the last", job.attempt);
                    self.broken("only the last attempt counts", job.chain_id, what);
                }
            }
        }
        for (job, _) in rows {
            self.broken("effects once", job.as_chain(), "rows of a job that is not there");
        }
    }

    /// Every claim is a run of a processor, or was taken from one that never began; every run has an end that somebody
    /// saw, or its process was killed.
    fn attempts(&mut self) {
        let facts = self.facts;
        let none: Vec<Run> = Vec::new();
        for job in &facts.jobs {
            let runs = facts.runs.get(&job.id).unwrap_or(&none);
            let seen: HashSet<u32> = runs.iter().map(|run| run.claim).collect();
            self.count.claims += job.claims as usize;
            // Nothing here snoozes or is released, so all claims are attempts.
            if job.attempt != job.claims {
                let what = format!("{} claims, {} attempts", job.claims, job.attempt);
                self.broken("every attempt is counted", job.chain_id, what);
            }
            if seen.iter().any(|claim| *claim == 0 || *claim > job.claims) {
                let what = format!("claims {seen:?} were run, {} are recorded", job.claims);
                self.broken("every attempt is counted", job.chain_id, what);
            }
            if !seen.contains(&job.claims) {
                let what = format!("claim {} completed it, and no processor saw it", job.claims);
                self.broken("completed by a processor", job.chain_id, what);
            }
            let unseen = (job.claims as usize).saturating_sub(seen.len());
            self.count.unseen += unseen;
            let expired = facts
                .failures
                .get(&job.id)
                .is_some_and(|message| message.contains("expired"));
            if unseen > 0 && !expired && !facts.reaped.contains_key(&job.id) {
                let what = format!("{unseen} claims that no processor saw, and no lease of it expired");
                self.broken("every attempt is accounted for", job.chain_id, what);
            }
            // Run twice under one number: the first claim was forgotten.
            let forgotten = runs.len() - seen.len();
            self.count.forgotten += forgotten;
            if forgotten > 0 && facts.crashes == 0 {
                let what = format!("{forgotten} claims were given twice, and the server has not crashed");
                self.broken("claimed once", job.chain_id, what);
            }
            self.ends(job, runs);
        }
        for job in facts.runs.keys() {
            if facts.jobs.binary_search_by_key(job, |job| job.id).is_err()
                && !facts.jobs.iter().any(|record| record.id == *job)
            {
                self.broken("no chain is lost", job.as_chain(), "it was run, and is not there");
            }
        }
    }

    fn ends(&mut self, job: &JobRecord, runs: &[Run]) {
        let facts = self.facts;
        let processes: HashSet<&str> = runs.iter().map(|run| run.process.as_str()).collect();
        let mut completed = 0;
        for process in processes {
            let began = runs.iter().filter(|run| run.process == process).count();
            let ends = facts
                .ends
                .get(&(process.to_owned(), job.id))
                .map_or(&[][..], Vec::as_slice);
            let done = ends
                .iter()
                .filter(|end| ["Finished", "Continued"].contains(&end.as_str()))
                .count();
            completed += done;
            self.count.completed += done;
            self.count.failed += ends.len() - done;
            let cut_off = began.saturating_sub(ends.len());
            self.count.killed += cut_off;
            if cut_off > 0 && !facts.killed.contains(process) {
                let what = format!(
                    "{process} began {began} attempts, ended {}, and was not killed",
                    ends.len()
                );
                self.broken("every attempt is accounted for", job.chain_id, what);
            }
        }
        // Whoever completed it may have been killed before it could say so.
        let by_killed = job.completed_by.as_ref().is_some_and(|worker| {
            // The name of the process, and a number that the library adds.
            facts
                .killed
                .iter()
                .any(|name| worker.as_str().starts_with(&format!("{name}-")))
        });
        if completed > 1 || (completed == 0 && !by_killed) {
            let what = format!("{completed} attempts say that they completed {}", job.id);
            self.broken("completed once", job.chain_id, what);
        }
    }
}
