//! Giving unused pages back to the file system.

use queuert::StateError;

use crate::connection::query;
use crate::state::SqliteState;
use crate::statements::shared;

impl SqliteState {
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
                let vacuum = shared(format!("PRAGMA incremental_vacuum({pages})"));
                // SQLite frees one page per row that is fetched.
                connection.fetch(query(&vacuum), |_| Ok(())).await?;
                let left = shared("PRAGMA freelist_count".to_owned());
                let left = connection.first(query(&left), |found| found.first::<i64>()).await?;
                Ok(left.and_then(|left| u64::try_from(left).ok()).unwrap_or_default())
            })
        })
        .await
    }
}
