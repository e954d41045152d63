//! How many statements a fleet sends that has nothing to do, by the server's own count.

mod support;

use std::time::Duration;

use postgres_support::ClusterOptions;
use queuert::{JobTypes, Workers};
use queuert_postgres::{Attempt, Client, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::{Executor, PgConnection};
use support::Schema;

#[derive(Serialize, Deserialize)]
struct First;
#[derive(Serialize, Deserialize)]
struct Second;
#[derive(Serialize, Deserialize)]
struct Third;
#[derive(Serialize, Deserialize)]
struct Fourth;
#[derive(Serialize, Deserialize)]
struct Fifth;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    First(First),
    #[job(entry, output = ())]
    Second(Second),
    #[job(entry, output = ())]
    Third(Third),
    #[job(entry, output = ())]
    Fourth(Fourth),
    #[job(entry, output = ())]
    Fifth(Fifth),
}

/// A process of the fleet: its notifier and its workers.
type Process = (PostgresNotify, Workers<PostgresState>);

macro_rules! process {
    ($schema:expr, $job:ty) => {{
        let state = $schema.state().await;
        let notify = PostgresNotify::new(&state);
        let client = Client::builder(state).notify(notify.clone()).build();
        let worker = client
            .worker()
            .process(|job: Attempt<$job>| async move { job.finish(()) });
        let workers = worker.concurrency(10).start().await.expect("the worker starts");
        (notify, workers)
    }};
}

/// Returns when all know each other.
async fn acquainted(fleet: &[Process]) {
    let knows_all = |(notify, _): &Process| notify.peers() == fleet.len() - 1;
    while !fleet.iter().all(knows_all) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn calls(watch: &mut PgConnection, database: &str) -> i64 {
    let text = "SELECT coalesce(sum(s.calls), 0)::int8 FROM pg_stat_statements AS s \
                JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = $1";
    let calls = sqlx::query_scalar(text)
        .bind(database.to_owned())
        .fetch_one(watch)
        .await;
    calls.expect("the server counts")
}

/// What was sent, for the message of an assertion.
async fn texts(watch: &mut PgConnection, database: &str) -> Vec<String> {
    let text = "SELECT format('%s times %s', s.calls, left(regexp_replace(s.query, '\\s+', ' ', 'g'), 120)) \
                FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = $1 \
                ORDER BY s.calls DESC";
    let texts = sqlx::query_scalar(text)
        .bind(database.to_owned())
        .fetch_all(watch)
        .await;
    texts.expect("the server counts")
}

/// A process that is alone looks every 1.1 seconds, and its look tells all else: that no lease has expired, that the listener
/// lives, and that the process is there. Its upkeep, with three statements, comes once a minute while it writes nothing. A
/// process with others shares the looks, one every 0.9 seconds for all, and sends besides them: upkeep with two statements and a
/// sweep of leases every fifteen seconds.
const SECONDS: u64 = 45;

/// Statements a process and second.
const LIMITS: [(&str, f64); 3] = [("one", 1.0), ("two", 1.0), ("disjoint", 0.6)];

/// It waits for a while because the limit is one of time. A slow machine sends less, never more.
#[tokio::test]
async fn a_process_with_nothing_to_do_sends_at_most_a_statement_per_second() {
    let cluster = ClusterOptions::default()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .start()
        .await;
    let mut watch = cluster.connect().await;
    let mut schemas = Vec::new();
    watch
        .execute("CREATE EXTENSION pg_stat_statements")
        .await
        .expect("the extension is there");
    for (name, _) in LIMITS {
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        watch.execute(sqlx::query(create)).await.expect("a superuser may");
        let url = cluster.url();
        let url = url.strip_suffix("postgres").expect("the name of the database is last");
        schemas.push(Schema::on(format!("{url}{name}")));
    }
    let [one, two, five] = &schemas[..] else {
        unreachable!("there are three")
    };
    let fleets = [
        vec![process!(one, First)],
        vec![process!(two, First), process!(two, First)],
        vec![
            process!(five, First),
            process!(five, Second),
            process!(five, Third),
            process!(five, Fourth),
            process!(five, Fifth),
        ],
    ];
    for fleet in &fleets {
        acquainted(fleet).await;
    }
    // The first upkeep, and the looks of processes that did not know each other yet, are over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    watch
        .execute("SELECT pg_stat_statements_reset()")
        .await
        .expect("the server counts");
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    for ((database, limit), fleet) in LIMITS.iter().zip(&fleets) {
        let (count, texts) = (calls(&mut watch, database).await, texts(&mut watch, database).await);
        let most = limit * (fleet.len() as u64 * SECONDS) as f64;
        assert!(count > 0, "nothing is counted");
        assert!(
            (count as f64) <= most,
            "{database}: {count} statements of {} processes: {texts:#?}",
            fleet.len()
        );
    }
    for (_, workers) in fleets.into_iter().flatten() {
        workers.stop().await;
    }
}
