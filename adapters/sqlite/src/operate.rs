//! What operators do to jobs and chains: trigger, cancel, retry, delete.

use std::collections::{HashMap, HashSet};

use queuert::adapter::{DeleteChains, Refusal, StoppedChain};
use queuert::{BlockerReference, ChainId, ChainRecord, JobId, JobRecord, JobStatus, StateError};
use sqlx::SqliteConnection;

use crate::clock;
use crate::core::{Change, Core, execute, fetch, query};
use crate::json::Batch;
use crate::query::{chains_by_id, stored_jobs};
use crate::row::{self, JOB, StoredJob};

pub(crate) async fn trigger(
    connection: &mut SqliteConnection,
    core: &Core,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let stored = stored_jobs(connection, core, jobs).await?;
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
    let changes: Vec<_> = by_id.values().map(Change::of_job).collect();
    core.change(connection, &changes, now).await?;
    let records = jobs.iter().filter_map(|id| by_id.get(id));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
}

/// The latest job of each chain that exists.
pub(crate) async fn latest_jobs(
    connection: &mut SqliteConnection,
    core: &Core,
    chains: &[ChainId],
) -> Result<HashMap<ChainId, StoredJob>, StateError> {
    let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let mut latest = HashMap::new();
    for found in fetch(connection, query(&core.sql.latest_jobs).bind(ids)).await? {
        let place = usize::try_from(row::get::<i64>(&found, JOB.len())?).unwrap_or(usize::MAX);
        if let Some(chain) = chains.get(place) {
            latest.insert(*chain, row::job(&found)?);
        }
    }
    Ok(latest)
}

pub(crate) async fn cancel(
    connection: &mut SqliteConnection,
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(connection, core, chains).await?;
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
    core.change(connection, &changes, now).await?;
    core.note_lost_leases(connection, interrupted.values().copied()).await?;
    let records = chains_by_id(connection, core, chains).await?;
    let stopped = records.into_iter().map(|chain| StoppedChain {
        interrupted: interrupted.get(&chain.id).copied(),
        chain,
    });
    Ok(Ok(stopped.collect()))
}

pub(crate) async fn retry(
    connection: &mut SqliteConnection,
    core: &Core,
    chains: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let now = clock::now();
    let mut latest = latest_jobs(connection, core, chains).await?;
    let mut keys: HashMap<ChainId, (String, String, Option<ChainId>)> = HashMap::new();
    if latest.values().any(|stored| stored.keyed) {
        let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
        for found in fetch(connection, query(&core.sql.key_holders).bind(ids)).await? {
            let holder = row::optional_uuid(&found, 3)?.map(ChainId::from_uuid);
            let key = (row::get(&found, 1)?, row::get(&found, 2)?, holder);
            keys.insert(ChainId::from_uuid(row::uuid(&found, 0)?), key);
        }
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
        for found in fetch(connection, query(&core.sql.open_blockers).bind(ids)).await? {
            blocked.insert(JobId::from_uuid(row::uuid(&found, 0)?));
        }
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
    core.change(connection, &changes, now).await?;
    let records = chains.iter().filter_map(|chain| latest.get(chain));
    Ok(Ok(records.map(|stored| stored.job.clone()).collect()))
}

pub(crate) async fn delete(
    connection: &mut SqliteConnection,
    core: &Core,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let records = doomed(connection, core, delete).await?;
    if records.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let chains: Vec<ChainId> = records.iter().map(|record| record.id).collect();
    let doomed: HashSet<ChainId> = chains.iter().copied().collect();
    let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let mut references = Vec::new();
    for found in fetch(connection, query(&core.sql.references).bind(ids.clone())).await? {
        if !doomed.contains(&ChainId::from_uuid(row::uuid(&found, 2)?)) {
            references.push(BlockerReference {
                chain: ChainId::from_uuid(row::uuid(&found, 0)?),
                job: JobId::from_uuid(row::uuid(&found, 1)?),
            });
        }
    }
    if !references.is_empty() {
        return Ok(Err(Refusal::Referenced(references)));
    }
    execute(connection, query(&core.sql.delete_chains).bind(ids)).await?;
    let stopped: Vec<_> = records
        .into_iter()
        .map(|chain| StoppedChain {
            interrupted: (chain.status == JobStatus::Running).then_some(chain.latest_job),
            chain,
        })
        .collect();
    core.note_lost_leases(connection, stopped.iter().filter_map(|chain| chain.interrupted))
        .await?;
    Ok(Ok(stopped))
}

/// The chains that exist, each once, in the order given; then what the cascade adds, one level after the other.
async fn doomed(
    connection: &mut SqliteConnection,
    core: &Core,
    delete: &DeleteChains,
) -> Result<Vec<ChainRecord>, StateError> {
    let mut seen = HashSet::new();
    let mut level: Vec<ChainId> = delete
        .chains
        .iter()
        .copied()
        .filter(|chain| seen.insert(*chain))
        .collect();
    let mut records = Vec::new();
    while !level.is_empty() {
        let found = chains_by_id(connection, core, &level).await?;
        let ids = Batch::of_ids(found.iter().map(|record| record.id.as_uuid()));
        let grows = delete.cascade && !found.is_empty();
        records.extend(found);
        level.clear();
        if grows {
            for blocker in fetch(connection, query(&core.sql.blockers_of_chains).bind(ids)).await? {
                let chain = ChainId::from_uuid(row::uuid(&blocker, 0)?);
                if seen.insert(chain) {
                    level.push(chain);
                }
            }
        }
    }
    Ok(records)
}
