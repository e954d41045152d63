//! The rules, and the report.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, JobStatus};

use crate::facts::Facts;
use crate::jobs::{Number, parts, result};
use crate::process::Result;
use crate::{FILE, history};

/// A rule that is broken.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) what: String,
    pub(crate) chain: Option<ChainId>,
}

/// The types whose processors write to the user's tables when they complete.
const WITH_EFFECT: [&str; 7] = ["last", "fork", "left", "gather", "spread", "keyed", "staged"];

/// Histories beyond these are left out: the first tell enough.
const HISTORIES: usize = 10;

/// Looks at what a run has left; prints the report, and says whether all is well.
pub(crate) async fn run(directory: &Path) -> Result<bool> {
    let facts = Facts::read(directory).await?;
    let violations = audit(&facts);
    print_counts(&facts);
    for violation in violations.iter().take(HISTORIES) {
        println!("\nBROKEN: {}: {}", violation.rule, violation.what);
        if let Some(chain) = violation.chain {
            println!("{}", history::of(&facts, chain));
        }
    }
    if violations.is_empty() {
        println!(
            "all well: no chain lost or doubled, one successor each, every chain ended, every effect once, file intact"
        );
    } else {
        let mut by_rule: BTreeMap<&str, usize> = BTreeMap::new();
        for violation in &violations {
            *by_rule.entry(violation.rule).or_default() += 1;
        }
        println!(
            "\nbroken rules: {by_rule:?}; the database is {}",
            directory.join(FILE).display()
        );
    }
    Ok(violations.is_empty())
}

fn print_counts(facts: &Facts) {
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for job in &facts.jobs {
        *types.entry(job.type_name.as_str()).or_default() += 1;
    }
    let existing = facts.started.iter().filter(|row| row.existing).count();
    let claims: u64 = facts.jobs.iter().map(|job| u64::from(job.claims)).sum();
    let noted = |what: &str| {
        facts
            .noted
            .values()
            .filter(|notes| notes.iter().any(|note| note == what))
            .count()
    };
    println!(
        "chains     {}, jobs {}: {types:?}",
        facts.chains.len(),
        facts.jobs.len()
    );
    println!(
        "claims     {claims}, {} more than jobs",
        claims.saturating_sub(facts.jobs.len() as u64)
    );
    println!(
        "starts     {} rows with their chains, {existing} of them deduplicated; {} intended without a row; {} acknowledged; \
         {} rolled back; {} awaited",
        facts.started.len(),
        noted("intended"),
        noted("acknowledged"),
        noted("rolled-back"),
        noted("awaited"),
    );
    println!("effects    {} rows, balance {}", facts.effects.len(), facts.balance);
    println!(
        "file       {} bytes, integrity_check {}",
        facts.bytes,
        facts.integrity.join("; ")
    );
}

/// Everything that is broken.
pub(crate) fn audit(facts: &Facts) -> Vec<Violation> {
    let mut audit = Audit {
        facts,
        chains: HashMap::new(),
        violations: Vec::new(),
    };
    for job in &facts.jobs {
        audit.chains.entry(job.chain_id).or_default().push(job);
    }
    audit.file();
    audit.starts();
    audit.chains();
    audit.effects();
    audit.fan_in();
    audit.deduplication();
    audit.violations
}

struct Audit<'f> {
    facts: &'f Facts,
    /// The jobs of each chain, by index.
    chains: HashMap<ChainId, Vec<&'f JobRecord>>,
    violations: Vec<Violation>,
}

