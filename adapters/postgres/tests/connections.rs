//! How many connections a process that works has, and who waits for whom.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use postgres_support::Cluster;
use queuert::__task::Lock;
use queuert::adapter::{Maintain, StateAdapter};
use queuert::{Error, Event, JobStatus, JobTypes, StateErrorKind, WorkerId};
use queuert_postgres::{Attempt, Client, PostgresNotify, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// What `docs/postgres.md` promises.
const MOST: i64 = 5;

#[derive(Serialize, Deserialize)]
struct Nothing(u64);

/// Continues with a job of another type, whose name the store does not know yet.
#[derive(Serialize, Deserialize)]
struct Step(u64);

#[derive(Serialize, Deserialize)]
struct LastStep(u64);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u64)]
    Nothing(Nothing),
    #[job(entry, continues = [LastStep])]
    Step(Step),
    #[job(output = u64)]
    LastStep(LastStep),
}

/// All that there are, by the server's account, but for the one that asks. Pools keep what they have opened, so a peak is
/// not missed.
async fn count(connection: &mut PgConnection) -> i64 {
    ask(connection, "pid <> pg_backend_pid()").await
}

/// How many of the server's connections are like this.
async fn ask(connection: &mut PgConnection, condition: &'static str) -> i64 {
    let text = format!("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND {condition}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(text))
        .fetch_one(connection)
        .await
        .expect("the server tells")
}

/// What the store or the notify adapter failed at.
fn failures(client: &Client) -> Arc<Lock<Vec<String>>> {
    let failures: Arc<Lock<Vec<String>>> = Arc::default();
    let (mut events, noted) = (client.events(), Arc::clone(&failures));
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Event::StateFailed { operation, error } | Event::NotifyFailed { operation, error } = event {
                let line = format!("{operation}: {error}");
                noted.lock().push(line);
            }
        }
    });
    failures
}

fn assert_none(failures: &Lock<Vec<String>>) {
    let failures = failures.lock().clone();
    assert!(failures.is_empty(), "{failures:?}");
}

