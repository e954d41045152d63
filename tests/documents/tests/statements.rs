//! The statements that `docs/internals.md` shows run on the tables as they are.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use queuert_postgres::PostgresState;
use queuert_sqlite::SqliteState;
use sqlx::{AssertSqlSafe, Connection};

/// The blocks of SQL, in order: Postgres, then SQLite.
fn blocks() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```sql\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn statements_run_on_postgres() {
    let url = postgres_support::server_url().await;
    let schema = postgres_support::unique_name("queuert_statements");
    let options = PostgresState::options().schema(&schema).max_connections(2);
    let state = options.connect(&url).await.unwrap();
    let own = format!("{schema}.");
    for statement in blocks()[0].replace("queuert.", &own).split(';') {
        if !statement.trim().is_empty() {
            let statement = AssertSqlSafe(statement.to_owned());
            sqlx::query(statement).fetch_all(state.pool()).await.unwrap();
        }
    }
    let clean_up = AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
    sqlx::raw_sql(clean_up).execute(state.pool()).await.unwrap();
    state.close().await;
}

#[tokio::test]
async fn statements_run_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    SqliteState::open(&path).await.unwrap().close().await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let statement = AssertSqlSafe(blocks()[1].clone());
    sqlx::query(statement).fetch_all(&mut connection).await.unwrap();
}
