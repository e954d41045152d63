//! The short version of the torture, and proof that its checker bites.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection};
use tempfile::TempDir;

fn sqlite_kill(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sqlite-kill"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    format!("{said}{errors}")
}

/// `scripts/torture-sqlite` does the same with two hundred kills. The seed is another one each time; a failure prints it.
#[test]
fn ten_kills_break_nothing() {
    let output = sqlite_kill(&["torture", "--kills", "10"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("integrity_check ok") && text.contains("all well"),
        "{text}"
    );
}

/// An effect that is committed apart from its job's completion is there twice when the process dies in between: the kills
/// do hit that moment, and the checker sees it.
#[test]
fn an_effect_outside_the_completing_transaction_is_found() {
    let output = sqlite_kill(&["torture", "--kills", "15", "--sabotage", "effect-outside"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("BROKEN: effects once"), "{text}");
    assert!(
        text.contains("2 rows") && text.contains("row in `effect`"),
        "the history is shown: {text}"
    );
    let directory = text.split("in /").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    std::fs::remove_dir_all(format!("/{directory}")).unwrap();
}

/// What a run has left, doctored in one way after another: each must be found, under the right name.
#[tokio::test]
async fn doctored_files_are_found() {
    let original = TempDir::new().unwrap();
    let directory = original.path().to_str().unwrap();
    let output = sqlite_kill(&["torture", "--kills", "4", "--directory", directory]);
    assert!(output.status.success(), "{}", text(&output));
    let again = sqlite_kill(&["check", directory]);
    assert!(again.status.success(), "{}", text(&again));

    let cases = [
        (
            "no chain is lost",
            "DELETE FROM queuert_job WHERE chain_id = (SELECT chain_id FROM queuert_job WHERE type = 'last' LIMIT 1)",
        ),
        (
            "nothing comes from nowhere",
            "DELETE FROM started WHERE rowid = (SELECT min(rowid) FROM started)",
        ),
        (
            "started once",
            "INSERT INTO started SELECT * FROM started WHERE existing = 0 LIMIT 1",
        ),
        (
            "one successor",
            "DROP INDEX queuert_job_chain;
             CREATE TEMP TABLE twin AS SELECT * FROM queuert_job WHERE type = 'middle' LIMIT 1;
             UPDATE twin SET seq = NULL, id = randomblob(16);
             INSERT INTO queuert_job SELECT * FROM twin",
        ),
        (
            "the declared way",
            "CREATE TEMP TABLE twin AS SELECT * FROM queuert_job WHERE type = 'last' LIMIT 1;
             UPDATE twin SET seq = NULL, id = randomblob(16), chain_index = chain_index + 1;
             INSERT INTO queuert_job SELECT * FROM twin",
        ),
        (
            "one successor",
            "DELETE FROM queuert_job WHERE id = (SELECT id FROM queuert_job WHERE type = 'middle' LIMIT 1)",
        ),
        (
            "every chain ends",
            "UPDATE queuert_job SET status = 1 WHERE id = (SELECT id FROM queuert_job WHERE type = 'single' LIMIT 1)",
        ),
        (
            "the right output",
            "UPDATE queuert_job SET output = '0' WHERE id = (SELECT id FROM queuert_job WHERE type = 'last' LIMIT 1)",
        ),
        (
            "inputs are passed on",
            "UPDATE queuert_job SET input = '{\"n\":5000}' WHERE id = (SELECT id FROM queuert_job WHERE type = 'last' LIMIT 1)",
        ),
        ("effects once", "INSERT INTO effect SELECT * FROM effect LIMIT 1"),
        (
            "effects once",
            "DELETE FROM effect WHERE rowid = (SELECT min(rowid) FROM effect)",
        ),
        ("effects once", "UPDATE balance SET total = total + 1"),
        (
            "only the last attempt counts",
            "UPDATE effect SET attempt = attempt + 1",
        ),
        ("prepared before completed", "DELETE FROM reserved"),
        (
            "fan-in",
            "UPDATE queuert_job SET started_at = created_at - 1 WHERE type = 'gather'",
        ),
        (
            "fan-in",
            "DELETE FROM queuert_blocker WHERE job_id = (SELECT id FROM queuert_job WHERE type = 'collect' LIMIT 1)",
        ),
        (
            "deduplication",
            "UPDATE queuert_job SET ended_at = ended_at + 3600000000, deduplication_key = 'key-0' WHERE type = 'keyed'",
        ),
        (
            "the file is intact",
            "CREATE INDEX wrong ON effect (job);
             PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = 'CREATE INDEX wrong ON effect (chain)' WHERE name = 'wrong'",
        ),
    ];
    for (rule, statements) in cases {
        let copy = copy_of(original.path());
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

/// The same for the logs beside the database.
#[test]
fn doctored_logs_are_found() {
    let original = TempDir::new().unwrap();
    let directory = original.path().to_str().unwrap();
    let output = sqlite_kill(&["torture", "--kills", "2", "--directory", directory]);
    assert!(output.status.success(), "{}", text(&output));

    let unknown = "00000000-0000-4000-8000-000000000001";
    let lost = copy_of(original.path());
    std::fs::write(lost.path().join("more.log"), format!("acknowledged {unknown}\n")).unwrap();
    found(lost.path(), "no chain is lost", unknown);

    let there = copy_of(original.path());
    let logs = std::fs::read_dir(there.path())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    let noted: String = logs.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let acknowledged = noted.lines().find(|line| line.starts_with("acknowledged")).unwrap();
    let line = acknowledged.replace("acknowledged", "rolled-back");
    std::fs::write(there.path().join("more.log"), line + "\n").unwrap();
    found(there.path(), "rolled back is gone", acknowledged);
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

fn found(directory: &Path, rule: &str, how: &str) {
    let output = sqlite_kill(&["check", directory.to_str().unwrap()]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{how}: {text}");
    assert!(text.contains(&format!("BROKEN: {rule}")), "{how}: {text}");
}
