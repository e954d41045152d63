//! Reads by id. Pages are in modules of their own.

mod chains;
mod jobs;
mod page;
pub(crate) mod watermark;

use std::collections::HashMap;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, StateError};

use crate::connection::session::{Session, query};
use crate::row::{self, StoredJob};
use crate::store::Store;

pub(crate) use crate::verbs::query::chains::list_chains;
pub(crate) use crate::verbs::query::jobs::list_jobs;

pub(crate) async fn stored_jobs(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Vec<StoredJob>, StateError> {
    let ids: Vec<_> = jobs.iter().map(|job| job.as_uuid()).collect();
    let rows = session.fetch(query(store.sql.jobs_by_id.when(false)).bind(ids)).await?;
    row::jobs(session, store, &rows).await
}

pub(crate) async fn jobs_by_id(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Vec<JobRecord>, StateError> {
    let stored = stored_jobs(session, store, jobs).await?;
    Ok(stored.into_iter().map(|stored| stored.job).collect())
}

pub(crate) async fn chains_by_id(
    session: &mut Session<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Vec<ChainRecord>, StateError> {
    let ids: Vec<_> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let rows = session.fetch(query(&store.sql.chains_by_id).bind(ids)).await?;
    row::chains(session, store, &rows).await
}

/// The blocker chains of jobs, in the declared order.
pub(crate) async fn blockers_of(
    session: &mut Session<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<HashMap<JobId, Vec<ChainRecord>>, StateError> {
    let mut blockers: HashMap<JobId, Vec<ChainRecord>> = HashMap::new();
    if jobs.is_empty() {
        return Ok(blockers);
    }
    let ids: Vec<_> = jobs.iter().map(|job| job.as_uuid()).collect();
    let rows = session.fetch(query(&store.sql.blockers_of).bind(ids)).await?;
    for (found, chain) in rows.iter().zip(row::chains(session, store, &rows).await?) {
        let job = JobId::from_uuid(row::get(found, "blocked_job_id")?);
        blockers.entry(job).or_default().push(chain);
    }
    Ok(blockers)
}

pub(crate) async fn list_blockers(
    session: &mut Session<'_>,
    store: &Store,
    job: JobId,
) -> Result<Vec<ChainRecord>, StateError> {
    let mut blockers = blockers_of(session, store, &[job]).await?;
    Ok(blockers.remove(&job).unwrap_or_default())
}
