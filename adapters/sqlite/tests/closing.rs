//! Closing a store: what it waits for, what it reports if that takes too long, and that no log is left.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::{NewChain, NewJob, NotifyAdapter, StateAdapter, Topic};
use queuert::{JobId, JobTypes, Payload, StateErrorKind};
use queuert_sqlite::{Attempt, Client, SqliteNotify, SqliteOptions, SqliteState};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
struct Count {
    number: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u32)]
    Count(Count),
}

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

async fn start(state: &SqliteState, number: u128) {
    let job = NewJob::new(id(number), "task", Payload::from_text("{}"));
    state.create_chains(None, &[NewChain::new(job)]).await.unwrap().unwrap();
}

async fn exists(path: &Path, number: u128) -> bool {
    let state = SqliteState::open(path).await.unwrap();
    let found = !state.get_jobs(None, &[id(number)]).await.unwrap().is_empty();
    state.close().await.unwrap();
    found
}

/// A store whose batches run on a connection of rusqlite, and one whose batches run on a connection of sqlx.
fn kinds() -> [SqliteOptions; 2] {
    let connect = SqliteConnectOptions::new();
    [SqliteState::options(), SqliteState::options().connect_options(connect)]
}

/// The size of the log; zero if there is none.
fn log(path: &Path) -> u64 {
    fs::metadata(path.with_extension("db-wal")).map_or(0, |log| log.len())
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// If a transaction stays open for too long, `close` fails. The transaction can still be used and committed, and the
/// file is closed after that.
#[tokio::test]
async fn a_transaction_that_stays_open_is_reported_and_can_still_be_committed() {
    for options in kinds() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let state = options
            .lock_timeout(Duration::from_millis(50))
            .open(&path)
            .await
            .unwrap();
        let mut transaction = state.begin().await.unwrap();
        let error = state.close().await.unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Transient);
        assert!(
            error.to_string().contains("Commit it, roll it back or drop it"),
            "{error}"
        );
        let refused = state.begin().await.unwrap_err();
        assert!(refused.to_string().contains("closed"), "{refused}");
        let job = NewJob::new(id(1), "task", Payload::from_text("{}"));
        let created = state.create_chains(Some(&mut transaction), &[NewChain::new(job)]).await;
        created.unwrap().unwrap();
        state.commit(transaction).await.unwrap();
        state.close().await.unwrap();
        assert_eq!(log(&path), 0);
        assert!(exists(&path, 1).await);
    }
}

/// The file is closed even if `close` is not called again.
#[tokio::test]
async fn a_transaction_that_is_dropped_later_lets_the_file_be_closed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let options = SqliteState::options().lock_timeout(Duration::from_millis(50));
    let state = options.open(&path).await.unwrap();
    start(&state, 1).await;
    let transaction = state.begin().await.unwrap();
    state.close().await.unwrap_err();
    assert!(log(&path) > 0);
    drop(transaction);
    until(|| log(&path) == 0).await;
    assert!(exists(&path, 1).await);
}

/// `close` waits for a transaction that ends in time.
#[tokio::test]
async fn a_transaction_that_ends_is_waited_for() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let state = SqliteState::open(&path).await.unwrap();
    start(&state, 1).await;
    let transaction = state.begin().await.unwrap();
    let mut closing = tokio::spawn({
        let state = state.clone();
        async move { state.close().await }
    });
    let pause = tokio::time::timeout(Duration::from_millis(200), &mut closing);
    assert!(pause.await.is_err(), "it waits");
    state.commit(transaction).await.unwrap();
    closing.await.unwrap().unwrap();
    assert_eq!(log(&path), 0);
}

/// A subscriber that keeps the warnings of this library.
#[derive(Clone, Default)]
struct Warnings(Arc<Lock<Vec<String>>>);

