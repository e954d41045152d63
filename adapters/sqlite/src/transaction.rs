//! Callers' transactions, and how their connections come back to the writer.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use queuert::__task::Lock;
use queuert::{StateError, StateErrorKind};
use sqlx::sqlite::SqliteTransactionManager;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::connection::connections::OpenTransaction;
use crate::connection::lendable::{Cleaning, Lendable};
use crate::error::{is_refused, translate};
use crate::locks;
use crate::store::Store;

/// An open transaction of a [`SqliteState`](crate::SqliteState). Dereferences to the [`SqliteConnection`] on which the
/// caller's own statements run.
///
/// It has the file's only write lock from the beginning (`BEGIN IMMEDIATE`), so every other writer waits: keep it
/// short. Dropped, it rolls back in the background, before the next writer's turn, even if the program does not drive its
/// runtime.
///
/// Attached databases, temporary tables, views and triggers, and `PRAGMA`s that make statements fail or change what they do
/// last for one transaction: the next one begins without them. `PRAGMA`s that make statements faster or slower, such as
/// `cache_size`, may stay for later ones. Give settings that all transactions need with
/// [`connect_options`](crate::SqliteOptions::connect_options).
///
/// The library notices the end of the transaction by the commit and rollback hooks of the connection: do not replace them.
pub struct SqliteTransaction {
    connection: Option<Lendable>,
    /// Where the connection goes when the transaction has ended.
    return_to: Option<oneshot::Sender<Returned>>,
    /// How many transactions had ended on the connection when this one began.
    ended_before: u64,
    /// Dropped last: closing the store waits for it.
    _open: OpenTransaction,
}

/// A connection that comes back from a transaction.
pub(crate) enum Returned {
    /// The transaction has ended.
    Ended { cleaning: Cleaning, committed: bool },
    /// The transaction may still be open.
    Dropped {
        connection: Lendable,
        ended_by_caller: bool,
    },
}

impl SqliteTransaction {
    pub(crate) fn new(connection: Lendable, return_to: oneshot::Sender<Returned>, open: OpenTransaction) -> Self {
        Self {
            ended_before: connection.ended_transactions(),
            connection: Some(connection),
            return_to: Some(return_to),
            _open: open,
        }
    }

    /// Waits until sqlx's thread has run every statement that was sent to it, also one whose future was dropped.
    pub(crate) async fn catch_up(&mut self) -> Result<(), StateError> {
        match &mut self.connection {
            Some(connection) => connection.ping().await.map_err(translate),
            None => Err(connection_lost()),
        }
    }

    /// Whether SQLite, or a statement of the caller, has ended the transaction, as far as statements have run;
    /// [`catch_up`](Self::catch_up) waits for the others.
    pub(crate) fn has_ended(&self) -> bool {
        self.connection.as_ref().map(Lendable::ended_transactions) != Some(self.ended_before)
    }

    /// Fails if the commit would go to a log that no other program finds.
    pub(crate) fn check_logs(&mut self) -> Result<(), StateError> {
        self.connection.as_mut().map_or(Ok(()), Lendable::check_logs_now)
    }

    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        if self.has_ended() {
            return Err(transaction_ended());
        }
        let Some(connection) = &mut self.connection else {
            return Err(connection_lost());
        };
        // If this future is dropped, so is `self`, and the writer rolls back what is open on the connection.
        match SqliteTransactionManager::commit(connection).await {
            Ok(()) => {}
            // A statement that was still on its way had ended the transaction.
            Err(error) if is_refused(&error) && self.has_ended() => return Err(transaction_ended()),
            Err(error) => return Err(translate(error)),
        }
        let Some(connection) = &self.connection else {
            return Err(connection_lost());
        };
        if SqliteTransactionManager::get_transaction_depth(connection) > 0 {
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "a nested transaction was still open at the commit; end it first, everything is rolled back",
            ));
        }
        self.return_connection(|connection| Returned::Ended {
            cleaning: connection.clean(false),
            committed: true,
        });
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        // If catching up fails, so does the rollback.
        let _ = self.catch_up().await;
        let ended_by_caller = self.has_ended();
        // A transaction that has ended was rolled back or committed by SQLite or by the caller. If another one is open on the
        // connection, it is rolled back here.
        let Some(connection) = &mut self.connection else {
            return Err(connection_lost());
        };
        end(connection).await?;
        self.return_connection(|connection| Returned::Ended {
            cleaning: connection.clean(ended_by_caller),
            committed: false,
        });
        Ok(())
    }

    fn return_connection(&mut self, returned: impl FnOnce(Lendable) -> Returned) {
        if let (Some(connection), Some(return_to)) = (self.connection.take(), self.return_to.take()) {
            // If the writer has ended, the connection is closed, and SQLite rolls back what is open.
            let _ = return_to.send(returned(connection));
        }
    }
}

/// A transaction that waits to be accepted by its caller. Dropped before that, it returns its connection.
#[derive(Debug)]
pub(crate) struct Offer(Offered);

