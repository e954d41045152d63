//! Which processes are taken for dead, and what is evidence of life. Dead and living processes are rows and locks here; real
//! ones are killed, frozen and cut off in `tests/torture`.

mod support;

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, ReapCause, ReapLeases, ReapType, RenewLease, Renewal, StateAdapter};
use queuert::{Fence, JobId, JobType, JobTypes, LeaseSettings, RetryPolicy, WorkerId};
use queuert_postgres::{Attempt, Client, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection};
use support::Schema;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(120);

/// No test waits for the end of such a lease.
const LEASE: Duration = Duration::from_secs(600);

#[derive(Serialize, Deserialize)]
struct Task(u64);

#[derive(Serialize, Deserialize)]
struct Gather;

#[derive(Serialize, Deserialize)]
struct Step(u64);

#[derive(Serialize, Deserialize)]
struct LastStep(u64);

#[derive(Serialize, Deserialize)]
struct Fork;

#[derive(Serialize, Deserialize)]
struct Join;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u64)]
    Task(Task),
    #[job(entry, output = (), blockers = [Task])]
    Gather(Gather),
    #[job(entry, continues = [LastStep])]
    Step(Step),
    #[job(output = u64)]
    LastStep(LastStep),
    #[job(entry, continues = [Join])]
    Fork(Fork),
    #[job(output = (), blockers = [Task])]
    Join(Join),
}

fn claim(worker: &str, fence: u128) -> ClaimJobs {
    let task = ClaimType {
        name: Task::NAME.into(),
        lease: LEASE,
    };
    ClaimJobs::new(
        vec![task],
        1,
        WorkerId::new(worker),
        Fence::from_uuid(Uuid::from_u128(fence)),
    )
}

async fn ask(connection: &mut PgConnection, schema: &Schema, sql: &str) -> i64 {
    let sql = sql.replace("{schema}", schema.name());
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await
        .expect("the server tells")
}

/// Waits until the number is this.
async fn until(connection: &mut PgConnection, schema: &Schema, sql: &str, wanted: i64) {
    let asking = async {
        while ask(connection, schema, sql).await != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("never {wanted}: {sql}"));
}

/// A state whose workers have no lifeline, so that the test can say what their process does.
async fn without_lifeline(schema: &Schema) -> PostgresState {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_with(schema.connect_options())
        .await
        .expect("the test server can be reached");
    schema.options().from_pool(pool).await.expect("it can be used")
}

/// A job that runs in a process of which there is a row and no lock.
async fn run_in(ghosts: &PostgresState, watch: &mut PgConnection, schema: &Schema, key: i64) -> JobId {
    let client = Client::builder(ghosts.clone()).build();
    client.start(Task(1)).await.expect("the chain is started");
    let worker = format!("ghost {key}");
    let claimed = ghosts.claim_jobs(&claim(&worker, u128::from(key.unsigned_abs()))).await;
    let row = format!(
        "INSERT INTO {{schema}}.process (key, registered_at, workers, renewed_at) \
         VALUES ({key}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, ARRAY['{worker}'], 1)"
    );
    schema.run(watch, &row).await;
    claimed.expect("the store is well").jobs[0].job.id
}

fn sweep() -> ReapLeases {
    let task = ReapType::new(Task::NAME, RetryPolicy::new(), Duration::from_secs(60));
    ReapLeases::new(vec![task], 10, Vec::new())
}

/// A process that dies with its first job is known to have had it.
#[tokio::test]
async fn a_process_is_known_before_it_has_its_first_job() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let state = schema.state().await;
    let known = "SELECT count(*) FROM {schema}.process AS p JOIN pg_locks AS l ON l.locktype = 'advisory' AND l.granted \
                 AND ((l.classid::bigint << 32) | l.objid::bigint) = p.key WHERE 'early bird' = ANY (p.workers)";
    assert_eq!(ask(&mut watch, &schema, known).await, 0);
    let claimed = state.claim_jobs(&claim("early bird", 1)).await;
    assert!(claimed.expect("the store is well").jobs.is_empty(), "there is none yet");
    assert_eq!(ask(&mut watch, &schema, known).await, 1, "it could have had one");
}

