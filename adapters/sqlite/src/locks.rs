//! Locks. SQLite has one write lock, and a transaction of this store has it from its first statement to its end. So a verb
//! that locks rows in another store only reads here, and what it has read stays true.

use queuert::adapter::rules;
use queuert::{AbortReason, ChainId, Fence, JobId, JobRecord, StateError};

use crate::connection::{Connection, query};
use crate::sabotage;
use crate::store::Store;
use crate::verbs::{lease, operate};

/// Takes the write lock in a transaction that was begun without it.
pub(crate) async fn take_write_lock(connection: &mut Connection<'_>, store: &Store) -> Result<(), StateError> {
    connection.execute(query(&store.statements.take_write_lock)).await?;
    Ok(())
}

/// Whether the job runs under the fence.
pub(crate) async fn hold_lease(
    connection: &mut Connection<'_>,
    store: &Store,
    job: JobId,
    fence: Fence,
) -> Result<Result<(), AbortReason>, StateError> {
    let heads = lease::heads(connection, store, std::iter::once(job)).await?;
    let head = heads.get(&job).map(|head| sabotage::seen_by(*head, fence));
    Ok(rules::held(head.as_ref(), fence))
}

/// The latest job of a chain.
pub(crate) async fn lock_chain(
    connection: &mut Connection<'_>,
    store: &Store,
    chain: ChainId,
) -> Result<Option<JobRecord>, StateError> {
    let mut latest = operate::latest_jobs(connection, store, &[chain]).await?;
    Ok(latest.remove(&chain).map(|stored| stored.job))
}
