//! Reads.

mod chains;
mod jobs;
mod page;
mod watermark;

use std::collections::HashMap;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, StateError};

use crate::connection::{Connection, query};
use crate::row::{self, StoredJob};
use crate::statements::json_rows::JsonRows;
use crate::store::Store;

pub(crate) use chains::list_chains;
pub(crate) use jobs::list_jobs;
pub(crate) use watermark::watermark;

pub(crate) async fn stored_jobs(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Vec<StoredJob>, StateError> {
    let ids = JsonRows::of_ids(jobs.iter().map(|job| job.as_uuid()));
    let search = query(&store.statements.jobs_by_id).bind(ids);
    connection.fetch(search, row::job).await
}

pub(crate) async fn jobs_by_id(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<Vec<JobRecord>, StateError> {
    let stored = stored_jobs(connection, store, jobs).await?;
    Ok(stored.into_iter().map(|stored| stored.job).collect())
}

pub(crate) async fn chains_by_id(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[ChainId],
) -> Result<Vec<ChainRecord>, StateError> {
    let ids = JsonRows::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    let search = query(&store.statements.chains_by_id).bind(ids);
    connection.fetch(search, row::chain).await
}

/// The blocker chains of jobs, in the declared order.
pub(crate) async fn blockers_of(
    connection: &mut Connection<'_>,
    store: &Store,
    jobs: &[JobId],
) -> Result<HashMap<JobId, Vec<ChainRecord>>, StateError> {
    let mut blockers: HashMap<JobId, Vec<ChainRecord>> = HashMap::new();
    if jobs.is_empty() {
        return Ok(blockers);
    }
    let ids = JsonRows::of_ids(jobs.iter().map(|job| job.as_uuid()));
    let found = connection.fetch(query(&store.statements.blockers_of_jobs).bind(ids), |found| {
        Ok((JobId::from_uuid(found.get("blocked_job")?), row::chain(found)?))
    });
    for (job, chain) in found.await? {
        blockers.entry(job).or_default().push(chain);
    }
    Ok(blockers)
}

pub(crate) async fn list_blockers(
    connection: &mut Connection<'_>,
    store: &Store,
    job: &JobId,
) -> Result<Vec<ChainRecord>, StateError> {
    let mut blockers = blockers_of(connection, store, std::slice::from_ref(job)).await?;
    Ok(blockers.remove(job).unwrap_or_default())
}

/// Up to this many pending jobs, a page sorts all of them. If there are more, it walks back in time, and is full soon.
const FEW_PENDING: i64 = 10_000;

/// Whether the pending jobs are few enough to be sorted for a page.
async fn pending_are_few(connection: &mut Connection<'_>, store: &Store) -> Result<bool, StateError> {
    let count = query(&store.statements.count_pending).bind(FEW_PENDING + 1);
    let pending: Option<i64> = connection.first(count, |found| found.get("pending")).await?;
    Ok(pending.unwrap_or_default() <= FEW_PENDING)
}
