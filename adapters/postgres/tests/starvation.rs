//! Transactions hold all connections that the pool gives them, and nothing of the library's own waits for them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::adapter::{Notice, NotifyAdapter, StateAdapter};
use queuert::{Event, JobType, JobTypes, LeaseSettings};
use queuert_postgres::{Attempt, Client, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::{Semaphore, watch};

use support::Schema;

const PATIENCE: Duration = Duration::from_secs(120);

/// Short, so that a renewal that waits for a transaction comes too late.
const LEASE: Duration = Duration::from_millis(1_500);

/// A processor whose transaction is open for longer than its lease.
#[derive(Serialize, Deserialize)]
struct Write(u64);

/// A processor without a transaction that runs for longer than its lease.
#[derive(Serialize, Deserialize)]
struct Compute(u64);

/// A processor that ends at once.
#[derive(Serialize, Deserialize)]
struct Quick(u64);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u64)]
    Write(Write),
    #[job(entry, output = u64)]
    Compute(Compute),
    #[job(entry, output = u64)]
    Quick(Quick),
}

/// How a state is made.
#[derive(Clone, Copy, Debug)]
enum Made {
    Connected,
    FromPool,
}

async fn make(schema: &Schema, made: Made, connections: u32) -> PostgresState {
    let options = PostgresState::options()
        .schema(schema.name())
        .max_connections(connections);
    let state = match made {
        Made::Connected => options.connect_with(schema.connect_options()).await,
        Made::FromPool => {
            let pool = PgPoolOptions::new()
                .max_connections(connections)
                .connect_with(schema.connect_options())
                .await
                .expect("the test server can be reached");
            options.from_pool(pool).await
        }
    };
    state.expect("the test server can be used")
}

/// How many transactions the pool of such a state gives a connection at a time. The last one of a pool that the library has
/// opened is its own.
fn transactions(made: Made, connections: u32) -> u32 {
    match made {
        Made::Connected if connections > 1 => connections - 1,
        _ => connections,
    }
}

