//! The workload: eight types, with and without transactions.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use queuert::{ChainId, JobType, JobTypes, OutputOf, Started, Step};
use queuert_postgres::{Attempt, Client, JobResult, PostgresState, Transaction};
use serde::{Deserialize, Serialize};

use crate::log::Log;
use crate::{Result, tables};

macro_rules! inputs {
    ($($name:ident),+) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) n: u64,
        }
    )+};
}

inputs!(Plain, Written, First, Middle, Last, Part, Gather, Shaky);

#[derive(JobTypes)]
pub(crate) enum Jobs {
    #[job(entry, output = u64)]
    Plain(Plain),
    /// Writes in the transaction in which it completes, as do `Last`, `Gather` and `Shaky`.
    #[job(entry, output = u64)]
    Written(Written),
    #[job(entry, continues = [Middle])]
    First(First),
    #[job(continues = [Last])]
    Middle(Middle),
    #[job(output = u64)]
    Last(Last),
    #[job(entry, output = u64)]
    Part(Part),
    #[job(entry, output = u64, blockers = [Part])]
    Gather(Gather),
    /// Fails after it has written, the first time.
    #[job(entry, output = u64)]
    Shaky(Shaky),
}

/// What every input carries.
#[derive(Debug, Deserialize)]
pub(crate) struct Number {
    pub(crate) n: u64,
}

/// The types whose processors write to the user's tables when they complete.
pub(crate) const WITH_EFFECT: [&str; 4] = ["written", "last", "gather", "shaky"];

/// What a chain that starts with `n` ends with.
pub(crate) fn result(entry: &str, n: u64) -> u64 {
    match entry {
        "gather" => 2 * (2 * n + 1) + 2,
        _ => 2 * n + 1,
    }
}

/// The types of a chain, from its first to its last job.
pub(crate) fn path(entry: &str) -> Vec<&str> {
    match entry {
        "first" => vec!["first", "middle", "last"],
        single => vec![single],
    }
}

/// Jobs that come of one unit of work.
pub(crate) const UNIT: u64 = 11;

/// How many chains of each entry type and number come of so many units of work.
pub(crate) fn planned(units: u64) -> HashMap<(&'static str, u64), usize> {
    let mut chains = HashMap::new();
    for n in 0..units {
        let parts = [("part", n), ("part", n + 1)];
        let others = ["plain", "plain", "written", "written", "first", "gather", "shaky"];
        for chain in others.map(|name| (name, n)).into_iter().chain(parts) {
            *chains.entry(chain).or_default() += 1;
        }
    }
    chains
}

/// Starts all chains of some units, each with a priority of its own.
pub(crate) async fn start_units(client: &Client, tx: &mut Transaction, units: Range<u64>) -> Result<Vec<ChainId>> {
    let mut ids = Vec::new();
    let twice = units.clone().chain(units.clone());
    let plain = twice.clone().map(|n| Step::new(Plain { n }).priority(priority()));
    ids.extend(client.start_many(plain).within(tx).await?.iter().map(Started::id));
    let written = twice.map(|n| Step::new(Written { n }).priority(priority()));
    ids.extend(client.start_many(written).within(tx).await?.iter().map(Started::id));
    let first = units.clone().map(|n| Step::new(First { n }).priority(priority()));
    ids.extend(client.start_many(first).within(tx).await?.iter().map(Started::id));
    let parts = units.clone().flat_map(|n| [n, n + 1]);
    let parts = parts.map(|n| Step::new(Part { n }).priority(priority()));
    let parts = client.start_many(parts).within(tx).await?;
    ids.extend(parts.iter().map(Started::id));
    let gather = units.clone().zip(parts.chunks(2));
    let gather = gather.map(|(n, parts)| Gather { n }.blocked_by(parts).priority(priority()));
    ids.extend(client.start_many(gather).within(tx).await?.iter().map(Started::id));
    let shaky = units.map(|n| Step::new(Shaky { n }).priority(priority()));
    ids.extend(client.start_many(shaky).within(tx).await?.iter().map(Started::id));
    Ok(ids)
}

fn priority() -> i16 {
    fastrand::i16(-3..=3)
}

async fn short_work() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
}

/// Notes that the attempt was run, before it can have done anything, and that it will fail, before anybody else knows.
async fn noted<J, F>(job: Attempt<J>, work: impl FnOnce(Attempt<J>) -> F + Send) -> JobResult
where
    J: JobType,
    F: Future<Output = JobResult> + Send,
{
    let log = job.get::<Log>()?.clone();
    let attempt = format!("{} {}", job.id(), job.record().claims);
    log.note(&format!("begun {attempt}"))?;
    let result = work(job).await;
    if result.is_err() {
        log.note(&format!("failing {attempt}"))?;
    }
    result
}

pub(crate) async fn run(job: JobsAttempt<PostgresState>) -> JobResult {
    match job {
        JobsAttempt::Plain(job) => noted(job, |job| finish(job, |plain| plain.n)).await,
        JobsAttempt::Written(job) => noted(job, |job| finish_with_effect(job, |written| written.n)).await,
        JobsAttempt::First(job) => {
            let work = async |job: Attempt<First>| {
                short_work().await;
                let n = job.n;
                job.continue_with(Middle { n })
            };
            noted(job, work).await
        }
        JobsAttempt::Middle(job) => {
            let work = async |job: Attempt<Middle>| {
                let n = job.n;
                let tx = job.begin().await?;
                tx.continue_with(Last { n }).await
            };
            noted(job, work).await
        }
        JobsAttempt::Last(job) => noted(job, |job| finish_with_effect(job, |last| last.n)).await,
        JobsAttempt::Part(job) => noted(job, |job| finish(job, |part| part.n)).await,
        JobsAttempt::Gather(job) => {
            let work = async |job: Attempt<Gather>| {
                let sum = job.blockers().iter().sum();
                let mut tx = job.begin().await?;
                tables::effect(&mut tx, job.id(), job.info(), job.n).await?;
                tx.finish::<u64>(sum).await
            };
            noted(job, work).await
        }
        JobsAttempt::Shaky(job) => noted(job, |job| finish_with_effect(job, |shaky| shaky.n)).await,
    }
}

async fn finish<J: JobType>(job: Attempt<J>, n: fn(&J) -> u64) -> JobResult
where
    u64: OutputOf<J>,
{
    short_work().await;
    let output = result(J::NAME, n(&job));
    job.finish(output)
}

async fn finish_with_effect<J: JobType>(job: Attempt<J>, n: fn(&J) -> u64) -> JobResult
where
    u64: OutputOf<J>,
{
    let n = n(&job);
    let mut tx = job.begin().await?;
    tables::effect(&mut tx, job.id(), job.info(), n).await?;
    short_work().await;
    if J::NAME == "shaky" && job.number() == 1 {
        return Err("planned, after the write".into());
    }
    tx.finish(result(J::NAME, n)).await
}
