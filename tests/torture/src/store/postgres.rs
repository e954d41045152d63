use std::time::Duration;

use queuert::StateError;
use queuert_postgres::{PostgresNotify, PostgresState};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::sync::oneshot;

use super::{Store, Value};
use crate::Result;

impl Store for PostgresState {
    type Notify = PostgresNotify;

    async fn open(url: &str) -> Result<Self, StateError> {
        Self::options().max_connections(6).connect(url).await
    }

    fn notify(&self, ears: &str) -> Result<PostgresNotify> {
        let options = PostgresNotify::options().listen_with(ears.parse()?);
        Ok(options.build(self))
    }

    async fn close(&self) {
        Self::close(self).await;
    }

    async fn execute(connection: &mut PgConnection, statement: &'static str, values: Vec<Value>) -> sqlx::Result<u64> {
        let mut query = sqlx::query(statement);
        for value in values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Number(number) => query.bind(number),
            };
        }
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn fetch(connection: &mut PgConnection, statement: &'static str) -> sqlx::Result<Vec<Vec<String>>> {
        let rows = sqlx::query(statement).fetch_all(connection).await?;
        rows.iter()
            .map(|row| (0..row.len()).map(|column| row.try_get(column)).collect())
            .collect()
    }

    /// Compares every index with its table, where the server has the means for it.
    async fn integrity(connection: &mut PgConnection) -> sqlx::Result<String> {
        let available: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck')")
                .fetch_one(&mut *connection)
                .await?;
        if available {
            connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck").await?;
            let compare = "SELECT bt_index_check(i.indexrelid::regclass, true) FROM pg_index AS i \
                 JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                 JOIN pg_am AS a ON a.oid = c.relam WHERE n.nspname = 'queuert' AND a.amname = 'btree'";
            if let Err(error) = connection.execute(compare).await {
                return Ok(error.to_string());
            }
        }
        Ok("ok".to_owned())
    }

    async fn change_functions(connection: &mut PgConnection, expression: &'static str) -> sqlx::Result<usize> {
        let changed: Vec<String> = sqlx::query_scalar(
            "WITH functions AS MATERIALIZED (
                SELECT p.oid FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE n.nspname = 'queuert' AND p.prokind = 'f'
             ), texts AS (
                SELECT pg_get_functiondef(oid) AS whole, regexp_replace(pg_get_functiondef(oid), $1, '') AS changed
                FROM functions
             )
             SELECT changed FROM texts WHERE whole <> changed",
        )
        .bind(expression)
        .fetch_all(&mut *connection)
        .await?;
        for function in &changed {
            connection.execute(AssertSqlSafe(function.clone())).await?;
        }
        Ok(changed.len())
    }

    async fn hold_snapshot(url: &str, how_long: Duration, held: oneshot::Sender<()>) -> sqlx::Result<()> {
        let mut connection = PgConnection::connect(url).await?;
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        // Only now is there a snapshot.
        connection.execute("SELECT count(*) FROM started").await?;
        // Nobody need wait for it.
        let _ = held.send(());
        tokio::time::sleep(how_long).await;
        connection.execute("ROLLBACK").await?;
        connection.close().await
    }
}
