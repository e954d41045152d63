//! Deleting chains.

use std::collections::HashSet;

use queuert::adapter::{DeleteChains, Refusal, StoppedChain};
use queuert::{BlockerReference, ChainId, JobId, StateError};
use sqlx::SqlStr;
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::locks::scope::{Scope, lock};
use crate::row;
use crate::store::Store;
use crate::verbs::operate::interrupted;
use crate::verbs::query::chains_by_id;
use crate::verbs::snapshot;

/// $1 chains. The jobs that have them as blockers and are not completed, as (chain, job, chain of the job), in the order
/// of the chains. Runs after the chains were locked, as a statement of its own: who creates a job with a blocker has the
/// blocker locked, so no edge can be missed.
const REFERENCES: &str = "SELECT b.chain_id, b.job_id, j.chain_id \
     FROM unnest($1::uuid[]) WITH ORDINALITY AS c(id, place) \
     CROSS JOIN LATERAL (SELECT DISTINCT b.chain_id, b.job_id FROM {schema}.blocker AS b WHERE b.chain_id = c.id OFFSET 0) AS b \
     JOIN {schema}.job AS j ON j.id = b.job_id \
     WHERE (SELECT r.id FROM {schema}.result AS r WHERE r.id = b.job_id LIMIT 1) IS NULL ORDER BY c.place, b.job_id";

/// $1 chains. Their jobs.
const JOBS: &str = "SELECT f.id FROM {schema}.job AS f WHERE f.id = ANY ($1::uuid[]) AND f.chain_index = 0 \
     UNION ALL SELECT n.id FROM {schema}.job AS n WHERE n.chain_id = ANY ($1::uuid[]) AND n.chain_index > 0";

/// $1 jobs. Where the state of a job is, and what only jobs have.
const OF_JOBS: [&str; 9] = [
    "DELETE FROM {schema}.ready WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.later WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.waiting WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.running WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.stopped WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.result WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.failure WHERE id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.blocker WHERE job_id = ANY ($1::uuid[])",
    "DELETE FROM {schema}.job WHERE id = ANY ($1::uuid[])",
];

/// $1 chains. Edges of completed jobs of other chains.
const EDGES_TO: &str = "DELETE FROM {schema}.blocker WHERE chain_id = ANY ($1::uuid[])";

/// $1 chains, before their jobs go. The rows that starters of a key lock are made anew when they are needed; one that
/// somebody has locked stays, because a deletion must not wait for starters.
const KEY_LOCKS: &str = "DELETE FROM {schema}.key_lock WHERE ctid = ANY (ARRAY(\
     SELECT k.tid FROM {schema}.job AS f CROSS JOIN LATERAL (SELECT k.ctid AS tid FROM {schema}.key_lock AS k \
     WHERE k.type_id = f.type_id AND k.key = f.dedup_key FOR UPDATE SKIP LOCKED) AS k \
     WHERE f.id = ANY ($1::uuid[]) AND f.chain_index = 0 AND f.dedup_key IS NOT NULL))";

pub(crate) async fn delete(
    session: &mut Session<'_>,
    store: &Store,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let scope = match delete.cascade {
        true => Scope::Cascade(&delete.chains),
        false => Scope::Chains(&delete.chains),
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

/// Deletes chains that are locked and to which nobody refers.
pub(crate) async fn erase(
    session: &mut Session<'_>,
    store: &Store,
    ids: &[Uuid],
    keyed: bool,
) -> Result<(), StateError> {
    let mut jobs: Vec<Uuid> = Vec::with_capacity(ids.len());
    for found in session.fetch(query(&store.render(JOBS)).bind(ids.to_vec())).await? {
        jobs.push(row::get(&found, 0)?);
    }
    if keyed {
        send(session, &store.sql.delete_keys, ids).await?;
        send(session, &store.render(KEY_LOCKS), ids).await?;
    }
    send(session, &store.render(EDGES_TO), ids).await?;
    for text in OF_JOBS {
        send(session, &store.render(text), &jobs).await?;
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
    for found in session
        .fetch(query(&store.render(REFERENCES)).bind(ids.to_vec()))
        .await?
    {
        if !doomed.contains(&row::get(&found, 2)?) {
            references.push(BlockerReference {
                chain: ChainId::from_uuid(row::get(&found, 0)?),
                job: JobId::from_uuid(row::get(&found, 1)?),
            });
        }
    }
    Ok(references)
}
