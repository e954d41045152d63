//! The caller's transactions, and the library's own work.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use queuert::{StateError, StateErrorKind};
use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, PgConnection};
use sqlx_core::transaction::TransactionManager;

use crate::connect::{Access, Mode};
use crate::error::{has_code, misconfigured, translate};
use crate::lanes::Lent;
use crate::session::Session;

/// Sets the mark of a transaction in which the library writes for the caller. It goes with the transaction, however that
/// ends: a `COMMIT` or `ROLLBACK` of the caller's, of which neither sqlx nor this library hears, takes it away.
pub(crate) const MARK: &str = "SET LOCAL queuert.transaction = 'open'";

/// Whether the mark is there.
pub(crate) const IN_TRANSACTION: &str = "current_setting('queuert.transaction', true) = 'open'";

/// The name of a setting that does not exist: asking for it is an error, which [`translate`] knows.
pub(crate) const ENDED: &str = "queuert.transaction_ended";

/// An expression that has the value of another one in a transaction with the mark, and is an error elsewhere.
pub(crate) fn in_transaction(value: &str, sql_type: &str) -> String {
    format!("CASE WHEN {IN_TRANSACTION} THEN {value} ELSE current_setting('{ENDED}')::{sql_type} END")
}

/// Lets what a verb writes from now on be undone by [`undo_shielded`], on a connection whose transaction the caller
/// commits.
pub(crate) async fn shield(connection: &mut PgConnection) -> Result<(), StateError> {
    if PgTransactionManager::get_transaction_depth(connection) == 0 {
        return Err(misconfigured(
            "the connection is in no transaction, or in one that was begun with a statement of which sqlx does not know, so a \
             request that is dropped could not be undone; begin it with `pool.begin()` or `connection.begin()`",
        ));
    }
    // Fails unless a transaction is open in which nothing has failed. One message.
    let text = format!("SAVEPOINT queuert_shield; RELEASE SAVEPOINT queuert_shield; {MARK}");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut *connection)
        .await
        .map_err(translate)?;
    // Dropped half way, this would have sqlx roll back the whole transaction, and the caller's commit would say that all is
    // well. So it is not dropped then but forgotten, with the memory that it has: a savepoint with nothing in it stays.
    let mut begin = ManuallyDrop::new(Box::pin(PgTransactionManager::begin(connection, None)));
    let begun = begin.as_mut().await;
    drop(ManuallyDrop::into_inner(begin));
    begun.map_err(translate)
}

/// Keeps what was written since [`shield`].
pub(crate) async fn unshield(connection: &mut PgConnection) -> Result<(), StateError> {
    PgTransactionManager::commit(connection).await.map_err(translate)
}

/// Undoes what was written since [`shield`], before the next statement on the connection.
pub(crate) fn undo_shielded(connection: &mut PgConnection) {
    PgTransactionManager::start_rollback(connection);
}

/// An open transaction. Dereferences to sqlx's connection; dropped, it rolls back.
pub struct PostgresTransaction {
    inner: Lent,
    /// Whether calls of the schema's functions are kept prepared.
    prepared_calls: bool,
    /// Whether the last statement was one of the library's own, and went well.
    proven: bool,
    /// Whether the end of a job was written, after which the server limits how long the session may be idle.
    settled: bool,
}

impl PostgresTransaction {
    pub(crate) async fn begin(access: &Access) -> Result<Self, StateError> {
        let mut inner = access.lanes.pass().await.map_err(translate)?;
        let prepared_calls = access.mode() == Mode::Own;
        inner.begin(access.begin_for_caller()).await.map_err(translate)?;
        Ok(Self {
            inner,
            prepared_calls,
            proven: false,
            settled: false,
        })
    }

