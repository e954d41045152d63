//! Upkeep by workers: one at a time, in nobody's way, and only what it should.

mod support;

use std::future::Future;
use std::time::Duration;

use postgres_support::Cluster;
use queuert::adapter::{ClaimJobs, ClaimType, Maintain, Maintained, StateAdapter};
use queuert::{ChainId, Event, Fence, JobError, JobStatus, JobType, JobTypes, TypeName, WorkerId};
use queuert_postgres::{Attempt, Client, PostgresState, Retention};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use support::Schema;

/// Long after whatever is waited for: a test that gets here hangs.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Mail(u32);

#[derive(Serialize, Deserialize)]
struct Invoice(u32);

#[derive(Serialize, Deserialize)]
struct Letter(u32);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u32)]
    Mail(Mail),
    #[job(entry, output = u32)]
    Invoice(Invoice),
    #[job(entry, output = u32, blockers = Mail)]
    Letter(Letter),
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, future)
        .await
        .unwrap_or_else(|_| panic!("it takes too long that {what}"))
}

/// A process: a store of its own.
async fn process(schema: &Schema, retention: Retention) -> PostgresState {
    schema
        .options()
        .max_connections(3)
        .retention(retention)
        .connect_with(schema.connect_options())
        .await
        .expect("the test server can be used")
}

async fn maintain(state: &PostgresState, worker: &'static str) -> Maintained {
    let call = Maintain::new(WorkerId::new(worker));
    soon("upkeep returns", state.maintain(&call))
        .await
        .expect("upkeep succeeds")
}

fn worker(client: &Client) -> queuert::WorkerBuilder<PostgresState> {
    client
        .worker()
        .process(|job: Attempt<Mail>| async move {
            if job.0 == 13 {
                return Err(JobError::fatal("unlucky"));
            }
            job.finish(1)
        })
        .process(|job: Attempt<Invoice>| async move { job.finish(1) })
        .process(|job: Attempt<Letter>| async move { job.finish(1) })
}

async fn value<T>(schema: &Schema, pool: &PgPool, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let sql = sql.replace("{schema}", schema.name());
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .fetch_one(pool)
        .await
        .expect("a value can be read")
}

async fn owner(schema: &Schema, state: &PostgresState) -> String {
    value(schema, state.pool(), "SELECT owner FROM {schema}.maintainer").await
}

/// As if whoever has the upkeep had not been heard of for long.
async fn expire(schema: &Schema, connection: &mut PgConnection) {
    schema
        .run(connection, "UPDATE {schema}.maintainer SET leased_until = 0")
        .await;
}

async fn completed(client: &Client, count: u32) -> Vec<ChainId> {
    let chains = client
        .start_many((0..count).map(|_| Mail(1)))
        .await
        .expect("the chains start");
    worker(client).drain().await.expect("the jobs run");
    chains.iter().map(queuert::Started::id).collect()
}

async fn left(client: &Client, chains: &[ChainId]) -> usize {
    let chains = client.state().get_chains(None, chains).await;
    chains.expect("chains can be read").len()
}

#[tokio::test]
async fn one_of_three_has_the_upkeep_and_another_takes_it_when_that_one_is_gone() {
    let schema = Schema::new();
    let first = process(&schema, Retention::forever()).await;
    let second = process(&schema, Retention::forever()).await;
    let third = process(&schema, Retention::forever()).await;
    assert!(maintain(&first, "first").await.again_in <= Some(Duration::from_secs(15)));
    for (state, name) in [(&second, "second"), (&third, "third"), (&first, "first")] {
        let done = maintain(state, name).await;
        assert!(done.again_in.is_some(), "it may be needed one day");
        assert_eq!(owner(&schema, state).await, "first");
    }
    first.close().await;
    let mut connection = schema.connection().await;
    expire(&schema, &mut connection).await;
    maintain(&third, "third").await;
    maintain(&second, "second").await;
    assert_eq!(owner(&schema, &second).await, "third");
    // Somebody has emptied all tables: the row comes back.
    schema.run(&mut connection, "DELETE FROM {schema}.maintainer").await;
    maintain(&second, "second").await;
    maintain(&second, "second").await;
    assert_eq!(owner(&schema, &third).await, "second");
}

