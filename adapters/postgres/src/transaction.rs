//! The caller's transactions, and the connections on which verbs run by themselves.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use queuert::{StateError, StateErrorKind};
use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, PgConnection};
use sqlx_core::transaction::TransactionManager;

use crate::connection::borrowed::Borrowed;
use crate::connection::connect::{Access, Mode};
use crate::connection::session::Session;
use crate::error::{has_code, misconfigured, translate};
use crate::statements::{Filling, fill, plain, text};

/// The name of a setting that does not exist: a statement that must run in a transaction asks for it elsewhere. The error
/// is one that [`translate`] knows.
pub(crate) const ENDED: &str = "queuert.transaction_ended";

/// Lets what a verb writes from now on be undone by [`undo_shielded`], on a connection whose transaction the caller
/// commits.
pub(crate) async fn shield(connection: &mut PgConnection) -> Result<(), StateError> {
    if PgTransactionManager::get_transaction_depth(connection) == 0 {
        return Err(misconfigured(
            "the connection is in no transaction, or in one that was begun with a statement of which sqlx does not know, so a \
             request that is dropped could not be undone; begin it with `pool.begin()` or `connection.begin()`",
        ));
    }
    let mark = fill(text::MARK, &Filling::none());
    let shield = fill(text::SHIELD, &Filling::none().with("mark", mark));
    sqlx::raw_sql(AssertSqlSafe(shield))
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
    inner: Borrowed,
    /// Whether calls of the schema's functions are kept prepared.
    prepared_calls: bool,
    /// Whether the last statement was one of the library's own, and went well.
    proven: bool,
    /// Whether the end of a job was written, after which the server limits how long the session may be idle.
    settled: bool,
}

impl PostgresTransaction {
    pub(crate) async fn begin(access: &Access) -> Result<Self, StateError> {
        let mut inner = access.budget.for_transaction().await.map_err(translate)?;
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
        // A transaction that the caller has ended with a statement of its own has lost its mark.
        let alive = if self.proven {
            Ok(())
        } else {
            let is_open = sqlx::raw_sql(plain(text::IS_OPEN)).execute(&mut *self.inner).await;
            is_open.map(drop)
        };
        if let Err(error) = alive {
            // The result of the rollback does not matter: if it fails, the connection is lost, and the transaction with it.
            let settled = self.settled;
            let _ = self.rollback().await;
            return Err(of_commit(error, settled));
        }
        let committed = self.inner.commit().await;
        committed.map_err(|error| of_commit(error, self.settled))?;
        self.inner.release();
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        self.inner.rollback().await.map_err(translate)?;
        self.inner.release();
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

/// A connection on which a verb runs by itself. Dropped before [`commit`](Self::commit), it has done nothing, unless
/// the verb is a single statement that was sent.
#[derive(Debug)]
pub(crate) struct Work {
    connection: Borrowed,
    /// Whether statements are kept prepared on the connection.
    prepared: bool,
}

impl Work {
    /// For a verb of the workers that is one statement, which commits by itself.
    pub(crate) async fn statement(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.budget.for_worker().await, false).await
    }

    /// For a renewal of leases, which waits for no connection that another caller has.
    pub(crate) async fn renewal(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.budget.for_renewal().await, false).await
    }

    /// For a verb of the workers that is several statements.
    pub(crate) async fn transaction(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.budget.for_worker().await, true).await
    }

    /// For a verb of the client that is one statement.
    pub(crate) async fn statement_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.budget.for_client().await, false).await
    }

    /// For a verb of the client that is several statements.
    pub(crate) async fn transaction_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.budget.for_client().await, true).await
    }

    async fn on(access: &Access, connection: Result<Borrowed, sqlx::Error>, atomic: bool) -> Result<Self, StateError> {
        let mut connection = connection.map_err(translate)?;
        let prepared = access.mode() == Mode::Own;
        if atomic || !prepared {
            connection.begin(access.begin_for_library()).await.map_err(translate)?;
        }
        Ok(Self { connection, prepared })
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        Session::own(&mut self.connection, self.prepared)
    }

    /// Commits the work.
    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        self.connection.commit().await.map_err(translate)?;
        self.connection.release();
        Ok(())
    }

    /// Rolls the work back, where it can be, and waits until its locks are released.
    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        self.connection.rollback().await.map_err(translate)?;
        self.connection.release();
        Ok(())
    }
}
