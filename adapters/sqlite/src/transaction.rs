//! The caller's end of a transaction, and the way of the connection home.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use queuert::__task::Lock;
use queuert::adapter::BoxFuture;
use queuert::{StateError, StateErrorKind};
use sqlx::sqlite::SqliteTransactionManager;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::oneshot;

use crate::connections::{Lent, Open, track};
use crate::core::Core;
use crate::db::{Db, query};
use crate::error::{is_refused, translate};
use crate::identity::Logs;
use crate::session::Session;

/// A connection that is lent to the caller's transactions. It counts the transactions that end on it, also those that
/// SQLite ends by itself: after a full disk, `INSERT OR ROLLBACK` or `RAISE(ROLLBACK)` the connection is back in autocommit,
/// and sqlx does not know.
#[derive(Debug)]
pub(crate) struct Lendable {
    connection: SqliteConnection,
    ended: Arc<AtomicU64>,
    /// As it was opened.
    session: Session,
    /// The log and its index, as this connection has found them. `None` if the database is this connection, which must
    /// never be closed.
    logs: Option<Logs>,
}

/// A connection without what the last caller has left on it. `None` if there was something, and the connection has been
/// closed because of it.
pub(crate) type Cleaning = BoxFuture<'static, Option<Lendable>>;

impl Lendable {
    pub(crate) async fn new(
        mut connection: SqliteConnection,
        open: Open,
        database: Option<&Path>,
    ) -> Result<Self, sqlx::Error> {
        track(&mut connection, open).await?;
        let session = Session::of(&mut connection).await?;
        let ended = Arc::new(AtomicU64::new(0));
        let (committed, rolled_back) = (Arc::clone(&ended), Arc::clone(&ended));
        let mut handle = connection.lock_handle().await?;
        handle.set_commit_hook(move || {
            committed.fetch_add(1, Ordering::SeqCst);
            true
        });
        handle.set_rollback_hook(move || {
            rolled_back.fetch_add(1, Ordering::SeqCst);
        });
        drop(handle);
        Ok(Self {
            connection,
            ended,
            session,
            logs: database.map(Logs::beside),
        })
    }

    /// Looks for what the last caller has left on the connection, after its transaction. The statement is on its way when
    /// this returns.
    pub(crate) fn clean(self, ended_by_hand: bool) -> Cleaning {
        let mut cleaning: Cleaning = Box::pin(self.cleaned(ended_by_hand));
        match cleaning.as_mut().now_or_never() {
            Some(cleaned) => Box::pin(std::future::ready(cleaned)),
            None => cleaning,
        }
    }

    async fn cleaned(mut self, ended_by_hand: bool) -> Option<Self> {
        if !ended_by_hand && self.session.is_kept(&mut self.connection).await {
            return Some(self);
        }
        if self.logs.is_none() {
            // The database is this connection, so it goes on with what cannot be undone.
            let _ = self.session.restore(&mut self.connection).await;
            return Some(self);
        }
        let _ = self.connection.close().await;
        None
    }

    pub(crate) fn into_inner(self) -> SqliteConnection {
        self.connection
    }

    /// Fails if the log or its index was taken away; looks ten times a second.
    pub(crate) fn check_logs(&mut self) -> Result<(), StateError> {
        self.logs.as_mut().map_or(Ok(()), Logs::check)
    }
}

impl Deref for Lendable {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Lendable {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

/// An open transaction of a [`SqliteState`](crate::SqliteState). Dereferences to the [`SqliteConnection`] on which the
/// caller's own statements run.
///
/// It has the file's only write lock from the beginning (`BEGIN IMMEDIATE`), so every other writer waits: keep it
/// short. Dropped, it rolls back in the background, before anybody else's turn, also if nobody drives its runtime.
///
/// It begins without what earlier transactions have left on the connection: attached databases, temporary tables, views
/// and triggers, and `PRAGMA`s that make statements fail or change what they do are those of one transaction. `PRAGMA`s
/// that make statements faster or slower, such as `cache_size`, may stay for later ones. Give settings that all of them
/// need with [`connect_options`](crate::SqliteOptions::connect_options).
///
/// The library watches for its end with the commit and rollback hooks of the connection: leave those alone.
pub struct SqliteTransaction {
    connection: Option<Lendable>,
    home: Option<oneshot::Sender<Returned>>,
    /// How many transactions had ended on the connection when this one began.
    ended_before: u64,
    /// Dropped last: closing the store waits for it.
    _lent: Lent,
}

/// A connection that comes back from a transaction.
pub(crate) enum Returned {
    /// The transaction has ended.
    Ended { cleaning: Cleaning, committed: bool },
    /// The transaction may still be open.
    Dropped { connection: Lendable, ended_by_hand: bool },
}

impl SqliteTransaction {
    pub(crate) fn new(connection: Lendable, home: oneshot::Sender<Returned>, lent: Lent) -> Self {
        Self {
            ended_before: connection.ended.load(Ordering::SeqCst),
            connection: Some(connection),
            home: Some(home),
            _lent: lent,
        }
    }

    /// Waits until sqlx's thread has run what was sent to it: it runs also a statement whose future was dropped.
    pub(crate) async fn catch_up(&mut self) -> Result<(), StateError> {
        match &mut self.connection {
            Some(connection) => connection.ping().await.map_err(translate),
            None => Err(gone()),
        }
    }