#[tokio::test]
async fn a_maintainer_that_dies_in_the_middle_of_a_batch_has_done_nothing_and_is_succeeded() {
    let schema = Schema::new();
    let first = process(&schema, Retention::of(Duration::ZERO)).await;
    let second = process(&schema, Retention::of(Duration::ZERO)).await;
    let client = Client::new(second.clone());
    let chains = completed(&client, 20).await;
    let mut connection = schema.connection().await;
    schema
        .run(
            &mut connection,
            "CREATE FUNCTION {schema}.hang() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$; \
             CREATE TRIGGER hang BEFORE DELETE ON {schema}.job EXECUTE FUNCTION {schema}.hang()",
        )
        .await;
    let dying = tokio::spawn(async move { first.maintain(&Maintain::new(WorkerId::new("first"))).await });
    let hangs = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND wait_event = 'PgSleep'",
        schema.name()
    );
    soon("it deletes", async {
        while value::<i64>(&schema, second.pool(), &hangs).await == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // It is in the middle of it: nobody else is, and nobody waits for it.
    assert_eq!(maintain(&second, "second").await.deleted, []);
    assert_eq!(owner(&schema, &second).await, "first");
    dying.abort();
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'PgSleep'",
    )
    .bind(schema.name())
    .execute(&mut connection)
    .await
    .expect("a session can be ended");
    schema.run(&mut connection, "DROP TRIGGER hang ON {schema}.job").await;
    assert_eq!(left(&client, &chains).await, 20);
    expire(&schema, &mut connection).await;
    assert_eq!(maintain(&second, "second").await.deleted.len(), 20);
    assert_eq!(owner(&schema, &second).await, "second");
    assert_eq!(left(&client, &chains).await, 0);
}

/// Three that all believe the lease to be over, all the time: a second one that deletes meanwhile would fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_never_delete_at_once_even_if_leases_end_all_the_time() {
    let schema = Schema::new();
    let state = process(&schema, Retention::forever()).await;
    let client = Client::new(state.clone());
    let chains = completed(&client, 1_500).await;
    let mut connection = schema.connection().await;
    schema
        .run(
            &mut connection,
            "CREATE FUNCTION {schema}.alone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NOT pg_try_advisory_xact_lock(hashtext('{schema}')) THEN RAISE EXCEPTION 'two at once'; END IF; \
             RETURN NULL; END $$; \
             CREATE TRIGGER alone BEFORE DELETE ON {schema}.job EXECUTE FUNCTION {schema}.alone()",
        )
        .await;
    let mut tasks = tokio::task::JoinSet::new();
    for name in ["first", "second", "third"] {
        let state = process(&schema, Retention::of(Duration::ZERO)).await;
        let (client, chains) = (client.clone(), chains.clone());
        tasks.spawn(async move {
            let mut deleted = 0;
            while left(&client, &chains).await > 0 {
                deleted += maintain(&state, name).await.deleted.len();
            }
            deleted
        });
    }
    let mut deleted = 0;
    soon("all are deleted", async {
        loop {
            tokio::select! {
                biased;
                ended = tasks.join_next() => match ended {
                    Some(count) => deleted += count.expect("nobody met another one"),
                    None => break,
                },
                () = expire(&schema, &mut connection) => {}
            }
        }
    })
    .await;
    assert_eq!(deleted, 1_500, "each is told once");
}

#[tokio::test]
async fn retention_deletes_what_is_old_and_nothing_else_while_workers_run() {
    let schema = Schema::new();
    let retention = Retention::of(Duration::from_millis(500)).forever_of_type(Invoice::NAME);
    let client = Client::new(process(&schema, retention).await);
    let mut gone: Vec<ChainId> = completed(&client, 1_200).await;
    let cancelled = client.start(Mail(1)).await.expect("it starts");
    client.cancel(cancelled.id()).await.expect("it is open");
    gone.push(cancelled.id());
    let dead = client.start(Mail(13)).await.expect("it starts").id();
    let kept = client.start(Invoice(1)).await.expect("it starts").id();
    worker(&client).drain().await.expect("the jobs run");
    let open = client
        .start(Mail(1))
        .delay(Duration::from_secs(3_600))
        .await
        .expect("it starts");
    // Completed, but a job that is due later has it as blocker.
    let needed = client.start(Mail(1)).await.expect("it starts");
    let letter = client
        .start(Letter(1).blocked_by(&needed))
        .delay(Duration::from_secs(3_600))
        .await
        .expect("it starts");
    let mut events = client.events();
    let workers = worker(&client).start().await.expect("the workers start");
    let mut deleted = Vec::new();
    soon("old chains are deleted", async {
        while deleted.len() < gone.len() {
            if let Some(Event::ChainDeleted { chain, .. }) = events.next().await {
                deleted.push(chain);
            }
        }
    })
    .await;
    workers.stop().await;
    deleted.sort_unstable();
    gone.sort_unstable();
    assert_eq!(deleted, gone);
    let others = [dead, kept, open.id(), needed.id(), letter.id()];
    assert_eq!(left(&client, &others).await, others.len());
    let rows = "SELECT (SELECT count(*) FROM {schema}.result) + (SELECT count(*) FROM {schema}.stopped)";
    assert_eq!(value::<i64>(&schema, client.state().pool(), rows).await, 3);
    // Once nobody needs it, and with dead ones asked for, they go too.
    client.cancel(letter.id()).await.expect("it is open");
    let retention = Retention::of(Duration::ZERO).forever_of_type(Invoice::NAME).dead_too();
    let state = process(&schema, retention).await;
    let mut connection = schema.connection().await;
    soon("the rest is deleted", async {
        while left(&client, &others).await > 2 {
            expire(&schema, &mut connection).await;
            maintain(&state, "later").await;
        }
    })
    .await;
    assert_eq!(left(&client, &[kept, open.id()]).await, 2);
}

