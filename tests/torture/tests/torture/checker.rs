//! What a run has left, doctored in one way after another: the oracle finds each, under the right name.

use std::path::Path;
use std::process::Output;

use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

use crate::{text, torture};

/// Rules, and statements after which they are broken.
const DOCTORED: [(&str, &str); 27] = [
    (
        "no chain is lost",
        "DELETE FROM queuert_job WHERE chain_id = (SELECT chain_id FROM queuert_job WHERE type = 'fork' LIMIT 1)",
    ),
    (
        "nothing comes from nowhere",
        "DELETE FROM started WHERE rowid = (SELECT min(rowid) FROM started WHERE existing = 0)",
    ),
    (
        "started once",
        "INSERT INTO started SELECT * FROM started WHERE existing = 0 LIMIT 1",
    ),
    (
        "one successor",
        "DROP INDEX queuert_job_chain;
         CREATE TEMP TABLE twin AS SELECT * FROM queuert_job WHERE type = 'collect' LIMIT 1;
         UPDATE twin SET seq = NULL, id = randomblob(16);
         INSERT INTO queuert_job SELECT * FROM twin",
    ),
    (
        "one successor",
        "UPDATE queuert_job SET status = 1 WHERE id = (SELECT id FROM queuert_job WHERE type = 'fork' LIMIT 1)",
    ),
    (
        "one successor",
        "DELETE FROM queuert_job WHERE id = (SELECT a.id FROM queuert_job AS a JOIN queuert_job AS b
             ON b.chain_id = a.chain_id AND b.chain_index = 2 WHERE a.chain_index = 1 LIMIT 1)",
    ),
    (
        "the declared way",
        "CREATE TEMP TABLE twin AS SELECT * FROM queuert_job WHERE type = 'collect' LIMIT 1;
         UPDATE twin SET seq = NULL, id = randomblob(16), chain_index = chain_index + 1;
         INSERT INTO queuert_job SELECT * FROM twin",
    ),
    (
        "every chain ends",
        "UPDATE queuert_job SET status = 1 WHERE id = (SELECT id FROM queuert_job WHERE type = 'single' LIMIT 1)",
    ),
    (
        "every chain ends",
        "UPDATE queuert_job SET status = 4 WHERE id = (SELECT id FROM queuert_job WHERE type = 'single' LIMIT 1)",
    ),
    (
        "every chain ends",
        "UPDATE queuert_job SET attempt = 1 WHERE type = 'failing'",
    ),
    (
        "no lease without an owner",
        "UPDATE queuert_job SET status = 2, lease_owner = 'nobody', lease_until = 1, fence = randomblob(16)
         WHERE id = (SELECT id FROM queuert_job WHERE type = 'single' LIMIT 1)",
    ),
    (
        "the right output",
        "UPDATE queuert_job SET output = '0' WHERE id = (SELECT id FROM queuert_job WHERE type = 'slow' LIMIT 1)",
    ),
    (
        "completed by whom it was",
        "UPDATE queuert_job SET completed_by = NULL WHERE id = (SELECT id FROM queuert_job WHERE type = 'slow' LIMIT 1)",
    ),
    (
        "inputs are passed on",
        "UPDATE queuert_job SET input = '{\"n\":5000}' WHERE id = (SELECT id FROM queuert_job WHERE type = 'collect' LIMIT 1)",
    ),
    ("effects once", "INSERT INTO effect SELECT * FROM effect LIMIT 1"),
    (
        "effects once",
        "DELETE FROM effect WHERE rowid = (SELECT min(rowid) FROM effect)",
    ),
    (
        "the money adds up",
        "UPDATE account SET balance = balance + 1 WHERE id = 0",
    ),
    (
        "the money adds up",
        "UPDATE account SET balance = balance + 1 WHERE id = 0;
         UPDATE account SET balance = balance - 1 WHERE id = 1",
    ),
    (
        "only the last attempt counts",
        "UPDATE effect SET attempt = attempt + 1",
    ),
    (
        "only the last attempt counts",
        "UPDATE effect SET worker = 'nobody' WHERE rowid = (SELECT min(rowid) FROM effect)",
    ),
    ("prepared before completed", "DELETE FROM reserved"),
    (
        "fan-in is exact",
        "UPDATE queuert_job SET started_at = created_at - 3600000000 WHERE type = 'gather'",
    ),
    (
        "fan-in is exact",
        "DELETE FROM queuert_blocker WHERE job_id = (SELECT id FROM queuert_job WHERE type = 'collect' LIMIT 1)",
    ),
    (
        "deduplication",
        "UPDATE queuert_job SET ended_at = ended_at + 3600000000, deduplication_key = 'key-0' WHERE type = 'keyed'",
    ),
    (
        "every attempt is counted",
        "UPDATE queuert_job SET claims = claims - 1 WHERE id = (SELECT id FROM queuert_job WHERE type = 'slow' LIMIT 1)",
    ),
    (
        "completed by a processor",
        "UPDATE queuert_job SET claims = claims + 1, attempt = attempt + 1
         WHERE id = (SELECT id FROM queuert_job WHERE type = 'slow' LIMIT 1)",
    ),
    (
        "the files are intact",
        "CREATE INDEX wrong ON effect (job);
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = 'CREATE INDEX wrong ON effect (chain)' WHERE name = 'wrong'",
    ),
];

