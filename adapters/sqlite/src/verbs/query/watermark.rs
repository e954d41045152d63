//! The time before which no more jobs can appear.

use queuert::{StateError, Timestamp};

use crate::clock;
use crate::connection::{Connection, query};
use crate::store::Store;

/// The watermark: just after the creation of the newest job.
///
/// A transaction reads the clock for its jobs while it has the write lock, and does not commit before the clock shows
/// another time ([`clock::outlast`]). So jobs that are committed later were created later than all jobs that exist now, by
/// whichever process. The watermark never exceeds the present: after the clock was set back, the newest job is ahead of it.
pub(crate) async fn watermark(connection: &mut Connection<'_>, store: &Store) -> Result<Timestamp, StateError> {
    let now = clock::now();
    let newest = connection
        .first(query(&store.statements.newest_job), |found| {
            found.get::<Option<i64>>("created_at")
        })
        .await?;
    let after_newest = newest.flatten().map_or(0, |newest| newest.saturating_add(1));
    Ok(Timestamp::from_micros(after_newest).min(now))
}
