//! The plans of the hot statements, read from the connection that runs them: whatever the tables looked like when a plan
//! was made, it must never read or sort what is not asked for.

mod support;

use std::time::Duration;

use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, NewChain, NewJob, Outcome, ReapLeases, ReapType, RenewLease, SampleQueues,
    Settlement, StateAdapter,
};
use queuert::{Fence, JobId, Payload, RetryPolicy, Schedule, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use support::Schema;
use uuid::Uuid;

const TYPES: [&str; 3] = ["first", "second", "third"];

fn id() -> JobId {
    JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)))
}

fn fence() -> Fence {
    Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)))
}

fn claim(limit: usize) -> ClaimJobs {
    let types = TYPES.map(|name| ClaimType {
        name: name.into(),
        lease: Duration::from_secs(60),
    });
    ClaimJobs::new(types.to_vec(), limit, WorkerId::new("planner"), fence())
}

/// Runs every hot verb once, with something to do.
async fn exercise(state: &PostgresState) {
    let chains: Vec<NewChain> = (0..8)
        .map(|number| NewChain::new(NewJob::new(id(), TYPES[number % 3], Payload::from_text("1"))))
        .collect();
    state
        .create_chains(None, &chains)
        .await
        .expect("the store is well")
        .expect("no refusal");
    let claim = claim(6);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well").jobs;
    assert_eq!(claimed.len(), 6);
    let renewals: Vec<RenewLease> = claimed
        .iter()
        .map(|claimed| RenewLease {
            job: claimed.job.id,
            fence: claim.fence,
            lease: Duration::from_secs(60),
        })
        .collect();
    state.renew_leases(None, &renewals).await.expect("the store is well");
    let reap = ReapLeases::new(
        TYPES
            .map(|name| ReapType::new(name, RetryPolicy::new(), Duration::from_secs(60)))
            .to_vec(),
        10,
        Vec::new(),
    );
    state.reap_leases(&reap).await.expect("the store is well");
    let sample = SampleQueues::new(TYPES.map(Into::into).to_vec(), 1_000);
    let samples = state.sample_queues(&sample).await.expect("the store is well");
    assert!(samples.iter().map(|sample| sample.ready).sum::<usize>() >= 2);
    let outcomes = [
        Outcome::Finish {
            output: Payload::from_text("1"),
        },
        Outcome::Continue {
            next: Box::new(NewJob::new(id(), "second", Payload::from_text("2"))),
        },
        Outcome::Retry {
            schedule: Schedule::Now,
            error: "once".to_owned(),
        },
        Outcome::Bury {
            error: "fatal".to_owned(),
        },
        Outcome::Release,
        Outcome::Finish {
            output: Payload::from_text("2"),
        },
    ];
    let settlements: Vec<Settlement> = claimed
        .iter()
        .zip(outcomes)
        .map(|(claimed, outcome)| Settlement {
            job: claimed.job.id,
            authority: Authority::Fence {
                fence: claim.fence,
                worker: WorkerId::new("planner"),
            },
            outcome,
        })
        .collect();
    state
        .settle_jobs(None, &settlements[..5])
        .await
        .expect("the store is well");
    // By themselves, so that there are statements that only finish, and only continue.
    state
        .settle_jobs(None, &settlements[5..])
        .await
        .expect("the store is well");
    let claim = self::claim(1);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well").jobs;
    let continues = Settlement {
        job: claimed[0].job.id,
        authority: Authority::Fence {
            fence: claim.fence,
            worker: WorkerId::new("planner"),
        },
        outcome: Outcome::Continue {
            next: Box::new(NewJob::new(id(), "second", Payload::from_text("2"))),
        },
    };
    state.settle_jobs(None, &[continues]).await.expect("the store is well");
    // And one claim that takes many.
    state.claim_jobs(&self::claim(100)).await.expect("the store is well");
    // And claims that weigh what they take, few and many.
    for limit in [6, 100] {
        let claim = self::claim(limit).within_bytes(1, 4 << 20);
        state.claim_jobs(&claim).await.expect("the store is well");
    }
}

