//! How many connections a process that works has.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres_support::Cluster;
use queuert::{Event, JobStatus, JobTypes};
use queuert_postgres::{Attempt, Client, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};

/// What `docs/postgres.md` promises.
const MOST: i64 = 5;

#[derive(Serialize, Deserialize)]
struct Nothing(u64);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u64)]
    Nothing(Nothing),
}

/// All that there are, by the server's account, but for the one that asks. Pools keep what they have opened, so a peak is
/// not missed.
async fn count(connection: &mut sqlx::PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    )
    .fetch_one(connection)
    .await
    .expect("the server tells")
}

#[tokio::test]
async fn five_at_concurrency_100_notifications_included() {
    let cluster = Cluster::launch().await;
    let mut watch = cluster.connect().await;
    let state = PostgresState::options()
        .max_connections(4)
        .connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let client = Client::builder(state.clone())
        .notify(PostgresNotify::new(state.pool().clone()))
        .build();
    // Four would not do if somebody had to wait so long for one that a call fails.
    let failures: Arc<Mutex<Vec<String>>> = Arc::default();
    let (mut events, noted) = (client.events(), Arc::clone(&failures));
    let listener = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::StateFailed { operation, error } | Event::NotifyFailed { operation, error } = event {
                let line = format!("{operation}: {error}");
                noted.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        }
    });
    let workers = client
        .worker()
        .process(|job: Attempt<Nothing>| async move {
            let n = job.0;
            // Some run for a while, so that there are leases to renew while others are claimed and completed.
            if n.is_multiple_of(50) {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            job.finish(n)
        })
        .concurrency(100)
        .lease(queuert::LeaseSettings::of(Duration::from_millis(900)).renew_every(Duration::from_millis(50)))
        .reap_interval(Duration::from_millis(20))
        .start()
        .await
        .expect("the workers start");
    let mut most = 0;
    // One process does all of it: it starts chains, runs them, and waits for some of their ends.
    for batch in 0..10_u64 {
        let chains = client
            .start_many((0..500).map(|n| Nothing(batch * 500 + n)))
            .await
            .expect("the chains are started");
        for chain in chains.iter().step_by(100) {
            client
                .wait(chain)
                .timeout(Duration::from_secs(60))
                .await
                .expect("it ends");
            most = most.max(count(&mut watch).await);
        }
    }
    let open = [JobStatus::Pending, JobStatus::Running];
    while !client
        .list_chains()
        .statuses(open)
        .limit(1)
        .await
        .expect("a list")
        .items
        .is_empty()
    {
        most = most.max(count(&mut watch).await);
    }
    assert!(
        (2..=MOST).contains(&most),
        "{most} connections, the listener's among them"
    );
    workers.stop().await;
    listener.abort();
    let failures = failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(failures.is_empty(), "{failures:?}");
    let jobs = client
        .list_jobs()
        .statuses([JobStatus::Completed])
        .limit(1_000)
        .await
        .expect("a list");
    assert!(jobs.items.iter().all(|job| job.attempt == 1));
}
