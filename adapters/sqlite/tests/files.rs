//! Opening new and existing files. `bad_files.rs` has files that are refused.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::adapter::{NewChain, NewJob, StateAdapter};
use queuert::{JobId, Payload, StateErrorKind};
use queuert_sqlite::SqliteState;
use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    (directory, path)
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true);
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn chain(number: u128) -> NewChain {
    let id = JobId::from_uuid(Uuid::from_u128(number));
    NewChain::new(NewJob::new(id, "task", Payload::from_text("{}")))
}

async fn tables(path: &Path) -> Vec<String> {
    let mut connection = raw(path).await;
    sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .fetch_all(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_file_is_created_once_and_opened_again() {
    let (_directory, path) = directory();
    for round in 0..3 {
        let state = SqliteState::open(&path).await.unwrap();
        state.create_chains(None, &[chain(round + 1)]).await.unwrap().unwrap();
        let ids: Vec<JobId> = (0..=round)
            .map(|number| JobId::from_uuid(Uuid::from_u128(number + 1)))
            .collect();
        assert_eq!(state.get_jobs(None, &ids).await.unwrap().len(), ids.len());
        state.close().await.unwrap();
    }
    let mut connection = raw(&path).await;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(mode, "wal");
    let vacuum: i64 = sqlx::query_scalar("PRAGMA auto_vacuum")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(vacuum, 2, "incremental");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_openers_at_once_migrate_once() {
    let (_directory, path) = directory();
    let openers = (0..8).map(|number| {
        let path = path.clone();
        tokio::spawn(async move {
            let state = SqliteState::open(path).await.unwrap();
            state.create_chains(None, &[chain(number + 1)]).await.unwrap().unwrap();
        })
    });
    for opener in openers.collect::<Vec<_>>() {
        opener.await.unwrap();
    }
    let mut connection = raw(&path).await;
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert_migration")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert_job")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!((versions, jobs), (1, 8));
}

#[tokio::test]
async fn the_exported_schema_is_the_schema() {
    let (_directory, path) = directory();
    let mut connection = raw(&path).await;
    for step in SqliteState::migrations("app_").unwrap() {
        connection.execute(AssertSqlSafe(step.sql)).await.unwrap();
    }
    connection.close().await.unwrap();
    let state = SqliteState::options().prefix("app_").open(&path).await.unwrap();
    state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
    state.close().await.unwrap();
    let (_other, fresh) = directory_of("app_").await;
    assert_eq!(tables(&path).await, tables(&fresh).await);
}

async fn directory_of(prefix: &str) -> (TempDir, PathBuf) {
    let (directory, path) = directory();
    SqliteState::options()
        .prefix(prefix)
        .open(&path)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    (directory, path)
}

#[tokio::test]
async fn stores_with_different_prefixes_share_a_file() {
    let (_directory, path) = directory();
    let one = SqliteState::options().prefix("one_").open(&path).await.unwrap();
    let two = SqliteState::options().prefix("").open(&path).await.unwrap();
    one.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
    let id = JobId::from_uuid(Uuid::from_u128(1));
    assert_eq!(one.get_jobs(None, &[id]).await.unwrap().len(), 1);
    assert_eq!(two.get_jobs(None, &[id]).await.unwrap().len(), 0);
}

#[tokio::test]
async fn only_plain_prefixes_are_taken() {
    let (_directory, path) = directory();
    for prefix in ["a b", "x;", "1a", "q\"", "sqlite_", "ä", &"a".repeat(41)] {
        let error = SqliteState::options().prefix(prefix).open(&path).await.unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Misconfigured);
        assert!(SqliteState::migrations(prefix).is_err());
    }
    assert!(!path.exists());
}

/// A size limit of the database has the effect of a full disk: SQLite reports both in the same way.
#[tokio::test]
async fn a_full_disk_is_transient_and_loses_nothing() {
    let (_directory, path) = directory();
    let state = SqliteState::open(&path).await.unwrap();
    state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
    let many: Vec<NewChain> = (2..5_000).map(chain).collect();
    let mut transaction = state.begin().await.unwrap();
    transaction.execute("PRAGMA max_page_count = 1").await.unwrap();
    let error = state.create_chains(Some(&mut transaction), &many).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("full"), "{error}");
    state.rollback(transaction).await.unwrap();
    let mut transaction = state.begin().await.unwrap();
    transaction.execute("PRAGMA max_page_count = 1000000").await.unwrap();
    let created = state.create_chains(Some(&mut transaction), &many).await.unwrap();
    assert_eq!(created.unwrap().len(), many.len());
    state.commit(transaction).await.unwrap();
}

