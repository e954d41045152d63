//! A connection that a part of the library, or a transaction of the user's, has for a while.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::__task::spawn_on;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{Connection, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::{Handle, Id};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::connection::budget::Shared;
use crate::connection::connect::{FRESH, SIGN_OF_LIFE, hears};
use crate::connection::kept_for_library::{KeptForLibrary, TransactionPermit};
use crate::connection::per_runtime::{IdleTask, current_runtime};
use crate::connection::reserve::Reserved;
use crate::connection::settings::CallerSettings;

/// How long a connection may take to become idle, or to close, before it is dropped. The server may not answer any more,
/// and the permit is needed.
pub(super) const GIVE_BACK: Duration = Duration::from_secs(5);

/// How long a connection is kept from the pool at most. The pool closes connections that are too old.
const KEPT: Duration = Duration::from_secs(30);

/// The same where the pool has no other connection: callers that this library knows nothing of may wait for one.
const KEPT_FROM_OTHERS: Duration = Duration::from_millis(100);

/// A borrowed connection. Dropped, it goes back to where it came from, and a transaction that is open is rolled back.
pub(crate) struct Borrowed {
    /// `Some` until the value is dropped.
    connection: Option<PoolConnection<Postgres>>,
    /// Released when the connection is idle in the pool.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// The permit of the client, released at once, so that the same caller's next call finds it free.
    pub(super) client: Option<OwnedSemaphorePermit>,
    /// Whether the connection is of the reserve, to which it goes back at once.
    pub(super) reserved: bool,
    /// The turn of the borrower at the reserve.
    turn: Option<OwnedSemaphorePermit>,
    /// The permit of a transaction of the user's, released like `permit`.
    pub(super) transaction: Option<TransactionPermit>,
    /// Where the connection goes back to if it is the one that is kept from transactions.
    kept: Option<Arc<KeptForLibrary>>,
    /// Where the connection may be kept ready.
    pub(super) budget: Weak<Shared>,
    since: Instant,
    pub(super) used: Instant,
    /// The runtime on which the connection was last used: on another one it may be dead, or never receive an answer.
    runtime: Option<Id>,
    /// Restores the settings of the library: the session has those of the caller's statements.
    restore: Option<SqlStr>,
    /// Whether it is unknown if a transaction is open, or which settings the session has.
    is_unclear: bool,
}

impl Borrowed {
    pub(super) fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            permit: None,
            client: None,
            reserved: false,
            turn: None,
            transaction: None,
            kept: None,
            budget: Weak::new(),
            since: Instant::now(),
            used: Instant::now(),
            runtime: current_runtime(),
            restore: None,
            is_unclear: false,
        }
    }

    pub(super) fn reserved(Reserved { connection, turn }: Reserved) -> Self {
        let mut borrowed = Self::new(connection);
        (borrowed.reserved, borrowed.turn) = (true, turn);
        borrowed
    }

    /// Whether a connection that was kept ready may be used on this runtime now.
    pub(super) fn is_usable(&self) -> bool {
        self.used.elapsed() < FRESH && self.runtime == current_runtime()
    }

    /// Whether the connection can be used on this runtime now, also if it was not used for a while: then it asks the server.
    pub(crate) async fn answers(&mut self) -> bool {
        if self.is_usable() {
            return true;
        }
        let here = current_runtime();
        let stayed = self.runtime == here;
        let answer = async { if stayed { self.ping().await } else { hears(self).await } };
        let answers = tokio::time::timeout(SIGN_OF_LIFE, answer)
            .await
            .is_ok_and(|answer| answer.is_ok());
        self.is_unclear |= !answers;
        self.runtime = here;
        answers
    }

    /// Makes the connection go back to where it is kept for the library.
    pub(crate) fn keep_for(&mut self, kept: Arc<KeptForLibrary>) {
        self.kept = Some(kept);
    }

    /// When the connection was released.
    pub(crate) fn used(&self) -> Instant {
        self.used
    }

    /// Gives the connection a permit for its way back to the pool.
    pub(crate) fn give_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    /// Whether the session has the settings of the caller's statements.
    pub(super) fn has_caller_settings(&self) -> bool {
        self.restore.is_some()
    }

    /// Gives the session the settings of the caller's statements. It keeps them until the library uses the connection, or the
    /// pool gets it back.
    pub(crate) async fn apply(&mut self, settings: &CallerSettings) -> Result<(), sqlx::Error> {
        if !self.has_caller_settings() {
            self.set(settings.apply.clone()).await?;
            self.restore = Some(settings.restore.clone());
        }
        Ok(())
    }

    /// Gives the session the settings of the library.
    pub(super) async fn for_library(mut self) -> Result<Self, sqlx::Error> {
        if let Some(restore) = self.restore.clone() {
            self.set(restore).await?;
            self.restore = None;
        }
        Ok(self)
    }

    /// Sends a statement outside of transactions, so that what it sets lasts. A caller that drops this future may have sent it.
    async fn set(&mut self, settings: SqlStr) -> Result<(), sqlx::Error> {
        self.is_unclear = true;
        sqlx::raw_sql(settings).execute(&mut **self).await?;
        self.is_unclear = false;
        Ok(())
    }

    /// Begins a transaction with this statement.
    pub(crate) async fn begin(&mut self, statement: SqlStr) -> Result<(), sqlx::Error> {
        // A caller that drops this future has sent a BEGIN of which the driver knows nothing. The pool would lend the
        // connection to another caller, whose statements would be in a transaction that is never committed.
        self.is_unclear = true;
        PgTransactionManager::begin(self, Some(statement)).await?;
        self.is_unclear = false;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(self).await
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        // Nested transactions that were left open go first.
        while self.depth() > 0 {
            PgTransactionManager::rollback(self).await?;
        }
        Ok(())
    }

    /// How many transactions are open, one in the other.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(self)
    }

    /// Keeps the connection ready for the next holder of the permit. Only for a connection whose last statement was answered:
    /// one that is dropped goes back to the pool, which tests it.
    pub(crate) fn release(mut self) {
        let Some(budget) = self.budget.upgrade() else {
            return;
        };
        if let Some(kept) = self.kept.take_if(|_| !budget.pool.is_closed()) {
            let permit = self.permit.take();
            (self.used, self.runtime) = (Instant::now(), current_runtime());
            kept.put(self);
            IdleTask::start(&budget);
            drop(permit);
            return;
        }
        let can_spare = budget.can_spare();
        let kept = if can_spare { KEPT } else { KEPT_FROM_OTHERS };
        if self.since.elapsed() >= kept || budget.pool.is_closed() {
            return;
        }
        let (permit, transaction) = (self.permit.take(), self.transaction.take());
        self.client = None;
        self.used = Instant::now();
        let runtime = current_runtime();
        // A permit of another runtime is of no use on this one.
        let has_permit = permit.is_some() && self.runtime == runtime;
        self.runtime = runtime;
        budget
            .per_runtime
            .here(|share_of_runtime| match share_of_runtime.hand(self) {
                None => {}
                Some(borrowed) if has_permit && can_spare => share_of_runtime.ready.push(borrowed),
                Some(borrowed) => share_of_runtime.from_transactions.push(borrowed),
            });
        IdleTask::start(&budget);
        // Released last, so that the next holder finds the connection.
        drop((permit, transaction));
    }
}

