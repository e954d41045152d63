//! Looks into a peer's tables.

use queuert_measured::{BoxError, OBSERVER, Observer};
use sqlx::AssertSqlSafe;

/// A connection that is not measured.
#[derive(Debug)]
pub struct Checks(pub(crate) Observer);

impl Checks {
    /// The value of an expression in SQL that counts.
    ///
    /// # Errors
    ///
    /// If the server refuses it.
    pub async fn count(&mut self, expression: &str) -> Result<usize, BoxError> {
        let text = format!("SELECT {OBSERVER} ({expression})::bigint");
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(text))
            .persistent(false)
            .fetch_one(&mut self.0.connection)
            .await?;
        Ok(usize::try_from(count)?)
    }
}
