//! Several processes on one file.

use std::path::Path;
use std::process::Stdio;

use queuert::adapter::{Notice, NotifyAdapter, Wake};
use queuert_sqlite::{SqliteNotify, SqliteState};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{LONG, exists, file, jobs, raw, start};

const CHILD_FILE: &str = "QUEUERT_TEST_CHILD_FILE";
const CHILD_NUMBER: &str = "QUEUERT_TEST_CHILD_NUMBER";

/// This program as another process: at the first line of its input it opens the file, at the second it starts a chain.
#[tokio::test]
async fn child() {
    let (Ok(path), Ok(number)) = (std::env::var(CHILD_FILE), std::env::var(CHILD_NUMBER)) else {
        return;
    };
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    println!("\nready");
    input.read_line(&mut line).await.unwrap();
    let state = SqliteState::open(path).await.unwrap();
    println!("\nopened");
    input.read_line(&mut line).await.unwrap();
    start(&state, number.parse().unwrap()).await;
    println!("\nstarted");
    input.read_line(&mut line).await.unwrap();
}

/// That process, seen from the test.
struct Other {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    async fn new(path: &Path, number: u128) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child", "--nocapture"])
            .env(CHILD_FILE, path)
            .env(CHILD_NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut other = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        };
        other.says("ready").await;
        other
    }

    async fn go_on(&mut self) {
        self.input.write_all(b"go\n").await.unwrap();
    }

    async fn says(&mut self, word: &str) {
        while let Some(line) = timeout(LONG, self.output.next_line()).await.unwrap().unwrap() {
            if line == word {
                return;
            }
        }
        panic!("the other process did not print `{word}`");
    }
}

#[tokio::test]
async fn a_change_of_another_process_wakes() {
    let (_directory, path, state) = file().await;
    let notify = SqliteNotify::new(&state);
    let mut for_jobs = notify.subscribe(jobs(1)).await.unwrap();
    let mut other = Other::new(&path, 1_000).await;
    other.go_on().await;
    other.says("opened").await;
    other.go_on().await;
    other.says("started").await;
    // The benchmarks measure how soon.
    let wake = timeout(LONG, for_jobs.recv()).await.unwrap();
    assert!(matches!(wake, Some(Wake::Notice(Notice::JobsAvailable { .. }))));
    assert!(exists(&state, 1_000).await);
}

/// If processes open a new file at the same moment, one of them creates the schema, and all can use it.
#[tokio::test]
async fn many_processes_create_a_file_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("app.db");
    let mut others = Vec::new();
    for number in 1..=6 {
        others.push(Other::new(&path, number).await);
    }
    for word in ["opened", "started"] {
        for other in &mut others {
            other.go_on().await;
        }
        for other in &mut others {
            other.says(word).await;
        }
    }
    let state = SqliteState::open(&path).await.unwrap();
    for number in 1..=6 {
        assert!(exists(&state, number).await, "{number}");
    }
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert_migration")
        .fetch_one(&mut raw(&path).await)
        .await
        .unwrap();
    assert_eq!(versions, 1);
}
