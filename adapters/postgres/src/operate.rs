//! What operators do to jobs and chains: trigger, cancel, retry. Everything is locked, then looked at, then written, so
//! a refusal leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use queuert::adapter::{Refusal, StoppedChain};
use queuert::{ChainId, JobId, JobRecord, JobStatus, StateError};
use uuid::Uuid;

use crate::change::{Change, Destination};
use crate::core::Core;
use crate::lock_set::{Scope, chains_of, lock};
use crate::query::chains_by_id;
use crate::row::{self, Place, StoredJob};
use crate::session::{Session, query};

pub(crate) use crate::operate_delete::delete;

pub(crate) async fn trigger(
    session: &mut Session<'_>,
    core: &Core,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let chain_of = chains_of(session, core, jobs).await?;
    let chains: Vec<ChainId> = chain_of.values().copied().collect();
    let (_, mut locked) = lock(session, core, Scope::Chains(&chains)).await?;
    for id in jobs {
        // What is not the latest job of its chain has been continued.
        let status = match chain_of.get(id).and_then(|chain| locked.latest.get(chain)) {
            None => return Ok(Err(Refusal::JobNotFound(*id))),
            Some(stored) if stored.job.id != *id => JobStatus::Completed,
            Some(stored) => stored.job.status,
        };
        if status != JobStatus::Pending {
            return Ok(Err(Refusal::NotPending(*id, status)));
        }
    }
    let Some(now) = locked.now else {
        return Ok(Ok(Vec::new()));
    };
    // One that is due already keeps the place that it has waited for.
    let mut changes = Vec::new();
    for stored in locked.latest.values_mut().filter(|stored| stored.place == Place::Later) {
        stored.job.scheduled_at = stored.job.scheduled_at.min(now);
        changes.push(Change::of(stored, Destination::Pending));
    }
    core.change(session, &changes, now).await?;
    let triggered = jobs.iter().filter_map(|id| locked.latest.get(chain_of.get(id)?));
    Ok(Ok(triggered.map(|stored| stored.job.clone()).collect()))
}

pub(crate) async fn cancel(
    session: &mut Session<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let (_, locked) = lock(session, core, Scope::Chains(chains)).await?;
    for chain in chains {
        match locked.status(chain) {
            None => return Ok(Err(Refusal::ChainNotFound(*chain))),
            Some(status) if status.is_open() => {}
            Some(status) => return Ok(Err(Refusal::NotOpen(*chain, status))),
        }
    }
    let Some(now) = locked.now else {
        return Ok(Ok(Vec::new()));
    };
    let cancelled = Destination::Stopped {
        status: JobStatus::Cancelled,
        ended_at: now,
    };
    let changes: Vec<Change> = locked
        .latest
        .values()
        .map(|stored| Change::of(stored, cancelled.clone()))
        .collect();
    core.change(session, &changes, now).await?;
    let records = chains_by_id(session, core, chains).await?;
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
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    // Keys first, as a starter does it. The blockers too, so that none ends unseen.
    let keys = lock_keys(session, core, chains).await?;
    let (_, mut locked) = lock(session, core, Scope::WithBlockers(chains)).await?;
    let holders = open_holders(session, core, &keys).await?;
    let mut retried: HashMap<&Key, ChainId> = HashMap::new();
    for chain in chains {
        match locked.status(chain) {
            None => return Ok(Err(Refusal::ChainNotFound(*chain))),
            Some(status) if status.is_retryable() => {}
            Some(status) => return Ok(Err(Refusal::NotRetryable(*chain, status))),
        }
        if let Some(key) = keys.get(chain) {
            let earlier = retried.insert(key, *chain).filter(|other| other != chain);
            if let Some(holder) = holders.get(key).copied().or(earlier) {
                return Ok(Err(Refusal::KeyTaken { chain: *chain, holder }));
            }
        }
    }
    let Some(now) = locked.now else {
        return Ok(Ok(Vec::new()));
    };
    let retried: BTreeSet<ChainId> = chains.iter().copied().collect();
    let blockers = locked.latest.iter().filter(|(chain, _)| !retried.contains(chain));
    core.mark_awaited(session, blockers.map(|(_, stored)| stored)).await?;
    locked.latest.retain(|chain, _| retried.contains(chain));
    let remaining = open_blockers(session, core, locked.latest.values()).await?;
    let mut changes = Vec::with_capacity(locked.latest.len());
    for stored in locked.latest.values_mut() {
        let job = &mut stored.job;
        let (status, to) = match remaining.get(&job.id) {
            Some(remaining) => (JobStatus::Blocked, Destination::Blocked { remaining: *remaining }),
            None => (JobStatus::Pending, Destination::Pending),
        };
        job.status = status;
        job.attempt = 0;
        job.scheduled_at = now;
        job.ended_at = None;
        changes.push(Change::of(stored, to));
    }
    core.change(session, &changes, now).await?;
    let records = chains.iter().filter_map(|chain| locked.latest.get(chain));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
}

