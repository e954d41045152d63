//! Through PgBouncer in transaction mode, with fewer connections to the server than there are at the pooler.

use std::time::Duration;

use postgres_support::{Cluster, PgBouncer};
use queuert::adapter::{ClaimJobs, ClaimType, StateAdapter};
use queuert::{Event, Fence, JobStatus, JobType, JobTypes, LeaseSettings, WorkerId};
use queuert_postgres::{Attempt, Client, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Part(u64);

#[derive(Serialize, Deserialize)]
struct Sum;

#[derive(Serialize, Deserialize)]
struct Write(u64);

#[derive(Serialize, Deserialize)]
struct Check(u64);

#[derive(Serialize, Deserialize)]
struct Long;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u64)]
    Part(Part),
    #[job(entry, output = u64, blockers = [Part])]
    Sum(Sum),
    #[job(entry, continues = [Check])]
    Write(Write),
    #[job(output = u64)]
    Check(Check),
    #[job(entry, output = u64)]
    Long(Long),
}

const LEASE: Duration = Duration::from_secs(2);

async fn insert(connection: &mut PgConnection, n: u64) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO written VALUES ($1)")
        .bind(i64::try_from(n).expect("small"))
        .persistent(false)
        .execute(connection)
        .await
        .map(drop)
}

/// Everything that a program does with a store.
async fn works(cluster: &Cluster, state: PostgresState) {
    let mut direct = cluster.connect().await;
    sqlx::raw_sql("CREATE TABLE written (n bigint NOT NULL)")
        .execute(&mut direct)
        .await
        .expect("the table is made");
    let client = Client::new(state);

    // Somebody claims a job and is never heard of again.
    let lost = client.start(Part(7)).await.expect("it starts");
    let claim = ClaimJobs::new(
        vec![ClaimType {
            name: Part::NAME.into(),
            lease: Duration::from_millis(500),
        }],
        1,
        WorkerId::new("ghost"),
        Fence::from_uuid(uuid::Uuid::from_u128(1)),
    );
    let claimed = client.state().claim_jobs(&claim).await.expect("it claims");
    assert_eq!(claimed.jobs.len(), 1);

    let mut events = client.events();
    let workers = client
        .worker()
        .process(|job: Attempt<Part>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Sum>| async move {
            let sum: u64 = job.blockers().iter().sum();
            job.finish(sum)
        })
        .process(|job: Attempt<Write>| async move {
            let n = job.0;
            let mut tx = job.begin().await?;
            insert(&mut tx, n).await?;
            tx.continue_with(Check(n)).await
        })
        .process(|job: Attempt<Check>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Long>| async move {
            // Twice as long as its lease.
            tokio::time::sleep(LEASE * 2).await;
            job.finish(1_u64)
        })
        .concurrency(10)
        .lease(LeaseSettings::new(LEASE))
        .reap_interval(Duration::from_millis(200))
        .poll_interval(Duration::from_millis(100))
        .start()
        .await
        .expect("the workers start");
    let long = client.start(Long).await.expect("it starts");

    // In transactions: one that is committed, one that is not.
    let mut sums = Vec::new();
    for round in 0..20_u64 {
        let mut tx = client.begin().await.expect("a transaction");
        let parts = client
            .start_many((0..3).map(|part| Part(round + part)))
            .within(&mut tx)
            .await
            .expect("they start");
        let sum = client
            .start(Sum.blocked_by(&parts))
            .within(&mut tx)
            .await
            .expect("it starts");
        insert(&mut tx, 1_000 + round).await.expect("the user's own row");
        match round % 2 {
            0 => {
                tx.commit().await.expect("it commits");
                sums.push((round, sum));
            }
            _ => tx.rollback().await.expect("it rolls back"),
        }
    }
    let writes = client.start_many((0..50).map(Write)).await.expect("they start");
    for (round, sum) in &sums {
        let output = client.wait(sum).timeout(PATIENCE).await.expect("it ends");
        assert_eq!(output, 3 * round + 3);
    }
    for chain in &writes {
        client.wait(chain).timeout(PATIENCE).await.expect("it ends");
    }
    assert_eq!(client.wait(&lost).timeout(PATIENCE).await.expect("it is reaped"), 7);
    assert_eq!(client.wait(&long).timeout(PATIENCE).await.expect("it ends"), 1);
    workers.stop().await;

    let jobs = client.list_jobs().limit(1_000).await.expect("a list").items;
    assert_eq!(jobs.len(), 1 + 1 + 10 * 4 + 50 * 2);
    for job in &jobs {
        assert_eq!(job.status, JobStatus::Completed, "{job:?}");
        // The one that was reaped, and no other: also the long one, whose lease was renewed.
        let attempts = if job.chain_id == lost.id() { 2 } else { 1 };
        assert_eq!(job.attempt, attempts, "{job:?}");
    }
    let rows: Vec<i64> = sqlx::query_scalar("SELECT n FROM written ORDER BY n")
        .fetch_all(&mut direct)
        .await
        .expect("rows");
    let even = (0..20).filter(|round| round % 2 == 0).map(|round| 1_000 + round);
    assert_eq!(rows, (0..50).chain(even).collect::<Vec<i64>>());
    let (mut renewed, mut reaped) = (0, 0);
    while let Some(event) = events.try_next() {
        match event {
            Event::LeaseRenewed { attempt, .. } if attempt.job.id == long.id().first_job() => renewed += 1,
            Event::JobReaped { job, .. } if job.id == lost.id().first_job() => reaped += 1,
            Event::StateFailed { operation, error } => panic!("{operation} failed: {error}"),
            _ => {}
        }
    }
    assert!(renewed >= 2 && reaped == 1, "renewed {renewed}, reaped {reaped}");
}

#[tokio::test]
async fn everything_works_through_a_pooler_in_transaction_mode() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 3).await;
    // That there is a pooler is found out.
    let state = PostgresState::options()
        .max_connections(12)
        .connect(&bouncer.url())
        .await
        .expect("the pooler can be used");
    works(&cluster, state).await;
}

#[tokio::test]
async fn so_does_a_pool_of_the_applications_own() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 3).await;
    let pool = PgPoolOptions::new()
        .max_connections(12)
        .connect(&bouncer.url())
        .await
        .expect("the pooler can be used");
    let state = PostgresState::from_pool(pool).await.expect("the pool can be used");
    works(&cluster, state).await;
}
