//! One file with several users: batches of operations, callers' transactions, other handles and other processes.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

mod batches;
mod handles;
mod locks;
mod processes;
mod transactions;

use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::adapter::{Demand, NewChain, NewJob, StateAdapter, Topic};
use queuert::{JobId, Payload};
use queuert_sqlite::SqliteState;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

const LONG: Duration = Duration::from_secs(20);

async fn file() -> (TempDir, PathBuf, SqliteState) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::open(&path).await.unwrap();
    (directory, path, state)
}

/// The same with another lock timeout.
async fn file_with_lock_timeout(lock_timeout: Duration) -> (TempDir, PathBuf, SqliteState) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::options()
        .lock_timeout(lock_timeout)
        .open(&path)
        .await
        .unwrap();
    (directory, path, state)
}

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain(number: u128) -> NewChain {
    NewChain::new(NewJob::new(id(number), "task", Payload::from_text("{}")))
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn start(state: &SqliteState, number: u128) {
    state.create_chains(None, &[chain(number)]).await.unwrap().unwrap();
}

async fn exists(state: &SqliteState, number: u128) -> bool {
    !state.get_jobs(None, &[id(number)]).await.unwrap().is_empty()
}

/// Lets all tasks that were spawned send their requests. The runtime of a test has one thread, so each task that is ready
/// runs before this one goes on.
async fn all_are_queued() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

fn jobs(demand: usize) -> Topic {
    Topic::Jobs {
        types: vec!["task".into()],
        demand: Demand::new(demand),
    }
}
