//! What operators do to jobs and chains: trigger, cancel, retry, delete.

mod delete;

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::{self, Change, JobHead, KeysOfRetry};
use queuert::adapter::{Refusal, StoppedChain};
use queuert::{ChainId, JobId, JobRecord, JobStatus, StateError, Timestamp, TypeName};
use uuid::Uuid;

use crate::clock;
use crate::connection::{Connection, query};
use crate::notify::notices;
use crate::row::{self, StoredJob};
use crate::statements::json_rows::JsonRows;
use crate::store::Store;
use crate::verbs::query::{chains_by_id, stored_jobs};
use crate::verbs::transition::{self, Transition};

pub(crate) use delete::delete;

pub(crate) async fn trigger(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let stored = stored_jobs(connection, store, jobs).await?;
    let mut stored: HashMap<JobId, StoredJob> = stored.into_iter().map(|stored| (stored.job.id, stored)).collect();
    let decided = decide(jobs, &stored, |id, head| rules::trigger(id, head, now));
    let changes = match decided {
        Ok(changes) => changes,
        Err(refusal) => return Ok(Err(refusal)),
    };
    apply(connection, store, &mut stored, changes, now).await?;
    Ok(Ok(records(jobs, &stored)))
}

pub(crate) async fn cancel(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(connection, store, chains).await?;
    let decided = decide(chains, &latest, |chain, head| rules::cancel(chain, head, now));
    let changes = match decided {
        Ok(changes) => changes,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let interrupted: HashMap<ChainId, JobId> = latest
        .iter()
        .filter(|(_, stored)| stored.job.lease.is_some())
        .map(|(chain, stored)| (*chain, stored.job.id))
        .collect();
    apply(connection, store, &mut latest, changes, now).await?;
    notices::insert_lost_leases(connection, store, interrupted.values().copied()).await?;
    let records = chains_by_id(connection, store, chains).await?;
    let stopped = records.into_iter().map(|chain| StoppedChain {
        interrupted: interrupted.get(&chain.id).copied(),
        chain,
    });
    Ok(Ok(stopped.collect()))
}

pub(crate) async fn retry(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(connection, store, chains).await?;
    let holders = key_holders(connection, store, chains, &latest).await?;
    let blocked = jobs_with_open_blockers(connection, store, &latest).await?;
    let mut keys = KeysOfRetry::new();
    let decided = decide(chains, &latest, |chain, head| {
        let job = latest.get(&chain).map(|stored| stored.job.id);
        let waiting = if job.is_some_and(|job| blocked.contains(&job)) {
            JobStatus::Blocked
        } else {
            JobStatus::Pending
        };
        let change = rules::retry(chain, head, waiting, now)?;
        if let Some(held) = holders.get(&chain) {
            keys.take(chain, &held.type_name, &held.key, held.holder)?;
        }
        Ok(change)
    });
    let changes = match decided {
        Ok(changes) => changes,
        Err(refusal) => return Ok(Err(refusal)),
    };
    apply(connection, store, &mut latest, changes, now).await?;
    Ok(Ok(records(chains, &latest)))
}

/// Decides about each item of a call, in its order; the first refusal ends it. An item that is given twice is decided twice,
/// and changed once.
fn decide<Id: Copy + Eq + std::hash::Hash>(
    items: &[Id],
    stored: &HashMap<Id, StoredJob>,
    mut decide: impl FnMut(Id, Option<&JobHead>) -> Result<Change, Refusal>,
) -> Result<HashMap<Id, Change>, Refusal> {
    let mut changes = HashMap::with_capacity(items.len());
    for id in items {
        let head = stored.get(id).map(|stored| JobHead::of(&stored.job, None));
        changes.insert(*id, decide(*id, head.as_ref())?);
    }
    Ok(changes)
}

/// Writes the changes, and makes them in the records.
async fn apply<Id: Copy + Eq + std::hash::Hash + Send>(
    connection: &mut Connection<'_>,
    store: &Store,
    stored: &mut HashMap<Id, StoredJob>,
    changes: HashMap<Id, Change>,
    now: Timestamp,
) -> Result<(), StateError> {
    let mut transitions = Vec::with_capacity(changes.len());
    for (id, change) in changes {
        if let Some(stored) = stored.get_mut(&id) {
            transitions.push(Transition::of_job(stored, change.clone()));
            change.apply(&mut stored.job);
        }
    }
    transition::apply(connection, store, &transitions, now).await
}

fn records<Id: Eq + std::hash::Hash>(items: &[Id], stored: &HashMap<Id, StoredJob>) -> Vec<JobRecord> {
    let found = items.iter().filter_map(|id| stored.get(id));
    found.map(|stored| stored.job.clone()).collect()
}

/// The latest job of each chain that exists.
pub(crate) async fn latest_jobs(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<HashMap<ChainId, StoredJob>, StateError> {
    let ids = JsonRows::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let mut latest = HashMap::new();
    let found = connection.fetch(query(&store.statements.latest_jobs).bind(ids), |found| {
        Ok((found.get::<i64>("place")?, row::job(found)?))
    });
    for (place, job) in found.await? {
        if let Some(chain) = usize::try_from(place).ok().and_then(|place| chains.get(place)) {
            latest.insert(*chain, job);
        }
    }
    Ok(latest)
}

/// The deduplication key of a chain.
struct HeldKey {
    type_name: TypeName,
    key: String,
    /// Another open chain that has the key.
    holder: Option<ChainId>,
}

/// The keys of the chains that have one.
async fn key_holders(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[ChainId],
    latest: &HashMap<ChainId, StoredJob>,
) -> Result<HashMap<ChainId, HeldKey>, StateError> {
    if !latest.values().any(|stored| stored.keyed) {
        return Ok(HashMap::new());
    }
    let ids = JsonRows::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let found = connection.fetch(query(&store.statements.key_holders).bind(ids), |found| {
        let held = HeldKey {
            type_name: TypeName::from(found.get::<String>("type")?),
            key: found.get("key")?,
            holder: found.get::<Option<Uuid>>("holder")?.map(ChainId::from_uuid),
        };
        Ok((ChainId::from_uuid(found.get("chain_id")?), held))
    });
    Ok(found.await?.into_iter().collect())
}

/// Which of the jobs would wait for a chain.
async fn jobs_with_open_blockers(
    connection: &mut Connection<'_>,
    store: &Store,
    latest: &HashMap<ChainId, StoredJob>,
) -> Result<HashSet<JobId>, StateError> {
    let with_blockers: Vec<_> = latest.values().filter(|stored| stored.blockers > 0).collect();
    if with_blockers.is_empty() {
        return Ok(HashSet::new());
    }
    let ids = JsonRows::of_ids(with_blockers.iter().map(|stored| stored.job.id.as_uuid()));
    let search = query(&store.statements.jobs_with_open_blockers).bind(ids);
    let found = connection.fetch(search, |found| Ok(JobId::from_uuid(found.get("id")?)));
    Ok(found.await?.into_iter().collect())
}
