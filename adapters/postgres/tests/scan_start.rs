//! Claims while somebody holds an old snapshot: rows that were claimed since cannot be swept, and claims do not read past
//! all of them again and again.

mod support;

use std::time::Duration;

use postgres_support::Cluster;
use queuert::adapter::{ClaimJobs, ClaimType, NewChain, NewJob, ReapLeases, ReapType, StateAdapter};
use queuert::{Fence, JobId, Payload, RetryPolicy, Schedule, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection};
use support::Schema;
use tokio::time::Instant;
use uuid::Uuid;

/// Rows that nobody can take any more and nobody can sweep.
const GONE: i64 = 50_000;

struct Queue {
    schema: Schema,
    state: PostgresState,
    /// Holds the snapshot.
    holder: PgConnection,
    _cluster: Cluster,
}

/// A queue in which much has been claimed since somebody made a snapshot.
async fn crowded() -> Queue {
    // A server of its own, because a snapshot holds up the sweepers of everybody.
    let cluster = Cluster::launch().await;
    let schema = Schema::on(cluster.url());
    let state = schema.state().await;
    start(&state, Schedule::Now).await;
    assert_eq!(claim(&state).await, 1);
    let mut holder = schema.connection().await;
    schema
        .run(
            &mut holder,
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.job_type",
        )
        .await;
    let mut connection = schema.connection().await;
    for table in ["ready", "later"] {
        let rank = if table == "ready" { "rank, " } else { "" };
        let value = if table == "ready" { "at, " } else { "" };
        let fill = format!(
            "INSERT INTO {{schema}}.{table} (id, {rank}scheduled_at, type_id, attempt, claims, priority, awaited) \
             SELECT gen_random_uuid(), {value}at, t.id, 0, 0, 0, false FROM {{schema}}.job_type AS t, \
             (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 60000000 + n AS at \
             FROM generate_series(1, {GONE}) AS n) AS x WHERE t.name = 'mine'; DELETE FROM {{schema}}.{table}"
        );
        schema.run(&mut connection, &fill).await;
    }
    Queue {
        schema,
        state,
        holder,
        _cluster: cluster,
    }
}

async fn start(state: &PostgresState, schedule: Schedule) -> JobId {
    let id = JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let mut job = NewJob::new(id, "mine", Payload::from_text("1"));
    job.schedule = schedule;
    state
        .create_chains(None, &[NewChain::new(job)])
        .await
        .expect("the store is well")
        .expect("no refusal");
    id
}

