//! The rules, and the report.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use queuert::{ChainId, JobId, JobRecord, JobStatus};

use crate::Result;
use crate::facts::{EffectRow, Facts};
use crate::jobs::{Number, WITH_EFFECT, path, planned, result};

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
    audit.order();
    audit.carrying_on();
    let Audit { broken, count, .. } = audit;
    println!(
        "chains     {}, jobs {}, rows of completing transactions {}",
        facts.chains.len(),
        facts.jobs.len(),
        facts.effects.len()
    );
    println!(
        "attempts   {} claims recorded = {} run by processors + {} that no processor saw",
        count.claims,
        count.claims - count.unseen,
        count.unseen
    );
    println!(
        "           of those run: {} completed, {} failed, {} aborted by their own account, {} cut off by a kill; {} more \
         were claims that a crash of the server forgot",
        count.completed, count.failed, count.aborted, count.killed, count.forgotten
    );
    println!(
        "           {} jobs were taken over from expired leases by the account of who took them, {} more only the store tells of",
        count.reaped, count.untold
    );
    println!("waited     {}", waited(&facts));
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

/// How long jobs lay before they were first claimed, by priority: what the ranks are for.
fn waited(facts: &Facts) -> String {
    let mut waits: BTreeMap<Reverse<i16>, (u32, Duration)> = BTreeMap::new();
    for job in facts.jobs.iter().filter(|job| job.claims == 1 && job.chain_index == 0) {
        let started = job.started_at.unwrap_or(job.scheduled_at);
        let (count, sum) = waits.entry(Reverse(job.priority)).or_default();
        *count += 1;
        *sum += started.saturating_duration_since(job.scheduled_at);
    }
    let waits = waits.into_iter().map(|(Reverse(priority), (count, sum))| {
        let mean = sum.as_secs_f64() / f64::from(count);
        format!("{mean:.1} s at priority {priority}")
    });
    waits.collect::<Vec<_>>().join(", ")
}

#[derive(Default)]
pub(crate) struct Count {
    pub(crate) claims: usize,
    pub(crate) unseen: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) aborted: usize,
    pub(crate) killed: usize,
    pub(crate) forgotten: usize,
    pub(crate) reaped: usize,
    pub(crate) untold: usize,
}

pub(crate) struct Audit<'f> {
    pub(crate) facts: &'f Facts,
    /// The jobs of each chain, by index.
    chains: BTreeMap<ChainId, Vec<&'f JobRecord>>,
    broken: Vec<(&'static str, String, Option<ChainId>)>,
    pub(crate) count: Count,
}

impl Audit<'_> {
    pub(crate) fn broken(&mut self, rule: &'static str, chain: ChainId, what: impl Into<String>) {
        self.broken.push((rule, what.into(), Some(chain)));
    }

    /// The same where no chain in particular is concerned.
    pub(crate) fn broken_everywhere(&mut self, rule: &'static str, what: String) {
        self.broken.push((rule, what, None));
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
        self.plan();
    }

    /// What was to be started is there, once: also if a commit that was reported has been forgotten with its rows.
    fn plan(&mut self) {
        let mut missing = planned(self.facts.planned.unwrap_or_default());
        let mut surplus = Vec::new();
        for (chain, jobs) in &self.chains {
            let first = jobs[0];
            let n = first.input.decode::<Number>().map(|input| input.n).unwrap_or_default();
            match missing.get_mut(&(first.type_name.as_str(), n)) {
                Some(left) if *left > 0 => *left -= 1,
                _ => surplus.push((*chain, format!("one {} of {n} too many", first.type_name))),
            }
        }
        for (chain, what) in surplus {
            self.broken("started as planned", chain, what);
        }
        for ((name, n), left) in missing.into_iter().filter(|(_, left)| *left > 0) {
            let what = format!("{left} {name} of {n} are not there");
            self.broken_everywhere("started as planned", what);
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
        let records: HashMap<JobId, &JobRecord> = self.facts.jobs.iter().map(|record| (record.id, record)).collect();
        for (job, blockers) in &self.facts.blockers {
            let started = records.get(job).and_then(|record| record.started_at);
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
}