/// The same for a run with a backlog.
const DOCTORED_BACKLOG: [(&str, &str); 5] = [
    // With its row, as if the commit had never been.
    (
        "started as planned",
        "CREATE TEMP TABLE gone AS SELECT id FROM queuert_job WHERE type = 'contested' LIMIT 1;
         DELETE FROM started WHERE lower(replace(chain, '-', '')) = (SELECT lower(hex(id)) FROM gone);
         DELETE FROM queuert_job WHERE id = (SELECT id FROM gone)",
    ),
    // As if the starter had not seen that its commit was done.
    (
        "started as planned",
        "CREATE TEMP TABLE twin AS SELECT * FROM queuert_job WHERE type = 'contested' LIMIT 1;
         UPDATE twin SET seq = NULL, id = randomblob(16);
         UPDATE twin SET chain_id = id;
         INSERT INTO queuert_job SELECT * FROM twin",
    ),
    // One that was ready for two hours, while all the others were claimed.
    (
        "the order of ranks",
        "UPDATE queuert_job SET scheduled_at = scheduled_at - 3600000000, started_at = started_at + 3600000000,
             ended_at = ended_at + 3600000000
         WHERE id = (SELECT id FROM queuert_job WHERE type = 'contested' AND claims = 1 LIMIT 1)",
    ),
    // The highest priority counts for six minutes more than the lowest, and not for an hour.
    (
        "the order of ranks",
        "UPDATE queuert_job SET started_at = started_at + 3600000000 * (priority + 4) WHERE started_at IS NOT NULL",
    ),
    // Two attempts, and nobody knows how the first one ended.
    (
        "every attempt is accounted for",
        "UPDATE queuert_job SET claims = claims + 1, attempt = attempt + 1
         WHERE id = (SELECT id FROM queuert_job WHERE type = 'contested' AND claims = 1 LIMIT 1)",
    ),
];

#[tokio::test]
async fn doctored_tables_and_logs_are_found() {
    let original = TempDir::new().unwrap();
    run(&["--seconds", "1", "--faults", "snapshot"], original.path());
    doctored_tables(original.path(), &DOCTORED).await;
    doctored_logs(original.path()).await;
    a_snooze_without_an_answer(original.path()).await;
}

#[tokio::test]
async fn a_doctored_backlog_is_found() {
    let original = TempDir::new().unwrap();
    run(&["--jobs", "200", "--faults", "kill", "--kills", "2"], original.path());
    doctored_tables(original.path(), &DOCTORED_BACKLOG).await;
    an_attempt_without_an_end(original.path()).await;
}

