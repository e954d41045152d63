//! The caller's transactions, and the library's own work.

use std::fmt;
use std::ops::{Deref, DerefMut};

use queuert::{StateError, StateErrorKind};
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, Postgres, Transaction};
use sqlx_core::transaction::TransactionManager;

use crate::connect::{Access, Mode};
use crate::error::translate;
use crate::session::Session;

/// An open transaction. Dereferences to sqlx's connection; dropped, it rolls back.
pub struct PostgresTransaction {
    inner: Transaction<'static, Postgres>,
}

impl PostgresTransaction {
    pub(crate) async fn begin(access: &Access) -> Result<Self, StateError> {
        let inner = access
            .pool
            .begin_with(access.begin_for_caller.clone())
            .await
            .map_err(translate)?;
        Ok(Self { inner })
    }

    pub(crate) async fn commit(mut self) -> Result<(), StateError> {
        let depth = PgTransactionManager::get_transaction_depth(&self.inner);
        if depth != 1 {
            self.rollback().await?;
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "a nested transaction was still open at the commit; end it first, everything is rolled back",
            ));
        }
        // A transaction in which a statement has failed answers COMMIT with a rollback that looks like success. It
        // refuses every other statement, though.
        let alive = sqlx::raw_sql("SELECT 1").execute(&mut *self.inner).await;
        if let Err(error) = alive {
            // What comes of the rollback does not matter: if it fails the connection is lost, and with it the
            // transaction.
            let _ = self.rollback().await;
            return Err(translate(error));
        }
        self.inner.commit().await.map_err(translate)
    }

    pub(crate) async fn rollback(mut self) -> Result<(), StateError> {
        // What the caller has nested and left open goes first.
        while PgTransactionManager::get_transaction_depth(&self.inner) > 1 {
            PgTransactionManager::rollback(&mut self.inner)
                .await
                .map_err(translate)?;
        }
        self.inner.rollback().await.map_err(translate)
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
pub(crate) enum Work {
    /// Every statement commits by itself.
    Single(PoolConnection<Postgres>),
    Atomic {
        transaction: Transaction<'static, Postgres>,
        prepared: bool,
    },
}

impl Work {
    /// For a verb of one statement.
    pub(crate) async fn single(access: &Access) -> Result<Self, StateError> {
        match access.mode {
            Mode::Own => access.pool.acquire().await.map(Self::Single).map_err(translate),
            Mode::Guarded => Self::atomic(access).await,
        }
    }

    /// For a verb of several statements.
    pub(crate) async fn atomic(access: &Access) -> Result<Self, StateError> {
        let transaction = access.pool.begin_with(access.begin.clone()).await.map_err(translate)?;
        Ok(Self::Atomic {
            transaction,
            prepared: access.mode == Mode::Own,
        })
    }

    pub(crate) fn session(&mut self) -> Session<'_> {
        match self {
            Self::Single(connection) => Session::own(connection, true),
            Self::Atomic { transaction, prepared } => Session::own(transaction, *prepared),
        }
    }

    /// Makes it last.
    pub(crate) async fn finish(self) -> Result<(), StateError> {
        match self {
            Self::Single(_) => Ok(()),
            Self::Atomic { transaction, .. } => transaction.commit().await.map_err(translate),
        }
    }

    /// Undoes it, where it can be undone, and waits until its locks are gone.
    pub(crate) async fn undo(self) -> Result<(), StateError> {
        match self {
            Self::Single(_) => Ok(()),
            Self::Atomic { transaction, .. } => transaction.rollback().await.map_err(translate),
        }
    }
}
