//! Operations that share a transaction, and claims.

use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, NewChain, StateAdapter};
use queuert::{Fence, JobId, Schedule, WorkerId};
use queuert_sqlite::SqliteState;
use sqlx::Executor;
use tempfile::TempDir;
use uuid::Uuid;

use super::{LONG, all_are_queued, chain, exists, file, id, raw, start};

/// Operations that wait while the writer is busy go into one transaction.
#[tokio::test]
async fn operations_that_wait_share_a_transaction() {
    let (_directory, _, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=50)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { start(&state, number).await })
        })
        .collect();
    all_are_queued().await;
    let before = state.commits();
    state.commit(transaction).await.unwrap();
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(state.commits() - before, 2, "the transaction, and one batch of fifty");
}

/// Each operation of a batch gets its own answer, wherever in the batch the refused one is.
#[tokio::test]
async fn an_operation_that_is_refused_does_not_disturb_its_batch() {
    for taken in [1, 7, 9, 10] {
        let (_directory, _, state) = file().await;
        start(&state, taken).await;
        let transaction = state.begin().await.unwrap();
        let waiting: Vec<_> = (1..=10)
            .map(|number| {
                let state = state.clone();
                tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.unwrap().is_ok() })
            })
            .collect();
        all_are_queued().await;
        state.rollback(transaction).await.unwrap();
        for (number, one) in (1..).zip(waiting) {
            assert_eq!(one.await.unwrap(), number != taken, "{number}, where {taken} is taken");
            assert!(exists(&state, number).await, "{number}, where {taken} is taken");
        }
    }
}

/// If a constraint that is checked only at the commit is violated, only the operation that violates it fails.
#[tokio::test]
async fn an_operation_that_fails_at_the_commit_does_not_disturb_its_batch() {
    let directory = TempDir::new().unwrap();
    let with_options = SqliteState::options().connect_options(sqlx::sqlite::SqliteConnectOptions::new());
    let states = [
        SqliteState::open(directory.path().join("one.db")).await.unwrap(),
        with_options.open(directory.path().join("other.db")).await.unwrap(),
    ];
    for state in states {
        let mut transaction = state.begin().await.unwrap();
        for statement in [
            "CREATE TABLE note (job BLOB REFERENCES queuert_job (id) DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TRIGGER poison AFTER INSERT ON queuert_job WHEN NEW.id = X'00000000000000000000000000000007' \
             BEGIN INSERT INTO note VALUES (X'FF'); END",
        ] {
            transaction.execute(statement).await.unwrap();
        }
        let waiting: Vec<_> = (1..=10)
            .map(|number| {
                let state = state.clone();
                tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.is_ok() })
            })
            .collect();
        all_are_queued().await;
        state.commit(transaction).await.unwrap();
        for (number, one) in (1..).zip(waiting) {
            assert_eq!(one.await.unwrap(), number != 7, "chain {number}");
            assert_eq!(exists(&state, number).await, number != 7, "chain {number}");
        }
    }
}

/// A call whose future was dropped before its turn is not executed.
#[tokio::test]
async fn a_call_that_was_dropped_is_not_executed() {
    let (_directory, _, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let dropped = tokio::spawn({
        let state = state.clone();
        async move { start(&state, 1).await }
    });
    all_are_queued().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    state.commit(transaction).await.unwrap();
    start(&state, 2).await;
    assert!(!exists(&state, 1).await);
}

/// Calls that were made before `close` are executed, even if they have to wait for a transaction.
#[tokio::test]
async fn calls_that_wait_are_executed_before_the_file_is_closed() {
    let (_directory, path, state) = file().await;
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=5)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { start(&state, number).await })
        })
        .collect();
    all_are_queued().await;
    let closing = tokio::spawn({
        let state = state.clone();
        async move { state.close().await }
    });
    all_are_queued().await;
    state.commit(transaction).await.unwrap();
    for one in waiting {
        one.await.unwrap();
    }
    closing.await.unwrap().unwrap();
    let error = state.create_chains(None, &[chain(6)]).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let again = SqliteState::open(&path).await.unwrap();
    assert!(exists(&again, 5).await && !exists(&again, 6).await);
}

/// A statement that fails rolls back the batch, whose other operations then run again.
#[tokio::test]
async fn an_operation_that_fails_does_not_disturb_its_batch() {
    let (_directory, path, state) = file().await;
    let mut own = raw(&path).await;
    own.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON queuert_job WHEN NEW.id = X'00000000000000000000000000000007' \
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    )
    .await
    .unwrap();
    let transaction = state.begin().await.unwrap();
    let waiting: Vec<_> = (1..=10)
        .map(|number| {
            let state = state.clone();
            tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await.is_ok() })
        })
        .collect();
    all_are_queued().await;
    state.rollback(transaction).await.unwrap();
    for (number, one) in (1..).zip(waiting) {
        assert_eq!(one.await.unwrap(), number != 7, "chain {number}");
        assert_eq!(exists(&state, number).await, number != 7, "chain {number}");
    }
}

/// A claim does not read jobs of a better rank that are due later. The tests of the statements check the plan of the query.
#[tokio::test]
async fn claims_are_in_order_past_fifty_thousand_jobs_due_later() {
    let (_directory, _, state) = file().await;
    for batch in 0..100_u128 {
        let chains: Vec<NewChain> = (0..1_000_u128)
            .map(|number| {
                let mut one = chain(1 + batch * 1_000 + number);
                if batch % 2 == 0 {
                    one.job.schedule = Schedule::After(Duration::from_secs(3_600));
                    one.job.priority = 30_000;
                }
                one
            })
            .collect();
        state.create_chains(None, &chains).await.unwrap().unwrap();
    }
    let types: Vec<ClaimType> = ["other", "task", "third"]
        .map(|name| ClaimType {
            name: name.into(),
            lease: LONG,
        })
        .into();
    for round in 0..20_u128 {
        let fence = Fence::from_uuid(Uuid::from_u128(round + 1));
        let claim = ClaimJobs::new(types.clone(), 10, WorkerId::new("w"), fence);
        let claimed = state.claim_jobs(&claim).await.unwrap();
        let ids: Vec<JobId> = claimed.jobs.iter().map(|claimed| claimed.job.id).collect();
        let expected: Vec<JobId> = (0..10).map(|number| id(1_001 + round * 10 + number)).collect();
        assert_eq!(ids, expected);
    }
}
