//! A database that is replaced, deleted or moved while a store has it open: nothing is written to a file that no other program
//! finds, and calls fail with an error that says so.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queuert::adapter::{NewChain, NewJob, NotifyAdapter, StateAdapter, Topic, Wake};
use queuert::{Client, Health, JobId, Payload, StateError, StateErrorKind};
use queuert_sqlite::{Attempt, SqliteNotify, SqliteState};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain(number: u128) -> NewChain {
    NewChain::new(NewJob::new(id(number), "task", Payload::from_text("{}")))
}

async fn start(state: &SqliteState, number: u128) -> Result<(), StateError> {
    state.create_chains(None, &[chain(number)]).await.map(|started| {
        started.unwrap();
    })
}

/// A store with one chain, and the same with options of the caller, which goes through sqlx.
async fn stores() -> Vec<(TempDir, PathBuf, SqliteState)> {
    let mut stores = Vec::new();
    for own_options in [false, true] {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("app.db");
        let mut options = SqliteState::options();
        if own_options {
            options = options.connect_options(SqliteConnectOptions::new());
        }
        let state = options.open(&path).await.unwrap();
        start(&state, 1).await.unwrap();
        stores.push((directory, path, state));
    }
    stores
}

fn is_told(error: &StateError, path: &Path) {
    assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(path.to_str().unwrap())
            && text.contains("not the file any more")
            && text.contains("open the store"),
        "it says which file, what happened and what to do: {text}"
    );
}

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

/// Every kind of call is refused.
async fn all_calls_are_refused(state: &SqliteState, path: &Path) {
    is_told(&start(state, 2).await.unwrap_err(), path);
    is_told(&state.get_jobs(None, &[id(1)]).await.unwrap_err(), path);
    is_told(&state.begin().await.unwrap_err(), path);
}

async fn exists(path: &Path, number: u128) -> bool {
    let state = SqliteState::open(path).await.unwrap();
    let found = !state.get_jobs(None, &[id(number)]).await.unwrap().is_empty();
    state.close().await.unwrap();
    found
}

#[tokio::test]
async fn a_replaced_file_is_reported_and_neither_file_is_written() {
    for (directory, path, state) in stores().await {
        let other = directory.path().join("other.db");
        SqliteState::open(&other).await.unwrap().close().await.unwrap();
        let before = fs::read(&other).unwrap();
        let kept = directory.path().join("kept.db");
        fs::hard_link(&path, &kept).unwrap();
        let log = directory.path().join("app.db-wal");
        let logged = fs::read(&log).unwrap();
        fs::rename(&other, &path).unwrap();
        all_calls_are_refused(&state, &path).await;
        assert_eq!(fs::read(&path).unwrap(), before, "the new file");
        assert_eq!(fs::read(&log).unwrap(), logged, "the log of the old one");
        // When the file is back, the store works again, and nothing was lost.
        fs::rename(&kept, &path).unwrap();
        start(&state, 3).await.unwrap();
        assert_eq!(state.get_jobs(None, &[1, 2, 3].map(id)).await.unwrap().len(), 2);
        state.close().await.unwrap();
        assert!(exists(&path, 3).await && !exists(&path, 2).await);
    }
}

#[tokio::test]
async fn a_deleted_file_is_reported() {
    for (_directory, path, state) in stores().await {
        fs::remove_file(&path).unwrap();
        all_calls_are_refused(&state, &path).await;
        is_told(&state.close().await.unwrap_err(), &path);
        assert!(!path.exists(), "nothing comes back by itself");
    }
}

/// Renames a file with another chain over that of the store, whose log has pages that differ from those of the new file.
/// Returns the content of the new file.
async fn replace(path: &Path, state: &SqliteState) -> Vec<u8> {
    let other = path.with_file_name("other.db");
    let new = SqliteState::open(&other).await.unwrap();
    start(&new, 7).await.unwrap();
    new.close().await.unwrap();
    for number in 100..200 {
        start(state, number).await.unwrap();
    }
    fs::rename(&other, path).unwrap();
    fs::read(path).unwrap()
}

/// A runtime that has no connection yet opens none to the new file: that connection would take the log of the old file for the
/// log of the new one, and write it into the new file when it is closed.
#[tokio::test]
async fn no_connection_is_opened_to_another_file() {
    for (_directory, path, state) in stores().await {
        let before = replace(&path, &state).await;
        let elsewhere = (state.clone(), path.clone());
        let refused = std::thread::spawn(move || {
            let (state, path) = elsewhere;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(all_calls_are_refused(&state, &path));
        });
        refused.join().unwrap();
        let _ = state.close().await;
        assert!(fs::read(&path).unwrap() == before, "the new file is as it was");
    }
}