#[tokio::test]
async fn a_database_in_memory_works() {
    let state = SqliteState::options().open_in_memory().await.unwrap();
    state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
    let mut transaction = state.begin().await.unwrap();
    state
        .create_chains(Some(&mut transaction), &[chain(2)])
        .await
        .unwrap()
        .unwrap();
    drop(transaction);
    let ids = [1, 2].map(|number| JobId::from_uuid(Uuid::from_u128(number)));
    assert_eq!(state.get_jobs(None, &ids).await.unwrap().len(), 1);
}

#[tokio::test]
async fn finished_chains_are_deleted_and_the_file_shrinks() {
    use queuert::adapter::{Authority, ClaimJobs, ClaimType, Outcome, Settlement};
    let (_directory, path) = directory();
    let state = SqliteState::open(&path).await.unwrap();
    let many: Vec<NewChain> = (1..=2_000).map(chain).collect();
    state.create_chains(None, &many).await.unwrap().unwrap();
    let types = vec![ClaimType {
        name: "task".into(),
        lease: Duration::from_secs(60),
    }];
    let worker = queuert::WorkerId::new("w");
    let fence = queuert::Fence::from_uuid(Uuid::from_u128(9));
    let claimed = state
        .claim_jobs(&ClaimJobs::new(types, 1_990, worker.clone(), fence))
        .await
        .unwrap();
    let ends: Vec<Settlement> = claimed
        .jobs
        .iter()
        .map(|claimed| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence,
                worker: worker.clone(),
            },
            outcome: Outcome::Finish {
                output: Payload::from_text("\"x\""),
            },
        })
        .collect();
    state.settle_jobs(None, &ends).await.unwrap();
    assert_eq!(
        state.delete_finished(Duration::from_secs(3_600), 1_000).await.unwrap(),
        0
    );
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(
        state.delete_finished(Duration::from_millis(1), 1_000).await.unwrap(),
        1_000
    );
    assert_eq!(
        state.delete_finished(Duration::from_millis(1), 1_000).await.unwrap(),
        990
    );
    assert_eq!(state.delete_finished(Duration::from_millis(1), 1_000).await.unwrap(), 0);
    assert_eq!(state.incremental_vacuum(100_000).await.unwrap(), 0);
}

/// Dead chains, and chains that a job waits for or may have to read, are kept at any age.
#[tokio::test]
async fn chains_that_are_needed_are_not_deleted() {
    use queuert::{JobType, JobTypes};
    use queuert_sqlite::{Attempt, Client};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Part(bool);
    #[derive(Serialize, Deserialize)]
    struct Whole;
    #[derive(JobTypes)]
    enum Jobs {
        #[job(entry, output = u32)]
        Part(Part),
        #[job(entry, output = u32, blockers = [Part])]
        Whole(Whole),
    }

    let (_directory, path) = directory();
    let state = SqliteState::open(&path).await.unwrap();
    let client = Client::new(state.clone());
    let (good, fatal) = (
        client.start(Part(true)).await.unwrap(),
        client.start(Part(false)).await.unwrap(),
    );
    let needed = client.start(Part(true)).await.unwrap();
    let hour = Duration::from_secs(3_600);
    let whole = client.start(Whole.blocked_by([&needed])).delay(hour).await.unwrap();
    let cancelled = client.start(Part(true)).delay(hour).await.unwrap();
    client.cancel(&cancelled).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Part>| async move {
        if job.0 {
            return job.finish(1);
        }
        Err(queuert::JobError::fatal("no"))
    });
    worker.drain().await.unwrap();
    let left = async || {
        let all = [good.id(), fatal.id(), needed.id(), whole.id(), cancelled.id()];
        let chains = state.get_chains(None, &all).await.unwrap();
        chains.iter().map(|chain| chain.id).collect::<Vec<_>>()
    };
    assert_eq!(left().await.len(), 5);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(state.delete_finished(Duration::from_millis(1), 100).await.unwrap(), 2);
    assert_eq!(left().await, [fatal.id(), needed.id(), whole.id()]);
    // A chain that no job needs any more is deleted.
    client.delete(&whole).await.unwrap();
    assert_eq!(state.delete_finished(Duration::from_millis(1), 100).await.unwrap(), 1);
    assert_eq!(left().await, [fatal.id()]);
}

#[tokio::test]
async fn the_file_of_the_applications_own_pool_can_be_used() {
    let (_directory, path) = directory();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    pool.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        .await
        .unwrap();
    let state = SqliteState::from_pool(&pool).await.unwrap();
    state.create_chains(None, &[chain(1)]).await.unwrap().unwrap();
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert_job")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(jobs, 1, "both are on one file");
}

#[tokio::test]
async fn a_pool_in_memory_is_refused() {
    let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
    let error = SqliteState::from_pool(&pool).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("in memory"), "{error}");
}