/// A type's number and a key.
type Key = (i32, String);

/// Locks the deduplication keys with which the chains were started, so that nobody starts a chain with one of them.
async fn lock_keys(
    session: &mut Session<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<BTreeMap<ChainId, Key>, StateError> {
    let search = core.render(
        "SELECT id, type_id, dedup_key FROM {schema}.job \
         WHERE id = ANY ($1::uuid[]) AND chain_index = 0 AND dedup_key IS NOT NULL",
    );
    let ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let mut keys = BTreeMap::new();
    for found in session.fetch(query(&search).bind(ids)).await? {
        let key = (row::get(&found, 1)?, row::get(&found, 2)?);
        keys.insert(ChainId::from_uuid(row::get(&found, 0)?), key);
    }
    if !keys.is_empty() {
        let (types, texts) = in_order(&keys);
        session
            .execute(query(&core.sql.lock_keys).bind(types).bind(texts))
            .await?;
    }
    Ok(keys)
}

/// Each key once, in order.
fn in_order(keys: &BTreeMap<ChainId, Key>) -> (Vec<i32>, Vec<String>) {
    let keys: BTreeSet<Key> = keys.values().cloned().collect();
    keys.into_iter().unzip()
}

/// The newest open chain of each key that has one. A statement of its own, after the locks.
async fn open_holders(
    session: &mut Session<'_>,
    core: &Core,
    keys: &BTreeMap<ChainId, Key>,
) -> Result<HashMap<Key, ChainId>, StateError> {
    let mut holders = HashMap::new();
    if keys.is_empty() {
        return Ok(holders);
    }
    let search = core.render(
        "SELECT u.type_id, u.key, o.chain_id FROM unnest($1::integer[], $2::text[]) AS u(type_id, key) \
         CROSS JOIN LATERAL (SELECT o.chain_id FROM {schema}.open_key AS o WHERE o.type_id = u.type_id AND o.key = u.key \
         ORDER BY o.created_at DESC, o.chain_id DESC LIMIT 1) AS o",
    );
    let (types, texts) = in_order(keys);
    for found in session.fetch(query(&search).bind(types).bind(texts)).await? {
        let key = (row::get(&found, 0)?, row::get(&found, 1)?);
        holders.insert(key, ChainId::from_uuid(row::get(&found, 2)?));
    }
    Ok(holders)
}

/// How many edges to open chains the jobs have, where there are any.
async fn open_blockers(
    session: &mut Session<'_>,
    core: &Core,
    jobs: impl Iterator<Item = &StoredJob>,
) -> Result<HashMap<JobId, i32>, StateError> {
    let waited = jobs.filter(|stored| stored.blockers > 0);
    let ids: Vec<Uuid> = waited.map(|stored| stored.job.id.as_uuid()).collect();
    let mut remaining = HashMap::new();
    if ids.is_empty() {
        return Ok(remaining);
    }
    for found in session.fetch(query(&core.sql.open_blockers).bind(ids)).await? {
        remaining.insert(JobId::from_uuid(row::get(&found, 0)?), row::get(&found, 1)?);
    }
    Ok(remaining)
}
