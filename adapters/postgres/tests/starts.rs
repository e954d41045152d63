//! Starts of many tasks share statements and commits, and do not get into each other's way.
#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail by panicking, as the test does"
)]

mod support;

use std::time::Duration;

use futures_util::FutureExt;
use queuert::adapter::{ClaimJobs, ClaimType, CreatedChain, NewChain, NewJob, Refusal, StateAdapter};
use queuert::{Fence, JobId, Payload, StateError, StateErrorKind, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use support::Schema;

fn id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(number))
}

fn chain(number: u128) -> NewChain {
    NewChain::new(NewJob::new(id(number), "task".to_owned(), Payload::from_text("1")))
}

type Started = Result<Result<Vec<CreatedChain>, Refusal>, StateError>;

fn start(state: &PostgresState, number: u128) -> JoinHandle<Started> {
    let state = state.clone();
    tokio::spawn(async move { state.create_chains(None, &[chain(number)]).await })
}

/// Keeps everybody who writes jobs waiting, without a lock, until the gate is opened.
async fn close_gate(schema: &Schema) -> PgConnection {
    let mut connection = schema.connection().await;
    let gate = "CREATE TABLE {schema}.gate (closed integer); INSERT INTO {schema}.gate VALUES (1); \
         CREATE FUNCTION {schema}.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         WHILE EXISTS (SELECT 1 FROM {schema}.gate) LOOP PERFORM pg_sleep(0.005); END LOOP; RETURN NULL; END $$; \
         CREATE TRIGGER gate BEFORE INSERT ON {schema}.job FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wait_at_gate()";
    schema.run(&mut connection, gate).await;
    connection
}

async fn open_gate(schema: &Schema, mut connection: PgConnection) {
    schema.run(&mut connection, "DELETE FROM {schema}.gate").await;
}

/// Waits until a statement waits at the gate, and says how many do.
async fn waiting(schema: &Schema) -> i64 {
    let mut connection = schema.connection().await;
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'PgSleep'",
        )
        .bind(schema.name())
        .fetch_one(&mut connection)
        .await
        .unwrap();
        if waiting > 0 {
            return waiting;
        }
        tokio::task::yield_now().await;
    }
}