#[tokio::test]
async fn upkeep_waits_for_nobody_and_claims_do_not_wait_for_upkeep() {
    let schema = Schema::new();
    let client = Client::new(process(&schema, Retention::of(Duration::ZERO)).await);
    let chains = completed(&client, 3).await;
    client.start(Mail(1)).await.expect("it starts");
    let mut connection = schema.connection().await;
    // What upkeep holds at most: its row, rows of old chains, and the lock of a vacuum.
    schema
        .run(
            &mut connection,
            "BEGIN; SELECT 1 FROM {schema}.maintainer FOR UPDATE; SELECT 1 FROM {schema}.result FOR UPDATE; \
             LOCK TABLE {schema}.ready, {schema}.running IN SHARE UPDATE EXCLUSIVE MODE",
        )
        .await;
    let types = vec![ClaimType {
        name: TypeName::from(Mail::NAME),
        lease: HANGS,
    }];
    let fence = Fence::from_uuid(uuid::Uuid::from_u128(1));
    let claim = ClaimJobs::new(types, 10, WorkerId::new("w"), fence);
    let claimed = soon("a claim returns", client.state().claim_jobs(&claim)).await;
    assert_eq!(claimed.expect("the store is well").jobs.len(), 1);
    assert_eq!(maintain(client.state(), "first").await.deleted, []);
    schema.run(&mut connection, "ROLLBACK").await;
    // One old chain is locked: the others go.
    schema
        .run(
            &mut connection,
            &format!(
                "BEGIN; SELECT 1 FROM {{schema}}.result WHERE id = '{}' FOR UPDATE",
                chains[1].as_uuid()
            ),
        )
        .await;
    assert_eq!(maintain(client.state(), "first").await.deleted.len(), 2);
    assert_eq!(left(&client, &chains).await, 1);
    schema.run(&mut connection, "ROLLBACK").await;
}

const DEAD_ROWS: &str = "SELECT pg_stat_get_dead_tuples('{schema}.ready'::regclass)";
const VACUUMS: &str = "SELECT pg_stat_get_vacuum_count('{schema}.ready'::regclass)";

