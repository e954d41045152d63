//! A caller's transaction begins without anything that an earlier caller has left behind on the connection.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use queuert::adapter::StateAdapter;
use queuert_sqlite::SqliteState;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Executor};
use tempfile::TempDir;

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Commit,
    Rollback,
    Drop,
}

/// A statement of a caller, and a query that tells whether it has left something behind.
const TRACES: [(&str, &str); 16] = [
    (
        "ATTACH ':memory:' AS other",
        "SELECT count(*) FROM pragma_database_list WHERE name = 'other'",
    ),
    (
        "CREATE TEMP TABLE note (x INTEGER)",
        "SELECT count(*) FROM sqlite_temp_master",
    ),
    (
        "CREATE TABLE IF NOT EXISTS mine (x INTEGER); CREATE TEMP VIEW note AS SELECT 1 FROM mine",
        "SELECT count(*) FROM sqlite_temp_master",
    ),
    (
        "CREATE TABLE IF NOT EXISTS mine (x INTEGER); \
         CREATE TEMP TRIGGER note AFTER INSERT ON main.mine BEGIN SELECT RAISE(ABORT, 'no'); END",
        "SELECT count(*) FROM sqlite_temp_master",
    ),
    // SQLite would wait for the lock by itself, regardless of `lock_timeout`.
    ("PRAGMA busy_timeout = 20000", "SELECT * FROM pragma_busy_timeout"),
    ("PRAGMA case_sensitive_like = ON", "SELECT 'a' LIKE 'A'"),
    (
        "PRAGMA defer_foreign_keys = ON",
        "SELECT * FROM pragma_defer_foreign_keys",
    ),
    (
        "PRAGMA ignore_check_constraints = ON",
        "SELECT * FROM pragma_ignore_check_constraints",
    ),
    (
        "PRAGMA legacy_alter_table = ON",
        "SELECT * FROM pragma_legacy_alter_table",
    ),
    ("PRAGMA max_page_count = 5000", "SELECT * FROM pragma_max_page_count"),
    ("PRAGMA query_only = ON", "SELECT * FROM pragma_query_only"),
    (
        "PRAGMA recursive_triggers = ON",
        "SELECT * FROM pragma_recursive_triggers",
    ),
    (
        "PRAGMA reverse_unordered_selects = ON",
        "SELECT * FROM pragma_reverse_unordered_selects",
    ),
    ("PRAGMA trusted_schema = OFF", "SELECT * FROM pragma_trusted_schema"),
    ("PRAGMA writable_schema = ON", "SELECT * FROM pragma_writable_schema"),
    // The caller ends the transaction itself, and begins another one.
    (
        "COMMIT; PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE",
        "SELECT * FROM pragma_foreign_keys",
    ),
];

async fn seen(state: &SqliteState, look: &'static str) -> i64 {
    let mut transaction = state.begin().await.unwrap();
    let seen = sqlx::query_scalar(look).fetch_one(&mut *transaction).await.unwrap();
    state.rollback(transaction).await.unwrap();
    seen
}

async fn nothing_is_left_behind(state: SqliteState) {
    for (trace, look) in TRACES {
        for end in [End::Commit, End::Rollback, End::Drop] {
            let before = seen(&state, look).await;
            let mut transaction = state.begin().await.unwrap();
            transaction.execute(sqlx::raw_sql(AssertSqlSafe(trace))).await.unwrap();
            let within: i64 = sqlx::query_scalar(look).fetch_one(&mut *transaction).await.unwrap();
            assert_ne!(within, before, "{trace}: the test does not see it");
            match end {
                // Fails if the caller has ended the transaction itself.
                End::Commit => drop(state.commit(transaction).await),
                End::Rollback => state.rollback(transaction).await.unwrap(),
                End::Drop => drop(transaction),
            }
            assert_eq!(seen(&state, look).await, before, "{trace}, then {end:?}");
        }
    }
    state.close().await.unwrap();
}

#[tokio::test]
async fn in_a_file() {
    let directory = TempDir::new().unwrap();
    let state = SqliteState::open(directory.path().join("app.db")).await.unwrap();
    nothing_is_left_behind(state).await;
}

#[tokio::test]
async fn with_options() {
    let directory = TempDir::new().unwrap();
    // Settings in the options of the caller stay.
    let connect = SqliteConnectOptions::new().pragma("recursive_triggers", "OFF");
    let options = SqliteState::options().connect_options(connect.pragma("threads", "2"));
    let state = options.open(directory.path().join("app.db")).await.unwrap();
    nothing_is_left_behind(state).await;
}

#[tokio::test]
async fn in_memory() {
    let state = SqliteState::options().open_in_memory().await.unwrap();
    nothing_is_left_behind(state).await;
}

/// Settings that the application has given for all connections are there in each transaction.
#[tokio::test]
async fn settings_of_all_connections_stay() {
    let directory = TempDir::new().unwrap();
    let connect = SqliteConnectOptions::new().pragma("recursive_triggers", "ON");
    let options = SqliteState::options().connect_options(connect);
    let state = options.open(directory.path().join("app.db")).await.unwrap();
    let look = "SELECT * FROM pragma_recursive_triggers";
    assert_eq!(seen(&state, look).await, 1);
    let mut transaction = state.begin().await.unwrap();
    transaction.execute("PRAGMA recursive_triggers = OFF").await.unwrap();
    state.commit(transaction).await.unwrap();
    assert_eq!(seen(&state, look).await, 1);
}
