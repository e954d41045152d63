//! Keeping the file small.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::DeleteChains;
use queuert::{ChainId, StateError};
use sqlx::AssertSqlSafe;

use crate::clock;
use crate::core::{count, fetch, query};
use crate::error::translate;
use crate::operate;
use crate::row;
use crate::state::SqliteState;

impl SqliteState {
    /// Deletes chains that completed or were cancelled longer ago than `older_than`, at most `limit` of them, and
    /// returns how many. Dead chains stay, because somebody should look at them; so do chains for which a job waits, or
    /// which one may have to read. Call it now and then, again at once if it returned `limit`.
    ///
    /// # Errors
    ///
    /// If the store fails; nothing has been deleted then.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has deleted all of them or none.
    pub async fn delete_finished(&self, older_than: Duration, limit: usize) -> Result<usize, StateError> {
        let core = Arc::clone(self.core());
        self.write(move |connection| {
            let core = Arc::clone(&core);
            Box::pin(async move {
                let before = clock::now().saturating_sub(older_than);
                let finished = query(&core.sql.finished).bind(before.as_micros()).bind(count(limit));
                let rows = fetch(connection, finished).await?;
                let mut chains = Vec::with_capacity(rows.len());
                for found in &rows {
                    chains.push(ChainId::from_uuid(row::uuid(found, 0)?));
                }
                let delete = DeleteChains::new(chains, false);
                // Nothing refers to them, and nobody else writes meanwhile, so this is never refused.
                let deleted = operate::delete(connection, &core, &delete).await?;
                Ok(deleted.map_or(0, |deleted| deleted.len()))
            })
        })
        .await
    }

    /// Gives up to `pages` unused pages at the end of the file back to the file system, and returns how many unused
    /// ones are left. Files that this library created can shrink this way; others need a `VACUUM` with
    /// `PRAGMA auto_vacuum = INCREMENTAL` once.
    ///
    /// # Errors
    ///
    /// If the store fails, or another process has the file locked.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has done all of it or none.
    pub async fn incremental_vacuum(&self, pages: u32) -> Result<u64, StateError> {
        self.write(move |connection| {
            Box::pin(async move {
                let vacuum = format!("PRAGMA incremental_vacuum({pages})");
                // One page per row: all rows must be fetched for all pages to be freed.
                sqlx::query(AssertSqlSafe(vacuum))
                    .fetch_all(&mut *connection)
                    .await
                    .map_err(translate)?;
                let left: i64 = sqlx::query_scalar("PRAGMA freelist_count")
                    .fetch_one(connection)
                    .await
                    .map_err(translate)?;
                Ok(u64::try_from(left).unwrap_or_default())
            })
        })
        .await
    }
}
