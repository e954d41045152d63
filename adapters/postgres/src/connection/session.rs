//! A connection on which verbs run, and how their statements are sent.

use queuert::StateError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{PgConnection, Postgres, SqlStr};

use crate::error::translate;

pub(crate) type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

/// A connection for the time of one verb.
#[derive(Debug)]
pub(crate) struct Session<'c> {
    connection: &'c mut PgConnection,
    /// Whether statements are kept prepared on the connection. Not on the caller's, behind which there may be a pooler
    /// that hands the next transaction to another server process.
    prepared: bool,
    /// Whether calls of the schema's functions are, which bring their own settings.
    prepared_calls: bool,
    /// Whether locks are waited for.
    pub(crate) waits: bool,
    /// Whether it is the caller's, whose statements may have ended the transaction: the first statement of a verb that
    /// tells the time or ends an attempt fails then (`in_transaction.sql`).
    pub(crate) guarded: bool,
}

impl<'c> Session<'c> {
    /// On a connection of the caller, who has begun a transaction.
    pub(crate) fn of_caller(connection: &'c mut PgConnection) -> Self {
        Self {
            connection,
            prepared: false,
            prepared_calls: false,
            waits: true,
            guarded: true,
        }
    }

    /// On a connection of the caller, for what makes no sense outside of a transaction but does no harm there.
    pub(crate) fn unguarded(connection: &'c mut PgConnection) -> Self {
        Self {
            guarded: false,
            ..Self::of_caller(connection)
        }
    }

    /// On a connection of the library's own, in a transaction that it has begun for the caller, with the caller's
    /// settings: what is planned under them must not be kept.
    pub(crate) fn of_transaction(connection: &'c mut PgConnection, prepared_calls: bool) -> Self {
        Self {
            prepared_calls,
            ..Self::of_caller(connection)
        }
    }

    pub(crate) fn own(connection: &'c mut PgConnection, prepared: bool) -> Self {
        Self {
            connection,
            prepared,
            prepared_calls: prepared,
            waits: true,
            guarded: false,
        }
    }

    pub(crate) async fn fetch(&mut self, query: Query) -> Result<Vec<PgRow>, StateError> {
        self.try_fetch(query).await.map_err(translate)
    }

    /// The same with Postgres's own error, where the caller knows what to make of it.
    pub(crate) async fn try_fetch(&mut self, query: Query) -> Result<Vec<PgRow>, sqlx::Error> {
        query.persistent(self.prepared).fetch_all(&mut *self.connection).await
    }

    /// The same for a statement that does nothing but to call a function of the schema.
    pub(crate) async fn call(&mut self, query: Query) -> Result<Vec<PgRow>, sqlx::Error> {
        query
            .persistent(self.prepared_calls)
            .fetch_all(&mut *self.connection)
            .await
    }

    /// The same for a statement that is planned anew each time, with what the tables hold now.
    pub(crate) async fn fetch_once(&mut self, query: Query) -> Result<Vec<PgRow>, StateError> {
        query
            .persistent(false)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(translate)
    }

    /// How many rows were written, with Postgres's own error.
    pub(crate) async fn try_execute(&mut self, query: Query) -> Result<u64, sqlx::Error> {
        let executed = query.persistent(self.prepared).execute(&mut *self.connection).await?;
        Ok(executed.rows_affected())
    }

    pub(crate) async fn execute(&mut self, query: Query) -> Result<(), StateError> {
        query
            .persistent(self.prepared)
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(translate)
    }
}

pub(crate) fn query(sql: &SqlStr) -> Query {
    sqlx::query(sql.clone())
}
