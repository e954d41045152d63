//! Writes whose answer was lost: the store is asked whether they have happened, where it can tell.

use std::collections::HashMap;
use std::time::Duration;

use super::Client;
use crate::adapter::{CreatedChain, NewChain, StateAdapter};
use crate::id::JobId;

/// How long a caller whose write has failed waits for the store to say whether it has happened all the same.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a write has happened that has failed for its caller: it has if the `witness` exists, a job that it creates under
/// an id that this library has just made. `false` if the store cannot tell, or does not answer.
pub(super) async fn has_happened<S: StateAdapter>(client: &Client<S>, witness: Option<JobId>) -> bool {
    let Some(witness) = witness else {
        return false;
    };
    let witness = [witness];
    let look = client.state().get_jobs(None, &witness);
    matches!(tokio::time::timeout(PATIENCE, look).await, Ok(Ok(found)) if !found.is_empty())
}

/// What a start by itself has created that has failed for its caller; `None` if it has not happened as far as the store can
/// tell. `made_here` are the ids that this library has just made, in the order of the chains: a chain that exists under such
/// an id was created by this start, also if it has a key. One that does not exist was not created, or another chain was found
/// in its place.
pub(super) async fn created_before<S: StateAdapter>(
    client: &Client<S>,
    made_here: &[JobId],
    chains: &[NewChain],
) -> Option<Vec<CreatedChain>> {
    let mut ids_left = made_here.iter().peekable();
    for chain in chains {
        let is_made_here = ids_left.next_if_eq(&&chain.job.id).is_some();
        if chain.deduplication.is_some() && !is_made_here {
            // It may be there from an earlier call, and have been found by its key.
            return None;
        }
    }
    if !has_happened(client, made_here.first().copied()).await {
        return None;
    }
    let ids: Vec<_> = chains.iter().map(|chain| chain.job.id.as_chain()).collect();
    let look = client.state().get_chains(None, &ids);
    let found = tokio::time::timeout(PATIENCE, look).await.ok()?.ok()?;
    let statuses: HashMap<_, _> = found.iter().map(|chain| (chain.id, chain.status)).collect();
    let created = ids.iter().map(|id| {
        Some(CreatedChain {
            id: *id,
            status: *statuses.get(id)?,
            deduplicated: false,
        })
    });
    created.collect()
}
