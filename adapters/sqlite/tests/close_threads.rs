//! Repeated calls of `close` share one thread. The test is alone in its binary because it counts the threads of the process.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::fs;
use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert_sqlite::SqliteState;
use tempfile::TempDir;

fn closing_threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    // A thread that has ended meanwhile has no name.
    let names = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "queuert-close").count()
}

#[tokio::test]
async fn unsuccessful_calls_share_a_thread() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let options = SqliteState::options().lock_timeout(Duration::from_millis(50));
    let state = options.open(&path).await.unwrap();
    let transaction = state.begin().await.unwrap();
    for _ in 0..3 {
        let error = state.close().await.unwrap_err();
        assert!(error.to_string().contains("Commit it"), "{error}");
    }
    assert_eq!(closing_threads(), 1);
    state.commit(transaction).await.unwrap();
    state.close().await.unwrap();
    assert!(!path.with_extension("db-wal").exists());
    while closing_threads() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A store that is closed needs no thread.
    state.close().await.unwrap();
    assert_eq!(closing_threads(), 0);
}