/// A connection that is opened just after the file was replaced is closed before it has read anything, and is not kept.
#[tokio::test]
async fn a_connection_that_finds_another_file_is_closed_unused() {
    for (_directory, path, state) in stores().await {
        let kept = path.with_file_name("kept.db");
        fs::hard_link(&path, &kept).unwrap();
        let other = path.with_file_name("other.db");
        SqliteState::open(&other).await.unwrap().close().await.unwrap();
        let new = path.with_file_name("new.db");
        fs::hard_link(&other, &new).unwrap();
        let (before, logged) = (fs::read(&other).unwrap(), fs::read(log_of(&path)).unwrap());
        let jobs = [id(1)];
        let mut read = std::pin::pin!(state.get_jobs(None, &jobs));
        // The call has found the right file so far. The task that it has spawned runs on this thread, after the rename.
        std::future::poll_fn(|context| {
            assert!(read.as_mut().poll(context).is_pending());
            fs::rename(&other, &path).unwrap();
            std::task::Poll::Ready(())
        })
        .await;
        is_told(&read.await.unwrap_err(), &path);
        assert!(
            fs::read(log_of(&path)).unwrap() == logged,
            "the log of the old file is as it was"
        );
        // When the file is back, no connection to the other file is left.
        fs::rename(&kept, &path).unwrap();
        assert_eq!(state.get_jobs(None, &[id(1)]).await.unwrap().len(), 1);
        state.close().await.unwrap();
        assert!(
            fs::read(&new).unwrap() == before,
            "and so is the new one, now that all connections are closed"
        );
    }
}

/// SQLite does not fold the log of a file that is not at its path, and the next connection would write the log into the file
/// that is there. So `close` fails with an error, and an operator who follows its advice loses nothing.
#[tokio::test]
async fn closing_a_store_whose_file_was_replaced_fails_with_advice_that_helps() {
    for (directory, path, state) in stores().await {
        let before = replace(&path, &state).await;
        let aside = directory.path().join("aside.db");
        let error = state.close().await.unwrap_err();
        is_told(&error, &path);
        let advice = "move the `-wal` and `-shm` that the old file has left at the path";
        assert!(error.to_string().contains(advice), "{error}");
        assert!(fs::read(&path).unwrap() == before, "the new file is as it was");
        assert!(
            log_of(&path).metadata().unwrap().len() > 0,
            "which is what there is to move"
        );
        for part in ["-wal", "-shm"] {
            let [from, to] = [&path, &aside].map(|file| format!("{}{part}", file.display()));
            fs::rename(from, to).unwrap();
        }
        let mut connection = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path))
            .await
            .unwrap();
        let check: String = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(check, "ok");
        connection.close().await.unwrap();
        assert!(exists(&path, 7).await && !exists(&path, 1).await && !exists(&path, 150).await);
    }
}

