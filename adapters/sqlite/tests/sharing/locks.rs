//! The write lock of another connection.

use std::path::Path;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, RenewLease, Renewal, StateAdapter};
use queuert::{Fence, StateErrorKind, WorkerId};
use queuert_sqlite::SqliteState;
use sqlx::{Executor, SqliteConnection};
use tempfile::TempDir;
use tokio::time::timeout;
use uuid::Uuid;

use super::{LONG, chain, exists, file, file_with_lock_timeout, id, raw, start};

async fn locked(path: &Path) -> SqliteConnection {
    let mut other = raw(path).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    other
}

#[tokio::test]
async fn a_call_waits_for_the_lock_of_another_connection() {
    let (_directory, path, state) = file().await;
    let mut other = locked(&path).await;
    let waiting = tokio::spawn({
        let state = state.clone();
        async move { start(&state, 1).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    assert!(!exists(&state, 1).await, "readers do not wait");
    other.execute("COMMIT").await.unwrap();
    timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(exists(&state, 1).await);
}

#[tokio::test]
async fn a_lock_that_stays_is_reported() {
    let (_directory, path, state) = file_with_lock_timeout(Duration::from_millis(200)).await;
    let mut other = locked(&path).await;
    let error = state.create_chains(None, &[chain(1)]).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient);
    assert!(error.to_string().contains("look for a process"), "{error}");
    assert!(state.begin().await.is_err());
    other.execute("COMMIT").await.unwrap();
    start(&state, 1).await;
}

/// The answer says that the lease cannot be lost meanwhile, and the lease is extended when the lock is free.
#[tokio::test]
async fn a_renewal_is_postponed_while_another_process_has_the_lock() {
    let lease = Duration::from_secs(60);
    let connect = sqlx::sqlite::SqliteConnectOptions::new();
    for options in [SqliteState::options(), SqliteState::options().connect_options(connect)] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let state = options.lock_timeout(LONG).open(&path).await.unwrap();
        start(&state, 1).await;
        let types = vec![ClaimType {
            name: "task".into(),
            lease,
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(1));
        let claim = ClaimJobs::new(types, 1, WorkerId::new("w"), fence);
        assert_eq!(state.claim_jobs(&claim).await.unwrap().jobs.len(), 1);
        let before = state.get_jobs(None, &[id(1)]).await.unwrap();
        let mut other = locked(&path).await;
        let renewal = RenewLease {
            job: id(1),
            fence,
            lease: lease * 2,
        };
        assert_eq!(state.renew_leases(None, &[renewal]).await.unwrap(), [Renewal::Busy]);
        other.execute("COMMIT").await.unwrap();
        let renewed = async {
            while state.get_jobs(None, &[id(1)]).await.unwrap() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, renewed).await.expect("the lease is extended");
    }
}

/// Each call has its own deadline, also behind a call whose deadline has passed.
#[tokio::test]
async fn a_later_call_has_a_later_deadline() {
    let patience = Duration::from_secs(3);
    let (_directory, path, state) = file_with_lock_timeout(patience).await;
    let mut other = locked(&path).await;
    let spawn_start = |number| {
        let state = state.clone();
        tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await })
    };
    let early = spawn_start(1);
    tokio::time::sleep(patience / 2).await;
    let late = spawn_start(2);
    assert!(early.await.unwrap().is_err());
    other.execute("COMMIT").await.unwrap();
    late.await.unwrap().unwrap().unwrap();
    assert!(!exists(&state, 1).await && exists(&state, 2).await);
}
