//! The server goes away under load and comes back: workers carry on by themselves, nothing is lost, and no attempt is
//! charged for it unless its lease expired meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres_support::{Cluster, Shutdown};
use queuert::{JobId, JobRecord, JobStatus, JobTypes, LeaseSettings, RetryPolicy, Workers};
use queuert_postgres::{Attempt, Client, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};

/// Until here something must have happened; it only counts if it does not.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than an outage in these tests takes, so that attempts outlive it; short enough to wait for one that expires.
const LEASE: Duration = Duration::from_secs(8);

const CHAINS: u64 = 400;

#[derive(Serialize, Deserialize)]
struct Open(u64);

#[derive(Serialize, Deserialize)]
struct Close(u64);

#[derive(Serialize, Deserialize)]
struct Write(u64);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, continues = [Close])]
    Open(Open),
    #[job(output = u64)]
    Close(Close),
    #[job(entry, output = u64)]
    Write(Write),
}

/// How often each job was run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<JobId, u32>>>);

impl Runs {
    fn note(&self, job: JobId) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *runs.entry(job).or_default() += 1;
    }

    fn of(&self, job: JobId) -> u32 {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(&job).copied().unwrap_or_default()
    }
}

/// Work that takes longer than an outage, for some: these are in the middle of it, and end while the server is away or
/// after it.
async fn work(n: u64) {
    let time = if n.is_multiple_of(10) { 400 } else { 10 };
    tokio::time::sleep(Duration::from_millis(time)).await;
}

async fn workers(client: &Client, runs: &Runs) -> Workers<PostgresState> {
    let (opening, closing, writing) = (runs.clone(), runs.clone(), runs.clone());
    client
        .worker()
        .process(move |job: Attempt<Open>| {
            let runs = opening.clone();
            async move {
                runs.note(job.id());
                work(job.0).await;
                let n = job.0;
                job.continue_with(Close(n))
            }
        })
        .process(move |job: Attempt<Close>| {
            let runs = closing.clone();
            async move {
                runs.note(job.id());
                work(job.0 + 1).await;
                let n = job.0;
                job.finish(n)
            }
        })
        .process(move |job: Attempt<Write>| {
            let runs = writing.clone();
            async move {
                runs.note(job.id());
                let n = job.0;
                let mut tx = job.begin().await?;
                sqlx::query("INSERT INTO written VALUES ($1, $2)")
                    .bind(job.id().to_string())
                    .bind(i64::from(job.number()))
                    .execute(&mut *tx)
                    .await?;
                work(n).await;
                tx.finish(n).await
            }
        })
        .concurrency(20)
        .lease(LeaseSettings::of(LEASE))
        .reap_interval(Duration::from_millis(250))
        .poll_interval(Duration::from_millis(250))
        .retry(RetryPolicy::new().initial(Duration::from_millis(50)))
        .start()
        .await
        .expect("the workers start")
}

async fn connect(cluster: &Cluster) -> Client {
    let state = PostgresState::options()
        .max_connections(8)
        .connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let notify = PostgresNotify::new(state.pool().clone());
    Client::builder(state).notify(notify).build()
}