impl Audit<'_> {
    fn broken(&mut self, rule: &'static str, chain: Option<ChainId>, what: impl Into<String>) {
        let what = what.into();
        self.violations.push(Violation { rule, what, chain });
    }

    fn file(&mut self) {
        if self.facts.integrity != ["ok"] {
            self.broken("the file is intact", None, self.facts.integrity.join("; "));
        }
    }

    /// A chain exists if and only if the transaction that started it was committed.
    fn starts(&mut self) {
        let facts = self.facts;
        let mut rows: HashMap<ChainId, usize> = HashMap::new();
        for row in facts.started.iter().filter(|row| !row.existing) {
            *rows.entry(row.chain).or_default() += 1;
        }
        for (chain, count) in &rows {
            if !self.chains.contains_key(chain) {
                self.broken(
                    "no chain is lost",
                    Some(*chain),
                    "the row of its transaction is there, the chain is not",
                );
            }
            if *count > 1 {
                self.broken("started once", Some(*chain), format!("{count} rows of its transaction"));
            }
        }
        let found: Vec<ChainId> = self.chains.keys().copied().collect();
        for chain in found {
            if !rows.contains_key(&chain) && !facts.has_noted(chain.first_job(), "intended") {
                self.broken(
                    "nothing comes from nowhere",
                    Some(chain),
                    "the chain is there, the row of its transaction is not",
                );
            }
            if !facts.chains.contains_key(&chain) {
                self.broken(
                    "chains are listed",
                    Some(chain),
                    "its jobs are there, the list of chains lacks it",
                );
            }
        }
        for id in facts.noted.keys() {
            let there = self.chains.contains_key(&id.as_chain());
            if facts.has_noted(*id, "acknowledged") && !there {
                self.broken(
                    "no chain is lost",
                    Some(id.as_chain()),
                    "its starter was told that it is there",
                );
            }
            if facts.has_noted(*id, "rolled-back") && (there || rows.contains_key(&id.as_chain())) {
                self.broken("rolled back is gone", Some(id.as_chain()), "something of it is there");
            }
        }
    }

    /// One successor each, in the declared order, up to the right end.
    fn chains(&mut self) {
        let chains = std::mem::take(&mut self.chains);
        for (chain, jobs) in &chains {
            let indexes: Vec<u32> = jobs.iter().map(|job| job.chain_index).collect();
            let wanted: Vec<u32> = (0..).take(jobs.len()).collect();
            if indexes != wanted {
                self.broken(
                    "one successor",
                    Some(*chain),
                    format!("the indexes of its jobs are {indexes:?}"),
                );
            }
            let numbers: HashSet<u64> = jobs.iter().filter_map(|job| number_of(job)).collect();
            let Some(n) = numbers.iter().next().copied().filter(|_| numbers.len() == 1) else {
                self.broken("inputs are passed on", Some(*chain), format!("they carry {numbers:?}"));
                continue;
            };
            let types: Vec<&str> = jobs.iter().map(|job| job.type_name.as_str()).collect();
            if types != path(types[0], n) {
                self.broken(
                    "the declared way",
                    Some(*chain),
                    format!("it went {types:?}, not {:?}", path(types[0], n)),
                );
            }
            for job in jobs {
                if job.status != JobStatus::Completed || job.lease.is_some() || job.ended_at.is_none() {
                    let what = format!("{} {} is {}", job.type_name, job.id, job.status);
                    self.broken("every chain ends", Some(*chain), what);
                }
            }
            if let Some(record) = self.facts.chains.get(chain) {
                self.end(record, jobs, n);
            }
        }
        self.chains = chains;
    }

    fn end(&mut self, record: &ChainRecord, jobs: &[&JobRecord], n: u64) {
        let chain = Some(record.id);
        if record.status != JobStatus::Completed || record.length as usize != jobs.len() {
            let what = format!("the chain is {} after {} jobs", record.status, record.length);
            self.broken("every chain ends", chain, what);
        }
        let blockers = jobs.last().and_then(|last| self.facts.blockers.get(&last.id));
        let expected = match blockers {
            Some(blockers) => blockers.iter().filter_map(output_of).sum(),
            None => result(n),
        };
        if output_of(record) != Some(expected) {
            let what = format!(
                "{:?} instead of {expected}",
                record.output.as_ref().map(queuert::Payload::as_str)
            );
            self.broken("the right output", chain, what);
        }
    }

    /// What a job wrote in its completing transaction is there once if it completed, and not at all otherwise.
    fn effects(&mut self) {
        let facts = self.facts;
        let mut rows: HashMap<JobId, usize> = HashMap::new();
        for row in &facts.effects {
            *rows.entry(row.job).or_default() += 1;
        }
        let mut sum = 0;
        for job in &facts.jobs {
            let completed = job.status == JobStatus::Completed && WITH_EFFECT.contains(&job.type_name.as_str());
            let count = rows.remove(&job.id).unwrap_or_default();
            if count != usize::from(completed) {
                let what = format!("{} {} is {} and has {count} rows", job.type_name, job.id, job.status);
                self.broken("effects once", Some(job.chain_id), what);
            }
            if completed {
                sum += number_of(job).unwrap_or_default();
            }
        }
        let jobs: HashMap<JobId, &JobRecord> = facts.jobs.iter().map(|job| (job.id, job)).collect();
        for row in &facts.effects {
            let Some(job) = jobs.get(&row.job) else {
                continue;
            };
            let completed_by = job.completed_by.as_ref().map(|worker| worker.as_str());
            if row.attempt != i64::from(job.attempt) || completed_by != Some(row.worker.as_str()) {
                let what = format!("attempt {} completed it, the last was {}", row.attempt, job.attempt);
                self.broken("only the last attempt counts", Some(job.chain_id), what);
            }
        }
        for (job, count) in rows {
            let chain = facts.effects.iter().find(|row| row.job == job).map(|row| row.chain);
            self.broken(
                "effects once",
                chain,
                format!("{count} rows of job {job}, which is not there"),
            );
        }
        if i64::try_from(sum) != Ok(facts.balance) {
            self.broken(
                "effects once",
                None,
                format!("the balance is {}, not {sum}", facts.balance),
            );
        }
        let reserved: HashSet<&JobId> = facts.reserved.iter().collect();
        for job in facts.jobs.iter().filter(|job| job.type_name.as_str() == "staged") {
            if job.status == JobStatus::Completed && !reserved.contains(&job.id) {
                self.broken(
                    "prepared before completed",
                    Some(job.chain_id),
                    "what it prepared is not there",
                );
            }
        }
    }

    /// A job that waits begins after the last of its blockers has ended.
    fn fan_in(&mut self) {
        let facts = self.facts;
        for job in &facts.jobs {
            let Some(blockers) = facts.blockers.get(&job.id) else {
                continue;
            };
            let wanted = number_of(job)
                .filter(|_| job.type_name.as_str() == "collect")
                .map(parts);
            if blockers.is_empty() || wanted.is_some_and(|wanted| wanted != blockers.len() as u64) {
                let what = format!("{} {} has {} blockers", job.type_name, job.id, blockers.len());
                self.broken("fan-in", Some(job.chain_id), what);
            }
            for blocker in blockers {
                let late = blocker.ended_at.is_none() || blocker.ended_at > job.started_at;
                if late || blocker.status != JobStatus::Completed {
                    let what = format!("{} {} did not wait for {}", job.type_name, job.id, blocker.id);
                    self.broken("fan-in", Some(job.chain_id), what);
                }
            }
        }
    }

    /// At no time are two chains with one key open.
    fn deduplication(&mut self) {
        let facts = self.facts;
        let mut keys: BTreeMap<&str, Vec<&ChainRecord>> = BTreeMap::new();
        for chain in facts.chains.values() {
            match &chain.deduplication_key {
                Some(key) => keys.entry(key).or_default().push(chain),
                None if chain.type_name.as_str() == "keyed" => {
                    self.broken("deduplication", Some(chain.id), "its key is lost");
                }
                None => {}
            }
        }
        for (key, mut chains) in keys {
            chains.sort_by_key(|chain| chain.created_at);
            for pair in chains.windows(2) {
                if let [first, second] = pair
                    && first.ended_at.is_none_or(|ended| ended > second.created_at)
                {
                    let what = format!("chain {} of `{key}` was still open when it began", first.id);
                    self.broken("deduplication", Some(second.id), what);
                }
            }
        }
        for row in facts.started.iter().filter(|row| row.existing) {
            let found = facts.chains.get(&row.chain);
            if found.is_none_or(|chain| chain.deduplication_key.is_none()) {
                self.broken(
                    "deduplication",
                    Some(row.chain),
                    "a starter was given a chain that has no such key",
                );
            }
        }
    }
}

/// The types of a chain, from its first to its last job.
fn path(entry: &str, n: u64) -> Vec<&str> {
    match entry {
        "first" => vec!["first", "middle", "last"],
        "fork" if n.is_multiple_of(2) => vec!["fork", "left"],
        "fork" => vec!["fork", "right"],
        "spread" => vec!["spread", "collect"],
        single => vec![single],
    }
}

fn number_of(job: &JobRecord) -> Option<u64> {
    job.input.decode::<Number>().ok().map(|input| input.n)
}

fn output_of(chain: &ChainRecord) -> Option<u64> {
    chain.output.as_ref()?.decode().ok()
}