/// A run in which nothing is broken.
fn run(settings: &[&str], directory: &Path) {
    let directory_name = directory.to_str().unwrap();
    let output = torture(&[&["sqlite"], settings, &["--directory", directory_name]].concat());
    assert!(output.status.success(), "{}", text(&output));
    let again = check(directory);
    assert!(again.status.success(), "{}", text(&again));
}

async fn doctored_tables(original: &Path, cases: &[(&str, &str)]) {
    for (rule, statements) in cases {
        let copy = copy_of(original);
        let mut connection = open(copy.path()).await;
        for statement in statements.split(';') {
            let done = connection.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
            let changes = ["DELETE", "UPDATE", "INSERT"];
            if changes.iter().any(|change| statement.trim_start().starts_with(change)) {
                assert!(done.rows_affected() > 0, "nothing to doctor: {statement}");
            }
        }
        connection.close().await.unwrap();
        found(copy.path(), rule, statements);
    }
}

/// A snooze that was written and whose answer was lost spends no attempt, though its attempt was told that it lost the
/// job. That explains the number of attempts where answers can be lost, and only there.
async fn a_snooze_without_an_answer(original: &Path) {
    let (job, started) = a_plain_job(original).await;
    for (faults, explained) in [("snapshot", false), ("snapshot,disk", true)] {
        let copy = copy_of(original);
        claimed_twice(
            copy.path(),
            job,
            started,
            "UPDATE queuert_job SET claims = 2 WHERE id = ?",
        )
        .await;
        let lines = [
            format!("begun {job} 1 1"),
            format!("snoozing {job} 1"),
            format!("returned {job} 1"),
            format!("ended {job} 1 Aborted-AlreadyCompleted"),
        ];
        let lines: String = lines.iter().map(|line| format!("0 {line}\n")).collect();
        // Of the plans in the logs the last one counts.
        let planned = format!("{} planned {faults}\n", i64::MAX);
        std::fs::write(copy.path().join("doctored.log"), lines + &planned).unwrap();
        match explained {
            true => {
                let output = check(copy.path());
                assert!(output.status.success(), "{}", text(&output));
            }
            false => found(copy.path(), "every attempt is counted", faults),
        }
    }
}

/// A lease that expired, or an error in the store, explains that an attempt did not complete its job. Nothing else does.
async fn an_attempt_without_an_end(original: &Path) {
    let (job, started) = a_plain_job(original).await;
    let twice = "UPDATE queuert_job SET claims = 2, attempt = 2 WHERE id = ?";
    let with_error =
        "UPDATE queuert_job SET claims = 2, attempt = 2, error_attempt = 1, error_at = 1, error = 'expired'
         WHERE id = ?";
    let reaped = format!("0 reaped {job} nobody\n");
    for (statement, more, explained) in [(twice, "", false), (twice, &*reaped, true), (with_error, "", true)] {
        let copy = copy_of(original);
        claimed_twice(copy.path(), job, started, statement).await;
        let lost = format!("0 begun {job} 1 1\n0 ended {job} 1 Aborted-TakenByAnotherWorker\n{more}");
        std::fs::write(copy.path().join("doctored.log"), lost).unwrap();
        match explained {
            true => {
                let output = check(copy.path());
                assert!(output.status.success(), "{}", text(&output));
            }
            false => found(copy.path(), "every attempt is accounted for", statement),
        }
    }
}

/// Makes the only claim of a job its second one, in the table by this statement, and in the logs.
async fn claimed_twice(directory: &Path, job: Uuid, started: i64, statement: &'static str) {
    let mut connection = open(directory).await;
    let done = sqlx::query(statement)
        .bind(job.as_bytes().as_slice())
        .execute(&mut connection);
    assert_eq!(done.await.unwrap().rows_affected(), 1);
    connection.close().await.unwrap();
    let mut renamed = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let log = std::fs::read_to_string(&path).unwrap();
            let begun = format!("begun {job} {started} ");
            renamed += log.matches(&begun).count();
            std::fs::write(path, log.replace(&format!("{begun}1"), &format!("{begun}2"))).unwrap();
        }
    }
    assert_eq!(renamed, 1);
}

