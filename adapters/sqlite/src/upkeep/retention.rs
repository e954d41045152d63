//! Deleting chains that ended long ago.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::DeleteChains;
use queuert::{ChainId, StateError};

use crate::clock;
use crate::connection::query;
use crate::state::SqliteState;
use crate::store::count;
use crate::verbs::operate;

impl SqliteState {
    /// Deletes chains that completed or were cancelled longer ago than `older_than`, at most `limit` of them, and
    /// returns how many. Dead chains stay, so that an operator can look at them. Chains that a job waits for, or may have to
    /// read, stay too. Call it from time to time, and again at once if it returned `limit`.
    ///
    /// # Errors
    ///
    /// If the store fails; nothing has been deleted then.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has deleted all of them or none.
    pub async fn delete_finished(&self, older_than: Duration, limit: usize) -> Result<usize, StateError> {
        let store = Arc::clone(self.store());
        self.write(move |connection| {
            let store = Arc::clone(&store);
            Box::pin(async move {
                let before = clock::now().saturating_sub(older_than);
                let finished = query(&store.statements.finished_chains)
                    .bind(before.as_micros())
                    .bind(count(limit));
                let chains = connection
                    .fetch(finished, |found| Ok(ChainId::from_uuid(found.get("chain_id")?)))
                    .await?;
                let delete = DeleteChains::new(chains, false);
                // Nothing refers to these chains, and this transaction has the write lock, so the call is never refused.
                let deleted = operate::delete(connection, &store, &delete).await?;
                Ok(deleted.map_or(0, |deleted| deleted.len()))
            })
        })
        .await
    }
}