/// More workers than connections, transactions that are open for longer than leases, and jobs without transactions beside
/// them: every job takes one attempt.
async fn starved(made: Made, connections: u32) {
    let schema = Schema::new();
    let state = make(&schema, made, connections).await;
    let notify = PostgresNotify::new(&state);
    let client = Client::builder(state.clone()).notify(notify).build();
    let lost = Arc::new(AtomicUsize::new(0));
    let (mut events, counted) = (client.events(), Arc::clone(&lost));
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if matches!(event, Event::JobReaped { .. } | Event::NotifyFailed { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    // Transactions end only when they are told to, so the pool is exhausted for as long as the test wants.
    let begun = Arc::new(Semaphore::new(0));
    let (go_on, may_go_on) = watch::channel(false);
    let workers = client
        .worker()
        .process({
            let begun = Arc::clone(&begun);
            move |job: Attempt<Write>| {
                let (begun, mut may_go_on) = (Arc::clone(&begun), may_go_on.clone());
                async move {
                    let n = job.0;
                    let mut tx = job.begin().await?;
                    sqlx::query("SELECT 1").execute(&mut *tx).await?;
                    begun.add_permits(1);
                    may_go_on.wait_for(|go_on| *go_on).await?;
                    tx.finish(n).await
                }
            }
        })
        .process({
            let begun = Arc::clone(&begun);
            move |job: Attempt<Compute>| {
                let begun = Arc::clone(&begun);
                async move {
                    let n = job.0;
                    begun.add_permits(1);
                    tokio::time::sleep(LEASE * 2).await;
                    job.finish(n)
                }
            }
        })
        .process(|job: Attempt<Quick>| async move {
            let n = job.0;
            job.finish(n)
        })
        .concurrency(4 * connections as usize + 8)
        .lease(LeaseSettings::new(LEASE))
        .reap_interval(Duration::from_millis(100))
        .start()
        .await
        .expect("the workers start");
    let writes = client
        .start_many((0..2 * u64::from(connections) + 2).map(Write))
        .await
        .expect("the chains are started");
    let computing = client.start(Compute(1)).await.expect("the chain is started");
    let open = transactions(made, connections);
    drop(begun.acquire_many(open + 1).await.expect("it is open"));

    // The pool has nothing to give from now on. A rival process would take every lease that is not renewed.
    let rival = make(&schema, Made::Connected, 4).await;
    let rival = Client::builder(rival).build();
    let reaper = rival
        .worker()
        .process(|job: Attempt<Quick>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Compute>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Write>| async move {
            let n = job.0;
            job.finish(n)
        })
        .reap_interval(Duration::from_millis(100))
        .start()
        .await
        .expect("the rival starts");

    // Claims, ends and wake-ups go on: a job that another process starts is run here or there, again and again, and one
    // that needs no transaction ends.
    for n in 0..10 {
        let quick = rival.start(Quick(n)).await.expect("the chain is started");
        let end = rival
            .wait(&quick)
            .poll_interval(Duration::from_millis(10))
            .timeout(PATIENCE);
        assert_eq!(end.await.expect("it ends"), n);
    }
    let end = rival
        .wait(&computing)
        .poll_interval(Duration::from_millis(10))
        .timeout(PATIENCE);
    assert_eq!(end.await.expect("it ends"), 1);
    go_on.send_replace(true);
    for (n, write) in writes.iter().enumerate() {
        let end = rival
            .wait(write)
            .poll_interval(Duration::from_millis(10))
            .timeout(PATIENCE);
        assert_eq!(end.await.expect("it ends"), n as u64);
    }
    let jobs = rival.list_jobs().limit(1_000).await.expect("a list");
    let charged = jobs.items.iter().filter(|job| job.attempt != 1).count();
    assert_eq!(charged, 0, "{made:?}, {connections} connections: attempts were charged");
    workers.stop().await;
    reaper.stop().await;
    assert_eq!(lost.load(Ordering::SeqCst), 0, "{made:?}, {connections} connections");
    state.close().await;
}

#[tokio::test]
async fn a_pool_of_one_held_by_a_transaction_loses_no_lease() {
    starved(Made::Connected, 1).await;
    starved(Made::FromPool, 1).await;
}

#[tokio::test]
async fn a_pool_of_two_held_by_transactions_loses_no_lease() {
    starved(Made::Connected, 2).await;
    starved(Made::FromPool, 2).await;
}

#[tokio::test]
async fn a_pool_of_three_held_by_transactions_loses_no_lease() {
    starved(Made::Connected, 3).await;
    starved(Made::FromPool, 3).await;
}

#[tokio::test]
async fn a_pool_of_five_held_by_transactions_loses_no_lease() {
    starved(Made::Connected, 5).await;
    starved(Made::FromPool, 5).await;
}

#[tokio::test]
async fn a_pool_of_ten_held_by_transactions_loses_no_lease() {
    starved(Made::Connected, 10).await;
    starved(Made::FromPool, 10).await;
}

/// A role with a limit, dropped with this value.
struct Role(String);

impl Drop for Role {
    fn drop(&mut self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename";
        support::clean(&[
            format!("{end} = '{0}'", self.0),
            format!("DROP OWNED BY {0}; DROP ROLE {0}", self.0),
        ]);
    }
}

/// The role of a process may have as many connections as its pool, and no more: nothing can be opened beside it. As many long
/// transactions, and a job without one: every job takes one attempt, and wake-ups go out.
async fn limited(connections: u32) {
    let schema = Schema::new();
    let rival = Client::builder(make(&schema, Made::Connected, 4).await).build();
    let role = Role(postgres_support::unique_name("queuert_limited"));
    let grants = format!(
        "CREATE ROLE {0} LOGIN CONNECTION LIMIT {connections}; GRANT ALL ON SCHEMA {{schema}} TO {0}; \
         GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO {0}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {{schema}} TO {0}",
        role.0
    );
    schema.run(&mut schema.connection().await, &grants).await;
    let state = PostgresState::options()
        .schema(schema.name())
        .max_connections(connections)
        .connect_with(schema.connect_options().username(&role.0))
        .await
        .expect("the role may use the schema");
    // The listener, where there is one, has one of the connections, and transactions one less.
    let listens = connections > 2;
    let builder = Client::builder(state.clone());
    let client = match listens {
        true => builder.notify(PostgresNotify::new(&state)).build(),
        false => builder.build(),
    };
    let open = connections - if listens { 2 } else { 1 };
    let begun = Arc::new(Semaphore::new(0));
    let (go_on, may_go_on) = watch::channel(false);
    let workers = client
        .worker()
        .process({
            let begun = Arc::clone(&begun);
            move |job: Attempt<Write>| {
                let (begun, mut may_go_on) = (Arc::clone(&begun), may_go_on.clone());
                async move {
                    let n = job.0;
                    let mut tx = job.begin().await?;
                    sqlx::query("SELECT 1").execute(&mut *tx).await?;
                    begun.add_permits(1);
                    may_go_on.wait_for(|go_on| *go_on).await?;
                    tx.finish(n).await
                }
            }
        })
        .process({
            let begun = Arc::clone(&begun);
            move |job: Attempt<Compute>| {
                let begun = Arc::clone(&begun);
                async move {
                    let n = job.0;
                    begun.add_permits(1);
                    tokio::time::sleep(LEASE * 2).await;
                    job.finish(n)
                }
            }
        })
        .concurrency(2 * connections as usize)
        .lease(LeaseSettings::new(LEASE))
        .start()
        .await
        .expect("the workers start");
    let writes = client
        .start_many((0..u64::from(connections)).map(Write))
        .await
        .expect("the chains are started");
    let computing = client.start(Compute(1)).await.expect("the chain is started");
    drop(begun.acquire_many(open + 1).await.expect("it is open"));

    // A rival process takes every lease that is not renewed, while all transactions are open.
    let reaper = rival
        .worker()
        .process(|job: Attempt<Write>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Compute>| async move {
            let n = job.0;
            job.finish(n)
        })
        .reap_interval(Duration::from_millis(100))
        .start()
        .await
        .expect("the rival starts");
    let end = rival
        .wait(&computing)
        .poll_interval(Duration::from_millis(10))
        .timeout(PATIENCE);
    assert_eq!(end.await.expect("it ends"), 1);
    go_on.send_replace(true);
    for (n, write) in writes.iter().enumerate() {
        let end = rival
            .wait(write)
            .poll_interval(Duration::from_millis(10))
            .timeout(PATIENCE);
        assert_eq!(end.await.expect("it ends"), n as u64);
    }
    let jobs = rival.list_jobs().limit(1_000).await.expect("a list");
    let charged = jobs.items.iter().filter(|job| job.attempt != 1).count();
    assert_eq!(charged, 0, "{connections} connections: attempts were charged");
    workers.stop().await;
    reaper.stop().await;
    state.close().await;
}

#[tokio::test]
async fn a_role_with_as_many_connections_as_its_pool_of_two_loses_no_lease() {
    limited(2).await;
}

#[tokio::test]
async fn a_role_with_as_many_connections_as_its_pool_of_five_loses_no_lease() {
    limited(5).await;
}

/// A process that only starts chains tells the others, whoever holds its connections.
#[tokio::test]
async fn wake_ups_go_out_while_transactions_hold_the_pool() {
    for made in [Made::Connected, Made::FromPool] {
        let schema = Schema::new();
        let state = make(&schema, made, 2).await;
        let notify = PostgresNotify::new(&state);
        let mut open = Vec::new();
        for _ in 0..transactions(made, 2) {
            open.push(state.begin().await.expect("a transaction begins"));
        }
        let notice = Notice::JobsAvailable {
            type_name: Quick::NAME.into(),
            count: 1,
        };
        notify.announce(&[notice]).await.expect("it goes out");
        for transaction in open {
            state.rollback(transaction).await.expect("it ends");
        }
    }
}

/// Connections of the application's pool are the application's: it may hold all of them, for as long as it likes.
#[tokio::test]
async fn leases_are_renewed_while_the_application_holds_its_whole_pool() {
    let schema = Schema::new();
    let state = make(&schema, Made::FromPool, 2).await;
    let client = Client::builder(state.clone()).build();
    let (begun, mut has_begun) = watch::channel(false);
    let workers = client
        .worker()
        .process(move |job: Attempt<Compute>| {
            let begun = begun.clone();
            async move {
                let n = job.0;
                begun.send_replace(true);
                tokio::time::sleep(LEASE * 2).await;
                job.finish(n)
            }
        })
        .lease(LeaseSettings::new(LEASE))
        .start()
        .await
        .expect("the workers start");
    let chain = client.start(Compute(1)).await.expect("the chain is started");
    has_begun.wait_for(|begun| *begun).await.expect("it runs");
    let held = [
        state.pool().acquire().await.expect("a connection"),
        state.pool().acquire().await.expect("another one"),
    ];
    let rival = Client::builder(make(&schema, Made::Connected, 2).await).build();
    let end = rival
        .wait(&chain)
        .poll_interval(Duration::from_millis(10))
        .timeout(PATIENCE);
    assert_eq!(end.await.expect("it ends"), 1);
    let chain = rival.get_chain_record(&chain).await.expect("the store is well");
    let jobs = rival.list_jobs().await.expect("a list");
    assert_eq!(jobs.items.first().map(|job| job.attempt), Some(1), "{chain:?}");
    drop(held);
    workers.stop().await;
}