async fn claim(state: &PostgresState) -> usize {
    let types = vec![ClaimType {
        name: "mine".into(),
        lease: Duration::from_secs(60),
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(types, 10, WorkerId::new("claimer"), fence);
    state.claim_jobs(&claim).await.expect("the store is well").jobs.len()
}

impl Queue {
    /// Claims until there is something.
    async fn find_one(&self) {
        let begun = Instant::now();
        while claim(&self.state).await == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it was never found");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How many entries of an index have been read, ever.
    async fn read(&self, index: &str) -> i64 {
        // A session tells what it has counted at most once a second, or when it ends.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        claim(&self.state).await;
        let mut connection = self.schema.connection().await;
        let text = format!(
            "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE schemaname = '{}' AND indexrelname = '{index}'",
            self.schema.name()
        );
        sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_one(&mut connection)
            .await
            .expect("the server counts")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_do_not_read_past_what_is_gone_again_and_again() {
    const CLAIMS: i64 = 200;
    let queue = crowded().await;
    let before = [queue.read("ready_claim").await, queue.read("later_due").await];
    for _ in 0..CLAIMS {
        start(&queue.state, Schedule::Now).await;
        assert_eq!(claim(&queue.state).await, 1, "what is new is found at once");
    }
    let after = [queue.read("ready_claim").await, queue.read("later_due").await];
    for (before, after) in before.into_iter().zip(after) {
        let read = after - before;
        // Everything is looked at from time to time, for a small part of the time that claims take.
        assert!(read < CLAIMS * GONE / 4, "{read} entries were read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_due_is_found() {
    let queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    let delay = Duration::from_millis(300);
    start(&queue.state, Schedule::After(delay)).await;
    queue.find_one().await;
}

/// A job that is as urgent as if it had waited for an hour.
async fn start_far_behind(queue: &Queue, connection: &mut PgConnection) {
    let id = start(&queue.state, Schedule::Now).await.as_uuid();
    let hour = format!("UPDATE {{schema}}.ready SET rank = rank - 3600000000 WHERE id = '{id}'");
    queue.schema.run(connection, &hour).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_turns_up_far_behind_is_found() {
    let queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    let mut connection = queue.schema.connection().await;
    start_far_behind(&queue, &mut connection).await;
    queue.find_one().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_turn_up_far_behind_are_found_one_claim_after_the_other() {
    const MANY: usize = 200;
    let queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    let mut connection = queue.schema.connection().await;
    for _ in 0..MANY {
        start(&queue.state, Schedule::Now).await;
    }
    let hour = "UPDATE {schema}.ready SET rank = rank - 3600000000";
    queue.schema.run(&mut connection, hour).await;
    let begun = Instant::now();
    let (mut found, mut in_vain) = (0, 0);
    while found < MANY {
        let claimed = claim(&queue.state).await;
        found += claimed;
        // Once one look has come upon them, no claim misses them.
        in_vain += u32::from(found > 0 && claimed == 0);
        assert!(begun.elapsed() < Duration::from_secs(60), "{found} were found");
    }
    assert_eq!(in_vain, 0);
}

/// A job that is taken back keeps its place, far before the point where claims begin to look. The process that took it back
/// knows that it is there, and need not wait for the next look at everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_back_is_found_by_the_next_claim() {
    let queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    let mut connection = queue.schema.connection().await;
    start(&queue.state, Schedule::Now).await;
    let hour = "UPDATE {schema}.ready SET rank = rank - 3600000000, scheduled_at = scheduled_at - 3600000000";
    queue.schema.run(&mut connection, hour).await;
    // A look at everything has just been taken when it is found, so the next one is not due.
    queue.find_one().await;
    queue
        .schema
        .run(&mut connection, "UPDATE {schema}.running SET leased_until = 1")
        .await;
    let retry = RetryPolicy::new().initial(Duration::from_millis(1));
    let types = vec![ReapType::new("mine", retry, Duration::from_secs(60))];
    let reap = ReapLeases::new(types, 10, Vec::new());
    let reaped = queue.state.reap_leases(&reap).await.expect("the store is well");
    assert!(reaped.len() >= 2, "all that was claimed, the job among them");
    let ready = format!("SELECT count(*) FROM {}.ready", queue.schema.name());
    let before: i64 = sqlx::query_scalar(AssertSqlSafe(ready))
        .fetch_one(&mut connection)
        .await
        .expect("the table can be read");
    assert_eq!(i64::try_from(claim(&queue.state).await), Ok(before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_been_due_for_long_is_found() {
    let queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    let mut connection = queue.schema.connection().await;
    start(&queue.state, Schedule::After(Duration::from_secs(3_600))).await;
    let past = "UPDATE {schema}.later SET scheduled_at = scheduled_at - 7200000000";
    queue.schema.run(&mut connection, past).await;
    queue.find_one().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_idle_is_told_when_everything_is_looked_at_again() {
    let queue = crowded().await;
    let mut next_due = None;
    for _ in 0..5 {
        let types = vec![ClaimType {
            name: "mine".into(),
            lease: Duration::from_secs(60),
        }];
        let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
        let claim = ClaimJobs::new(types, 10, WorkerId::new("claimer"), fence);
        next_due = queue
            .state
            .claim_jobs(&claim)
            .await
            .expect("the store is well")
            .next_due;
    }
    let next_due = next_due.expect("there is something to wait for");
    assert!(next_due <= Duration::from_secs(5), "{next_due:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_is_exact_again_when_the_snapshot_has_gone() {
    let mut queue = crowded().await;
    for _ in 0..5 {
        claim(&queue.state).await;
    }
    queue.schema.run(&mut queue.holder, "ROLLBACK").await;
    let mut connection = queue.schema.connection().await;
    let begun = Instant::now();
    // Everything is looked at again within seconds, and from then on by every claim.
    let mut in_a_row = 0;
    while in_a_row < 20 {
        for table in ["ready", "later"] {
            let vacuum = format!("VACUUM {{schema}}.{table}");
            queue.schema.run(&mut connection, &vacuum).await;
        }
        start(&queue.state, Schedule::Now).await;
        start_far_behind(&queue, &mut connection).await;
        in_a_row = if claim(&queue.state).await == 2 {
            in_a_row + 1
        } else {
            0
        };
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "claims still begin behind it"
        );
        while claim(&queue.state).await > 0 {}
    }
}
