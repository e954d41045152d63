use std::time::Duration;

use queuert::StateError;
use queuert_sqlite::{SqliteNotify, SqliteState};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, Row, SqliteConnection};
use tokio::sync::oneshot;

use super::{Store, Value};
use crate::Result;

impl Store for SqliteState {
    type Notify = SqliteNotify;

    async fn open(url: &str) -> Result<Self, StateError> {
        Self::open(url.trim_start_matches("sqlite:")).await
    }

    fn notify(&self, _: &str) -> Result<SqliteNotify> {
        Ok(SqliteNotify::new(self))
    }

    async fn close(&self) {
        // The checks look at the file after it.
        if let Err(error) = Self::close(self).await {
            eprintln!("{error}");
        }
    }

    async fn execute(
        connection: &mut SqliteConnection,
        statement: &'static str,
        values: Vec<Value>,
    ) -> sqlx::Result<u64> {
        let mut query = sqlx::query(statement);
        for value in values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Number(number) => query.bind(number),
            };
        }
        Ok(query.execute(connection).await?.rows_affected())
    }

    async fn fetch(connection: &mut SqliteConnection, statement: &'static str) -> sqlx::Result<Vec<Vec<String>>> {
        let rows = sqlx::query(statement).fetch_all(connection).await?;
        rows.iter()
            .map(|row| (0..row.len()).map(|column| row.try_get(column)).collect())
            .collect()
    }

    async fn integrity(connection: &mut SqliteConnection) -> sqlx::Result<String> {
        let lines: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_all(connection)
            .await?;
        Ok(lines.join("; "))
    }

    /// A file has no functions.
    async fn change_functions(_: &mut SqliteConnection, _: &'static str) -> sqlx::Result<usize> {
        Ok(0)
    }

    async fn hold_snapshot(url: &str, how_long: Duration, held: oneshot::Sender<()>) -> sqlx::Result<()> {
        let options = SqliteConnectOptions::new().filename(url.trim_start_matches("sqlite:"));
        let mut connection = SqliteConnection::connect_with(&options).await?;
        connection.execute("BEGIN").await?;
        // Only now is there a snapshot.
        connection.execute("SELECT count(*) FROM started").await?;
        // Nobody need wait for it.
        let _ = held.send(());
        tokio::time::sleep(how_long).await;
        connection.execute("ROLLBACK").await?;
        connection.close().await
    }
}