/// In how many transactions the jobs were written.
async fn transactions(schema: &Schema) -> i64 {
    let mut connection = schema.connection().await;
    let text = format!("SELECT count(DISTINCT xmin::text) FROM {}.job", schema.name());
    sqlx::query_scalar(sqlx::AssertSqlSafe(text))
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

/// A store that knows the type, so that a start is one statement.
async fn prepared() -> (Schema, PostgresState) {
    let schema = Schema::new();
    let state = schema.state().await;
    state.create_chains(None, &[chain(1_000)]).await.unwrap().unwrap();
    (schema, state)
}

/// Lets everything that was spawned get into the line: the runtime of a test has one thread.
async fn all_have_lined_up() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn starts_that_come_meanwhile_share_a_statement() {
    let (schema, state) = prepared().await;
    let gate = close_gate(&schema).await;
    let first = start(&state, 1);
    waiting(&schema).await;
    let others: Vec<_> = (2..=50).map(|number| start(&state, number)).collect();
    all_have_lined_up().await;
    assert_eq!(waiting(&schema).await, 1);
    open_gate(&schema, gate).await;
    for (number, started) in (1..).zip(std::iter::once(first).chain(others)) {
        let created = started.await.unwrap().unwrap().unwrap();
        assert_eq!(created.len(), 1);
        assert_eq!(created[0].id, id(number).as_chain());
    }
    assert_eq!(transactions(&schema).await, 3, "one before, the first, and the others");
}

#[tokio::test]
async fn one_whose_id_is_taken_does_not_disturb_the_others() {
    let (schema, state) = prepared().await;
    let gate = close_gate(&schema).await;
    let first = start(&state, 1);
    waiting(&schema).await;
    let others = [2, 1_000, 3].map(|number| start(&state, number));
    all_have_lined_up().await;
    open_gate(&schema, gate).await;
    assert!(first.await.unwrap().unwrap().is_ok());
    let mut answers = Vec::new();
    for other in others {
        answers.push(other.await.unwrap().unwrap().map(|created| created[0].id));
    }
    let expected = [
        Ok(id(2).as_chain()),
        Err(Refusal::IdTaken(id(1_000))),
        Ok(id(3).as_chain()),
    ];
    assert_eq!(answers, expected);
}

/// One that cannot be kept fails by itself.
#[tokio::test]
async fn one_that_fails_does_not_disturb_the_others() {
    let (schema, state) = prepared().await;
    let gate = close_gate(&schema).await;
    let first = start(&state, 1);
    waiting(&schema).await;
    let good = start(&state, 2);
    let bad = tokio::spawn({
        let state = state.clone();
        async move {
            let job = NewJob::new(id(3), "task".to_owned(), Payload::from_text("\"\0\""));
            state.create_chains(None, &[NewChain::new(job)]).await
        }
    });
    all_have_lined_up().await;
    open_gate(&schema, gate).await;
    assert!(first.await.unwrap().is_ok() && good.await.unwrap().is_ok());
    assert!(bad.await.unwrap().is_err());
    assert_eq!(state.get_jobs(None, &[id(2), id(3)]).await.unwrap().len(), 1);
}

/// The one that goes first may be given up while others wait for it.
#[tokio::test]
async fn the_others_go_on_without_the_first() {
    let (schema, state) = prepared().await;
    let gate = close_gate(&schema).await;
    let first = start(&state, 1);
    waiting(&schema).await;
    let (second, dropped) = (start(&state, 2), start(&state, 3));
    all_have_lined_up().await;
    for given_up in [&first, &dropped] {
        given_up.abort();
    }
    assert!(first.await.unwrap_err().is_cancelled() && dropped.await.unwrap_err().is_cancelled());
    open_gate(&schema, gate).await;
    assert!(second.await.unwrap().unwrap().is_ok());
    start(&state, 4).await.unwrap().unwrap().unwrap();
    assert_eq!(state.get_jobs(None, &[id(2), id(3), id(4)]).await.unwrap().len(), 2);
}

/// A start whose id is in a transaction that is still open waits for its end; the others do not wait with it, whether
/// they came before it or after.
#[tokio::test]
async fn one_that_meets_a_lock_does_not_hold_up_the_others() {
    let (schema, state) = prepared().await;
    let mut transaction = state.begin().await.unwrap();
    for number in [1, 2] {
        let created = state.create_chains(Some(&mut transaction), &[chain(number)]).await;
        created.unwrap().unwrap();
    }
    let first = start(&state, 1);
    all_have_lined_up().await;
    let others = [3, 4].map(|number| start(&state, number));
    let second = start(&state, 2);
    all_have_lined_up().await;
    let last = start(&state, 5);
    for other in others.into_iter().chain([last]) {
        other.await.unwrap().unwrap().unwrap();
    }
    assert!(!first.is_finished() && !second.is_finished());
    state.rollback(transaction).await.unwrap();
    first.await.unwrap().unwrap().unwrap();
    second.await.unwrap().unwrap().unwrap();
    drop(schema);
}

/// Starts two chains when it is dropped: the second makes a task for those that wait.
struct StartsWhenDropped(PostgresState);

impl Drop for StartsWhenDropped {
    fn drop(&mut self) {
        let (one, other) = ([chain(1)], [chain(2)]);
        let mut first = Box::pin(self.0.create_chains(None, &one));
        assert!(first.as_mut().now_or_never().is_none(), "it waits for the server");
        let mut second = Box::pin(self.0.create_chains(None, &other));
        assert!(
            second.as_mut().now_or_never().is_none(),
            "it waits for the first, or for the server"
        );
    }
}

#[test]
fn a_runtime_ends_while_starts_wait_for_each_other() {
    let (ended, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (schema, state) = runtime.block_on(prepared());
        let starts = StartsWhenDropped(state);
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(starts);
        });
        drop(runtime);
        ended.send(schema).unwrap();
    });
    hears
        .recv_timeout(std::time::Duration::from_secs(60))
        .expect("the runtime ends");
}

#[tokio::test]
async fn starts_go_on_without_a_first_that_nobody_polls() {
    let (schema, state) = prepared().await;
    // A quick server may answer a start within its first poll: then the next one is tried.
    let candidates: Vec<_> = (101..=120).map(|number| [chain(number)]).collect();
    let (mut first, mut answered) = (None, 0);
    for one in &candidates {
        let mut start = Box::pin(state.create_chains(None, one));
        if start.as_mut().now_or_never().is_none() {
            first = Some(start);
            break;
        }
        answered += 1;
    }
    let first = first.expect("a start that is not answered within its first poll");
    let others: Vec<_> = (2..=20).map(|number| start(&state, number)).collect();
    for other in others {
        assert!(other.await.unwrap().unwrap().is_ok());
    }
    // The next one is a first again.
    assert!(start(&state, 21).await.unwrap().unwrap().is_ok());
    assert!(first.await.unwrap().is_ok());
    assert!(
        transactions(&schema).await <= 5 + answered,
        "the others shared statements"
    );
}