    /// Whether the transaction has ended, by SQLite's decision or by a statement of the caller's. It knows of the statements
    /// that have run; [`catch_up`](Self::catch_up) waits for the others.
    pub(crate) fn has_ended(&self) -> bool {
        let ended = |connection: &Lendable| connection.ended.load(Ordering::SeqCst);
        self.connection.as_ref().map(ended) != Some(self.ended_before)
    }

    /// Fails if what was written would be in a log that no other program finds. The one who commits is not the writer, so
    /// it looks at every commit.
    pub(crate) fn look_for_logs(&mut self) -> Result<(), StateError> {
        let logs = self.connection.as_mut().and_then(|connection| connection.logs.as_mut());
        logs.map_or(Ok(()), Logs::look)
    }

    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        if self.has_ended() {
            return Err(ended());
        }
        let Some(connection) = &mut self.connection else {
            return Err(gone());
        };
        // If this is dropped half way, so is `self`, and the connection goes home as dirty as it may be.
        match SqliteTransactionManager::commit(connection).await {
            Ok(()) => {}
            // A statement that was still on its way had ended it.
            Err(error) if is_refused(&error) && self.has_ended() => return Err(ended()),
            Err(error) => return Err(translate(error)),
        }
        let Some(connection) = &self.connection else {
            return Err(gone());
        };
        if SqliteTransactionManager::get_transaction_depth(connection) > 0 {
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "a nested transaction was still open at the commit; end it first, everything is rolled back",
            ));
        }
        self.send_home(|connection| Returned::Ended {
            cleaning: connection.clean(false),
            committed: true,
        });
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        // If it fails, so does the rollback.
        let _ = self.catch_up().await;
        let ended_by_hand = self.has_ended();
        // One that has ended is rolled back already, or committed, by SQLite or by the caller. What is open on the connection
        // all the same is rolled back here.
        let Some(connection) = &mut self.connection else {
            return Err(gone());
        };
        end(connection).await?;
        self.send_home(|connection| Returned::Ended {
            cleaning: connection.clean(ended_by_hand),
            committed: false,
        });
        Ok(())
    }

    fn send_home(&mut self, returned: impl FnOnce(Lendable) -> Returned) {
        if let (Some(connection), Some(home)) = (self.connection.take(), self.home.take()) {
            // If the writer has gone, the connection is closed, and SQLite rolls back what is open.
            let _ = home.send(returned(connection));
        }
    }
}

/// A transaction that waits for its caller to come for it. Dropped, it goes home, unless the caller has it.
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
    /// The transaction, unless the other end has taken it.
    pub(crate) fn take(&self) -> Option<SqliteTransaction> {
        self.0.lock().take()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Rolls back what is open on the connection on sqlx's own thread, so that the write lock is free even if nobody drives the
/// runtime of the writer. [`end`] comes later and finds out whether that worked.
fn start_to_end(connection: &mut SqliteConnection) {
    // One request for each transaction, and one that sqlx skips after a commit whose answer nobody took. Those that find
    // nothing open do nothing.
    for _ in 0..=SqliteTransactionManager::get_transaction_depth(connection) {
        SqliteTransactionManager::start_rollback(connection);
    }
}

/// Rolls back whatever is open on the connection.
pub(crate) async fn end(connection: &mut SqliteConnection) -> Result<(), StateError> {
    // Not awaited on purpose: sqlx skips the next such request after a commit whose answer nobody took, and it is
    // this one that should be skipped.
    SqliteTransactionManager::start_rollback(connection);
    // A command of its own, so that the depth is that after everything before it.
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

/// Opens as many transactions, one in the other, as sqlx believes to be open on a connection on which SQLite has ended
/// them, so that sqlx can end them too. Fails if one is open.
async fn reopen(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let mut text = "BEGIN".to_owned();
    for depth in 1..SqliteTransactionManager::get_transaction_depth(connection) {
        text.push_str(&format!("; SAVEPOINT _sqlx_savepoint_{depth}"));
    }
    sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await.map(drop)
}

/// Lets what a verb writes from now on be undone by [`undo_shielded`], on a connection whose transaction the caller
/// commits.
pub(crate) async fn shield(connection: &mut SqliteConnection, core: &Core) -> Result<(), StateError> {
    // Before any statement: without a transaction of sqlx's nothing would undo the one below if this is dropped, and what the
    // caller writes on the connection after that would never be committed.
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
            return Err(ended());
        }
    }
    // A transaction that was begun with a plain `BEGIN` has no lock before it writes, and verbs read the clock before they
    // write. What it creates must not be older than what another transaction has committed meanwhile.
    Db::Lent(connection).execute(query(&core.sql.take_write_lock)).await?;
    SqliteTransactionManager::begin(connection, None)
        .await
        .map_err(translate)
}

/// Keeps what was written since [`shield`].
pub(crate) async fn unshield(connection: &mut SqliteConnection) -> Result<(), StateError> {
    SqliteTransactionManager::commit(connection).await.map_err(translate)
}

/// Undoes what was written since [`shield`], before the next statement on the connection.
pub(crate) fn undo_shielded(connection: &mut SqliteConnection) {
    SqliteTransactionManager::start_rollback(connection);
}

fn ended() -> StateError {
    StateError::new(
        StateErrorKind::TransactionEnded,
        "the connection is in no transaction any more: SQLite rolled it back because of an error, or a statement of the \
         caller's ended it; run it again from the beginning",
    )
}

fn gone() -> StateError {
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
        let ended_by_hand = self.has_ended();
        self.send_home(|mut connection| {
            start_to_end(&mut connection);
            Returned::Dropped {
                connection,
                ended_by_hand,
            }
        });
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}
