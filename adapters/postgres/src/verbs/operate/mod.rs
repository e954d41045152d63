//! What operators do to jobs and chains: trigger, cancel, retry. Everything is locked, then looked at, then written, so
//! a refusal leaves nothing behind.

pub(crate) mod delete;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use queuert::adapter::rules::{self, JobHead, KeysOfRetry};
use queuert::adapter::{Refusal, StoppedChain};
use queuert::{ChainId, JobId, JobRecord, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::locks::scope::{Scope, chains_of, lock};
use crate::row::{self, StoredJob, Table};
use crate::store::Store;
use crate::verbs::create::keys;
use crate::verbs::query::chains_by_id;
use crate::verbs::transition::Transition;

pub(crate) use crate::verbs::operate::delete::delete;

pub(crate) async fn trigger(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let chain_of = chains_of(session, store, jobs).await?;
    let chains: Vec<ChainId> = chain_of.values().copied().collect();
    let (_, mut locked) = lock(session, store, Scope::Chains(&chains)).await?;
    let now = locked.now.unwrap_or(Timestamp::from_micros(0));
    for id in jobs {
        if let Some(chain) = chain_of.get(id).filter(|chain| locked.damaged.contains_key(chain)) {
            return Ok(Err(Refusal::Damaged(*chain)));
        }
        let latest = chain_of.get(id).and_then(|chain| locked.latest.get(chain));
        let head = latest.map(|stored| {
            if stored.job.id == *id {
                return stored.head();
            }
            // A job that is not the latest of its chain has been continued.
            JobHead {
                status: JobStatus::Completed,
                ..stored.head()
            }
        });
        if let Err(refusal) = rules::trigger(*id, head.as_ref(), now) {
            return Ok(Err(refusal));
        }
    }
    // A job that is due already keeps its place in the queue.
    let ranks = kept_ranks(session, store, locked.latest.values()).await?;
    let mut transitions = Vec::new();
    for stored in locked.latest.values_mut().filter(|stored| stored.table == Table::Later) {
        let Ok(change) = rules::trigger(stored.job.id, Some(&stored.head()), now) else {
            continue;
        };
        transitions.push(Transition {
            rank: ranks.get(&stored.job.id).copied(),
            ..Transition::of_change(stored, change.clone())
        });
        change.apply(&mut stored.job);
    }
    store.apply(session, &transitions, now).await?;
    let triggered = jobs.iter().filter_map(|id| locked.latest.get(chain_of.get(id)?));
    Ok(Ok(triggered.map(|stored| stored.job.clone()).collect()))
}

/// The ranks of jobs that wait for their time and have kept another place than that.
async fn kept_ranks(
    session: &mut Session<'_>,
    store: &Store,
    jobs: impl Iterator<Item = &StoredJob>,
) -> Result<HashMap<JobId, i64>, StateError> {
    let waiting = jobs.filter(|stored| stored.table == Table::Later);
    let ids: Vec<Uuid> = waiting.map(|stored| stored.job.id.as_uuid()).collect();
    let mut ranks = HashMap::new();
    for found in session.fetch(query(&store.sql.kept_ranks).bind(ids)).await? {
        ranks.insert(JobId::from_uuid(row::get(&found, "id")?), row::get(&found, "rank")?);
    }
    Ok(ranks)
}

pub(crate) async fn cancel(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let (_, locked) = lock(session, store, Scope::Chains(chains)).await?;
    let now = locked.now.unwrap_or(Timestamp::from_micros(0));
    let mut transitions: BTreeMap<ChainId, Transition> = BTreeMap::new();
    for chain in chains {
        if locked.damaged.contains_key(chain) {
            return Ok(Err(Refusal::Damaged(*chain)));
        }
        let stored = locked.latest.get(chain);
        let cancelled = rules::cancel(*chain, stored.map(StoredJob::head).as_ref(), now);
        match (cancelled, stored) {
            (Err(refusal), _) => return Ok(Err(refusal)),
            (Ok(change), Some(stored)) => drop(transitions.insert(*chain, Transition::of_change(stored, change))),
            (Ok(_), None) => {}
        }
    }
    let transitions: Vec<Transition> = transitions.into_values().collect();
    store.apply(session, &transitions, now).await?;
    let records = chains_by_id(session, store, chains).await?;
    let stopped = records.into_iter().map(|chain| StoppedChain {
        interrupted: locked.latest.get(&chain.id).and_then(interrupted),
        chain,
    });
    Ok(Ok(stopped.collect()))
}

/// The job, if an attempt of it was running.
pub(crate) fn interrupted(stored: &StoredJob) -> Option<JobId> {
    stored.job.lease.is_some().then_some(stored.job.id)
}

pub(crate) async fn retry(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    // Keys first, as a starter does it. The blockers too, so that none ends unseen.
    let keys = keys::lock_of(session, store, chains).await?;
    let (_, locked) = lock(session, store, Scope::WithBlockers(chains)).await?;
    let holders = keys::open_holders(session, store, &keys).await?;
    let retried: BTreeSet<ChainId> = chains.iter().copied().collect();
    let latest = locked
        .latest
        .values()
        .filter(|stored| retried.contains(&stored.job.chain_id));
    let remaining = open_blockers(session, store, latest).await?;
    let now = locked.now.unwrap_or(Timestamp::from_micros(0));
    let mut keys_of_retry = KeysOfRetry::new();
    let (mut transitions, mut records) = (BTreeMap::new(), BTreeMap::new());
    for chain in chains {
        if locked.damaged.contains_key(chain) {
            return Ok(Err(Refusal::Damaged(*chain)));
        }
        let stored = locked.latest.get(chain);
        let blockers = stored.and_then(|stored| remaining.get(&stored.job.id));
        let waiting = blockers.map_or(JobStatus::Pending, |_| JobStatus::Blocked);
        let change = match rules::retry(*chain, stored.map(StoredJob::head).as_ref(), waiting, now) {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(stored) = stored else { continue };
        if let Some(key) = keys.get(chain) {
            let holder = holders.get(key).copied();
            if let Err(refusal) = keys_of_retry.take(*chain, &stored.job.chain_type, &key.1, holder) {
                return Ok(Err(refusal));
            }
        }
        let mut stored = StoredJob {
            remaining: blockers.copied(),
            ..stored.clone()
        };
        transitions.insert(*chain, Transition::of_change(&stored, change.clone()));
        change.apply(&mut stored.job);
        records.insert(*chain, stored.job);
    }
    let blockers = locked.latest.iter().filter(|(chain, _)| !retried.contains(chain));
    store.mark_awaited(session, blockers.map(|(_, stored)| stored)).await?;
    let transitions: Vec<Transition> = transitions.into_values().collect();
    store.apply(session, &transitions, now).await?;
    Ok(Ok(chains
        .iter()
        .filter_map(|chain| records.get(chain).cloned())
        .collect()))
}

/// How many edges to open chains the jobs have, where there are any.
async fn open_blockers(
    session: &mut Session<'_>,
    store: &Store,
    jobs: impl Iterator<Item = &StoredJob>,
) -> Result<HashMap<JobId, i32>, StateError> {
    let waited = jobs.filter(|stored| stored.blockers > 0);
    let ids: Vec<Uuid> = waited.map(|stored| stored.job.id.as_uuid()).collect();
    let mut remaining = HashMap::new();
    if ids.is_empty() {
        return Ok(remaining);
    }
    for found in session.fetch(query(&store.sql.open_blockers).bind(ids)).await? {
        remaining.insert(
            JobId::from_uuid(row::get(&found, "job_id")?),
            row::get(&found, "count")?,
        );
    }
    Ok(remaining)
}
