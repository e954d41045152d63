//! Deleting chains.

use std::collections::HashSet;

use queuert::adapter::{DeleteChains, Refusal, StoppedChain};
use queuert::{BlockerReference, ChainId, JobId, StateError};
use sqlx::SqlStr;
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::locks::scope::{Scope, lock};
use crate::row;
use crate::statements::{Filling, text};
use crate::store::Store;
use crate::verbs::operate::interrupted;
use crate::verbs::query::chains_by_id;
use crate::verbs::snapshot;

/// The tables that have a row per job, in the order in which its rows are deleted: the job itself goes last.
const TABLES_OF_JOBS: [&str; 8] = [
    "ready", "later", "waiting", "running", "stopped", "result", "failure", "job",
];

pub(crate) async fn delete(
    session: &mut Session<'_>,
    store: &Store,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let scope = if delete.cascade {
        Scope::Cascade(&delete.chains)
    } else {
        Scope::Chains(&delete.chains)
    };
    let (mut chains, locked) = lock(session, store, scope).await?;
    let found = |chain: &ChainId| locked.latest.contains_key(chain) || locked.damaged.contains_key(chain);
    let missing = chains.iter().filter(|chain| !found(chain)).map(|chain| chain.as_uuid());
    snapshot::confirm(session, store, missing.collect()).await?;
    chains.retain(found);
    if chains.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
    let references = references(session, store, &ids).await?;
    if !references.is_empty() {
        return Ok(Err(Refusal::Referenced(references)));
    }
    let records = chains_by_id(session, store, &chains).await?;
    let keyed = !locked.damaged.is_empty() || locked.latest.values().any(|stored| stored.keyed);
    erase(session, store, &ids, keyed).await?;
    let stopped = records.into_iter().map(|chain| StoppedChain {
        interrupted: locked.latest.get(&chain.id).and_then(interrupted),
        chain,
    });
    Ok(Ok(stopped.collect()))
}

/// Deletes chains that are locked and to which no job refers.
pub(crate) async fn erase(
    session: &mut Session<'_>,
    store: &Store,
    ids: &[Uuid],
    keyed: bool,
) -> Result<(), StateError> {
    let mut jobs: Vec<Uuid> = Vec::with_capacity(ids.len());
    for found in session
        .fetch(query(&store.sql.jobs_of_chains).bind(ids.to_vec()))
        .await?
    {
        jobs.push(row::get(&found, "id")?);
    }
    if keyed {
        send(session, &store.sql.delete_keys, ids).await?;
        send(session, &store.sql.delete_key_locks, ids).await?;
    }
    send(session, &store.sql.delete_edges_to, ids).await?;
    send(session, &store.sql.delete_edges_of, &jobs).await?;
    for table in TABLES_OF_JOBS {
        let delete = store.statement(text::DELETE_FROM, Filling::none().with("table", table));
        send(session, &delete, &jobs).await?;
    }
    Ok(())
}

async fn send(session: &mut Session<'_>, text: &SqlStr, ids: &[Uuid]) -> Result<(), StateError> {
    session.execute(query(text).bind(ids.to_vec())).await
}

/// What keeps the chains from being deleted.
pub(crate) async fn references(
    session: &mut Session<'_>,
    store: &Store,
    ids: &[Uuid],
) -> Result<Vec<BlockerReference>, StateError> {
    let doomed: HashSet<Uuid> = ids.iter().copied().collect();
    let mut references = Vec::new();
    for found in session.fetch(query(&store.sql.references).bind(ids.to_vec())).await? {
        if !doomed.contains(&row::get(&found, "job_chain_id")?) {
            references.push(BlockerReference {
                chain: ChainId::from_uuid(row::get(&found, "chain_id")?),
                job: JobId::from_uuid(row::get(&found, "job_id")?),
            });
        }
    }
    Ok(references)
}
