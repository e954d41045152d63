//! A `begin` whose future is kept and not polled holds up no other caller, at whatever moment it is kept.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt;
use queuert::adapter::{NewChain, NewJob, StateAdapter};
use queuert::{JobId, Payload};
use queuert_sqlite::SqliteState;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// The lock timeout: other callers fail if a kept `begin` makes them wait for this long.
const PATIENCE: Duration = Duration::from_secs(1);

async fn file() -> (TempDir, PathBuf, SqliteState) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::options().lock_timeout(PATIENCE).open(&path).await.unwrap();
    (directory, path, state)
}

async fn start(state: &SqliteState, number: u128) {
    let job = JobId::from_uuid(Uuid::from_u128(number));
    let chain = NewChain::new(NewJob::new(job, "task", Payload::from_text("{}")));
    state.create_chains(None, &[chain]).await.unwrap().unwrap();
}

/// Operations, transactions and reads of other callers succeed.
async fn others_succeed(state: &SqliteState, number: u128) {
    start(state, number).await;
    let transaction = state.begin().await.unwrap();
    state.commit(transaction).await.unwrap();
    let job = JobId::from_uuid(Uuid::from_u128(number));
    assert_eq!(state.get_jobs(None, &[job]).await.unwrap().len(), 1);
}

/// Waits until another connection finds the file locked.
async fn is_locked(path: &Path) {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::ZERO);
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    while other.execute("BEGIN IMMEDIATE").await.is_ok() {
        other.execute("ROLLBACK").await.unwrap();
        tokio::task::yield_now().await;
    }
    other.close().await.unwrap();
}

#[tokio::test]
async fn kept_before_its_turn() {
    let (_directory, _, state) = file().await;
    let before = state.begin().await.unwrap();
    let mut begin = Box::pin(state.begin());
    assert!(begin.as_mut().now_or_never().is_none());
    state.rollback(before).await.unwrap();
    others_succeed(&state, 1).await;
    let transaction = begin.await.unwrap();
    state.commit(transaction).await.unwrap();
}

/// Its transaction has begun and has the lock; the future has not been polled since.
#[tokio::test]
async fn kept_after_sqlite_has_begun() {
    let (_directory, path, state) = file().await;
    let mut begin = Box::pin(state.begin());
    assert!(begin.as_mut().now_or_never().is_none());
    is_locked(&path).await;
    others_succeed(&state, 1).await;
    let transaction = begin.await.unwrap();
    state.commit(transaction).await.unwrap();
}

/// The same, and the future is dropped.
#[tokio::test]
async fn dropped_after_sqlite_has_begun() {
    let (_directory, path, state) = file().await;
    let mut begin = Box::pin(state.begin());
    assert!(begin.as_mut().now_or_never().is_none());
    is_locked(&path).await;
    drop(begin);
    others_succeed(&state, 1).await;
}

/// A future that is polled too late gets more time at each try, but never so much that other callers time out.
#[tokio::test]
async fn polled_too_late_again_and_again() {
    let (_directory, _, state) = file().await;
    let mut begin = Box::pin(state.begin());
    for number in 1..=8 {
        assert!(begin.as_mut().now_or_never().is_none(), "{number}");
        others_succeed(&state, number).await;
    }
    let transaction = begin.await.unwrap();
    state.commit(transaction).await.unwrap();
}
