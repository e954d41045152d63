//! Runtimes that the program does not drive, or that end, while other runtimes use the same store.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use queuert::adapter::{
    ClaimJobs, ClaimType, NewChain, NewJob, NotifyAdapter, ReapLeases, ReapType, RenewLease, Renewal, StateAdapter,
    Topic, Wake,
};
use queuert::{Fence, JobId, Payload, RetryPolicy, StateErrorKind, WorkerId};
use queuert_sqlite::{SqliteNotify, SqliteState};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

/// A deadline that a test reaches only if it fails.
const PATIENCE: Duration = Duration::from_secs(10);

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain(number: u128) -> NewChain {
    NewChain::new(NewJob::new(id(number), "task", Payload::from_text("{}")))
}

async fn start(state: &SqliteState, number: u128) {
    state.create_chains(None, &[chain(number)]).await.unwrap().unwrap();
}

async fn everything_works(state: &SqliteState, number: u128) {
    start(state, number).await;
    let mut transaction = state.begin().await.unwrap();
    let created = state.create_chains(Some(&mut transaction), &[chain(number + 1)]).await;
    assert!(created.unwrap().is_ok());
    state.commit(transaction).await.unwrap();
    let found = state.get_jobs(None, &[id(number), id(number + 1)]).await.unwrap();
    assert_eq!(found.len(), 2);
}

async fn opened(path: &Path, own_options: bool) -> SqliteState {
    let mut options = SqliteState::options();
    if own_options {
        options = options.connect_options(SqliteConnectOptions::new());
    }
    options.open(path).await.unwrap()
}

fn fence(number: u128) -> Fence {
    Fence::from_uuid(Uuid::from_u128(number))
}

fn claim(number: u128, lease: Duration) -> ClaimJobs {
    let types = vec![ClaimType {
        name: "task".into(),
        lease,
    }];
    ClaimJobs::new(types, 1, WorkerId::new("w"), fence(number))
}

fn sweep() -> ReapLeases {
    let types = vec![ReapType::new(
        "task",
        RetryPolicy::new().max_attempts(5),
        Duration::from_secs(60),
    )];
    ReapLeases::new(types, 10, Vec::new())
}

#[test]
fn a_runtime_that_nobody_drives_holds_up_no_other() {
    for own_options in [false, true] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let (still, driven) = (single(), single());
        let state = still.block_on(opened(&path, own_options));
        still.block_on(everything_works(&state, 1));
        let notify = SqliteNotify::new(&state);
        let mut subscription = still
            .block_on(notify.subscribe(Topic::Chain(id(21).as_chain())))
            .unwrap();
        // A request in the queue of the runtime that is not driven any more, before its writer has received it: if its
        // transaction had begun, other callers would have to wait for it.
        let mut left = Box::pin(everything_works(&state, 11));
        still.block_on(async { assert!(left.as_mut().now_or_never().is_none()) });
        driven.block_on(async {
            everything_works(&state, 21).await;
            let other = SqliteState::open(&path).await.unwrap();
            let cancelled = other.cancel_chains(None, &[id(21).as_chain()]).await.unwrap();
            assert!(cancelled.is_ok());
            // The watch works too.
            while !matches!(subscription.recv().await, Some(Wake::Notice(_))) {}
            other.close().await.unwrap();
        });
        still.block_on(left);
        still.block_on(everything_works(&state, 31));
        // The runtime that is not driven has a connection, which no other runtime can close.
        let error = driven.block_on(state.close()).unwrap_err();
        assert!(error.to_string().contains("drive that runtime"), "{error}");
        // The log is folded nevertheless, because that connection is idle.
        let log = path.with_extension("db-wal");
        assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
        still.block_on(state.close()).unwrap();
        assert!(!log.exists());
    }
}

#[test]
fn a_begin_that_stands_still_holds_up_no_other_runtime() {
    let directory = TempDir::new().unwrap();
    let (still, driven) = (single(), single());
    let state = still.block_on(opened(&directory.path().join("app.db"), false));
    let mut begin = Box::pin(state.begin());
    still.block_on(async {
        assert!(begin.as_mut().now_or_never().is_none());
        start(&state, 1).await;
    });
    driven.block_on(everything_works(&state, 11));
    let transaction = still.block_on(begin).unwrap();
    still.block_on(state.rollback(transaction)).unwrap();
}