#[tokio::test]
async fn every_renewal_is_a_sign_of_life() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let state = schema.state().await;
    let client = Client::builder(state.clone()).build();
    let chain = client.start(Task(1)).await.expect("the chain is started");
    let claim = claim("worker", 1);
    state.claim_jobs(&claim).await.expect("the store is well");
    let signs = "SELECT max(renewed_at) FROM {schema}.process";
    let before = ask(&mut watch, &schema, signs).await;
    let renewal = RenewLease {
        job: JobId::from_uuid(chain.id().as_uuid()),
        fence: claim.fence,
        lease: LEASE,
    };
    let renewed = state.renew_leases(None, &[renewal]).await.expect("the store is well");
    assert!(matches!(renewed[..], [Renewal::Renewed(_)]), "{renewed:?}");
    assert!(ask(&mut watch, &schema, signs).await > before);
}

/// Its lifeline is gone, and it gives signs of life over other connections.
#[tokio::test]
async fn a_process_that_gives_signs_of_life_without_a_lifeline_is_alive() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let state = schema.state().await;
    let ghosts = without_lifeline(&schema).await;
    let living = run_in(&ghosts, &mut watch, &schema, 1).await;
    let signs = tokio::spawn({
        let mut connection = schema.connection().await;
        let sign = format!(
            "UPDATE {}.process SET renewed_at = renewed_at + 1 WHERE key = 1",
            schema.name()
        );
        async move {
            loop {
                let sign = sqlx::raw_sql(AssertSqlSafe(sign.clone())).execute(&mut connection);
                sign.await.expect("the server is well");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    let begun = Instant::now();
    // The state sees it without a lock for the first time, before the other one.
    let seen = tokio::time::timeout(Duration::from_secs(2), state.owner_died(begun)).await;
    assert!(seen.is_err(), "it gives signs");
    let dead = run_in(&ghosts, &mut watch, &schema, 2).await;
    tokio::time::timeout(PATIENCE, state.owner_died(begun))
        .await
        .expect("the other one gives none");
    let reaped = state.reap_leases(&sweep()).await.expect("the store is well");
    let reaped: Vec<_> = reaped.iter().map(|reaped| (reaped.job.id, reaped.cause)).collect();
    assert_eq!(reaped, [(dead, ReapCause::OwnerDied)], "and not {living}");
    signs.abort();
}

/// The last moment counts: a lease that was renewed after its owner was taken for dead is not taken.
#[tokio::test]
async fn a_renewal_after_the_verdict_saves_the_lease() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let state = schema.state().await;
    let ghosts = without_lifeline(&schema).await;
    let begun = Instant::now();
    let job = run_in(&ghosts, &mut watch, &schema, 1).await;
    tokio::time::timeout(PATIENCE, state.owner_died(begun))
        .await
        .expect("it is taken for dead");
    schema
        .run(&mut watch, "UPDATE {schema}.process SET renewed_at = renewed_at + 1")
        .await;
    let reaped = state.reap_leases(&sweep()).await.expect("the store is well");
    assert!(reaped.is_empty(), "{reaped:?}");
    // And another one that has its sign under way is left alone, without waiting for it.
    let mut open = schema.connection().await;
    schema
        .run(
            &mut open,
            "BEGIN; UPDATE {schema}.process SET renewed_at = renewed_at + 1",
        )
        .await;
    tokio::time::timeout(PATIENCE, state.owner_died(Instant::now()))
        .await
        .expect("it is taken for dead again");
    let reaped = state.reap_leases(&sweep()).await.expect("the store is well");
    assert!(reaped.is_empty(), "{reaped:?}");
    schema.run(&mut open, "ROLLBACK").await;
    let reaped = state.reap_leases(&sweep()).await.expect("the store is well");
    assert_eq!(reaped.first().map(|reaped| reaped.job.id), Some(job), "it was silent");
}

/// What an attempt does with its first transaction when it has written its end there.
async fn never_commits(written: &Semaphore) {
    written.add_permits(1);
    std::future::pending().await
}

/// In every way to end an attempt in its transaction: what is written and not committed is undone when the lease is over,
/// whatever has become of the process. Idle before the end, a transaction may be as long as it likes.
#[tokio::test]
async fn an_end_that_is_not_committed_in_the_time_of_its_lease_is_undone() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let client = Client::builder(schema.state().await).build();
    let lease = Duration::from_secs(2);
    let written = Arc::new(Semaphore::new(0));
    let (task, step, fork) = (Arc::clone(&written), Arc::clone(&written), Arc::clone(&written));
    let starter = client.clone();
    let workers = client
        .worker()
        .process(move |job: Attempt<Task>| {
            let written = Arc::clone(&task);
            async move {
                let n = job.0;
                let mut tx = job.begin().await?;
                sqlx::query("SELECT 1").execute(&mut *tx).await?;
                // Longer than the lease, and than any end has time to be committed.
                tokio::time::sleep(Duration::from_secs(7)).await;
                let done = tx.finish(n).await?;
                never_commits(&written).await;
                Ok(done)
            }
        })
        .process(move |job: Attempt<Step>| {
            let written = Arc::clone(&step);
            async move {
                let n = job.0;
                let tx = job.begin().await?;
                let done = tx.continue_with(LastStep(n)).await?;
                never_commits(&written).await;
                Ok(done)
            }
        })
        .process(move |job: Attempt<Fork>| {
            let (written, starter) = (Arc::clone(&fork), starter.clone());
            async move {
                let mut tx = job.begin().await?;
                let task = starter.start(Task(4)).within(&mut tx).await?;
                let done = tx.continue_with(Join.blocked_by([&task])).await?;
                never_commits(&written).await;
                Ok(done)
            }
        })
        .process(|job: Attempt<LastStep>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Join>| async move { job.finish(()) })
        .process(|job: Attempt<Gather>| async move { job.finish(()) })
        .concurrency(8)
        .lease(LeaseSettings::new(lease))
        .start()
        .await
        .expect("the workers start");
    // One that nobody waits for, one that somebody waits for, one that goes on, and one that goes on to wait.
    client.start(Task(1)).await.expect("it starts");
    let awaited = client.start(Task(2)).await.expect("it starts");
    client.start(Gather.blocked_by([&awaited])).await.expect("it starts");
    client.start(Step(3)).await.expect("it starts");
    client.start(Fork).await.expect("it starts");
    let all = tokio::time::timeout(PATIENCE, written.acquire_many(4)).await;
    drop(all.expect("all are written").expect("it is open"));
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state = 'idle in transaction'";
    until(&mut watch, &schema, open, 0).await;
    let results = "SELECT count(*) FROM {schema}.result";
    assert_eq!(ask(&mut watch, &schema, results).await, 0, "nothing was written");
    drop(workers);
}

/// The same for the transaction of `prepare`, which has the row of the job locked until it commits.
#[tokio::test]
async fn a_lease_that_is_held_in_a_transaction_is_let_go_when_it_is_over() {
    let schema = Schema::new();
    let mut watch = schema.connection().await;
    let state = schema.state().await;
    let client = Client::builder(state.clone()).build();
    let chain = client.start(Task(1)).await.expect("the chain is started");
    let mut claim = claim("worker", 1);
    claim.types[0].lease = Duration::from_secs(1);
    state.claim_jobs(&claim).await.expect("the store is well");
    let mut tx = state.begin().await.expect("a transaction begins");
    let held = state.hold_lease(&mut tx, JobId::from_uuid(chain.id().as_uuid()), claim.fence);
    held.await.expect("the store is well").expect("it is held");
    let locked =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state = 'idle in transaction'";
    assert_eq!(ask(&mut watch, &schema, locked).await, 1);
    until(&mut watch, &schema, locked, 0).await;
    state.commit(tx).await.expect_err("it has ended");
}
