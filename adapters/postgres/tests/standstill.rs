//! A runtime that is kept and not driven holds up nobody on another one.

mod support;

use std::time::Duration;

use queuert::{JobTypes, LeaseSettings};
use queuert_postgres::{Attempt, Client, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tokio::runtime::{Builder, Runtime};

use support::Schema;

/// Longer than anything takes.
const SOON: Duration = Duration::from_secs(120);

#[derive(Serialize, Deserialize)]
struct Nothing;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Nothing(Nothing),
}

/// Runs only while somebody blocks on it.
fn kept() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built")
}

/// Runs all the time.
fn driven() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be built")
}

async fn state(schema: &Schema, connections: u32) -> PostgresState {
    let options = schema.options().max_connections(connections);
    let state = options.connect_with(schema.connect_options()).await;
    state.expect("the test server can be used")
}

/// The connections of both runtimes go back to the pool, for the application's own use.
#[test]
fn a_runtime_that_stands_still_keeps_no_idle_connection_from_the_pool() {
    let (kept, driven) = (kept(), driven());
    let schema = Schema::new();
    let state = driven.block_on(state(&schema, 3));
    let client = Client::new(state.clone());
    // The kept runtime opens one of its own, and leaves it: nothing is idle, and there is room for one more. How many the
    // set-up has opened depends on how fast the server was.
    let mut others: Vec<_> = (0..state.pool().size())
        .map(|_| driven.block_on(state.pool().acquire()).expect("it is idle"))
        .collect();
    while others.len() > 2 {
        let close = others.pop().expect("there are more than two").close();
        driven.block_on(close).expect("it can be closed");
    }
    kept.block_on(async { client.start(Nothing).await.expect("it starts") });
    driven.block_on(async {
        drop(others);
        let burst = (0..20).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut tx = client.begin().await.expect("a transaction opens");
                client.start(Nothing).within(&mut tx).await.expect("it starts");
                tx.commit().await.expect("it commits");
            })
        });
        for task in burst.collect::<Vec<_>>() {
            task.await.expect("it has started");
        }
        // Every connection that the pool may have.
        let mut all = Vec::new();
        for number in 0..3 {
            let acquired = tokio::time::timeout(SOON, state.pool().acquire()).await;
            let acquired = acquired.expect("the pool gives up before");
            all.push(acquired.unwrap_or_else(|error| panic!("connection {number}: {error}")));
        }
    });
    drop((kept, schema));
}

/// Waits until so many statements of the test wait for a lock.
async fn waiting(watch: &mut PgConnection, schema: &Schema, count: i64) {
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'",
        )
        .bind(schema.name())
        .fetch_one(&mut *watch)
        .await
        .expect("the server tells");
        if waiting >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Calls that were given up there have connections that nobody gives back, and the places of these.
#[test]
fn a_runtime_that_stands_still_keeps_no_place_from_workers_elsewhere() {
    let (kept, driven) = (kept(), driven());
    let schema = Schema::new();
    let state = driven.block_on(state(&schema, 16));
    let client = Client::new(state.clone());
    let chain = driven.block_on(async { client.start(Nothing).await.expect("it starts") });
    let mut lock = driven.block_on(schema.connection());
    driven.block_on(schema.run(&mut lock, "BEGIN; LOCK TABLE {schema}.job IN ACCESS EXCLUSIVE MODE"));
    kept.block_on(async {
        let mut watch = schema.connection().await;
        for number in 1..=3 {
            tokio::select! {
                biased;
                found = client.get_chain_record(&chain) => panic!("the table is locked: {found:?}"),
                () = waiting(&mut watch, &schema, number) => {}
            }
        }
    });
    driven.block_on(async {
        schema.run(&mut lock, "ROLLBACK").await;
        let workers = client
            .worker()
            .lease(LeaseSettings::new(Duration::from_secs(10)))
            .process(|job: Attempt<Nothing>| async move { job.finish(()) })
            .start()
            .await
            .expect("the workers start");
        let ended = tokio::time::timeout(SOON, client.wait(&chain)).await;
        ended
            .expect("workers wait for the places of another runtime")
            .expect("it completes");
        workers.stop().await;
    });
    drop((kept, schema));
}
