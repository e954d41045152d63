//! Databases that are not what the program expects.

use std::error::Error as _;
use std::time::Duration;

use queuert::Client;
use queuert_postgres::PostgresState;
use queuert_sqlite::SqliteState;
use sqlx::postgres::PgPoolOptions;

use super::document::assert_quoted;
use super::fetch;

const SHORT: Duration = Duration::from_millis(100);

/// A schema that nobody else uses.
struct Schema(String);

impl Schema {
    fn new() -> Self {
        Self(postgres_support::unique_name("queuert_mistake"))
    }

    async fn drop(self) {
        let pool = PgPoolOptions::new()
            .connect(&postgres_support::server_url().await)
            .await
            .unwrap();
        let statement = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.0);
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&pool)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_call_waits_for_the_transaction_around_it() {
    let directory = tempfile::tempdir().unwrap();
    let state = SqliteState::options()
        .lock_timeout(SHORT)
        .open(directory.path().join("app.db"));
    let client = Client::new(state.await.unwrap());
    let tx = client.begin().await.unwrap();
    let error = client.start(fetch()).await.unwrap_err(); // should be `.within(&mut tx).await`
    assert_quoted(
        "a_call_waits_for_the_transaction_around_it",
        &error.source().unwrap().to_string(),
    );
    drop(tx);
}

#[tokio::test]
async fn a_transaction_is_ended_with_a_statement() {
    let directory = tempfile::tempdir().unwrap();
    let state = SqliteState::open(directory.path().join("app.db")).await.unwrap();
    let client = Client::new(state);
    let mut tx = client.begin().await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut *tx).await.unwrap(); // should be `tx.commit().await`
    let error = client.start(fetch()).within(&mut tx).await.unwrap_err();
    assert_quoted("a_transaction_is_ended_with_a_statement", &error.to_string());
}

#[tokio::test]
async fn the_directory_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let error = SqliteState::open(directory.path().join("data/app.db"))
        .await
        .unwrap_err();
    assert_quoted("the_directory_is_missing", &error.to_string());
}

#[tokio::test]
async fn the_pool_is_too_small() {
    let url = postgres_support::server_url().await;
    let schema = Schema::new();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(SHORT)
        .connect(&url)
        .await
        .unwrap();
    let state = PostgresState::options()
        .schema(&schema.0)
        .from_pool(pool)
        .await
        .unwrap();
    let client = Client::new(state);
    let tx = client.begin().await.unwrap();
    let error = client.start(fetch()).await.unwrap_err(); // needs a second connection
    assert_quoted("the_pool_is_too_small", &error.source().unwrap().to_string());
    tx.rollback().await.unwrap();
    client.state().close().await;
    schema.drop().await;
}

#[tokio::test]
async fn nobody_migrated() {
    let url = postgres_support::server_url().await;
    let options = PostgresState::options().schema("nobody_migrated").without_migrating();
    let error = options.connect(&url).await.unwrap_err();
    assert_quoted("nobody_migrated", &error.to_string());
}

#[tokio::test]
async fn no_server_listens() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let error = PostgresState::connect(&format!("postgres://app@127.0.0.1:{port}/app"))
        .await
        .unwrap_err();
    let cause = error.source().unwrap();
    assert_quoted("no_server_listens", &format!("{error}: {cause}"));
}

#[tokio::test]
async fn the_url_is_none() {
    let error = PostgresState::connect("localhost:5432/app").await.unwrap_err();
    assert_quoted("the_url_is_none", &error.to_string());
}