/// The writer's end of an offer.
#[derive(Clone, Debug)]
pub(crate) struct Offered(Arc<Lock<Option<SqliteTransaction>>>);

pub(crate) fn offer(transaction: SqliteTransaction) -> (Offer, Offered) {
    let offered = Offered(Arc::new(Lock::new(Some(transaction))));
    (Offer(offered.clone()), offered)
}

impl Offer {
    /// The transaction, unless the writer has taken it back.
    pub(crate) fn accept(self) -> Option<SqliteTransaction> {
        self.0.take()
    }
}

impl Offered {
    /// The transaction, unless the caller has accepted it.
    pub(crate) fn take(&self) -> Option<SqliteTransaction> {
        self.0.lock().take()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Rolls back what is open on the connection, on the thread of sqlx, so that the write lock is released even if the program
/// does not drive the runtime of the writer. [`end`] finds out later whether that worked.
fn start_rollback(connection: &mut SqliteConnection) {
    // One request for each transaction, and one that sqlx skips after a commit whose answer was not read. A request that
    // finds no open transaction does nothing.
    for _ in 0..=SqliteTransactionManager::get_transaction_depth(connection) {
        SqliteTransactionManager::start_rollback(connection);
    }
}

/// Rolls back whatever is open on the connection.
pub(crate) async fn end(connection: &mut SqliteConnection) -> Result<(), StateError> {
    // Not awaited on purpose: sqlx skips the next such request after a commit whose answer was not read, and this request
    // is there to be skipped.
    SqliteTransactionManager::start_rollback(connection);
    // A second command, so that the depth is the one after all commands before it.
    if let Err(error) = SqliteTransactionManager::rollback(connection).await {
        reopen(connection).await.map_err(|_| translate(error))?;
    }
    while SqliteTransactionManager::get_transaction_depth(connection) > 0 {
        SqliteTransactionManager::rollback(connection)
            .await
            .map_err(translate)?;
    }
    Ok(())
}

/// Opens as many nested transactions as sqlx believes to be open on a connection on which SQLite has ended them, so that sqlx
/// can end them too. Fails if one is open.
async fn reopen(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let mut text = "BEGIN".to_owned();
    for depth in 1..SqliteTransactionManager::get_transaction_depth(connection) {
        text.push_str(&format!("; SAVEPOINT _sqlx_savepoint_{depth}"));
    }
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.map(drop)
}

/// Begins a part of the caller's transaction that [`undo_shielded`] can undo.
pub(crate) async fn shield(connection: &mut SqliteConnection, store: &Store) -> Result<(), StateError> {
    // Before any statement: if sqlx knows of no transaction, nothing would undo the one that is begun below when this future is
    // dropped, and later writes of the caller on the connection would never be committed.
    if SqliteTransactionManager::get_transaction_depth(connection) == 0 {
        return Err(StateError::new(
            StateErrorKind::Misconfigured,
            "the connection is in no transaction, or in one that was begun with a statement of which sqlx does not know, so a \
             request that is dropped could not be undone; begin it with `connection.begin_with(\"BEGIN IMMEDIATE\")`",
        ));
    }
    // SQLite has no other way to ask: it refuses to begin a transaction within a transaction.
    match sqlx::raw_sql("BEGIN").execute(&mut *connection).await {
        Err(error) if is_refused(&error) => {}
        Err(error) => return Err(translate(error)),
        Ok(_) => {
            sqlx::raw_sql("ROLLBACK").execute(connection).await.map_err(translate)?;
            return Err(transaction_ended());
        }
    }
    // A transaction that was begun with a plain `BEGIN` has no lock before it writes, and verbs read the clock before they
    // write. Jobs that it creates must not be older than jobs that another transaction has committed meanwhile.
    locks::take_write_lock(&mut Connection::Sqlx(&mut *connection), store).await?;
    SqliteTransactionManager::begin(connection, None)
        .await
        .map_err(translate)
}

/// Keeps the writes since [`shield`].
pub(crate) async fn unshield(connection: &mut SqliteConnection) -> Result<(), StateError> {
    SqliteTransactionManager::commit(connection).await.map_err(translate)
}

/// Undoes the writes since [`shield`], before the next statement on the connection.
pub(crate) fn undo_shielded(connection: &mut SqliteConnection) {
    SqliteTransactionManager::start_rollback(connection);
}

fn transaction_ended() -> StateError {
    StateError::new(
        StateErrorKind::TransactionEnded,
        "the connection is in no transaction any more: SQLite rolled it back because of an error, or a statement of the \
         caller's ended it; run it again from the beginning",
    )
}

fn connection_lost() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the transaction has lost its connection, and what it wrote is rolled back; run it again from the beginning",
    )
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
        let ended_by_caller = self.has_ended();
        self.return_connection(|mut connection| {
            start_rollback(&mut connection);
            Returned::Dropped {
                connection,
                ended_by_caller,
            }
        });
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}
