//! The short version of the torture, and proof that its checker bites.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use postgres_support::Cluster;
use queuert_postgres_kill::{Plan, check, torture};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

/// What a run has left, doctored in one way after another: each must be found, under the right name.
const DOCTORED: [(&str, &str); 16] = [
    (
        "no chain is lost",
        "DELETE FROM queuert.job WHERE id = (SELECT id FROM queuert.job WHERE chain_index = 0 LIMIT 1)",
    ),
    (
        "nothing comes from nowhere",
        "DELETE FROM started WHERE ctid = (SELECT min(ctid) FROM started)",
    ),
    ("started once", "INSERT INTO started SELECT * FROM started LIMIT 1"),
    (
        "one successor",
        "DROP INDEX queuert.job_chain;
         CREATE TEMP TABLE twin AS SELECT * FROM queuert.job WHERE chain_index = 1 LIMIT 1;
         CREATE TEMP TABLE twins AS SELECT * FROM queuert.result WHERE id = (SELECT id FROM twin);
         UPDATE twin SET id = gen_random_uuid();
         UPDATE twins SET id = (SELECT id FROM twin);
         INSERT INTO queuert.job SELECT * FROM twin;
         INSERT INTO queuert.result SELECT * FROM twins",
    ),
    (
        "one successor",
        "DELETE FROM queuert.job WHERE id = (SELECT id FROM queuert.job WHERE chain_index = 1 LIMIT 1)",
    ),
    (
        "every chain ends",
        "CREATE TEMP TABLE gone AS SELECT * FROM queuert.result WHERE final LIMIT 1;
         INSERT INTO queuert.ready SELECT scheduled_at, scheduled_at, j.type_id, attempt, claims, j.priority, false, id,
             started_at, settled_fence FROM gone JOIN queuert.job j USING (id);
         DELETE FROM queuert.result WHERE id = (SELECT id FROM gone)",
    ),
    (
        "the right output",
        "UPDATE queuert.result SET output = '0' WHERE id = (SELECT id FROM queuert.result WHERE final LIMIT 1)",
    ),
    (
        "the declared way",
        "UPDATE queuert.job SET type_id = (SELECT id FROM queuert.job_type WHERE name = 'plain')
         WHERE id = (SELECT id FROM queuert.job WHERE chain_index = 2 LIMIT 1)",
    ),
    ("fan-in", "UPDATE queuert.result SET started_at = 1"),
    ("fan-in", "DELETE FROM queuert.blocker WHERE position = 1"),
    ("effects once", "INSERT INTO effect SELECT * FROM effect LIMIT 1"),
    (
        "effects once",
        "DELETE FROM effect WHERE ctid = (SELECT min(ctid) FROM effect)",
    ),
    (
        "only the last attempt counts",
        "UPDATE effect SET attempt = attempt + 1",
    ),
    (
        "every attempt is counted",
        "UPDATE queuert.result SET claims = claims + 1 WHERE id = (SELECT id FROM queuert.result LIMIT 1)",
    ),
    (
        "completed by a processor",
        "UPDATE queuert.result SET claims = claims + 1, attempt = attempt + 1
         WHERE id = (SELECT id FROM queuert.result LIMIT 1)",
    ),
    (
        "every attempt is counted",
        "UPDATE queuert.result SET claims = claims - 1, attempt = attempt - 1
         WHERE id = (SELECT id FROM queuert.result LIMIT 1)",
    ),
];

/// `scripts/torture-postgres` does the same with twenty processes, 50,000 jobs and two restarts. The seed is another one
/// each time; a failure prints it.
#[tokio::test]
async fn kills_and_a_restart_break_nothing_and_what_is_broken_is_found() {
    let cluster = Cluster::launch().await;
    let logs = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_postgres-kill"));
    let mut plan = Plan::default();
    (plan.processes, plan.jobs, plan.kills, plan.restarts) = (3, 550, 3, 1);
    assert!(torture(&cluster, logs.path(), program, &plan).await.unwrap());

    let mut server = cluster.connect().await;
    server.execute("CREATE DATABASE elsewhere").await.unwrap();
    server.close().await.unwrap();
    // From another database: one that is copied must have no session.
    let server = cluster.url().trim_end_matches("postgres").to_owned();
    let (elsewhere, copy) = (server.clone() + "elsewhere", server + "doctored");
    for (rule, statements) in DOCTORED {
        run(&elsewhere, "DROP DATABASE IF EXISTS doctored").await;
        run(&elsewhere, "CREATE DATABASE doctored TEMPLATE postgres").await;
        run(&copy, statements).await;
        let broken = check(&copy, logs.path()).await.unwrap();
        assert!(broken.contains(&rule), "{rule} is not among {broken:?}: {statements}");
    }

    doctored_logs(&cluster, logs.path()).await;
}

/// The same for the logs beside the database.
async fn doctored_logs(cluster: &Cluster, logs: &Path) {
    let url = cluster.url();
    let copy = TempDir::new().unwrap();
    let (mut begun, mut ended) = (0, 0);
    for entry in std::fs::read_dir(logs).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // Every process forgets the last attempt that it completed.
        let last = text.lines().rfind(|line| line.ends_with("Finished")).map(str::to_owned);
        let kept: Vec<&str> = text.lines().filter(|line| Some(*line) != last.as_deref()).collect();
        begun += kept.iter().filter(|line| line.starts_with("begun")).count();
        ended += text.lines().count() - kept.len();
        std::fs::write(copy.path().join(path.file_name().unwrap()), kept.join("\n") + "\n").unwrap();
    }
    assert!(begun > 0 && ended > 0, "there is something to doctor");
    let broken = check(&url, copy.path()).await.unwrap();
    assert!(broken.contains(&"every attempt is accounted for"), "{broken:?}");
    let empty = TempDir::new().unwrap();
    let broken = check(&url, empty.path()).await.unwrap();
    assert!(broken.contains(&"every attempt is accounted for"), "{broken:?}");
    assert!(broken.contains(&"completed by a processor"), "{broken:?}");
}

/// On a connection of its own, which is gone afterwards.
async fn run(url: &str, statements: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    for statement in statements.split(';') {
        let done = connection.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
        if ["DELETE", "UPDATE", "INSERT"]
            .iter()
            .any(|word| statement.trim_start().starts_with(word))
        {
            assert!(done.rows_affected() > 0, "nothing to doctor: {statement}");
        }
    }
    connection.close().await.unwrap();
}
