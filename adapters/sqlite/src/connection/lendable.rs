//! The connection for callers' transactions.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use queuert::StateError;
use queuert::adapter::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};

use super::connections::{OpenConnection, track};
use super::identity::LogFiles;
use super::session::Session;

/// A connection that is lent to callers' transactions. It counts the transactions that end on it, also transactions that
/// SQLite ends by itself: after a full disk, `INSERT OR ROLLBACK` or `RAISE(ROLLBACK)` the connection is back in autocommit
/// mode, and sqlx does not know.
#[derive(Debug)]
pub(crate) struct Lendable {
    connection: SqliteConnection,
    /// How many transactions have ended.
    ended: Arc<AtomicU64>,
    /// The state of the connection when it was opened.
    session: Session,
    /// The log and its index, as this connection has found them. `None` for a database in memory, which would be lost if this
    /// connection were closed.
    logs: Option<LogFiles>,
}

/// A connection on its way to the next caller. `None` if the last caller has left something behind, so that the connection
/// was closed.
pub(crate) type Cleaning = BoxFuture<'static, Option<Lendable>>;

impl Lendable {
    pub(crate) async fn new(
        mut connection: SqliteConnection,
        open: OpenConnection,
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
            logs: database.map(LogFiles::beside),
        })
    }

    /// Checks after a transaction whether its caller has left something behind on the connection. The statement that checks it
    /// has been sent when this returns.
    pub(crate) fn clean(self, ended_by_caller: bool) -> Cleaning {
        let mut cleaning: Cleaning = Box::pin(self.cleaned(ended_by_caller));
        match cleaning.as_mut().now_or_never() {
            Some(cleaned) => Box::pin(std::future::ready(cleaned)),
            None => cleaning,
        }
    }

    async fn cleaned(mut self, ended_by_caller: bool) -> Option<Self> {
        if !ended_by_caller && self.session.is_unchanged(&mut self.connection).await {
            return Some(self);
        }
        if self.logs.is_none() {
            // A database in memory is lost with its connection, so it goes on with what cannot be restored.
            let _ = self.session.restore(&mut self.connection).await;
            return Some(self);
        }
        let _ = self.connection.close().await;
        None
    }

    pub(crate) fn into_inner(self) -> SqliteConnection {
        self.connection
    }

    /// Fails if the log or its index was deleted or replaced; checks at most ten times a second.
    pub(crate) fn check_logs(&mut self) -> Result<(), StateError> {
        self.logs.as_mut().map_or(Ok(()), LogFiles::check)
    }

    /// The same, without regard to the last check.
    pub(crate) fn check_logs_now(&mut self) -> Result<(), StateError> {
        self.logs.as_mut().map_or(Ok(()), LogFiles::check_now)
    }

    /// How many transactions have ended on this connection.
    pub(crate) fn ended_transactions(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
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
