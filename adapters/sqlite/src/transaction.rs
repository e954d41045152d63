//! The caller's end of a transaction, and the way of the connection home.

use std::fmt;
use std::ops::{Deref, DerefMut};

use queuert::{StateError, StateErrorKind};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tokio::sync::oneshot;

use crate::error::translate;

/// An open transaction of a [`SqliteState`](crate::SqliteState). Dereferences to the [`SqliteConnection`] on which the
/// caller's own statements run.
///
/// It has the file's only write lock from the beginning (`BEGIN IMMEDIATE`), so every other writer waits: keep it
/// short. Dropped, it rolls back in the background, before anybody else's turn.
pub struct SqliteTransaction {
    connection: Option<SqliteConnection>,
    home: Option<oneshot::Sender<Returned>>,
}

/// A connection that comes back from a transaction.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) connection: SqliteConnection,
    /// Whether the transaction may still be open.
    pub(crate) dirty: bool,
    pub(crate) committed: bool,
}

impl SqliteTransaction {
    pub(crate) fn new(connection: SqliteConnection, home: oneshot::Sender<Returned>) -> Self {
        Self {
            connection: Some(connection),
            home: Some(home),
        }
    }

    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        let Some(connection) = &mut self.connection else {
            return Err(gone());
        };
        // If this is dropped half way, so is `self`, and the connection goes home as dirty as it may be.
        SqliteTransactionManager::commit(connection).await.map_err(translate)?;
        if SqliteTransactionManager::get_transaction_depth(connection) > 0 {
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "a nested transaction was still open at the commit; end it first, everything is rolled back",
            ));
        }
        self.send_home(false, true);
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        let Some(connection) = &mut self.connection else {
            return Err(gone());
        };
        end(connection).await?;
        self.send_home(false, false);
        Ok(())
    }

    fn send_home(&mut self, dirty: bool, committed: bool) {
        if let (Some(connection), Some(home)) = (self.connection.take(), self.home.take()) {
            // If the writer has gone, the connection is closed, and SQLite rolls back what is open.
            let _ = home.send(Returned {
                connection,
                dirty,
                committed,
            });
        }
    }
}

/// Rolls back whatever is open on the connection.
pub(crate) async fn end(connection: &mut SqliteConnection) -> Result<(), StateError> {
    // Not awaited on purpose: sqlx skips the next such request after a commit whose answer nobody took, and it is
    // this one that should be skipped.
    SqliteTransactionManager::start_rollback(connection);
    // A command of its own, so that the depth is that after everything before it.
    SqliteTransactionManager::rollback(connection)
        .await
        .map_err(translate)?;
    while SqliteTransactionManager::get_transaction_depth(connection) > 0 {
        SqliteTransactionManager::rollback(connection)
            .await
            .map_err(translate)?;
    }
    Ok(())
}

fn gone() -> StateError {
    StateError::new(StateErrorKind::Transient, "the transaction has lost its connection")
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    #[expect(
        clippy::expect_used,
        reason = "the connection is taken by `commit`, `rollback` and `drop` only, which end the value"
    )]
    fn deref(&self) -> &SqliteConnection {
        self.connection.as_ref().expect("an open transaction has a connection")
    }
}

impl DerefMut for SqliteTransaction {
    #[expect(
        clippy::expect_used,
        reason = "the connection is taken by `commit`, `rollback` and `drop` only, which end the value"
    )]
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().expect("an open transaction has a connection")
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        self.send_home(true, false);
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}