/// Leaves this many dead rows in the busiest table, which autovacuum leaves alone.
async fn litter(schema: &Schema, pool: &PgPool, rows: i64) {
    let mut connection = schema.connection().await;
    let before: i64 = value(schema, pool, DEAD_ROWS).await;
    let insert = format!(
        "ALTER TABLE {{schema}}.ready SET (autovacuum_enabled = false); \
         INSERT INTO {{schema}}.ready (rank, scheduled_at, type_id, attempt, claims, priority, awaited, id) \
         SELECT n, n, 999, 0, 0, 0, false, gen_random_uuid() FROM generate_series(1, {rows}) AS n"
    );
    schema.run(&mut connection, &insert).await;
    schema
        .run(&mut connection, "DELETE FROM {schema}.ready WHERE type_id = 999")
        .await;
    // A session that ends tells what it has counted.
    sqlx::Connection::close(connection)
        .await
        .expect("a session can be closed");
    soon("dead rows are counted", async {
        while value::<i64>(schema, pool, DEAD_ROWS).await < before + rows {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn busy_tables_are_vacuumed_idle_ones_are_not_and_without_the_right_it_is_told_once() {
    // A server of its own: a transaction of another test would keep dead rows from being removed.
    let cluster = Cluster::launch().await;
    let schema = Schema::on(cluster.url());
    let state = process(&schema, Retention::forever()).await;
    litter(&schema, state.pool(), 1_000).await;
    maintain(&state, "owner").await;
    assert_eq!(
        value::<i64>(&schema, state.pool(), VACUUMS).await,
        0,
        "it is not worth it"
    );
    litter(&schema, state.pool(), 9_000).await;

    let mut connection = schema.connection().await;
    let role = format!("{}_role", schema.name());
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {{schema}} TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO {role}"
    );
    schema.run(&mut connection, &grants).await;
    let limited = schema
        .options()
        .without_migrating()
        .connect_with(schema.connect_options().username(&role))
        .await
        .expect("the role may work");
    expire(&schema, &mut connection).await;
    let told = maintain(&limited, "limited").await;
    assert_eq!(owner(&schema, &state).await, "limited");
    assert_eq!(told.findings.len(), 1, "{:?}", told.findings);
    assert!(told.findings[0].contains("may not vacuum"), "{:?}", told.findings);
    assert_eq!(maintain(&limited, "limited").await.findings, Vec::<String>::new());
    assert_eq!(value::<i64>(&schema, state.pool(), VACUUMS).await, 0);
    limited.close().await;
    schema
        .run(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;

    expire(&schema, &mut connection).await;
    let done = maintain(&state, "owner").await;
    assert_eq!(done.again_in, Some(Duration::from_secs(5)), "it is busy");
    assert_eq!(value::<i64>(&schema, state.pool(), VACUUMS).await, 1);
    let dead: i64 = value(&schema, state.pool(), DEAD_ROWS).await;
    assert_eq!(dead, 0, "dead rows are left");
    // Not again at once, whatever is left.
    maintain(&state, "owner").await;
    assert_eq!(value::<i64>(&schema, state.pool(), VACUUMS).await, 1);
}

#[tokio::test]
async fn checks_put_right_what_is_certain_and_tell_the_rest() {
    let schema = Schema::new();
    let client = Client::new(process(&schema, Retention::forever()).await);
    let blocker = client.start(Mail(1)).await.expect("it starts");
    let stuck = client.start(Letter(1).blocked_by(&blocker)).await.expect("it starts");
    let late = || Duration::from_secs(3_600);
    let lost = client.start(Mail(2)).delay(late()).await.expect("it starts");
    let bereft = client.start(Letter(2).blocked_by(&lost)).await.expect("it starts");
    let stateless = client.start(Invoice(1)).delay(late()).await.expect("it starts");
    let orphan = client.start(Invoice(2)).delay(late()).await.expect("it starts");
    let mut connection = schema.connection().await;
    let doctor = format!(
        "UPDATE {{schema}}.maintainer SET checked_at = 0; \
         UPDATE {{schema}}.waiting SET remaining = 2 WHERE id = '{}'; \
         DELETE FROM {{schema}}.job WHERE id = '{lost}'; DELETE FROM {{schema}}.later WHERE id = '{lost}'; \
         DELETE FROM {{schema}}.later WHERE id = '{}'; DELETE FROM {{schema}}.job WHERE id = '{}'",
        stuck.id().as_uuid(),
        stateless.id().as_uuid(),
        orphan.id().as_uuid(),
        lost = lost.id().as_uuid(),
    );
    schema.run(&mut connection, &doctor).await;
    // The workers run what can run, look after the store, and finish what was stuck.
    let mut events = client.events();
    let workers = worker(&client)
        .poll_interval(HANGS * 60)
        .start()
        .await
        .expect("the workers start");
    let (mut findings, mut unblocked) = (Vec::new(), Vec::new());
    soon("all is found", async {
        while findings.len() < 4 {
            match events.next().await {
                Some(Event::MaintenanceFinding { finding, .. }) => findings.push(finding),
                Some(Event::JobUnblocked { chain, .. }) => unblocked.push(chain),
                _ => {}
            }
        }
    })
    .await;
    assert_eq!(unblocked, [stuck.id()]);
    soon("what was stuck ends", async {
        client.wait(&stuck).await.expect("it ends well")
    })
    .await;
    workers.stop().await;
    let found = |what: &str, id: ChainId| {
        let is = |finding: &&std::sync::Arc<str>| finding.contains(what) && finding.contains(&id.to_string());
        assert_eq!(findings.iter().filter(is).count(), 1, "{what} {id}: {findings:?}");
    };
    found("`later` have no job", orphan.id());
    found("was corrected", stuck.id());
    found("do not exist", bereft.id());
    found("no row of state", stateless.id());
    let status = client
        .state()
        .get_chains(None, &[bereft.id()])
        .await
        .expect("it is there");
    assert_eq!(status[0].status, JobStatus::Blocked);
    // Once a day is enough.
    expire(&schema, &mut connection).await;
    assert_eq!(maintain(client.state(), "again").await.findings, Vec::<String>::new());
}