/// A job that was claimed once and completed, without anything else, and when it was.
async fn a_plain_job(directory: &Path) -> (Uuid, i64) {
    let mut connection = open(directory).await;
    let (id, started): (Vec<u8>, i64) =
        sqlx::query_as("SELECT id, started_at FROM queuert_job WHERE type = 'slow' AND claims = 1 LIMIT 1")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    connection.close().await.unwrap();
    (Uuid::from_slice(&id).unwrap(), started)
}

/// The same for the logs beside the database.
async fn doctored_logs(original: &Path) {
    let (job, started) = a_plain_job(original).await;
    let unknown = Uuid::from_u128(1);
    let cases = [
        ("no chain is lost", format!("acknowledged {unknown}")),
        ("no chain is lost", format!("begun {unknown} 1 1")),
        ("rolled back is gone", format!("rolled-back {job}")),
        ("deleted is gone", format!("deleted {job}")),
        ("completed by whom it was", format!("contested {job}")),
        ("events match state", format!("event job-completed {job} nobody")),
        ("events match state", format!("event chain-dead {job}")),
        ("events match state", format!("event chain-completed {unknown}")),
        ("every attempt is accounted for", format!("begun {job} 1 1")),
        ("claimed once", format!("begun {job} 1 1")),
        ("every attempt is counted", format!("begun {job} 1 2")),
        ("completed once", format!("begun {job} 1 1\n0 ended {job} 1 Finished")),
        ("an attempt ends once", format!("reaped {job} nobody")),
        (
            "an attempt ends once",
            format!("begun {job} 1 1\n0 ended {job} 1 Failed"),
        ),
        ("by the account of a process", format!("ended {job} {started} Failed")),
        ("by the account of a process", "broken in some way".to_owned()),
        ("the store works for every process", "error of the store".to_owned()),
    ];
    for (rule, lines) in cases {
        let copy = copy_of(original);
        std::fs::write(copy.path().join("doctored.log"), format!("0 {lines}\n")).unwrap();
        found(copy.path(), rule, &lines);
    }
    let (begun, ended) = (
        format!("begun {job} {started} 1"),
        format!("ended {job} {started} Finished"),
    );
    for (rule, line) in [
        ("completed by a processor", &begun),
        ("by the account of a process", &begun),
        ("every attempt is accounted for", &ended),
        ("completed once", &ended),
    ] {
        let copy = copy_of(original);
        assert_eq!(remove_line(copy.path(), line), 1, "nothing to doctor: {line}");
        found(copy.path(), rule, line);
    }
}

/// Removes a line from the logs, wherever it is; says how often it was there.
fn remove_line(directory: &Path, gone: &str) -> usize {
    let mut removed = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let log = std::fs::read_to_string(&path).unwrap();
            let is_gone = |line: &&str| line.split_once(' ').is_some_and(|(_, text)| text == gone);
            removed += log.lines().filter(is_gone).count();
            let left: String = log
                .lines()
                .filter(|line| !is_gone(line))
                .map(|line| format!("{line}\n"))
                .collect();
            std::fs::write(path, left).unwrap();
        }
    }
    removed
}

fn copy_of(directory: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

async fn open(directory: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(directory.join("queue.db"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn check(directory: &Path) -> Output {
    let url = format!("sqlite:{}", directory.join("queue.db").display());
    torture(&["check", "sqlite", &url, directory.to_str().unwrap()])
}

fn found(directory: &Path, rule: &str, how: &str) {
    let output = check(directory);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{how}: {text}");
    assert!(text.contains(&format!("BROKEN: {rule}")), "{how}: {text}");
}
