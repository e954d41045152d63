//! What operators do to jobs and chains: trigger, cancel, retry, delete.

use std::collections::{HashMap, HashSet};

use queuert::adapter::{DeleteChains, Refusal, StoppedChain};
use queuert::{BlockerReference, ChainId, ChainRecord, JobId, JobRecord, JobStatus, StateError};
use uuid::Uuid;

use crate::clock;
use crate::connection::{Db, query};
use crate::row::{self, JOB, StoredJob};
use crate::statements::json::Batch;
use crate::store::{Change, Core};
use crate::verbs::query::{chains_by_id, stored_jobs};

pub(crate) async fn trigger(
    db: &mut Db<'_>,
    core: &Core,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let stored = stored_jobs(db, core, jobs).await?;
    let mut by_id: HashMap<JobId, StoredJob> = stored.into_iter().map(|stored| (stored.job.id, stored)).collect();
    for id in jobs {
        match by_id.get(id).map(|stored| stored.job.status) {
            None => return Ok(Err(Refusal::JobNotFound(*id))),
            Some(JobStatus::Pending) => {}
            Some(status) => return Ok(Err(Refusal::NotPending(*id, status))),
        }
    }
    for stored in by_id.values_mut() {
        // A job that is due already keeps the place that it has waited for.
        stored.job.scheduled_at = stored.job.scheduled_at.min(now);
    }
    let changes: Vec<_> = by_id
        .values()
        .map(|stored| Change {
            rank: Some(stored.rank.min(core.rank(stored.job.scheduled_at, stored.job.priority))),
            ..Change::of_job(stored)
        })
        .collect();
    core.change(db, &changes, now).await?;
    let records = jobs.iter().filter_map(|id| by_id.get(id));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
}