/// The generic plans of all statements that the connection has prepared, with their texts.
async fn plans(connection: &mut PgConnection) -> Vec<(String, String)> {
    let prepared = sqlx::query(
        "SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement ~ 'queuert_test'",
    )
    .persistent(false)
    .fetch_all(&mut *connection)
    .await
    .expect("the connection knows its statements");
    let mut plans = Vec::new();
    for row in prepared {
        let (name, statement, parameters): (String, String, i32) = (row.get(0), row.get(1), row.get(2));
        let nulls = vec!["NULL"; usize::try_from(parameters).expect("a count")].join(", ");
        let arguments = if parameters == 0 {
            String::new()
        } else {
            format!("({nulls})")
        };
        let lines = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE {name}{arguments}")))
            .fetch_all(&mut *connection)
            .await
            .expect("a prepared statement can be explained");
        let plan: Vec<String> = lines.iter().map(|line| line.get(0)).collect();
        plans.push((statement, plan.join("\n")));
    }
    plans
}

/// The tables that the plan reads as a whole. Of `running` it may: a sweep looks at all that is in flight. `process` has a
/// row per process that lives.
fn whole_reads(plan: &str) -> Vec<&str> {
    let small = ["Seq Scan on running", "Seq Scan on process "];
    let is_read = |line: &&str| line.contains("Seq Scan on") && !small.iter().any(|table| line.contains(table));
    plan.lines().filter(is_read).map(str::trim).collect()
}

/// The indexes that the plan reads from one end to the other.
fn unbound_reads(plan: &str) -> Vec<&str> {
    let lines: Vec<&str> = plan.lines().map(str::trim).collect();
    let unbound = |pair: &&[&str]| pair[0].contains("Scan using") && !pair[1].starts_with("Index Cond");
    lines.windows(2).filter(unbound).map(|pair| pair[0]).collect()
}

async fn check(state: &PostgresState, when: &str) {
    exercise(state).await;
    let mut connection = state.pool().acquire().await.expect("the only connection is free");
    let plans = plans(&mut connection).await;
    let claims: Vec<_> = plans
        .iter()
        .filter(|(text, _)| text.contains("synchronous_commit"))
        .collect();
    assert!(!claims.is_empty(), "no claim was prepared {when}");
    for (text, plan) in &plans {
        assert_eq!(whole_reads(plan), Vec::<&str>::new(), "{when}: {text}\n{plan}");
        assert_eq!(unbound_reads(plan), Vec::<&str>::new(), "{when}: {text}\n{plan}");
    }
    let samples: Vec<_> = plans
        .iter()
        .filter(|(text, _)| text.contains("AS sampled_type(id, place)"))
        .collect();
    assert!(!samples.is_empty(), "no sample was prepared {when}");
    for (_, plan) in samples {
        assert_eq!(
            plan.matches("using ready_claim").count(),
            2,
            "{when}: runs of the index\n{plan}"
        );
        assert_eq!(
            plan.matches("using later_due").count(),
            1,
            "{when}: runs of the index\n{plan}"
        );
        assert!(!plan.contains("Bitmap"), "{when}: a run ends with its limit\n{plan}");
    }
    let weighs = |text: &str| text.contains("AS fits");
    assert!(claims.iter().any(|(text, _)| weighs(text)), "no claim weighs {when}");
    for (text, plan) in claims {
        let branches = plan.matches("using ready_claim").count();
        assert_eq!(branches, TYPES.len(), "{when}: one ordered run per type\n{plan}");
        assert!(
            plan.contains("Merge Append"),
            "{when}: runs are merged, not sorted\n{plan}"
        );
        assert!(!plan.contains("Bitmap"), "{when}: runs are read in order\n{plan}");
        // A claim that weighs sorts what it has taken, if that is too heavy, and nothing else.
        let sorts = usize::from(weighs(text));
        assert_eq!(
            plan.matches("Sort\n").count(),
            sorts,
            "{when}: nothing is sorted\n{plan}"
        );
        if weighs(text) {
            let beyond = plan.split("CTE beyond").nth(1).expect("it weighs");
            let gate = beyond.find("One-Time Filter").expect("only if it is too heavy");
            assert!(gate < beyond.find("Sort\n").expect("it sorts"), "{when}\n{plan}");
        }
    }
}

