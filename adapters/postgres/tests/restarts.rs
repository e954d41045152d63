//! The server goes away under load and comes back: workers carry on by themselves, nothing is lost, and no attempt is
//! charged for it unless its lease expired meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres_support::{Cluster, Proxy, Shutdown};
use queuert::{Event, JobId, JobRecord, JobStatus, JobTypes, LeaseSettings, RetryPolicy, Workers};
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
        .lease(LeaseSettings::new(LEASE))
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
    let notify = PostgresNotify::new(&state);
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
            // Each claim is one run, also if its answer had to be asked for again.
            assert!(ran <= job.claims, "it ran {ran} times: {job:?}");
        }
        expired += u64::from(job.attempt > 1);
    }
    // Whatever is charged is a lease that expired, on a machine that is slower than a lease. Every other failure would be
    // here too.
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

/// The server commits a claim, and the connection is cut before its answer is through: the worker asks for it again on
/// another connection, and the job runs in its first attempt, long before its lease would have expired.
#[tokio::test]
async fn a_claim_whose_answer_is_cut_off_costs_no_attempt() {
    let cluster = Cluster::launch().await;
    let proxy = Proxy::to(cluster.port()).await;
    let through = |url: String| url.replace(&cluster.port().to_string(), &proxy.port().to_string());
    let state = PostgresState::connect(&through(cluster.url())).await;
    let client = Client::new(state.expect("the private server can be used"));
    let mut events = client.events();
    let chain = client.start(Open(1)).await.expect("the chain starts");
    let mut server = cluster.connect().await;
    // Answers take this long: time enough to see what the server did, and to cut them off, also on a busy machine.
    proxy.delay(Duration::from_secs(4));
    let runs = Runs::default();
    let noted = runs.clone();
    let workers = client
        .worker()
        .process(move |job: Attempt<Open>| {
            noted.note(job.id());
            async move { job.continue_with(Close(1)) }
        })
        .lease(LeaseSettings::new(10 * PATIENCE))
        .start()
        .await
        .expect("the workers start");
    let claimed = async {
        loop {
            let running = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM queuert.running");
            if running.fetch_one(&mut server).await.expect("the table can be read") > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, claimed)
        .await
        .expect("the job is claimed");
    proxy.cut();
    proxy.delay(Duration::ZERO);
    let failed = async {
        while let Some(event) = events.next().await {
            if matches!(event, Event::StateFailed { operation: "claim", .. }) {
                return;
            }
        }
    };
    let failed = tokio::time::timeout(PATIENCE, failed).await;
    failed.expect("the claim was not answered");
    let jobs = completed(&client, 1).await;
    workers.stop().await;
    let first = jobs.iter().find(|job| job.id == chain.id().first_job());
    let first = first.expect("it is there");
    assert_eq!((first.attempt, first.claims, runs.of(first.id)), (1, 1, 1));
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