/// A store that was closed while its file was missing can be closed again when the file is back, which folds the log.
#[tokio::test]
async fn a_store_can_be_closed_again_when_its_file_is_back() {
    for (directory, path, state) in stores().await {
        let aside = directory.path().join("aside.db");
        fs::rename(&path, &aside).unwrap();
        for _ in 0..2 {
            is_told(&state.close().await.unwrap_err(), &path);
        }
        assert!(log_of(&path).exists(), "it was not folded");
        fs::rename(&aside, &path).unwrap();
        state.close().await.unwrap();
        assert!(!log_of(&path).exists(), "it is now");
        assert!(exists(&path, 1).await);
        state.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_renamed_directory_is_reported() {
    for (directory, _, first) in stores().await {
        first.close().await.unwrap();
        let (here, there) = (directory.path().join("here"), directory.path().join("there"));
        fs::create_dir(&here).unwrap();
        let path = here.join("app.db");
        let state = SqliteState::open(&path).await.unwrap();
        start(&state, 1).await.unwrap();
        fs::rename(&here, &there).unwrap();
        all_calls_are_refused(&state, &path).await;
        fs::rename(&there, &here).unwrap();
        start(&state, 2).await.unwrap();
        assert_eq!(state.get_jobs(None, &[1, 2].map(id)).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_changed_link_is_reported() {
    let directory = TempDir::new().unwrap();
    let [one, other, link] = ["one.db", "other.db", "link.db"].map(|name| directory.path().join(name));
    SqliteState::open(&other).await.unwrap().close().await.unwrap();
    fs::write(&one, "").unwrap();
    std::os::unix::fs::symlink(&one, &link).unwrap();
    let state = SqliteState::open(&link).await.unwrap();
    start(&state, 1).await.unwrap();
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&other, &link).unwrap();
    all_calls_are_refused(&state, &link).await;
}

#[tokio::test]
async fn a_transaction_that_was_open_is_not_committed() {
    for (directory, path, state) in stores().await {
        let mut transaction = state.begin().await.unwrap();
        let created = state.create_chains(Some(&mut transaction), &[chain(2)]).await.unwrap();
        assert!(created.is_ok());
        let aside = directory.path().join("aside.db");
        fs::rename(&path, &aside).unwrap();
        is_told(&state.commit(transaction).await.unwrap_err(), &path);
        fs::rename(&aside, &path).unwrap();
        assert_eq!(state.get_jobs(None, &[1, 2].map(id)).await.unwrap().len(), 1);
    }
}

/// The commit of a caller's transaction always checks the log, however recent the last check is.
#[tokio::test]
async fn a_transaction_whose_log_was_deleted_is_not_committed() {
    for (directory, path, state) in stores().await {
        let mut transaction = state.begin().await.unwrap();
        let created = state.create_chains(Some(&mut transaction), &[chain(2)]).await.unwrap();
        assert!(created.is_ok());
        let (log, aside) = (log_of(&path), directory.path().join("aside"));
        fs::rename(&log, &aside).unwrap();
        let error = state.commit(transaction).await.unwrap_err();
        assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(log.to_str().unwrap()), "{error}");
        fs::rename(&aside, &log).unwrap();
        assert_eq!(state.get_jobs(None, &[1, 2].map(id)).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_deleted_log_is_reported() {
    for (_directory, path, state) in stores().await {
        let log = log_of(&path);
        start(&state, 2).await.unwrap();
        fs::remove_file(&log).unwrap();
        // The store checks it ten times a second.
        let error = loop {
            match start(&state, fastrand::u128(1_000..)).await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(log.to_str().unwrap()), "{error}");
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Task {}

#[derive(queuert::JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Task(Task),
}

#[tokio::test]
async fn workers_and_subscribers_fail_and_go_on_when_the_file_is_back() {
    for (directory, path, state) in stores().await {
        let notify = SqliteNotify::new(&state);
        let client = Client::builder(state.clone()).notify(notify.clone()).build();
        let workers = client
            .worker()
            .process(|job: Attempt<Task>| async move { job.finish(()) })
            .poll_interval(Duration::from_millis(100))
            .start()
            .await
            .unwrap();
        let chain = client.start(Task {}).await.unwrap();
        client.wait(&chain).await.unwrap();
        let mut subscription = notify.subscribe(Topic::Chain(id(7).as_chain())).await.unwrap();
        let aside = directory.path().join("aside.db");
        fs::rename(&path, &aside).unwrap();
        let told = loop {
            if let Some(Wake::Failed(told)) = subscription.recv().await {
                break told;
            }
        };
        assert!(told.contains("not the file any more"), "{told}");
        workers
            .wait_for_health(
                |health| matches!(health, Health::Degraded { error } if error.contains("not the file any more")),
            )
            .await;
        fs::rename(&aside, &path).unwrap();
        workers.wait_for_health(|health| *health == Health::Running).await;
        let chain = client.start(Task {}).await.unwrap();
        client.wait(&chain).await.unwrap();
        workers.stop().await;
    }
}

/// A notice that cannot be read makes the watch open the file anew, which works at once: its listeners are told all the same.
#[tokio::test]
async fn a_watch_that_failed_and_went_on_at_once_says_so() {
    for (_directory, path, state) in stores().await {
        let notify = SqliteNotify::new(&state);
        let mut subscription = notify.subscribe(Topic::Chain(id(7).as_chain())).await.unwrap();
        let pool = sqlx::SqlitePool::connect_with(SqliteConnectOptions::new().filename(&path))
            .await
            .unwrap();
        let bad =
            "INSERT INTO queuert_notice (origin, kind, id, type, count, at) VALUES (x'00', 0, NULL, 'task', 1, 0)";
        sqlx::raw_sql(bad).execute(&pool).await.unwrap();
        assert!(matches!(subscription.recv().await, Some(Wake::Failed(_))));
        assert_eq!(subscription.recv().await, Some(Wake::Resync));
        pool.close().await;
    }
}
