//! Callers' transactions.

use std::time::Duration;

use futures_util::FutureExt;
use queuert::StateErrorKind;
use queuert::adapter::StateAdapter;
use sqlx::{Connection, Executor};
use tokio::time::timeout;

use super::{LONG, all_are_queued, chain, exists, file, file_with_lock_timeout, raw, start};

/// Transactions and operations take their turns in the order of their arrival.
#[tokio::test]
async fn a_transaction_is_neither_overtaken_nor_overtakes() {
    let (_directory, _, state) = file().await;
    let held = state.begin().await.unwrap();
    let spawn_start = |number| {
        let state = state.clone();
        tokio::spawn(async move { start(&state, number).await })
    };
    let before = spawn_start(1);
    all_are_queued().await;
    let begun = tokio::spawn({
        let state = state.clone();
        async move { state.begin().await.unwrap() }
    });
    all_are_queued().await;
    let after = spawn_start(2);
    all_are_queued().await;
    state.rollback(held).await.unwrap();
    let transaction = begun.await.unwrap();
    before.await.unwrap();
    assert!(exists(&state, 1).await);
    assert!(!exists(&state, 2).await && !after.is_finished());
    state.commit(transaction).await.unwrap();
    after.await.unwrap();
    assert!(exists(&state, 2).await);
}

#[tokio::test]
async fn a_dropped_transaction_does_not_wedge_the_writer() {
    let (_directory, _, state) = file().await;
    let mut cut_off = 0;
    for round in 0..20 {
        let mut transaction = state.begin().await.unwrap();
        state
            .create_chains(Some(&mut transaction), &[chain(round + 1)])
            .await
            .unwrap()
            .unwrap();
        if round % 2 == 0 {
            // The future is dropped while the statement runs.
            let slow = sqlx::query(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT count(*) FROM n",
            );
            let first_poll = slow.execute(&mut *transaction).now_or_never();
            cut_off += u32::from(first_poll.is_none());
        }
        drop(transaction);
    }
    assert!(cut_off > 0, "at least one statement was cut off");
    timeout(LONG, start(&state, 100)).await.unwrap();
    assert!(exists(&state, 100).await);
    assert!(!exists(&state, 1).await && !exists(&state, 20).await);
}

#[tokio::test]
async fn transactions_of_sqlx_nest_inside() {
    let (_directory, _, state) = file().await;
    let mut transaction = state.begin().await.unwrap();
    transaction.execute("CREATE TABLE own (x INTEGER)").await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    nested.execute("INSERT INTO own VALUES (1)").await.unwrap();
    nested.commit().await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    nested.execute("INSERT INTO own VALUES (2)").await.unwrap();
    drop(nested);
    state.commit(transaction).await.unwrap();
    let mut transaction = state.begin().await.unwrap();
    let rows: Vec<i64> = sqlx::query_scalar("SELECT x FROM own")
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(rows, [1]);
}

#[tokio::test]
async fn a_call_that_waits_for_its_own_transaction_fails() {
    let (_directory, _, state) = file_with_lock_timeout(Duration::from_millis(200)).await;
    let transaction = state.begin().await.unwrap();
    let error = timeout(LONG, state.create_chains(None, &[chain(1)]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient);
    assert!(error.to_string().contains("within(&mut tx)"), "{error}");
    state.commit(transaction).await.unwrap();
    start(&state, 1).await;
}

/// A connection that is adopted without a transaction is refused, and no transaction is begun on it: later writes of its owner
/// would never be committed.
#[tokio::test]
async fn a_connection_without_a_transaction_is_refused_and_left_alone() {
    let (_directory, path, state) = file().await;
    let mut own = raw(&path).await;
    own.execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let refused = state.shield(&mut own).now_or_never();
    own.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    let mut other = raw(&path).await;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert_eq!(orders, 1, "the order is committed");
    let error = refused.expect("it is refused at once").unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured);
    assert!(error.to_string().contains("begin_with"), "{error}");
}

/// A caller's transaction that was begun without the write lock takes it before a job gets its time of creation, so that a
/// follower misses no job of another connection.
#[tokio::test]
async fn a_deferred_transaction_locks_before_the_time_is_read() {
    let (_directory, path, state) = file().await;
    let mut connection = raw(&path).await;
    let mut deferred = connection.begin().await.unwrap();
    let mut rival = raw(&path).await;
    rival.execute("PRAGMA busy_timeout = 0").await.unwrap();
    rival.execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();
    state.shield(&mut deferred).await.unwrap();
    let refused = rival.execute("BEGIN IMMEDIATE").await.unwrap_err();
    assert!(refused.to_string().contains("locked"), "{refused}");
    state.unshield(&mut deferred).await.unwrap();
    deferred.rollback().await.unwrap();
    rival.execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();
}