/// A transaction that is dropped releases the write lock, even if its runtime is not driven after that.
#[test]
fn a_transaction_that_is_dropped_on_a_runtime_that_stands_still_is_rolled_back() {
    for (own_options, nested) in [(false, false), (false, true), (true, false), (true, true)] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let (still, driven) = (single(), single());
        let state = still.block_on(opened(&path, own_options));
        still.block_on(async {
            let mut transaction = state.begin().await.unwrap();
            let created = state.create_chains(Some(&mut transaction), &[chain(1)]).await;
            assert!(created.unwrap().is_ok());
            if nested {
                // A transaction that its caller never ends.
                std::mem::forget(transaction.begin().await.unwrap());
            }
        });
        driven.block_on(async {
            let options = SqliteConnectOptions::new().filename(&path).busy_timeout(PATIENCE);
            let mut other = SqliteConnection::connect_with(&options).await.unwrap();
            let locked = other.execute("BEGIN IMMEDIATE").await;
            assert!(locked.is_ok(), "own options {own_options}, nested {nested}: {locked:?}");
            other.execute("ROLLBACK").await.unwrap();
            other.close().await.unwrap();
            everything_works(&state, 11).await;
        });
        still.block_on(async {
            assert_eq!(state.get_jobs(None, &[id(1)]).await.unwrap(), []);
            everything_works(&state, 21).await;
        });
    }
}

/// Its runtime lives and is not driven, as that of a program that only enters it for some calls.
#[test]
fn a_call_outside_of_any_runtime_is_an_error_and_waits_for_none() {
    let directory = TempDir::new().unwrap();
    let still = single();
    let state = still.block_on(opened(&directory.path().join("app.db"), false));
    still.block_on(everything_works(&state, 1));
    let write = state.create_chains(None, &[chain(11)]).now_or_never();
    let begin = state.begin().now_or_never().map(|begun| begun.map(drop));
    let read = state.get_jobs(None, &[id(1)]).now_or_never();
    for answer in [write.map(|done| done.map(drop)), begin, read.map(|done| done.map(drop))] {
        let error = answer.expect("it is answered at once").unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("runtime.block_on"), "{error}");
    }
    still.block_on(everything_works(&state, 21));
}

#[test]
fn a_database_in_memory_outlives_its_runtime() {
    let first = single();
    let state = first.block_on(SqliteState::options().open_in_memory()).unwrap();
    first.block_on(everything_works(&state, 1));
    let second = single();
    second.block_on(everything_works(&state, 11));
    drop(first);
    second.block_on(everything_works(&state, 21));
    second.block_on(state.close()).unwrap();
    let error = second.block_on(state.create_chains(None, &[chain(31)])).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_closed_store_stays_closed_on_every_runtime() {
    let directory = TempDir::new().unwrap();
    let (one, other) = (single(), single());
    let state = one.block_on(opened(&directory.path().join("app.db"), false));
    one.block_on(everything_works(&state, 1));
    other.block_on(everything_works(&state, 11));
    one.block_on(state.close()).unwrap_err();
    for runtime in [&one, &other, &single()] {
        let error = runtime.block_on(state.create_chains(None, &[chain(31)])).unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    }
}

/// A handle holds the lock that shows that it is alive for as long as it can write.
#[test]
fn a_handle_gives_back_what_it_claimed_on_a_runtime_that_has_ended() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let claim = |fence| claim(fence, Duration::from_millis(50));
    let state = {
        let runtime = single();
        runtime.block_on(async {
            let state = opened(&path, false).await;
            start(&state, 1).await;
            assert_eq!(state.claim_jobs(&claim(1)).await.unwrap().jobs.len(), 1);
            state
        })
    };
    single().block_on(async {
        let reap = sweep();
        while state.reap_leases(&reap).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(state.claim_jobs(&claim(2)).await.unwrap().jobs.len(), 1);
    });
}

/// The sweep of another process is first after the commit, because the writer of this one does not get a turn: it finds
/// the lease of a job that is not the transaction's, and whose renewal had to wait for it, extended.
#[test]
fn a_commit_extends_the_leases_whose_renewals_waited_for_it() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let (still, driven) = (single(), single());
    let lease = Duration::from_millis(200);
    let state = still.block_on(async {
        let state = opened(&path, false).await;
        start(&state, 1).await;
        assert_eq!(state.claim_jobs(&claim(1, lease)).await.unwrap().jobs.len(), 1);
        state
    });
    let other = driven.block_on(opened(&path, false));
    still.block_on(async {
        let mut transaction = state.begin().await.unwrap();
        let renewal = RenewLease {
            job: id(1),
            fence: fence(1),
            lease: Duration::from_secs(60),
        };
        let renewed = state.renew_leases(None, &[renewal]).await.unwrap();
        assert_eq!(renewed, [Renewal::Busy]);
        // The file has no clock that could be moved.
        tokio::time::sleep(2 * lease).await;
        let created = state.create_chains(Some(&mut transaction), &[chain(2)]).await;
        assert!(created.unwrap().is_ok());
        state.commit(transaction).await.unwrap();
    });
    let reaped = driven.block_on(other.reap_leases(&sweep())).unwrap();
    assert!(reaped.is_empty(), "{reaped:?}");
    still.block_on(everything_works(&state, 11));
}