const HELD: &str = "the connection is there until the value is dropped";

impl Deref for Borrowed {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HELD)
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HELD)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        while self.depth() > 0 {
            PgTransactionManager::start_rollback(self);
        }
        if let Some(kept) = self.kept.take() {
            kept.lost();
        }
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let (permit, turn, is_unclear) = (self.permit.take(), self.turn.take(), self.is_unclear);
        let (transaction, restore) = (self.transaction.take(), self.restore.take());
        // Without a runtime nothing can be sent to the server, and the pool cannot be used.
        let Ok(runtime) = Handle::try_current() else {
            if restore.is_some() {
                drop(connection.detach());
            } else {
                drop(connection.return_to_pool());
            }
            return;
        };
        spawn_on(&runtime, async move {
            let back = async {
                let is_restored = match restore {
                    Some(restore) if !is_unclear => sqlx::raw_sql(restore).execute(&mut *connection).await.is_ok(),
                    _ => true,
                };
                if is_unclear || !is_restored {
                    drop(connection.close().await)
                } else {
                    connection.return_to_pool().await
                }
            };
            // The result does not matter: a connection that is not idle now is closed.
            let _ = tokio::time::timeout(GIVE_BACK, back).await;
            drop((permit, turn, transaction));
        });
    }
}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed")
            .field("is_unclear", &self.is_unclear)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, SqlSafeStr};

    use super::*;
    use crate::PostgresState;

    /// A store with one connection, and its schema.
    async fn with_one_connection() -> (PostgresState, String) {
        let schema = postgres_support::unique_name("queuert_test");
        let options = PostgresState::options().schema(&schema).max_connections(1);
        let state = options.connect(&postgres_support::server_url().await).await.unwrap();
        (state, schema)
    }

    /// The session, and whether it has the planner settings of the library.
    async fn session(connection: &mut PgConnection) -> (i32, bool) {
        let session = "SELECT pg_backend_pid(), current_setting('enable_seqscan') = 'off'";
        sqlx::query_as(session).fetch_one(connection).await.unwrap()
    }

    /// One connection serves transactions, the library and the pool in turn, and has the settings of each.
    #[tokio::test]
    async fn a_session_has_the_settings_of_its_user() {
        let (state, schema) = with_one_connection().await;
        let budget = state.budget();
        let mut transaction = budget.for_transaction().await.unwrap();
        let (own, is_tuned) = session(&mut transaction).await;
        assert!(!is_tuned);
        transaction.release();
        let mut library = budget.for_worker().await.unwrap();
        assert_eq!(session(&mut library).await, (own, true));
        library.release();
        let mut transaction = budget.for_transaction().await.unwrap();
        assert_eq!(session(&mut transaction).await, (own, false));
        // Not released, so that the pool gets it back.
        drop(transaction);
        let mut of_pool = state.pool().acquire().await.unwrap();
        assert_eq!(session(&mut of_pool).await, (own, true));
        let drop_schema = AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
        sqlx::raw_sql(drop_schema).execute(&mut *of_pool).await.unwrap();
    }

    /// Nobody knows the settings of a session whose caller went away while they were sent.
    #[tokio::test]
    async fn a_session_with_unknown_settings_is_closed() {
        let (state, schema) = with_one_connection().await;
        let budget = state.budget();
        let mut transaction = budget.for_worker().await.unwrap();
        let (own, _) = session(&mut transaction).await;
        let unanswered = CallerSettings {
            apply: "SELECT pg_sleep(5)".into_sql_str(),
            restore: "SELECT 1".into_sql_str(),
        };
        assert!(futures_util::poll!(Box::pin(transaction.apply(&unanswered))).is_pending());
        drop(transaction);
        let mut of_pool = state.pool().acquire().await.unwrap();
        let (other, is_tuned) = session(&mut of_pool).await;
        assert!(is_tuned && other != own);
        let drop_schema = AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
        sqlx::raw_sql(drop_schema).execute(&mut *of_pool).await.unwrap();
    }
}
