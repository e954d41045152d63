//! The rules, and the report.

mod attempts;
mod chains;
mod effects;
mod events;
mod order;
mod starts;

use std::collections::BTreeMap;
use std::path::Path;

use queuert::{ChainId, JobRecord, JobStatus};

use crate::Result;
use crate::facts::Facts;
use crate::jobs::Number;
use crate::store::Store;

/// Histories beyond these are left out: the first tell enough.
const HISTORIES: usize = 10;

/// Looks at what a run has left in a database and in the logs beside it; prints the report, and says which rules are
/// broken.
pub(crate) async fn check<S: Store>(url: &str, directory: &Path) -> Result<Vec<&'static str>> {
    let facts = Facts::read::<S>(url, directory).await?;
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
    audit.backlog();
    audit.chains();
    audit.fan_in();
    audit.deduplication();
    audit.effects();
    audit.money();
    audit.attempts();
    audit.order();
    audit.events();
    audit.calls();
    let Audit { broken, count, .. } = audit;
    report(&facts, &count);
    let mut rules: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (place, (rule, what, chain)) in broken.iter().enumerate() {
        let times = rules.entry(rule).or_default();
        *times += 1;
        // The first of each rule is always told.
        if place >= HISTORIES && *times > 1 {
            continue;
        }
        println!("\nBROKEN: {rule}: {what}");
        if let Some(chain) = chain {
            println!("{}", facts.history(*chain));
        }
    }
    if !rules.is_empty() {
        println!("\nbroken rules: {rules:?}");
    }
    Ok(rules.into_keys().collect())
}

/// What the report says about attempts.
#[derive(Default)]
struct Count {
    claims: usize,
    runs: usize,
    ends: BTreeMap<String, usize>,
    unended: usize,
    reaped: usize,
    /// Completions of attempts that had lost their job.
    stale: usize,
    /// How long it took from a kill until somebody ran what was cut off, in milliseconds.
    recoveries: Vec<u64>,
    forgotten: usize,
}

fn report(facts: &Facts, count: &Count) {
    let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
    for chain in facts.chains.values() {
        *statuses.entry(chain.status.to_string()).or_default() += 1;
    }
    let noted = |what: &str| {
        facts
            .noted
            .keys()
            .filter(|chain| facts.has_noted(**chain, what))
            .count()
    };
    println!(
        "chains     {}, of {} jobs: {statuses:?}; {} were deleted",
        facts.chains.len(),
        facts.jobs.len(),
        noted("deleted")
    );
    println!(
        "starts     {} rows with their chains, {} of them deduplicated; {} intended without a row; {} acknowledged; {} rolled back",
        facts.started.len(),
        facts.started.iter().filter(|row| row.existing).count(),
        noted("intended"),
        noted("acknowledged"),
        noted("rolled-back"),
    );
    println!(
        "outside    {} approved, {} won against a worker, {} cancelled, {} retried, {} awaited",
        noted("approved"),
        noted("contested"),
        noted("cancelled"),
        noted("retried"),
        noted("awaited")
    );
    println!(
        "attempts   {} claims recorded, {} runs seen by processors: {:?}, {} cut off; {} claims forgotten by a crash",
        count.claims, count.runs, count.ends, count.unended, count.forgotten
    );
    println!(
        "effects    {} rows; {} accounts",
        facts.effects.len(),
        facts.balances.len()
    );
    println!(
        "recovered  {} attempts were taken over from expired leases; {}",
        count.reaped,
        spread(&count.recoveries, "after the kill of who ran them")
    );
    println!("refused    {} stale writes", count.stale);
    println!("failures   {} calls failed and were gone on from", facts.failures.len());
}

/// How some durations are spread, in milliseconds.
pub(crate) fn spread(values: &[u64], what: &str) -> String {
    let mut values = values.to_vec();
    values.sort_unstable();
    match values.as_slice() {
        [] => format!("none had to be run again {what}"),
        [.., last] => format!(
            "{} ran again {what}, half of them within {} ms, all within {last} ms",
            values.len(),
            values[values.len() / 2]
        ),
    }
}

pub(crate) struct Audit<'f> {
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

    /// The same where no chain in particular is concerned.
    fn broken_everywhere(&mut self, rule: &'static str, what: impl Into<String>) {
        self.broken.push((rule, what.into(), None));
    }

    /// Calls to the store fail only where something was done to it.
    fn calls(&mut self) {
        let facts = self.facts;
        for what in &facts.broken {
            self.broken_everywhere("by the account of a process", what);
        }
        if facts.integrity != "ok" {
            self.broken_everywhere("the files are intact", &facts.integrity);
        }
        if facts.loses_answers() {
            return;
        }
        for line in &facts.failures {
            let what = line.words.join(" ");
            // A machine that is busy with something else may be late.
            if !what.contains("did not answer") {
                let what = format!("{}: {what}", line.process);
                self.broken_everywhere("the store works for every process", what);
            }
        }
    }
}

fn number_of(job: &JobRecord) -> Option<u64> {
    job.input.decode::<Number>().ok().map(|input| input.n)
}

/// Whether it ended in good order.
fn completed(job: &JobRecord) -> bool {
    job.status == JobStatus::Completed
}
