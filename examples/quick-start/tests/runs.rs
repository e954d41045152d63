//! Drives the real program: plain runs, runs that are killed or interrupted at chosen points, and the runs after them.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Nothing here takes that long; a hang should say where.
const LONG: Duration = Duration::from_secs(90);

struct Run {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    lines: Vec<String>,
}

impl Run {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_quick-start"))
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            output,
            lines: Vec::new(),
        }
    }

    /// Reads until a line contains `words`.
    async fn reaches(&mut self, words: &str) {
        loop {
            let line = timeout(LONG, self.output.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("no `{words}` within {LONG:?}: {:#?}", self.lines));
            let Some(line) = line.unwrap() else {
                panic!("it ended without `{words}`: {:#?}", self.lines);
            };
            let found = line.contains(words);
            self.lines.push(line);
            if found {
                return;
            }
        }
    }

    /// Reads until there are so many lines of progress; false if there will not be.
    async fn prints_progress(&mut self, count: usize) -> bool {
        while progress(&self.lines).len() < count {
            match timeout(LONG, self.output.next_line()).await.unwrap().unwrap() {
                Some(line) => self.lines.push(line),
                None => return false,
            }
        }
        true
    }

    async fn ends(mut self) -> (Vec<String>, ExitStatus) {
        while let Some(line) = timeout(LONG, self.output.next_line()).await.unwrap().unwrap() {
            self.lines.push(line);
        }
        let status = timeout(LONG, self.child.wait()).await.unwrap().unwrap();
        (self.lines, status)
    }

    /// As `kill -9`.
    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// As Ctrl-C. The shell's own `kill` is there on every machine.
    async fn interrupt(&self) {
        let kill = format!("kill -INT {}", self.child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }
}

async fn plain_run(file: &Path) -> Vec<String> {
    let (lines, status) = Run::start(file).ends().await;
    assert!(status.success(), "{lines:#?}");
    lines
}

fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("quick-start.db");
    (directory, file)
}

/// What a killed run has left.
struct Left {
    open_chains: i64,
    running: i64,
}

impl Left {
    async fn in_file(file: &Path) -> Self {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        let count = async |sql: &'static str, connection: &mut SqliteConnection| -> i64 {
            sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
        };
        let open = "SELECT count(*) FROM queuert_job WHERE latest = 1 AND status < 3";
        let running = "SELECT count(*) FROM queuert_job WHERE status = 2";
        let left = Self {
            open_chains: count(open, &mut connection).await,
            running: count(running, &mut connection).await,
        };
        connection.close().await.unwrap();
        left
    }
}

/// How many users there are, having checked that each was onboarded exactly once and that every chain has ended.
async fn onboarded(file: &Path) -> i64 {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let count = async |sql: &'static str, connection: &mut SqliteConnection| -> i64 {
        sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
    };
    let users = count("SELECT count(*) FROM users", &mut connection).await;
    let well = "SELECT count(*) FROM users WHERE greetings = 1 AND account = 'A-' || id";
    assert_eq!(
        count(well, &mut connection).await,
        users,
        "each account once, each greeting once"
    );
    let open = "SELECT count(*) FROM queuert_job WHERE status <> 3";
    assert_eq!(count(open, &mut connection).await, 0, "every job has completed");
    // Two jobs per user, and one report for three users.
    let jobs = count("SELECT count(*) FROM queuert_job", &mut connection).await;
    assert_eq!(jobs, users * 2 + users / 3);
    users
}

/// The lines of progress, in an order that does not depend on which worker was faster.
fn progress(lines: &[String]) -> Vec<&str> {
    let mut progress: Vec<&str> = lines
        .iter()
        .filter(|line| line.starts_with("  ") && !line.starts_with("  user"))
        .map(|line| line.trim())
        .collect();
    progress.sort_unstable();
    progress
}

#[tokio::test]
async fn a_plain_run_shows_everything() {
    let (_directory, file) = directory();
    let lines = plain_run(&file).await;
    let name = file.display();
    assert_eq!(lines[0], format!("{name} has 0 users."));
    assert_eq!(
        lines[1],
        "Nothing was left unfinished by an earlier run. Onboarding three users:"
    );
    let expected = [
        "call-by-sales  acme",
        "provision      acme   attempt 1",
        "provision      ada    attempt 1",
        "provision      grace  attempt 1",
        "provision      grace  attempt 2",
        "provision      grace  fails, and is tried again",
        "report         over 3 chains",
        "send-welcome   ada",
        "send-welcome   grace",
    ];
    assert_eq!(progress(&lines), expected);
    assert_eq!(
        lines[2 + expected.len() - 1],
        "  report         over 3 chains",
        "it waits for all"
    );
    let last = [
        "The request handler has its answer: 3 users are on board.",
        "  user 1   A-1   1 greeting, 2 jobs, completed: ada was welcomed",
        "  user 2   A-2   1 greeting, 2 jobs, completed: grace was welcomed",
        "  user 3   A-3   1 greeting, 2 jobs, completed: acme was called",
        "Run it again for three more. Interrupt it (Ctrl-C, kill -9), and the next run goes on.",
        &format!("To start afresh, delete {name}."),
    ];
    assert_eq!(lines[2 + expected.len()..], last);
    let left = std::fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "deleting the one file is enough to start afresh");
    assert_eq!(onboarded(&file).await, 3);
}

