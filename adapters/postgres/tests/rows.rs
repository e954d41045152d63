//! What a claim reads, by the counts of the server: the jobs that it takes, whatever lies around them. How long that takes
//! is measured by `scripts/bench postgres --only flat`.

mod support;

use std::time::Duration;

use postgres_support::Cluster;
use queuert::adapter::{ClaimJobs, ClaimType, NewChain, NewJob, StateAdapter};
use queuert::{Fence, JobId, Payload, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use support::Schema;
use uuid::Uuid;

const CLAIMED: usize = 10;

/// Rows that are written in one transaction.
const PORTION: u32 = 100_000;

/// Reads the plan of the claim that the store has prepared on its only connection, runs it, and undoes it.
async fn explain(schema: &Schema, state: &PostgresState) -> serde_json::Value {
    let mut connection = state.pool().acquire().await.expect("the only connection is free");
    let name: String =
        sqlx::query_scalar("SELECT name FROM pg_prepared_statements WHERE statement ~ 'synchronous_commit'")
            .persistent(false)
            .fetch_one(&mut *connection)
            .await
            .expect("one claim is prepared");
    let number = format!("SELECT id FROM {}.job_type WHERE name = 'mine'", schema.name());
    let number: i32 = sqlx::query_scalar(AssertSqlSafe(number))
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .expect("the type has a number");
    let text = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}(\
         ARRAY[{number}], {CLAIMED}, ARRAY[60000000]::bigint[], 'planner', gen_random_uuid(), false, \
         -9223372036854775808, -9223372036854775808)"
    );
    sqlx::raw_sql("BEGIN")
        .execute(&mut *connection)
        .await
        .expect("the connection is well");
    let plan = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut *connection).await;
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut *connection)
        .await
        .expect("the connection is well");
    let plan: String = plan
        .expect("a claim can be explained")
        .try_get_unchecked(0)
        .expect("a plan");
    let mut plans: Vec<serde_json::Value> = serde_json::from_str(&plan).expect("JSON");
    plans.pop().expect("one plan")
}

/// The most rows that one scan of a table has read.
fn most_rows(node: &serde_json::Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or_default();
    let own = match node["Relation Name"].is_string() {
        true => (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops"),
        false => 0.0,
    };
    let below = node["Plans"].as_array().into_iter().flatten().map(most_rows);
    below.fold(own, f64::max)
}

/// What would read or sort more than is asked for.
fn forbidden(node: &serde_json::Value) -> Vec<&str> {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    let own = ["Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort"].contains(&kind);
    let below = node["Plans"].as_array().into_iter().flatten().flat_map(forbidden);
    own.then_some(kind).into_iter().chain(below).collect()
}

async fn fill(schema: &Schema, connection: &mut PgConnection, type_name: &str, rows: u32, into: &str) {
    let rest = match into {
        "ready" => {
            "INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited) \
                    SELECT id, at, at, type_id, 0, 0, 0, false FROM new"
        }
        "later" => {
            "INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited) \
                    SELECT id, at + 86400000000, type_id, 0, 0, 0, false FROM new"
        }
        "running" => {
            "INSERT INTO {schema}.running (id, leased_until, scheduled_at, started_at, type_id, attempt, claims, \
                      priority, awaited, fence, owner, keyed, chain_type_id, chain_created_at) \
                      SELECT id, at + 86400000000, at, at, type_id, 1, 1, 0, false, gen_random_uuid(), 'another', \
                      false, type_id, at FROM new"
        }
        _ => {
            "INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, \
              final, output) SELECT id, at, at, at, type_id, 1, 1, true, '1' FROM new"
        }
    };
    for begun in (0..rows).step_by(PORTION as usize) {
        let portion = PORTION.min(rows - begun);
        let types = support::add_types(&[type_name]);
        let insert = format!(
            "{types}; \
                 WITH new AS MATERIALIZED (SELECT gen_random_uuid() AS id, t.id AS type_id, \
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000 AS at \
                   FROM generate_series(1, {portion}), {{schema}}.job_type AS t WHERE t.name = '{type_name}'), \
                 job AS (INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
                   created_at, blockers, priority, keyed, input) \
                   SELECT id, id, 0, type_id, type_id, at, at, 0, 0, false, '1' FROM new) {rest}"
        );
        schema.run(connection, &insert).await;
    }
}

/// Checks a claim that takes so many.
async fn check(schema: &Schema, state: &PostgresState, taken: usize, when: &str) {
    let plan = explain(schema, state).await;
    let rows = most_rows(&plan["Plan"]);
    assert!(rows <= taken as f64 + 1.0, "{when}: {rows} rows were read\n{plan:#}");
    assert!(
        rows >= taken as f64,
        "{when}: {rows} rows were read, so nothing was tested\n{plan:#}"
    );
    assert_eq!(forbidden(&plan["Plan"]), Vec::<&str>::new(), "{when}\n{plan:#}");
    let pages = |name: &str| plan["Plan"][name].as_u64().expect("pages are counted");
    let pages = pages("Shared Hit Blocks") + pages("Shared Read Blocks");
    // A job is in two tables before the claim and in two after it, with an index or two each, three levels deep.
    assert!(
        pages <= 40 * CLAIMED as u64,
        "{when}: {pages} pages were touched\n{plan:#}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_reads_what_it_takes_and_not_the_backlog() {
    // A server of its own, because so many rows would keep others waiting.
    let cluster = Cluster::launch().await;
    let schema = Schema::on(cluster.url());
    let state = schema
        .options()
        .max_connections(1)
        .connect_with(schema.connect_options())
        .await
        .expect("the test server can be used");
    let chain = NewChain::new(NewJob::new(
        JobId::from_uuid(Uuid::from_u128(fastrand::u128(..))),
        "mine",
        Payload::from_text("1"),
    ));
    state
        .create_chains(None, &[chain])
        .await
        .expect("the store is well")
        .expect("no refusal");
    let types = vec![ClaimType {
        name: "mine".into(),
        lease: Duration::from_secs(60),
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(types, CLAIMED, WorkerId::new("planner"), fence);
    assert_eq!(state.claim_jobs(&claim).await.expect("the store is well").jobs.len(), 1);
    let mut connection = schema.connection().await;
    // The plan was made on empty tables, and is kept.
    check(&schema, &state, 0, "with nothing to claim").await;
    let steps = [
        ("mine", 1_000, "ready"),
        ("mine", 99_000, "ready"),
        ("mine", 1_000_000, "result"),
        ("mine", 200_000, "later"),
        ("foreign", 100_000, "ready"),
        ("mine", 10_000, "running"),
    ];
    for (type_name, rows, table) in steps {
        fill(&schema, &mut connection, type_name, rows, table).await;
        let when = format!("with {rows} more of {type_name} in {table}");
        check(&schema, &state, CLAIMED, &when).await;
    }
    let mut holder = schema.connection().await;
    schema
        .run(
            &mut holder,
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.job_type",
        )
        .await;
    check(&schema, &state, CLAIMED, "with a snapshot held").await;
}
