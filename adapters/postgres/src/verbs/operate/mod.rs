//! What operators do to jobs and chains: trigger, cancel, retry. Everything is locked, then looked at, then written, so
//! a refusal leaves nothing behind.

pub(crate) mod delete;

use std::collections::{BTreeSet, HashMap};

use queuert::adapter::{Refusal, StoppedChain};
use queuert::{ChainId, JobId, JobRecord, JobStatus, StateError};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::locks::scope::{Scope, chains_of, lock};
use crate::row::{self, StoredJob, Table};
use crate::store::Store;
use crate::verbs::create::keys::{self, Key};
use crate::verbs::query::chains_by_id;
use crate::verbs::transition::{Destination, Transition};

pub(crate) use crate::verbs::operate::delete::delete;

pub(crate) async fn trigger(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let chain_of = chains_of(session, store, jobs).await?;
    let chains: Vec<ChainId> = chain_of.values().copied().collect();
    let (_, mut locked) = lock(session, store, Scope::Chains(&chains)).await?;
    for id in jobs {
        if let Some(chain) = chain_of.get(id).filter(|chain| locked.damaged.contains_key(chain)) {
            return Ok(Err(Refusal::Damaged(*chain)));
        }
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
    let ranks = kept_ranks(session, store, locked.latest.values()).await?;
    for stored in locked.latest.values_mut().filter(|stored| stored.table == Table::Later) {
        stored.job.scheduled_at = stored.job.scheduled_at.min(now);
        changes.push(Transition {
            rank: ranks.get(&stored.job.id).copied(),
            ..Transition::of(stored, Destination::Pending)
        });
    }
    store.apply(session, &changes, now).await?;
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
    for chain in chains {
        match locked.status(chain) {
            None if locked.damaged.contains_key(chain) => return Ok(Err(Refusal::Damaged(*chain))),
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
    let changes: Vec<Transition> = locked
        .latest
        .values()
        .map(|stored| Transition::of(stored, cancelled.clone()))
        .collect();
    store.apply(session, &changes, now).await?;
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
    let (_, mut locked) = lock(session, store, Scope::WithBlockers(chains)).await?;
    let holders = keys::open_holders(session, store, &keys).await?;
    let mut retried: HashMap<&Key, ChainId> = HashMap::new();
    for chain in chains {
        match locked.status(chain) {
            None if locked.damaged.contains_key(chain) => return Ok(Err(Refusal::Damaged(*chain))),
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
    store.mark_awaited(session, blockers.map(|(_, stored)| stored)).await?;
    locked.latest.retain(|chain, _| retried.contains(chain));
    let remaining = open_blockers(session, store, locked.latest.values()).await?;
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
        changes.push(Transition::of(stored, to));
    }
    store.apply(session, &changes, now).await?;
    let records = chains.iter().filter_map(|chain| locked.latest.get(chain));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
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