#[tokio::test]
async fn further_runs_onboard_three_more() {
    let (_directory, file) = directory();
    for before in [0, 3, 6] {
        let lines = plain_run(&file).await;
        assert!(lines[0].ends_with(&format!("has {before} users.")), "{lines:#?}");
        assert!(lines[1].starts_with("Nothing was left unfinished"), "{lines:#?}");
        assert_eq!(onboarded(&file).await, before + 3);
    }
}

/// Killed in the middle of each kind of job, it goes on where it was, and does nothing twice.
#[tokio::test]
async fn what_a_killed_run_left_is_picked_up() {
    let points = [
        "provision      ada",
        "grace  fails",
        "send-welcome   ada",
        "call-by-sales  acme",
        "send-welcome   grace",
        "report         over",
    ];
    let runs = points.map(|point| tokio::spawn(killed_and_run_again(point)));
    for run in runs {
        run.await.unwrap();
    }
}

async fn killed_and_run_again(point: &'static str) {
    // Whoever had begun a job is killed in the middle of it; the job that fails has just ended. On a busy machine the kill
    // may come too late for that, and is tried again.
    let (_directory, file, left) = loop {
        let (directory, file) = directory();
        let mut run = Run::start(&file);
        run.reaches(point).await;
        run.kill().await;
        let left = Left::in_file(&file).await;
        let hit = left.running > 0 || point.contains("fails");
        if hit && left.open_chains > 0 && (!point.starts_with("report") || left.open_chains == 1) {
            break (directory, file, left);
        }
    };
    let lines = plain_run(&file).await;
    assert!(lines[0].ends_with("has 3 users."), "{point}: {lines:#?}");
    assert!(
        lines[1].starts_with("An earlier run was interrupted: "),
        "{point}: {lines:#?}"
    );
    let cut_off = lines[2].contains("ran when it was killed");
    assert_eq!(cut_off, left.running > 0, "{point}: {lines:#?}");
    assert_eq!(lines[if cut_off { 3 } else { 2 }], "Going on:");
    if point.starts_with("report") {
        assert!(lines[1].ends_with("1 of its 4 chains are unfinished."), "{lines:#?}");
        assert_eq!(progress(&lines), ["report         over 3 chains"]);
    }
    let answer = "The request handler has its answer: 3 users are on board.";
    assert!(lines.iter().any(|line| line == answer), "{point}: {lines:#?}");
    assert_eq!(onboarded(&file).await, 3);
    // And then nothing is left.
    let lines = plain_run(&file).await;
    assert!(
        lines[1].starts_with("Nothing was left unfinished"),
        "{point}: {lines:#?}"
    );
    assert_eq!(onboarded(&file).await, 6);
}

/// Killed again and again on one file, as soon as it has done something, it arrives all the same.
#[tokio::test]
async fn a_run_that_is_killed_again_and_again_arrives() {
    let (_directory, file) = directory();
    let mut kills = 0;
    loop {
        let mut run = Run::start(&file);
        // Three jobs begin at once, so that the fourth line comes after the end of one of them.
        if run.prints_progress(4).await {
            run.kill().await;
            kills += 1;
            continue;
        }
        let (lines, status) = run.ends().await;
        assert!(status.success(), "{lines:#?}");
        break;
    }
    assert!(kills > 0);
    assert_eq!(onboarded(&file).await, 3);
}

/// Right before, while or right after the users and their chains are committed: all of it is there, or nothing.
#[tokio::test]
async fn a_run_that_is_killed_at_its_start_is_there_or_not() {
    for words in ["has 0 users.", "Onboarding three users:", "provision"] {
        let (_directory, file) = directory();
        let mut run = Run::start(&file);
        run.reaches(words).await;
        run.kill().await;
        let left = Left::in_file(&file).await;
        let lines = plain_run(&file).await;
        let interrupted = format!("An earlier run was interrupted: {} of its 4 chains", left.open_chains);
        let picked_up = match lines[0].ends_with("has 3 users.") {
            true => lines[1].starts_with(&interrupted),
            false => lines[1].starts_with("Nothing was left unfinished") && words != "provision",
        };
        assert!(picked_up, "{words}: {lines:#?}");
        assert_eq!(onboarded(&file).await, 3);
    }
}

#[tokio::test]
async fn an_interrupted_run_stops_gracefully_and_says_how_to_go_on() {
    // On a busy machine the signal may come when all is done; then it is tried again.
    let (_directory, file, lines) = loop {
        let (directory, file) = directory();
        let mut run = Run::start(&file);
        run.reaches("send-welcome   ada").await;
        run.interrupt().await;
        let (lines, status) = run.ends().await;
        assert!(status.success(), "{lines:#?}");
        if Left::in_file(&file).await.open_chains > 0 {
            break (directory, file, lines);
        }
    };
    let last = lines.last().unwrap();
    assert!(
        last.starts_with("Interrupted.") && last.ends_with("run it again to go on."),
        "{lines:#?}"
    );

    let lines = plain_run(&file).await;
    assert!(lines[1].starts_with("An earlier run was interrupted: "), "{lines:#?}");
    // It let what ran come to its end, so no lease has to expire first.
    assert_eq!(lines[2], "Going on:");
    assert!(!progress(&lines).contains(&"send-welcome   ada"), "{lines:#?}");
    assert_eq!(onboarded(&file).await, 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_told() {
    let (directory, _) = directory();
    let output = Command::new(env!("CARGO_BIN_EXE_quick-start"))
        .arg(directory.path().join("nowhere").join("app.db"))
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("check that its directory exists"));
}
