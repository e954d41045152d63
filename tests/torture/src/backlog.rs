//! A planned number of chains, with priorities, of which many are there before the first process: what is started is known,
//! and the order in which it is claimed can be checked.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use queuert::{ChainId, Client, JobType, Started, Step, Transaction};
use tokio::time::Instant;

use crate::Result;
use crate::jobs::{Contested, Fork, Gather, Single};
use crate::store::{self, Store, tables};

/// Jobs that come of one unit of work: four singles, three that write when they complete, a fork with its successor, and a
/// gather.
const UNIT: u64 = 10;

/// Rows that one unit of work leaves in the table of effects, at least.
const EFFECTS: u64 = 5;

/// The types of the chains of a backlog.
pub(crate) const TYPES: [&str; 4] = ["single", "contested", "fork", "gather"];

/// Units that are started in one transaction.
const BATCH: u64 = 20;

/// Units of work for so many jobs.
pub(crate) const fn units(jobs: u64) -> u64 {
    jobs.div_ceil(UNIT)
}

/// Rows in the table of effects when so many jobs have completed.
pub(crate) const fn effects(jobs: u64) -> u64 {
    jobs * EFFECTS / UNIT
}

/// The number of a job that fails the first time, after it has written.
const fn shaky(n: u64) -> u64 {
    n * 7 + 3
}

/// How many chains of each type and number come of so many units of work.
pub(crate) fn planned(units: u64) -> HashMap<(&'static str, u64), usize> {
    let mut chains = HashMap::new();
    for n in 0..units {
        for chain in [
            ("single", n),
            ("single", n),
            ("single", n),
            ("single", n + 1),
            ("contested", n),
            ("contested", n),
            ("contested", shaky(n)),
            ("fork", n),
            ("gather", n),
        ] {
            *chains.entry(chain).or_default() += 1;
        }
    }
    chains
}

/// Starts all of it, in transactions with rows of the user's own; says how many transactions had to be run again. A starter
/// whose commit was not answered looks for its rows before it tries again.
pub(crate) async fn start<S: Store>(client: Client<S>, units: Range<u64>) -> Result<usize> {
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

fn starter(first: u64) -> String {
    format!("backlog-{first}")
}

async fn start_batch<S: Store>(client: &Client<S>, units: Range<u64>) -> Result<()> {
    let mut tx = client.begin().await?;
    let starter = starter(units.start);
    for (chain, type_name) in start_units(client, &mut tx, units).await? {
        tables::started::<S>(&mut tx, chain, type_name, &starter, false).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn is_started<S: Store>(client: &Client<S>, first: u64) -> Result<bool> {
    let wanted = starter(first);
    let deadline = Instant::now() + store::PATIENCE;
    loop {
        let found = async {
            let mut tx = client.begin().await?;
            let starters = S::fetch(&mut tx, "SELECT DISTINCT starter FROM started").await?;
            tx.rollback().await?;
            Ok(starters.iter().flatten().any(|starter| *starter == wanted))
        };
        match found.await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Starts all chains of some units, each with a priority of its own.
async fn start_units<S: Store>(
    client: &Client<S>,
    tx: &mut Transaction<S>,
    units: Range<u64>,
) -> Result<Vec<(ChainId, &'static str)>> {
    let twice = units.clone().chain(units.clone());
    let singles = twice.clone().map(|n| Step::new(Single { n }).priority(priority()));
    let singles = client.start_many(singles).within(tx).await?;
    let written = twice.chain(units.clone().map(shaky));
    let written = written.map(|n| Step::new(Contested { n }).priority(priority()));
    let written = client.start_many(written).within(tx).await?;
    let forks = units.clone().map(|n| Step::new(Fork { n }).priority(priority()));
    let forks = client.start_many(forks).within(tx).await?;
    let parts = units.clone().flat_map(|n| [n, n + 1]);
    let parts = parts.map(|n| Step::new(Single { n }).priority(priority()));
    let parts = client.start_many(parts).within(tx).await?;
    let gather = units.zip(parts.chunks(2));
    let gather = gather.map(|(n, parts)| Gather { n }.blocked_by(parts).priority(priority()));
    let gather = client.start_many(gather).within(tx).await?;
    let mut chains = named(&singles);
    chains.append(&mut named(&written));
    chains.append(&mut named(&forks));
    chains.append(&mut named(&parts));
    chains.append(&mut named(&gather));
    Ok(chains)
}

fn named<J: JobType>(started: &[Started<J>]) -> Vec<(ChainId, &'static str)> {
    started.iter().map(|chain| (chain.id(), J::NAME)).collect()
}

fn priority() -> i16 {
    fastrand::i16(-3..=3)
}