    /// For statements of the library's own that end the transaction.
    pub(crate) fn session(&mut self) -> Session<'_> {
        self.proven = false;
        Session::of_transaction(&mut self.inner, self.prepared_calls)
    }

    /// Says that the last statement was one of a [`session`](Self::session), wrote the end of a job, and went well.
    pub(crate) fn prove(&mut self) {
        (self.proven, self.settled) = (true, true);
    }

    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        if self.inner.depth() != 1 {
            self.rollback().await?;
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "a nested transaction was still open at the commit; end it first, everything is rolled back",
            ));
        }
        // A transaction in which a statement has failed answers COMMIT with a rollback that looks like success. It
        // refuses every other statement, though, so there is no doubt about one that has just answered.
        // Nor is there about one that the caller has ended with a statement: it has lost its mark.
        let alive = match self.proven {
            true => Ok(()),
            false => {
                let text = format!("SELECT {}", in_transaction("''", "text"));
                sqlx::raw_sql(AssertSqlSafe(text))
                    .execute(&mut *self.inner)
                    .await
                    .map(drop)
            }
        };
        if let Err(error) = alive {
            // What comes of the rollback does not matter: if it fails the connection is lost, and with it the
            // transaction.
            let settled = self.settled;
            let _ = self.rollback().await;
            return Err(of_commit(error, settled));
        }
        let committed = self.inner.commit().await;
        committed.map_err(|error| of_commit(error, self.settled))?;
        self.inner.leave();
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        self.inner.rollback().await.map_err(translate)?;
        self.inner.leave();
        Ok(())
    }
}

/// Translates the error of a commit. The rule by which the server ends a session after the end of a job is not the
/// application's own, so the message names it.
fn of_commit(error: sqlx::Error, settled: bool) -> StateError {
    let advice = match &error {
        _ if !settled => return translate(error),
        error if has_code(error, "25P03") => {
            "the server ended the session before the commit: after `tx.finish` the processor worked on for longer than the rest \
             of its lease, or than `idle_in_transaction_session_timeout` of the role allows; let `tx.finish` be the last thing \
             that the processor does, or give the job a longer lease"
        }
        sqlx::Error::Io(_) => {
            "the connection was lost between `tx.finish` and the commit; the server ends the session if the processor works on \
             for longer than the rest of its lease after `tx.finish`: let that be the last thing that it does, or give the job a \
             longer lease; otherwise check the network and the server"
        }
        _ => return translate(error),
    };
    StateError::new(StateErrorKind::Transient, advice).with_source(error)
}

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.inner
    }
}

impl DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.proven = false;
        &mut self.inner
    }
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction").finish_non_exhaustive()
    }
}

/// A connection on which a verb runs by itself. Dropped before [`finish`](Self::finish), it has done nothing, unless
/// the verb is a single statement that was sent.
#[derive(Debug)]
pub(crate) struct Work {
    connection: Lent,
    /// Whether statements are kept prepared on the connection.
    prepared: bool,
}

impl Work {
    /// For a verb of one statement, which commits by itself. Of the workers, as is [`atomic`](Self::atomic).
    pub(crate) async fn single(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.enter().await, false).await
    }

    /// The same for renewals, which wait for no connection that somebody else has.
    pub(crate) async fn renewing(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.renew().await, false).await
    }

    /// For a verb of several statements.
    pub(crate) async fn atomic(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.enter().await, true).await
    }

    /// The same for what the client was asked for.
    pub(crate) async fn single_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.visit().await, false).await
    }

    pub(crate) async fn atomic_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.visit().await, true).await
    }

    async fn on(access: &Access, lent: Result<Lent, sqlx::Error>, atomic: bool) -> Result<Self, StateError> {
        let mut connection = lent.map_err(translate)?;
        let prepared = access.mode() == Mode::Own;
        if atomic || !prepared {
            connection.begin(access.begin_for_library()).await.map_err(translate)?;
        }
        Ok(Self { connection, prepared })
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        Session::own(&mut self.connection, self.prepared)
    }

    /// Makes it last.
    pub(crate) async fn finish(mut self) -> Result<(), StateError> {
        self.connection.commit().await.map_err(translate)?;
        self.connection.leave();
        Ok(())
    }

    /// Undoes it, where it can be undone, and waits until its locks are gone.
    pub(crate) async fn undo(mut self) -> Result<(), StateError> {
        self.connection.rollback().await.map_err(translate)?;
        self.connection.leave();
        Ok(())
    }
}
