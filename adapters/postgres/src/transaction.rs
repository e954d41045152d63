//! The caller's transactions, and the library's own work.

use std::fmt;
use std::ops::{Deref, DerefMut};

use queuert::{StateError, StateErrorKind};
use sqlx::PgConnection;

use crate::connect::{Access, Mode};
use crate::error::translate;
use crate::lanes::Lent;
use crate::session::Session;

/// An open transaction. Dereferences to sqlx's connection; dropped, it rolls back.
pub struct PostgresTransaction {
    inner: Lent,
    /// Whether calls of the schema's functions are kept prepared.
    prepared_calls: bool,
    /// Whether the last statement was one of the library's own, and went well.
    proven: bool,
}

impl PostgresTransaction {
    pub(crate) async fn begin(access: &Access) -> Result<Self, StateError> {
        let mut inner = access.lanes.pass().await.map_err(translate)?;
        inner.begin(access.begin_for_caller.clone()).await.map_err(translate)?;
        Ok(Self {
            inner,
            prepared_calls: access.mode == Mode::Own,
            proven: false,
        })
    }

    /// For statements of the library's own that end the transaction.
    pub(crate) fn session(&mut self) -> Session<'_> {
        self.proven = false;
        Session::of_transaction(&mut self.inner, self.prepared_calls)
    }

    /// Says that the last statement was one of a [`session`](Self::session), and went well.
    pub(crate) fn prove(&mut self) {
        self.proven = true;
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
        let alive = match self.proven {
            true => Ok(()),
            false => sqlx::raw_sql("SELECT 1").execute(&mut *self.inner).await.map(drop),
        };
        if let Err(error) = alive {
            // What comes of the rollback does not matter: if it fails the connection is lost, and with it the
            // transaction.
            let _ = self.rollback().await;
            return Err(translate(error));
        }
        self.inner.commit().await.map_err(translate)?;
        self.inner.leave();
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        self.inner.rollback().await.map_err(translate)?;
        self.inner.leave();
        Ok(())
    }
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
        Self::on(access, access.lanes.enter().await, access.mode == Mode::Guarded).await
    }

    /// For a verb of several statements.
    pub(crate) async fn atomic(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.enter().await, true).await
    }

    /// The same for what the client was asked for.
    pub(crate) async fn single_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.visit().await, access.mode == Mode::Guarded).await
    }

    pub(crate) async fn atomic_for_client(access: &Access) -> Result<Self, StateError> {
        Self::on(access, access.lanes.visit().await, true).await
    }

    async fn on(access: &Access, lent: Result<Lent, sqlx::Error>, transaction: bool) -> Result<Self, StateError> {
        let mut connection = lent.map_err(translate)?;
        if transaction {
            connection.begin(access.begin.clone()).await.map_err(translate)?;
        }
        Ok(Self {
            connection,
            prepared: access.mode == Mode::Own,
        })
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
