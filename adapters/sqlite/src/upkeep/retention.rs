//! Keeping the file small.

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::DeleteChains;
use queuert::{ChainId, StateError};

use crate::clock;
use crate::connection::query;
use crate::state::SqliteState;
use crate::statements::batched::shared;
use crate::store::count;
use crate::verbs::operate;

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
        self.write(move |db| {
            let core = Arc::clone(&core);
            Box::pin(async move {
                let before = clock::now().saturating_sub(older_than);
                let finished = query(&core.sql.finished).bind(before.as_micros()).bind(count(limit));
                let chains = db
                    .fetch(finished, |found| Ok(ChainId::from_uuid(found.get(0)?)))
                    .await?;
                let delete = DeleteChains::new(chains, false);
                // Nothing refers to them, and nobody else writes meanwhile, so this is never refused.
                let deleted = operate::delete(db, &core, &delete).await?;
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
        self.write(move |db| {
            Box::pin(async move {
                let vacuum = shared(format!("PRAGMA incremental_vacuum({pages})"));
                // One page per row: all rows must be fetched for all pages to be freed.
                db.fetch(query(&vacuum), |_| Ok(())).await?;
                let left = shared("PRAGMA freelist_count".to_owned());
                let left = db.first(query(&left), |found| found.get::<i64>(0)).await?;
                Ok(left.and_then(|left| u64::try_from(left).ok()).unwrap_or_default())
            })
        })
        .await
    }
}
