//! The short version of the torture, and proof that its checker bites.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::Path;

use postgres_support::Cluster;
use queuert_postgres_kill::{Plan, check, torture};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

/// What a run has left, doctored in one way after another: each must be found, under the right name.
const DOCTORED: [(&str, &str); 24] = [
    (
        "no chain is lost",
        "DELETE FROM queuert.job WHERE id = (SELECT id FROM queuert.job WHERE chain_index = 0 LIMIT 1)",
    ),
    (
        "nothing comes from nowhere",
        "DELETE FROM started WHERE ctid = (SELECT min(ctid) FROM started)",
    ),
    ("started once", "INSERT INTO started SELECT * FROM started LIMIT 1"),
    // With its row, as if the commit had never been.
    (
        "started as planned",
        "CREATE TEMP TABLE gone AS SELECT j.id FROM queuert.job j JOIN queuert.job_type t ON t.id = j.type_id
             WHERE t.name = 'plain' LIMIT 1;
         DELETE FROM started WHERE chain = (SELECT id::text FROM gone);
         DELETE FROM queuert.result WHERE id = (SELECT id FROM gone);
         DELETE FROM queuert.job WHERE id = (SELECT id FROM gone)",
    ),
    // As if the starter had not seen that its commit was done.
    (
        "started as planned",
        "CREATE TEMP TABLE twin AS SELECT j.* FROM queuert.job j JOIN queuert.job_type t ON t.id = j.type_id
             WHERE t.name = 'plain' LIMIT 1;
         CREATE TEMP TABLE twins AS SELECT * FROM queuert.result WHERE id = (SELECT id FROM twin);
         UPDATE twin SET id = gen_random_uuid();
         UPDATE twin SET chain_id = id;
         UPDATE twins SET id = (SELECT id FROM twin);
         INSERT INTO queuert.job SELECT * FROM twin;
         INSERT INTO queuert.result SELECT * FROM twins;
         INSERT INTO started SELECT id, 0 FROM twin",
    ),
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
         INSERT INTO queuert.ready (rank, scheduled_at, type_id, attempt, claims, priority, awaited, id, started_at,
             settled_fence)
         SELECT scheduled_at, scheduled_at, j.type_id, attempt, claims, j.priority, false, id, started_at, settled_fence
             FROM gone JOIN queuert.job j USING (id);
         DELETE FROM queuert.result WHERE id = (SELECT id FROM gone)",
    ),
    (
        "every chain ends",
        "CREATE TEMP TABLE gone AS SELECT * FROM queuert.result WHERE final LIMIT 1;
         INSERT INTO queuert.running (leased_until, scheduled_at, started_at, type_id, attempt, claims, priority, awaited,
             id, fence, owner, keyed, chain_type_id, chain_created_at)
         SELECT ended_at, scheduled_at, started_at, j.type_id, attempt, claims, j.priority, false, id, gen_random_uuid(),
             'nobody', j.keyed, j.chain_type_id, j.chain_created_at FROM gone JOIN queuert.job j USING (id);
         DELETE FROM queuert.result WHERE id = (SELECT id FROM gone)",
    ),
    (
        "every chain ends",
        "CREATE TEMP TABLE gone AS SELECT * FROM queuert.result WHERE final LIMIT 1;
         INSERT INTO queuert.stopped (ended_at, chain_created_at, scheduled_at, type_id, chain_type_id, attempt, claims,
             status, awaited, id, started_at, settled_fence)
         SELECT ended_at, g.chain_created_at, scheduled_at, j.type_id, g.chain_type_id, attempt, claims, 4, false, id,
             started_at, settled_fence FROM gone g JOIN queuert.job j USING (id);
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
        "only the last attempt counts",
        "UPDATE effect SET worker = 'nobody' WHERE ctid = (SELECT min(ctid) FROM effect)",
    ),
    // One that lay there for two hours, while all the others were claimed.
    (
        "the order of ranks",
        "UPDATE queuert.result SET scheduled_at = scheduled_at - 3600000000, started_at = started_at + 3600000000,
             ended_at = ended_at + 3600000000
         WHERE id = (SELECT r.id FROM queuert.result r JOIN queuert.job j USING (id)
             JOIN queuert.job_type t ON t.id = j.type_id WHERE t.name = 'plain' AND r.claims = 1 LIMIT 1)",
    ),
    // The highest priority counts for six minutes more than the lowest, and not for an hour.
    (
        "the order of ranks",
        "UPDATE queuert.result r SET started_at = started_at + 3600000000 * (SELECT j.priority + 4 FROM queuert.job j
             WHERE j.id = r.id)",
    ),
    // Long after the restart, all by one process.
    (
        "every process carries on",
        "UPDATE queuert.result SET started_at = started_at + 3600000000, completed_by = 'worker-1-1'",
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
    // One process more than kills: one lives from beginning to end, and has something that can be doctored.
    (plan.processes, plan.jobs, plan.kills, plan.restarts) = (4, 550, 3, 1);
    assert!(torture(&cluster, logs.path(), program, &plan).await.unwrap());

    let mut server = cluster.connect().await;
    server.execute("CREATE DATABASE elsewhere").await.unwrap();
    server.close().await.unwrap();
    // From another database: one that is copied must have no session.
    let server = cluster.url().trim_end_matches("postgres").to_owned();
    let (elsewhere, copy) = (server.clone() + "elsewhere", server + "doctored");
    let renew = async || {
        run(&elsewhere, "DROP DATABASE IF EXISTS doctored").await;
        run(&elsewhere, "CREATE DATABASE doctored TEMPLATE postgres").await;
    };
    for (rule, statements) in DOCTORED {
        renew().await;
        run(&copy, statements).await;
        let broken = which(&copy, logs.path()).await;
        assert!(broken.contains(&rule), "{rule} is not among {broken:?}: {statements}");
    }

    doctored_logs(&cluster, logs.path()).await;
    renew().await;
    doctored_attempt(&cluster, logs.path(), &copy).await;
}