/// Fills the store by hand: ready jobs, jobs due later and history, of the types that are claimed and of others.
async fn fill(schema: &Schema, connection: &mut PgConnection, rows: u32) {
    let types: Vec<(i32, String)> = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT id, name FROM {}.job_type",
        schema.name()
    )))
    .fetch_all(&mut *connection)
    .await
    .expect("types can be read");
    assert!(types.len() >= TYPES.len());
    let foreign = support::add_types(&["foreign"]);
    schema
        .run(
            connection,
            &format!(
                "{foreign}; \
                 WITH new AS (SELECT gen_random_uuid() AS id, i, (SELECT id FROM {{schema}}.job_type \
                   WHERE name = (ARRAY['first', 'second', 'third', 'foreign'])[1 + i % 4]) AS type_id, \
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + i AS at FROM generate_series(1, {rows}) AS i), \
                 job AS (INSERT INTO {{schema}}.job (id, chain_id, chain_index, type_id, chain_type_id, chain_created_at, \
                   created_at, blockers, priority, keyed, input) \
                   SELECT id, id, 0, type_id, type_id, at, at, 0, 0, false, '1' FROM new), \
                 ready AS (INSERT INTO {{schema}}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited) \
                   SELECT id, at, at, type_id, 0, 0, 0, false FROM new WHERE i % 3 = 0), \
                 later AS (INSERT INTO {{schema}}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited) \
                   SELECT id, at + 3600000000, type_id, 0, 0, 0, false FROM new WHERE i % 3 = 1) \
                 INSERT INTO {{schema}}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, \
                   claims, final, output) SELECT id, at, at, at, type_id, 1, 1, true, '1' FROM new WHERE i % 3 = 2"
            ),
        )
        .await;
}

/// A connection whose plans were made on empty tables keeps them, one that comes later makes its own; both are right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_do_not_depend_on_what_there_is() {
    let schema = Schema::new();
    let connect = || {
        schema
            .options()
            .max_connections(1)
            .connect_with(schema.connect_options())
    };
    let old = connect().await.expect("the test server can be used");
    check(&old, "on empty tables").await;
    let mut connection = schema.connection().await;
    // Tables that have pages and no rows, as after a quiet hour, promise the planner that there are none.
    schema
        .run(
            &mut connection,
            "DELETE FROM {schema}.running; DELETE FROM {schema}.ready; DELETE FROM {schema}.job; \
             DELETE FROM {schema}.failure; DELETE FROM {schema}.result; DELETE FROM {schema}.stopped",
        )
        .await;
    for table in ["running", "ready", "job", "failure", "result", "stopped"] {
        schema.run(&mut connection, &format!("VACUUM {{schema}}.{table}")).await;
    }
    let believed = format!(
        "SELECT reltuples::bigint, relpages::bigint FROM pg_class WHERE oid = '{}.running'::regclass",
        schema.name()
    );
    let believed = sqlx::query(AssertSqlSafe(believed)).fetch_one(&mut connection).await;
    let believed = believed.expect("the catalogue can be read");
    assert_eq!(believed.get::<i64, _>(0), 0, "no rows");
    assert!(believed.get::<i64, _>(1) > 0, "though there are pages");
    check(&old, "on emptied tables").await;
    for (rows, analyze) in [(1_000, false), (1_000, true), (100_000, false), (0, true)] {
        fill(&schema, &mut connection, rows).await;
        if analyze {
            for table in ["job", "ready", "later", "running", "result"] {
                schema
                    .run(&mut connection, &format!("ANALYZE {{schema}}.{table}"))
                    .await;
            }
        }
        let when = format!("with {rows} more rows, analyzed: {analyze}");
        check(&old, &format!("{when}, plans of before")).await;
        let new = connect().await.expect("the test server can be used");
        check(&new, &format!("{when}, plans of now")).await;
        new.close().await;
    }
}