async fn start_workers(client: &Client) -> queuert::Workers<PostgresState> {
    client
        .worker()
        .process(|job: Attempt<Nothing>| async move {
            let n = job.0;
            // Some run for a while, so that there are leases to renew while others are claimed and completed.
            if n.is_multiple_of(50) {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            job.finish(n)
        })
        .process(|job: Attempt<Step>| async move {
            let n = job.0;
            job.continue_with(LastStep(n))
        })
        .process(|job: Attempt<LastStep>| async move {
            let n = job.0;
            job.finish(n)
        })
        .concurrency(100)
        .lease(queuert::LeaseSettings::new(Duration::from_millis(900)).renew_every(Duration::from_millis(50)))
        .reap_interval(Duration::from_millis(20))
        .start()
        .await
        .expect("the workers start")
}

async fn is_busy(client: &Client) -> bool {
    let open = [JobStatus::Pending, JobStatus::Running];
    let open = client.list_chains().statuses(open).limit(1).await.expect("a list");
    !open.items.is_empty()
}

/// With nothing set: what somebody gets who follows the first page of the manual.
#[tokio::test]
async fn five_at_concurrency_100_notifications_and_upkeep_included() {
    let cluster = Cluster::launch().await;
    let mut watch = cluster.connect().await;
    let state = PostgresState::connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let client = Client::builder(state.clone())
        .notify(PostgresNotify::new(&state))
        .build();
    // Five would not do if somebody had to wait so long for one that a call fails.
    let failures = failures(&client);
    // As if a turn of the upkeep were due all the time: it counts dead rows, and vacuums what is worth it.
    let maintain = Maintain::new(WorkerId::new("upkeep"));
    state.maintain(&maintain).await.expect("the upkeep is ours");
    let upkeep = tokio::spawn({
        let state = state.clone();
        async move {
            loop {
                state.maintain(&maintain).await.expect("the store is well");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let workers = start_workers(&client).await;
    let mut most = 0;
    // One process does all of it: it starts chains, runs them, and waits for some of their ends.
    for batch in 0..10_u64 {
        let chains = client
            .start_many((0..500).map(|n| Nothing(batch * 500 + n)))
            .await
            .expect("the chains are started");
        client.start(Step(batch)).await.expect("the chain is started");
        for chain in chains.iter().step_by(100) {
            client
                .wait(chain)
                .timeout(Duration::from_secs(60))
                .await
                .expect("it ends");
            most = most.max(count(&mut watch).await);
        }
    }
    while is_busy(&client).await {
        most = most.max(count(&mut watch).await);
    }
    assert!(
        (2..=MOST).contains(&most),
        "{most} connections, the listener's among them"
    );
    assert!(!upkeep.is_finished(), "it was there to the end");
    upkeep.abort();
    workers.stop().await;
    assert_none(&failures);
    let jobs = client
        .list_jobs()
        .statuses([JobStatus::Completed])
        .limit(1_000)
        .await
        .expect("a list");
    assert!(jobs.items.iter().all(|job| job.attempt == 1));
    // What lay ready for the next statement is the pool's again.
    while state.pool().num_idle() < state.pool().size() as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Calls that wait for somebody's lock hold up neither the workers nor transactions, however many they are.
#[tokio::test]
async fn calls_that_wait_for_a_lock_do_not_stop_the_workers() {
    let cluster = Cluster::launch().await;
    let mut watch = cluster.connect().await;
    let state = PostgresState::connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let client = Client::builder(state.clone()).build();
    let held = client.start(Nothing(1)).await.expect("the chain is started").id();
    let mut tx = state.begin().await.expect("a transaction begins");
    state.lock_chain(&mut tx, held).await.expect("the chain is locked");
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let state = state.clone();
            tokio::spawn(async move { state.cancel_chains(None, &[held]).await })
        })
        .collect();
    while ask(&mut watch, "wait_event_type = 'Lock'").await < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let workers = start_workers(&client).await;
    let chain = client.start(Nothing(2)).await.expect("the chain is started");
    client
        .wait(&chain)
        .timeout(Duration::from_secs(60))
        .await
        .expect("the workers work");
    let other = state.begin().await.expect("another transaction begins");
    state.rollback(other).await.expect("it ends");
    assert_eq!(ask(&mut watch, "wait_event_type = 'Lock'").await, 5, "they wait still");
    state.rollback(tx).await.expect("the transaction ends");
    for call in calls {
        let answer = call.await.expect("no panic").expect("the store is well");
        // The first one cancels it, and the others come too late; or a worker was faster than all of them.
        drop(answer);
    }
    workers.stop().await;
}

/// Workers that never rest leave the pool's connections to transactions, even if there are no more than they use.
#[tokio::test]
async fn transactions_get_their_turn_on_a_small_pool() {
    let cluster = Cluster::launch().await;
    let state = PostgresState::options()
        .max_connections(2)
        .acquire_timeout(Duration::from_secs(60))
        .connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let client = Client::builder(state.clone()).build();
    let failures = failures(&client);
    let workers = start_workers(&client).await;
    let feeder = tokio::spawn({
        let client = client.clone();
        async move {
            loop {
                let chains = client.start_many((1..100).map(Nothing)).await;
                chains.expect("the chains are started");
            }
        }
    });
    for _ in 0..10 {
        let tx = state.begin().await.expect("a transaction begins");
        state.commit(tx).await.expect("it commits");
    }
    assert!(!feeder.is_finished(), "the workers never ran out of jobs");
    feeder.abort();
    workers.stop().await;
    assert_none(&failures);
}

/// Whoever gives up while a transaction begins leaves no connection in the pool on which one is open: the next statement
/// on it would be part of it, and never be committed.
#[tokio::test]
async fn a_begin_that_is_given_up_leaves_no_transaction_open() {
    let cluster = Cluster::launch().await;
    let mut watch = cluster.connect().await;
    let state = PostgresState::options()
        .max_connections(1)
        .connect(&cluster.url())
        .await
        .expect("the private server can be used");
    let client = Client::builder(state.clone()).build();
    let mut given_up = 0;
    while given_up < 3 {
        // A connection that is idle in the pool, so that the first thing to wait for is the server's answer to BEGIN.
        while state.pool().num_idle() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        {
            let mut begin = pin!(state.begin());
            // The answer may be there at once.
            if begin
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
            {
                given_up += 1;
            }
        }
        let chain = client.start(Nothing(given_up)).await.expect("the chain is started");
        let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM queuert.job WHERE id = $1")
            .bind(chain.id().as_uuid())
            .fetch_one(&mut watch)
            .await
            .expect("the table can be read");
        assert_eq!(seen, 1, "it is committed");
    }
    assert_eq!(ask(&mut watch, "state LIKE 'idle in transaction%'").await, 0);
}

/// The server ends the session of a transaction that has written the end of its job and is not committed. The attempt says why.
#[tokio::test]
async fn an_attempt_that_works_on_after_tx_finish_says_which_rule_it_broke() {
    let schema = support::Schema::new();
    // The limit of the role is shorter than what is left of the lease.
    let impatient = schema
        .connect_options()
        .options([("idle_in_transaction_session_timeout", "300ms")]);
    let state = schema.options().connect_with(impatient).await;
    let client = Client::builder(state.expect("the test server can be used")).build();
    let (mut events, name) = (client.events(), schema.name().to_owned());
    let watch = Arc::new(tokio::sync::Mutex::new(schema.connection().await));
    let workers = client
        .worker()
        .process(move |job: Attempt<Nothing>| {
            let (watch, name) = (Arc::clone(&watch), name.clone());
            async move {
                let (n, attempt) = (job.0, job.number());
                let tx = job.begin().await?;
                let done = tx.finish(n).await;
                let mut watch = watch.lock().await;
                while attempt == 1 && idle_in_transaction(&mut watch, &name).await > 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                done
            }
        })
        .start()
        .await
        .expect("the workers start");
    let chain = client.start(Nothing(7)).await.expect("the chain is started");
    let failed = async {
        loop {
            if let Some(Event::AttemptEnded { outcome, .. }) = events.next().await {
                return format!("{outcome:?}");
            }
        }
    };
    let failed = tokio::time::timeout(Duration::from_secs(60), failed).await;
    let failed = failed.expect("the first attempt ends");
    assert!(failed.contains("tx.finish") && failed.contains("lease"), "{failed}");
    let end = client.wait(&chain).timeout(Duration::from_secs(60)).await;
    assert_eq!(end.expect("the second attempt commits"), 7);
    workers.stop().await;
}

/// How many sessions of a test are idle in a transaction.
async fn idle_in_transaction(watch: &mut PgConnection, application: &str) -> i64 {
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle in transaction'";
    let open = sqlx::query_scalar(open).bind(application.to_owned());
    open.fetch_one(watch).await.expect("the server tells")
}

/// A program that was kept from running for too long goes on as after any other failure of the server.
#[tokio::test]
async fn a_session_that_the_server_ended_for_its_idle_transaction_is_a_passing_failure() {
    let schema = support::Schema::new();
    let impatient = schema
        .connect_options()
        .options([("idle_in_transaction_session_timeout", "1s")]);
    let state = schema
        .options()
        .connect_with(impatient)
        .await
        .expect("the test server can be used");
    let client = Client::builder(state).build();
    let mut tx = client.begin().await.expect("the store is well");
    let started = client.start(Nothing(1)).within(&mut tx).await;
    started.expect("the store is well");
    // Until the server has ended it.
    let mut watch = schema.connection().await;
    while idle_in_transaction(&mut watch, schema.name()).await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = client
        .start(Nothing(2))
        .within(&mut tx)
        .await
        .expect_err("it has ended");
    match error {
        Error::State(error) => assert_eq!(error.kind(), StateErrorKind::Transient, "{error:?}"),
        other => panic!("{other:?}"),
    }
}