/// The same for the logs beside the database.
async fn doctored_logs(cluster: &Cluster, logs: &Path) {
    let url = cluster.url();
    let lines = read(logs);
    assert_eq!(broken(&url, &lines).await, <[&str; 0]>::default(), "a copy is as good");
    let (process, job) = quiet_job(cluster, &lines).await;
    let noted = |text: &str| (process.clone(), text.to_owned());
    let with = |more: &[&str]| -> Vec<Line> { lines.iter().cloned().chain(more.iter().copied().map(noted)).collect() };
    let without = |gone: &str| -> Vec<Line> { lines.iter().filter(|(_, line)| line != gone).cloned().collect() };
    let planned = lines
        .iter()
        .map(|(_, line)| line)
        .find(|line| line.starts_with("planned"));
    let begun = &*format!("begun {job} 1");
    let finished = &*format!("ended {job} 1 Finished");
    let cases = [
        ("completed by a processor", Vec::new()),
        ("every attempt is accounted for", without(finished)),
        ("every attempt is accounted for", without(begun)),
        ("completed once", without(finished)),
        ("completed once", with(&[begun, finished])),
        ("completed by a processor", without(begun)),
        ("claimed once", with(&[begun, &format!("ended {job} 1 Aborted")])),
        (
            "every attempt is counted",
            with(&[&format!("begun {job} 2"), &format!("ended {job} 2 Aborted")]),
        ),
        ("an attempt ends once", with(&[&format!("reaped {job} nobody-1")])),
        ("an attempt ends once", with(&[begun, &format!("ended {job} 1 Failed")])),
        (
            "no chain is lost",
            with(&["begun 00000000-0000-4000-8000-000000000001 1"]),
        ),
        ("started as planned", without(planned.unwrap())),
    ];
    for (rule, lines) in cases {
        let broken = broken(&url, &lines).await;
        assert!(broken.contains(&rule), "{rule} is not among {broken:?}");
    }
}

/// A job that was claimed twice: somebody must know how its first attempt ended.
async fn doctored_attempt(cluster: &Cluster, logs: &Path, copy: &str) {
    let mut lines = read(logs);
    let (process, job) = quiet_job(cluster, &lines).await;
    for (_, line) in &mut lines {
        if *line == format!("ended {job} 1 Finished") {
            *line = format!("ended {job} 1 Aborted");
        }
    }
    lines.push((process.clone(), format!("begun {job} 2")));
    lines.push((process.clone(), format!("ended {job} 2 Finished")));
    let twice = format!("UPDATE queuert.result SET claims = 2, attempt = 2 WHERE id = '{job}'");
    run(copy, &twice).await;
    assert_eq!(broken(copy, &lines).await, ["every attempt is accounted for"]);

    let mut reaped = lines.clone();
    reaped.push((process.clone(), format!("reaped {job} {process}-1")));
    assert_eq!(broken(copy, &reaped).await, <[&str; 0]>::default(), "its lease expired");

    let stored = format!(
        "INSERT INTO queuert.failure (at, attempt, id, message) VALUES (1, 1, '{job}', 'the lease of worker nobody expired')"
    );
    run(copy, &stored).await;
    assert_eq!(broken(copy, &lines).await, <[&str; 0]>::default(), "the store tells");
}

/// A job that writes nothing and was completed at once by a process that lived to the end, and that process.
async fn quiet_job(cluster: &Cluster, lines: &[Line]) -> (String, String) {
    let mut server = cluster.connect().await;
    let plain: Vec<String> = sqlx::query_scalar(
        "SELECT r.id::text FROM queuert.result r JOIN queuert.job j USING (id)
         JOIN queuert.job_type t ON t.id = j.type_id WHERE t.name = 'plain' AND r.claims = 1",
    )
    .fetch_all(&mut server)
    .await
    .unwrap();
    server.close().await.unwrap();
    let killed = |process: &str| lines.iter().any(|(_, line)| *line == format!("killed {process}"));
    let quiet = |(process, line): &Line| {
        let job = line.strip_prefix("ended ")?.strip_suffix(" 1 Finished")?;
        (!killed(process) && plain.iter().any(|id| id == job)).then(|| (process.clone(), job.to_owned()))
    };
    lines.iter().find_map(quiet).expect("there is something to doctor")
}

/// What is broken with these logs.
async fn broken(url: &str, lines: &[Line]) -> Vec<&'static str> {
    let logs = TempDir::new().unwrap();
    let mut texts: HashMap<&str, String> = HashMap::new();
    for (process, line) in lines {
        let text = texts.entry(process).or_default();
        text.push_str(line);
        text.push('\n');
    }
    for (process, text) in texts {
        std::fs::write(logs.path().join(process).with_extension("log"), text).unwrap();
    }
    which(url, logs.path()).await
}

/// The rules that are broken, each once.
async fn which(url: &str, logs: &Path) -> Vec<&'static str> {
    let mut broken = check(url, logs).await.unwrap();
    broken.sort_unstable();
    broken.dedup();
    broken
}

/// The process, and what it noted.
type Line = (String, String);

fn read(logs: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(logs).unwrap() {
        let path = entry.unwrap().path();
        let process = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        lines.extend(text.lines().map(|line| (process.clone(), line.to_owned())));
    }
    lines
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
