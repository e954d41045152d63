//! The store fails for a while: results of processors that succeed meanwhile are stored afterwards, no attempt is charged, and
//! health reports it. `tests/torture` tests full disks.

use std::sync::Arc;
use std::time::Duration;

use queuert::{Event, Health, JobTypes, RetryPolicy};
use queuert_sqlite::{Attempt, Client, SqliteState};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, Executor, SqliteConnection};
use tokio::sync::{Semaphore, watch};

/// A deadline that a test reaches only if it fails.
const PATIENCE: Duration = Duration::from_secs(60);

const CHAINS: usize = 20;

#[derive(Serialize, Deserialize)]
struct Work(usize);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = usize)]
    Work(Work),
}

/// A table is missing for a while, as during the restore of a backup or a change of the schema by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_missing_for_a_while_loses_no_result() {
    let directory = tempfile::TempDir::new().expect("there is room");
    let path = directory.path().join("app.db");
    let client = Client::new(SqliteState::open(&path).await.expect("a new file can be used"));
    let chains = client
        .start_many((0..CHAINS).map(Work))
        .await
        .expect("the chains start");
    let (arrived, gate) = (Arc::new(watch::Sender::new(0)), Arc::new(Semaphore::new(0)));
    let (arriving, passing) = (Arc::clone(&arrived), Arc::clone(&gate));
    let worker = client
        .worker()
        .concurrency(CHAINS)
        .retry(RetryPolicy::new().max_attempts(1));
    let workers = worker.process(move |job: Attempt<Work>| {
        let (arrived, gate) = (Arc::clone(&arriving), Arc::clone(&passing));
        async move {
            arrived.send_modify(|count| *count += 1);
            let _ = gate.acquire().await;
            let n = job.0;
            job.finish(n)
        }
    });
    let workers = workers.start().await.expect("the workers start");
    let all = async { arrived.subscribe().wait_for(|count| *count == CHAINS).await.map(drop) };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("all run")
        .expect("they live");

    let mut events = client.events();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut other = SqliteConnection::connect_with(&options)
        .await
        .expect("the file can be used");
    other
        .execute("ALTER TABLE queuert_job RENAME TO elsewhere")
        .await
        .expect("it is there");
    gate.close();
    let refused = async {
        let mut refused = 0;
        while refused < 6 {
            if let Some(Event::StateFailed {
                operation: "settle", ..
            }) = events.next().await
            {
                refused += 1;
            }
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("the ends are refused");
    match workers.health() {
        Health::Degraded { error } => assert!(error.contains("no such table"), "health says `{error}`"),
        other => panic!("health is {other:?} while the file refuses"),
    }
    other
        .execute("ALTER TABLE elsewhere RENAME TO queuert_job")
        .await
        .expect("it is there");

    for (n, chain) in chains.iter().enumerate() {
        let output = client.wait(chain).timeout(PATIENCE).await;
        assert_eq!(output.unwrap_or_else(|error| panic!("{error:?}")), n);
    }
    let recovered = workers.wait_for_health(|health| *health == Health::Running);
    tokio::time::timeout(PATIENCE, recovered)
        .await
        .expect("the workers recover");
    workers.stop().await;
    for job in client.list_jobs().limit(100).await.expect("jobs can be listed").items {
        assert_eq!((job.attempt, job.claims), (1, 1), "{job:?}");
    }
}
