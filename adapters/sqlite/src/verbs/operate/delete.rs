//! Deleting chains.

use std::collections::HashSet;

use queuert::adapter::{DeleteChains, Refusal, StoppedChain};
use queuert::{BlockerReference, ChainId, ChainRecord, JobId, JobStatus, StateError};

use crate::connection::{Connection, query};
use crate::notify::notices;
use crate::statements::json_rows::JsonRows;
use crate::store::Store;
use crate::verbs::query::chains_by_id;

pub(crate) async fn delete(
    connection: &mut Connection<'_>,
    store: &Store,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let records = chains_to_delete(connection, store, delete).await?;
    if records.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let deleted: HashSet<ChainId> = records.iter().map(|record| record.id).collect();
    let ids = JsonRows::of_ids(records.iter().map(|record| record.id.as_uuid()));
    let statements = &store.statements;
    let references = connection.fetch(query(&statements.blocker_references).bind(ids.as_str()), |found| {
        let reference = BlockerReference {
            chain: ChainId::from_uuid(found.get("chain_id")?),
            job: JobId::from_uuid(found.get("job_id")?),
        };
        let stays = !deleted.contains(&ChainId::from_uuid(found.get("waiting_chain")?));
        Ok(stays.then_some(reference))
    });
    let references: Vec<_> = references.await?.into_iter().flatten().collect();
    if !references.is_empty() {
        return Ok(Err(Refusal::Referenced(references)));
    }
    // Blockers first, while their jobs can still be found.
    for delete in [
        &statements.delete_blockers_by_chain,
        &statements.delete_blockers_by_job,
        &statements.delete_later_jobs,
        &statements.delete_first_jobs,
    ] {
        connection.execute(query(delete).bind(ids.as_str())).await?;
    }
    let stopped: Vec<_> = records
        .into_iter()
        .map(|chain| StoppedChain {
            interrupted: (chain.status == JobStatus::Running).then_some(chain.latest_job),
            chain,
        })
        .collect();
    let interrupted: Vec<JobId> = stopped.iter().filter_map(|chain| chain.interrupted).collect();
    notices::insert_lost_leases(connection, store, interrupted).await?;
    Ok(Ok(stopped))
}

/// The chains that exist, each once, in the order given; then the blockers that a cascade adds, one level after the other.
async fn chains_to_delete(
    connection: &mut Connection<'_>,
    store: &Store,
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
        let found = chains_by_id(connection, store, &level).await?;
        let ids = JsonRows::of_ids(found.iter().map(|record| record.id.as_uuid()));
        let descends = delete.cascade && !found.is_empty();
        records.extend(found);
        level.clear();
        if descends {
            let search = query(&store.statements.blockers_of_chains).bind(ids);
            let blockers = connection.fetch(search, |found| Ok(ChainId::from_uuid(found.get("chain_id")?)));
            level.extend(blockers.await?.into_iter().filter(|chain| seen.insert(*chain)));
        }
    }
    Ok(records)
}