/// A start of a new type, polled this often and kept where it is. `None`: it has ended.
async fn kept_start<'a>(
    state: &'a PostgresState,
    transaction: Option<&'a mut PgConnection>,
    new: &'a [NewChain],
    polls: usize,
) -> Option<std::pin::Pin<Box<dyn Future<Output = Started> + Send + 'a>>> {
    let mut start: std::pin::Pin<Box<dyn Future<Output = Started> + Send + 'a>> =
        Box::pin(state.create_chains(transaction, new));
    let mut left = polls;
    let ended = std::future::poll_fn(|context| {
        let ended = start.as_mut().poll(context).is_ready();
        left -= 1;
        if ended || left == 0 {
            return std::task::Poll::Ready(ended);
        }
        std::task::Poll::Pending
    })
    .await;
    (!ended).then_some(start)
}

/// A start that is the first of its type, and is polled no more after any number of polls, in a transaction of the caller's
/// or without one, does not keep another process from starting the same type. The other process waits for no lock for longer
/// than `lock_timeout`.
#[tokio::test]
async fn a_kept_start_of_a_new_type_holds_up_no_other_process() {
    let schema = Schema::new();
    let state = schema.state().await;
    let impatient = schema.connect_options().options([("lock_timeout", "1s")]);
    let other = schema.options().connect_with(impatient).await.unwrap();
    let new = |number: u128, type_name: &str| {
        let job = NewJob::new(id(number), type_name.to_owned(), Payload::from_text("1"));
        [NewChain::new(job)]
    };
    for within in [false, true] {
        for polls in 1.. {
            let type_name = format!("type {within} {polls}");
            let number = u128::from(fastrand::u64(..)) << 1;
            let (own, others) = (new(number, &type_name), new(number + 1, &type_name));
            let mut transaction = match within {
                true => Some(state.begin().await.unwrap()),
                false => None,
            };
            let kept = kept_start(&state, transaction.as_deref_mut(), &own, polls).await;
            other.create_chains(None, &others).await.unwrap().unwrap();
            let ended = kept.is_none();
            drop(kept);
            if let Some(transaction) = transaction {
                state.rollback(transaction).await.unwrap();
            }
            if ended {
                break;
            }
        }
    }
}

/// Starts of types that the process does not know yet, polled once and kept, take no connection of the workers'.
#[tokio::test]
async fn kept_starts_of_new_types_hold_up_no_worker() {
    let (_schema, state) = prepared().await;
    let new = |number: u128| {
        let job = NewJob::new(id(number), format!("new type {number}"), Payload::from_text("1"));
        [NewChain::new(job)]
    };
    // A start that the server answers within its first poll has ended and cannot be kept: the next one is tried.
    let chains: Vec<_> = (1..=64).map(new).collect();
    let mut kept = Vec::new();
    for chain in &chains {
        kept.extend(kept_start(&state, None, chain, 1).await);
        if kept.len() == 4 {
            break;
        }
    }
    assert_eq!(kept.len(), 4, "the server answers every start within its first poll");
    let types = vec![ClaimType {
        name: "task".into(),
        lease: Duration::from_secs(60),
    }];
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(types, 1, WorkerId::new("worker"), fence);
    let claimed = tokio::time::timeout(Duration::from_secs(20), state.claim_jobs(&claim)).await;
    let claimed = claimed
        .expect("a worker does not wait for a start that nobody polls")
        .unwrap();
    assert_eq!(claimed.jobs.len(), 1);
    for start in kept {
        start.await.unwrap().unwrap();
    }
}

/// A start of a type that the process does not know yet, in a transaction that has the last connection, while the server cannot
/// be reached on another one.
#[tokio::test]
async fn a_start_of_a_new_type_does_not_wait_for_a_connection_for_ever() {
    let schema = Schema::new();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(2))
        .connect_with(schema.connect_options())
        .await
        .unwrap();
    let state = schema.options().from_pool(pool.clone()).await.unwrap();
    let mut transaction = state.begin().await.unwrap();
    // Takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .username("somebody");
    pool.set_connect_options(options.port(silent.local_addr().unwrap().port()));
    let new = [chain(1)];
    let started = state.create_chains(Some(&mut transaction), &new);
    let started = tokio::time::timeout(Duration::from_secs(60), started).await;
    let error = started.expect("it does not hang").unwrap_err();
    assert_eq!(error.kind(), StateErrorKind::Transient, "{error:?}");
}