impl Warnings {
    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "queuert" && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Closing waits for a transaction for up to `lock_timeout`, and logs a warning before that. The warning goes to the
/// subscriber of the caller, also if that is only the subscriber of its thread.
#[tokio::test]
async fn closing_warns_while_it_waits() {
    let warnings = Warnings::default();
    let _installed = tracing::subscriber::set_default(warnings.clone());
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let options = SqliteState::options().lock_timeout(Duration::from_secs(3_600));
    let state = options.open(&path).await.unwrap();
    let transaction = state.begin().await.unwrap();
    let closing = tokio::spawn({
        let state = state.clone();
        async move { state.close().await }
    });
    until(|| !warnings.all().is_empty()).await;
    assert!(!closing.is_finished(), "it still waits");
    state.commit(transaction).await.unwrap();
    closing.await.unwrap().unwrap();
    let said = warnings.all();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("a transaction that was begun before is still open: commit it"),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_database_in_memory_reports_an_open_transaction_too() {
    let options = SqliteState::options().lock_timeout(Duration::from_millis(50));
    let state = options.open_in_memory().await.unwrap();
    let transaction = state.begin().await.unwrap();
    let error = state.close().await.unwrap_err();
    assert!(
        error.to_string().contains("Commit it, roll it back or drop it"),
        "{error}"
    );
    state.rollback(transaction).await.unwrap();
    state.close().await.unwrap();
}

/// Workers, waiters, subscribers, readers and the watch have closed their connections when the store is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_log_is_left() {
    for round in 0..15_u32 {
        for options in kinds() {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join("app.db");
            let state = options.open(&path).await.unwrap();
            let notify = SqliteNotify::new(&state);
            let client = Client::builder(state.clone()).notify(notify.clone()).build();
            let workers = client
                .worker()
                .concurrency(4)
                .process(|job: Attempt<Count>| async move { job.finish(job.number) })
                .start()
                .await
                .unwrap();
            let listeners = [1, 2, 3].map(|number| notify.subscribe(Topic::Chain(id(number).as_chain())));
            let listeners = futures_util::future::join_all(listeners).await;
            let mut chains = Vec::new();
            for number in 0..20 {
                chains.push(client.start(Count { number }).await.unwrap());
            }
            let waits = chains.iter().map(|chain| {
                let client = client.clone();
                async move { client.wait(chain).await.unwrap() }
            });
            futures_util::future::join_all(waits).await;
            // Reads that are under way when the store is closed.
            let reads = (0..8).map(|_| {
                let client = client.clone();
                tokio::spawn(async move { while client.list_chains().await.is_ok() {} })
            });
            let reads: Vec<_> = reads.collect();
            match round % 2 {
                0 => workers.stop().await,
                // The workers notice by themselves that the store is closed.
                _ => drop(workers),
            }
            state.close().await.unwrap();
            assert_eq!(log(&path), 0, "round {round}");
            drop(listeners);
            for read in reads {
                read.await.unwrap();
            }
        }
    }
}

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The connections of runtimes that have ended are closed on other threads, and `close` waits for that.
#[test]
fn connections_of_runtimes_that_have_ended_are_closed() {
    for round in 0..20_u128 {
        for options in kinds() {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join("app.db");
            let closing = single();
            let state = closing.block_on(options.open(&path)).unwrap();
            for number in 0..3 {
                let runtime = single();
                runtime.block_on(async {
                    start(&state, 1 + number).await;
                    state.get_jobs(None, &[id(1)]).await.unwrap();
                    let transaction = state.begin().await.unwrap();
                    state.commit(transaction).await.unwrap();
                });
            }
            closing.block_on(state.close()).unwrap();
            assert_eq!(log(&path), 0, "round {round}");
        }
    }
}

/// Each of several calls waits until the file is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_calls_close_the_file_together() {
    for round in 0..20_u128 {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let state = SqliteState::open(&path).await.unwrap();
        start(&state, 1).await;
        let calls = (0..4).map(|_| {
            let (state, path) = (state.clone(), path.clone());
            tokio::spawn(async move {
                state.close().await.unwrap();
                log(&path)
            })
        });
        for left in futures_util::future::join_all(calls).await {
            assert_eq!(left.unwrap(), 0, "round {round}");
        }
    }
}