/// All jobs; asks again while the server is away.
async fn all(client: &Client) -> Vec<JobRecord> {
    loop {
        match page_by_page(client).await {
            Ok(jobs) => return jobs,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn page_by_page(client: &Client) -> Result<Vec<JobRecord>, queuert::Error> {
    let mut page = client.list_jobs().limit(1_000).await?;
    let mut jobs = page.items;
    while let Some(cursor) = page.next {
        page = client.list_jobs().limit(1_000).after(cursor).await?;
        jobs.append(&mut page.items);
    }
    Ok(jobs)
}

/// Waits until so many jobs are completed.
async fn completed(client: &Client, count: usize) -> Vec<JobRecord> {
    let reached = async {
        loop {
            let jobs = all(client).await;
            let done = jobs.iter().filter(|job| job.status == JobStatus::Completed).count();
            if done >= count {
                return jobs;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, reached).await {
        Ok(jobs) => jobs,
        Err(_) => panic!("{count} jobs are not completed: {:?}", all(client).await),
    }
}

/// Whether a claim that was answered may be forgotten: it does not wait for the disk, and a crash takes what has not got
/// there. The job is then ready as before, and runs once more under the same number.
#[derive(Clone, Copy, PartialEq)]
enum Claims {
    Kept,
    MayBeForgotten,
}

/// Disturbs the server twice while workers run chains that need no transaction.
async fn carries_on(claims: Claims, disturb: impl AsyncFn(&Cluster)) {
    let cluster = Cluster::launch().await;
    let client = connect(&cluster).await;
    let runs = Runs::default();
    client
        .start_many((0..CHAINS).map(Open))
        .await
        .expect("the chains are started");
    let workers = workers(&client, &runs).await;
    for share in 1..=2 {
        let jobs = completed(&client, share * 150).await;
        assert!(
            jobs.iter().any(|job| job.status != JobStatus::Completed),
            "there is something left to disturb"
        );
        disturb(&cluster).await;
    }
    let jobs = completed(&client, 2 * CHAINS as usize).await;
    workers.stop().await;
    assert_eq!(jobs.len(), 2 * CHAINS as usize, "one successor each");
    let mut expired = 0;
    for job in &jobs {
        assert_eq!(job.claims, job.attempt, "{job:?}");
        let ran = runs.of(job.id);
        assert!(ran >= 1, "it completed without having run: {job:?}");
        if claims == Claims::Kept {
            // Claims whose answer was lost are not run.
            assert!(ran <= job.claims, "it ran {ran} times: {job:?}");
        }
        expired += u64::from(job.attempt > 1);
    }
    // Whatever is charged is a lease that expired: a claim whose answer was lost. Every other failure would be here too.
    let mut connection = cluster.connect().await;
    let failures: Vec<(String, i32)> = sqlx::query_as("SELECT message, attempt FROM queuert.failure")
        .fetch_all(&mut connection)
        .await
        .expect("the table can be read");
    for (message, _) in &failures {
        assert!(message.contains("expired"), "charged for the server: {message}");
    }
    assert_eq!(failures.len() as u64, expired, "{failures:?}");
}

#[tokio::test]
async fn a_restart_costs_no_attempt() {
    carries_on(Claims::Kept, async |cluster| cluster.restart(Shutdown::Fast).await).await;
}

#[tokio::test]
async fn a_crash_costs_no_attempt() {
    carries_on(Claims::MayBeForgotten, async |cluster| {
        cluster.restart(Shutdown::Immediate).await;
    })
    .await;
}

#[tokio::test]
async fn killed_connections_cost_no_attempt() {
    carries_on(Claims::Kept, kill_all_connections).await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_a_while_costs_no_attempt() {
    carries_on(Claims::Kept, async |cluster| {
        cluster.set_read_only(true).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.set_read_only(false).await;
    })
    .await;
}

async fn kill_all_connections(cluster: &Cluster) {
    let mut connection = cluster.connect().await;
    let killed: Vec<bool> = sqlx::query_scalar(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> \
         pg_backend_pid()",
    )
    .fetch_all(&mut connection)
    .await
    .expect("a superuser may");
    assert!(!killed.is_empty(), "there was somebody to disturb");
}

/// A processor whose transaction breaks has failed: that attempt is charged (every failed attempt counts), backs off and
/// runs again, and what it wrote is there once.
#[tokio::test]
async fn transactions_of_processors_are_whole_or_not_there() {
    let cluster = Cluster::launch().await;
    let client = connect(&cluster).await;
    let mut connection = cluster.connect().await;
    sqlx::query("CREATE TABLE written (job text NOT NULL, attempt bigint NOT NULL)")
        .execute(&mut connection)
        .await
        .expect("the table is made");
    drop(connection);
    let runs = Runs::default();
    client
        .start_many((0..300).map(Write))
        .await
        .expect("the chains are started");
    let workers = workers(&client, &runs).await;
    completed(&client, 60).await;
    kill_all_connections(&cluster).await;
    completed(&client, 120).await;
    cluster.restart(Shutdown::Fast).await;
    completed(&client, 180).await;
    cluster.restart(Shutdown::Immediate).await;
    let jobs = completed(&client, 300).await;
    workers.stop().await;
    let mut connection = cluster.connect().await;
    let rows: Vec<(String, i64)> = sqlx::query_as("SELECT job, attempt FROM written")
        .fetch_all(&mut connection)
        .await
        .expect("the table can be read");
    let mut written: HashMap<String, Vec<i64>> = HashMap::new();
    for (job, attempt) in rows {
        written.entry(job).or_default().push(attempt);
    }
    assert_eq!(jobs.len(), 300);
    for job in &jobs {
        // By the attempt that completed it, and by no other.
        assert_eq!(
            written.get(&job.id.to_string()),
            Some(&vec![i64::from(job.attempt)]),
            "{job:?}"
        );
    }
    assert!(jobs.iter().any(|job| job.attempt > 1), "some were in the middle of it");
}