/// The latest job of each chain that exists.
pub(crate) async fn latest_jobs(
    db: &mut Db<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<HashMap<ChainId, StoredJob>, StateError> {
    let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let mut latest = HashMap::new();
    let found = db.fetch(query(&core.sql.latest_jobs).bind(ids), |found| {
        Ok((found.get::<i64>(JOB.len())?, row::job(found)?))
    });
    for (place, job) in found.await? {
        if let Some(chain) = usize::try_from(place).ok().and_then(|place| chains.get(place)) {
            latest.insert(*chain, job);
        }
    }
    Ok(latest)
}

pub(crate) async fn cancel(
    db: &mut Db<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(db, core, chains).await?;
    for chain in chains {
        match latest.get(chain).map(|stored| stored.job.status) {
            None => return Ok(Err(Refusal::ChainNotFound(*chain))),
            Some(status) if status.is_open() => {}
            Some(status) => return Ok(Err(Refusal::NotOpen(*chain, status))),
        }
    }
    let mut interrupted = HashMap::new();
    for (chain, stored) in &mut latest {
        if stored.job.lease.take().is_some() {
            interrupted.insert(*chain, stored.job.id);
        }
        stored.job.status = JobStatus::Cancelled;
        stored.job.ended_at = Some(now);
    }
    let changes: Vec<_> = latest.values().map(Change::of_job).collect();
    core.change(db, &changes, now).await?;
    core.note_lost_leases(db, interrupted.values().copied()).await?;
    let records = chains_by_id(db, core, chains).await?;
    let stopped = records.into_iter().map(|chain| StoppedChain {
        interrupted: interrupted.get(&chain.id).copied(),
        chain,
    });
    Ok(Ok(stopped.collect()))
}

pub(crate) async fn retry(
    db: &mut Db<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(db, core, chains).await?;
    let mut keys: HashMap<ChainId, (String, String, Option<ChainId>)> = HashMap::new();
    if latest.values().any(|stored| stored.keyed) {
        let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
        let found = db.fetch(query(&core.sql.key_holders).bind(ids), |found| {
            let holder = found.get::<Option<Uuid>>(3)?.map(ChainId::from_uuid);
            let key = (found.get(1)?, found.get(2)?, holder);
            Ok((ChainId::from_uuid(found.get(0)?), key))
        });
        keys.extend(found.await?);
    }
    let mut retried: HashMap<(&str, &str), ChainId> = HashMap::new();
    for chain in chains {
        match latest.get(chain).map(|stored| stored.job.status) {
            None => return Ok(Err(Refusal::ChainNotFound(*chain))),
            Some(status) if status.is_retryable() => {}
            Some(status) => return Ok(Err(Refusal::NotRetryable(*chain, status))),
        }
        if let Some((type_name, key, open)) = keys.get(chain) {
            let earlier = retried.insert((type_name, key), *chain);
            let earlier = earlier.filter(|other| other != chain);
            if let Some(holder) = open.or(earlier) {
                return Ok(Err(Refusal::KeyTaken { chain: *chain, holder }));
            }
        }
    }
    let waited: Vec<_> = latest.values().filter(|stored| stored.blockers > 0).collect();
    let mut blocked = HashSet::new();
    if !waited.is_empty() {
        let ids = Batch::of_ids(waited.iter().map(|stored| stored.job.id.as_uuid()));
        let found = db.fetch(query(&core.sql.open_blockers).bind(ids), |found| {
            Ok(JobId::from_uuid(found.get(0)?))
        });
        blocked.extend(found.await?);
    }
    for stored in latest.values_mut() {
        let job = &mut stored.job;
        job.status = match blocked.contains(&job.id) {
            true => JobStatus::Blocked,
            false => JobStatus::Pending,
        };
        job.attempt = 0;
        job.scheduled_at = now;
        job.ended_at = None;
    }
    let changes: Vec<_> = latest.values().map(Change::of_job).collect();
    core.change(db, &changes, now).await?;
    let records = chains.iter().filter_map(|chain| latest.get(chain));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
}

pub(crate) async fn delete(
    db: &mut Db<'_>,
    core: &Core,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let records = doomed(db, core, delete).await?;
    if records.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let chains: Vec<ChainId> = records.iter().map(|record| record.id).collect();
    let doomed: HashSet<ChainId> = chains.iter().copied().collect();
    let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let references = db.fetch(query(&core.sql.references).bind(ids.as_str()), |found| {
        let reference = BlockerReference {
            chain: ChainId::from_uuid(found.get(0)?),
            job: JobId::from_uuid(found.get(1)?),
        };
        let stays = !doomed.contains(&ChainId::from_uuid(found.get(2)?));
        Ok(stays.then_some(reference))
    });
    let references: Vec<_> = references.await?.into_iter().flatten().collect();
    if !references.is_empty() {
        return Ok(Err(Refusal::Referenced(references)));
    }
    for delete in &core.sql.delete_chains {
        db.execute(query(delete).bind(ids.as_str())).await?;
    }
    let stopped: Vec<_> = records
        .into_iter()
        .map(|chain| StoppedChain {
            interrupted: (chain.status == JobStatus::Running).then_some(chain.latest_job),
            chain,
        })
        .collect();
    core.note_lost_leases(db, stopped.iter().filter_map(|chain| chain.interrupted))
        .await?;
    Ok(Ok(stopped))
}

/// The chains that exist, each once, in the order given; then what the cascade adds, one level after the other.
async fn doomed(db: &mut Db<'_>, core: &Core, delete: &DeleteChains) -> Result<Vec<ChainRecord>, StateError> {
    let mut seen = HashSet::new();
    let mut level: Vec<ChainId> = delete
        .chains
        .iter()
        .copied()
        .filter(|chain| seen.insert(*chain))
        .collect();
    let mut records = Vec::new();
    while !level.is_empty() {
        let found = chains_by_id(db, core, &level).await?;
        let ids = Batch::of_ids(found.iter().map(|record| record.id.as_uuid()));
        let grows = delete.cascade && !found.is_empty();
        records.extend(found);
        level.clear();
        if grows {
            let blockers = db.fetch(query(&core.sql.blockers_of_chains).bind(ids), |found| {
                Ok(ChainId::from_uuid(found.get(0)?))
            });
            level.extend(blockers.await?.into_iter().filter(|chain| seen.insert(*chain)));
        }
    }
    Ok(records)
}
