//! A thousand first waits share one watch. The test has its own binary because it counts the open files of the process.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

use std::path::Path;
use std::{fs, io};

use queuert::adapter::{NotifyAdapter, Topic};
use queuert::{ChainId, StateErrorKind};
use queuert_sqlite::{SqliteNotify, SqliteState};
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::task::JoinSet;
use uuid::Uuid;

const WAITERS: u128 = 1_000;

/// How often the process has this file open.
fn handles(path: &Path) -> usize {
    let handles = fs::read_dir("/proc/self/fd").unwrap();
    let leads_there = |handle: io::Result<fs::DirEntry>| {
        // A file that was closed meanwhile has no path.
        handle.is_ok_and(|handle| fs::read_link(handle.path()).is_ok_and(|file| file == path))
    };
    handles.map(leads_there).filter(|there| *there).count()
}

/// How many threads look at a file for subscribers.
fn watches() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let is_watch = |thread: io::Result<fs::DirEntry>| {
        let name = thread.and_then(|thread| fs::read_to_string(thread.path().join("comm")));
        name.is_ok_and(|name| name.trim_end() == "queuert-watch")
    };
    threads.map(is_watch).filter(|watch| *watch).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_first_waits_open_the_file_once() {
    for own_options in [false, true] {
        let directory = TempDir::new().unwrap();
        let mut options = SqliteState::options();
        if own_options {
            options = options.connect_options(SqliteConnectOptions::new());
        }
        let path = directory.path().canonicalize().unwrap().join("app.db");
        let state = options.open(&path).await.unwrap();
        let before = handles(&path);
        assert!(before > 0, "the store has the file open");
        // The thread of the previous store has closed its connection, but may not have ended.
        while watches() > 0 {
            tokio::task::yield_now().await;
        }
        let notify = SqliteNotify::new(&state);
        let mut waits = JoinSet::new();
        for number in 0..WAITERS {
            let notify = notify.clone();
            let chain = ChainId::from_uuid(Uuid::from_u128(number));
            waits.spawn(async move { notify.subscribe(Topic::Chain(chain)).await });
        }
        let mut subscriptions = Vec::new();
        while let Some(subscribed) = waits.join_next().await {
            subscriptions.push(subscribed.unwrap().unwrap());
        }
        let more = handles(&path).saturating_sub(before);
        assert!(more <= 1, "the file was opened {more} times more");
        assert_eq!(watches(), 1);
        drop(subscriptions);
        state.close().await.unwrap();
    }
}

/// In a process that cannot open more files, an open store goes on, and calls that need another file fail for the time being.
#[tokio::test]
async fn a_store_that_is_open_takes_no_harm_from_a_process_without_files() {
    let directory = TempDir::new().unwrap();
    let script = "ulimit -n 64; exec \"$0\" --exact without_files --nocapture";
    let output = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("QUEUERT_PLACE", directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The part of the test above that runs in another process; it does nothing otherwise.
#[tokio::test]
async fn without_files() {
    let Some(place) = std::env::var_os("QUEUERT_PLACE") else {
        return;
    };
    let state = SqliteState::open(std::path::Path::new(&place).join("app.db"))
        .await
        .unwrap();
    let mut held = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        held.push(file);
    }
    use queuert::adapter::{NewChain, NewJob, StateAdapter};
    let job = queuert::JobId::from_uuid(Uuid::from_u128(1));
    let new = NewChain::new(NewJob::new(job, "task", queuert::Payload::from_text("1")));
    state.create_chains(None, &[new]).await.unwrap().unwrap();
    let notify = SqliteNotify::new(&state);
    let chain = Topic::Chain(job.as_chain());
    let error = notify.subscribe(chain.clone()).await.unwrap_err();
    assert!(!format!("{error:?}").contains("Misconfigured"), "{error:?}");
    let error = state.get_jobs(None, &[job]).await.unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient, "{error}");
    drop(held);
    assert_eq!(state.get_jobs(None, &[job]).await.unwrap().len(), 1);
    drop(notify.subscribe(chain).await.unwrap());
}
