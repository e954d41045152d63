//! Ends of chains that somebody waits for, all of a batch in one transaction: a job that waits for a thousand chains
//! would otherwise cost a thousand. Nothing here waits for a lock, so the order of the locks does not matter, and what
//! somebody else has locked is left out.

use std::collections::{BTreeMap, HashMap, HashSet};

use queuert::adapter::{Applied, Settled, Settlement};
use queuert::{ChainId, JobId, JobStatus, StateError};
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::Session;
use crate::error::corrupt;
use crate::locks::Locked;
use crate::locks::scope::chains_of;
use crate::row::StoredJob;
use crate::store::Store;
use crate::transaction::Work;
use crate::verbs::lease::{lost, standings};
use crate::verbs::settle::general::{authorise, change, outdated, settle_general, try_lock_dependants, unblock};

/// Finishes jobs by their fences, and returns the answers in the same order.
pub(crate) async fn finish_together(
    access: &Access,
    store: &Store,
    finishes: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    let mut seen = HashSet::new();
    let (first, again): (Vec<usize>, Vec<usize>) =
        (0..finishes.len()).partition(|place| seen.insert(finishes[*place].job));
    let mut answers = vec![Settled::Busy; finishes.len()];
    let once: Vec<&Settlement> = first.iter().map(|place| finishes[*place]).collect();
    let mut work = Work::transaction(access).await?;
    let mut session = work.session();
    session.waits = false;
    for (place, answer) in first.into_iter().zip(finish(&mut session, store, &once).await?) {
        answers[place] = answer;
    }
    match answers.iter().any(|answer| matches!(answer, Settled::Applied(_))) {
        true => work.commit().await?,
        false => work.rollback().await?,
    }
    // The same end twice: the second one is told what the first one did.
    for place in again {
        answers[place] = settle_alone_general(access, store, finishes[place]).await?;
    }
    Ok(answers)
}

/// Settles one end in a transaction of its own, and waits for no lock.
pub(crate) async fn settle_alone_general(
    access: &Access,
    store: &Store,
    settlement: &Settlement,
) -> Result<Settled, StateError> {
    let mut work = Work::transaction(access).await?;
    let mut session = work.session();
    session.waits = false;
    let settled = settle_general(&mut session, store, settlement).await?;
    match settled {
        Settled::Applied(_) => work.commit().await?,
        _ => work.rollback().await?,
    }
    Ok(settled)
}

/// Everything is locked before anything is written. Of the same job there must not be two.
async fn finish(
    session: &mut Session<'_>,
    store: &Store,
    finishes: &[&Settlement],
) -> Result<Vec<Settled>, StateError> {
    let jobs: Vec<JobId> = finishes.iter().map(|finish| finish.job).collect();
    let chains = chains_of(session, store, &jobs).await?;
    let locked = store.lock_chains(session, chains.values().copied()).await?;
    let mut answers = refused(session, store, finishes, &chains, &locked).await?;

    // Those that may be finished, by chain. A chain has one latest job, so it is there once.
    let mut left: BTreeMap<ChainId, (&Settlement, &StoredJob)> = BTreeMap::new();
    for finish in finishes.iter().filter(|finish| !answers.contains_key(&finish.job)) {
        let stored = chains.get(&finish.job).and_then(|chain| locked.latest.get(chain));
        let stored = stored.ok_or_else(|| corrupt("a chain that is locked is not there"))?;
        left.insert(stored.job.chain_id, (finish, stored));
    }
    let awaited = left.values().filter(|(_, stored)| stored.awaited);
    let awaited: Vec<Uuid> = awaited.map(|(_, stored)| stored.job.chain_id.as_uuid()).collect();
    let edges = try_lock_dependants(session, store, awaited).await?;
    for chain in edges.iter().filter(|edge| edge.slipped).map(|edge| edge.chain) {
        if let Some((finish, _)) = left.remove(&chain) {
            answers.insert(finish.job, Settled::Busy);
        }
    }
    if !left.is_empty() {
        let now = locked.now.ok_or_else(|| corrupt("a lock has no time"))?;
        let changes = left.values().map(|(finish, stored)| change(finish, stored, now));
        store.apply(session, &changes.collect::<Vec<_>>(), now).await?;

        let mut taken: BTreeMap<Uuid, i32> = BTreeMap::new();
        // Who made a job pending: the last of those that did it together.
        let mut by: HashMap<Uuid, ChainId> = HashMap::new();
        for edge in edges
            .iter()
            .filter(|edge| edge.locked && left.contains_key(&edge.chain))
        {
            *taken.entry(edge.job).or_default() += edge.count;
            by.insert(edge.job, edge.chain);
        }
        let mut unblocked: HashMap<ChainId, Vec<_>> = HashMap::new();
        let taken = taken
            .iter()
            .filter_map(|(job, edges)| Some((*job, *edges, by.get(job)?.as_uuid())));
        for free in unblock(session, store, taken).await? {
            if let Some(chain) = by.get(&free.job.as_uuid()) {
                unblocked.entry(*chain).or_default().push(free);
            }
        }
        for (chain, (finish, _)) in left {
            let applied = Applied {
                unblocked: unblocked.remove(&chain).unwrap_or_default(),
                ..Applied::default()
            };
            answers.insert(finish.job, Settled::Applied(applied));
        }
    }
    let answer = |job: &JobId| {
        let missing = || corrupt(format!("the end of job {job} has no answer"));
        answers.remove(job).ok_or_else(missing)
    };
    jobs.iter().map(answer).collect()
}

/// The answers for those that cannot be finished now, or by this caller.
async fn refused(
    session: &mut Session<'_>,
    store: &Store,
    finishes: &[&Settlement],
    chains: &BTreeMap<JobId, ChainId>,
    locked: &Locked,
) -> Result<HashMap<JobId, Settled>, StateError> {
    let mut answers = HashMap::new();
    // Those of which the lock says nothing, with the answer if a look does not tell more.
    let mut unknown: Vec<(&Settlement, Settled)> = Vec::new();
    for finish in finishes {
        let Some(chain) = chains.get(&finish.job) else {
            answers.insert(finish.job, Settled::Lost(lost(None)));
            continue;
        };
        match locked.latest.get(chain) {
            Some(stored) if stored.job.id == finish.job => {
                if let Err(answer) = authorise(finish, stored) {
                    answers.insert(finish.job, answer);
                }
            }
            // What is lost stays lost, whoever holds the chain.
            _ if locked.busy.contains(chain) => unknown.push((finish, Settled::Busy)),
            // Gone, or not the latest job of its chain any more.
            _ => unknown.push((finish, Settled::Lost(lost(Some(JobStatus::Completed))))),
        }
    }
    if !unknown.is_empty() {
        let standings = standings(session, store, unknown.iter().map(|(finish, _)| finish.job)).await?;
        for (finish, otherwise) in unknown {
            let answer = outdated(finish, standings.get(&finish.job)).unwrap_or(otherwise);
            answers.insert(finish.job, answer);
        }
    }
    Ok(answers)
}
