//! The store through PgBouncer, in whose transaction mode the next transaction may run on another server process.

use std::time::Duration;

use postgres_support::{Cluster, PgBouncer, PgBouncerOptions, Proxy};
use queuert::{Client, JobTypes, StateErrorKind, Workers};
use queuert_postgres::{Attempt, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::Row;

const SOON: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
struct Count {
    number: u32,
}

#[derive(Serialize, Deserialize)]
struct Note {
    number: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, continues = [Note])]
    Count(Count),
    #[job(output = u32)]
    Note(Note),
}

/// Two processes with fewer server connections than they have of their own: steps with and without transactions, and
/// starts inside of some, all end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_is_found_out_and_put_up_with() {
    let cluster = Cluster::launch().await;
    let bouncer = PgBouncer::in_transaction_mode(cluster.port(), 3).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let state = PostgresState::connect(&bouncer.url())
            .await
            .expect("a pooler is no hindrance");
        clients.push((state.clone(), Client::new(state)));
    }
    let mut connection = cluster.connect().await;
    sqlx::raw_sql("CREATE TABLE note (number integer PRIMARY KEY)")
        .execute(&mut connection)
        .await
        .expect("the user's table can be made");
    let mut workers = Vec::new();
    for (_, client) in &clients {
        let worker = client
            .worker()
            .concurrency(8)
            // Nobody tells one of the two what the other one has done.
            .poll_interval(SOON)
            .process(|job: Attempt<Count>| async move {
                let number = job.number;
                job.continue_with(Note { number })
            })
            .process(|job: Attempt<Note>| async move {
                let number = job.number;
                let mut transaction = job.begin().await?;
                sqlx::query("INSERT INTO note VALUES ($1)")
                    .bind(i32::try_from(number)?)
                    .persistent(false)
                    .execute(&mut *transaction)
                    .await?;
                transaction.finish(number).await
            });
        workers.push(worker.start().await.expect("the workers start"));
    }
    let (state, client) = &clients[0];
    let mut chains = Vec::new();
    for number in 0..60 {
        let mut transaction = client.begin().await.expect("a transaction can be begun");
        let start = client.start(Count { number }).within(&mut transaction).await;
        chains.push((number, start.expect("the chain starts")));
        transaction.commit().await.expect("nothing failed");
    }
    for (number, chain) in &chains {
        let ended = client.wait(chain).poll_interval(SOON).await;
        assert_eq!(ended.expect("every chain ends"), *number);
    }
    for worker in workers {
        worker.stop().await;
    }
    let notes: i64 = sqlx::query_scalar("SELECT count(*) FROM note")
        .fetch_one(&mut connection)
        .await
        .expect("the notes are there");
    assert_eq!(notes, 60);
    nothing_is_kept(state).await;
}

/// Whoever gets these server connections next finds nothing of ours on them.
async fn nothing_is_kept(state: &PostgresState) {
    for _ in 0..6 {
        let row = sqlx::raw_sql(
            "SELECT current_setting('enable_seqscan'), (SELECT count(*) FROM pg_prepared_statements)::text",
        )
        .fetch_one(state.pool())
        .await
        .expect("settings can be read");
        let kept: [String; 2] = [row.get(0), row.get(1)];
        assert_eq!(kept, ["on", "0"]);
    }
}

/// A server on which the settings of this library are everybody's: what is read back says nothing about who set it.
async fn tuned_cluster() -> Cluster {
    let cluster = Cluster::launch().await;
    let mut connection = cluster.connect().await;
    sqlx::raw_sql("ALTER DATABASE postgres SET plan_cache_mode = 'force_generic_plan'")
        .execute(&mut connection)
        .await
        .expect("the database can be set up");
    cluster
}

async fn connect(url: &str) -> Result<PostgresState, queuert::StateError> {
    PostgresState::options().max_connections(4).connect(url).await
}

async fn work(client: &Client<PostgresState>) -> Workers<PostgresState> {
    let worker = client
        .worker()
        .concurrency(4)
        .poll_interval(SOON)
        .process(|job: Attempt<Count>| async move {
            let number = job.number;
            job.continue_with(Note { number })
        })
        .process(|job: Attempt<Note>| async move { job.finish(job.number) });
    worker.start().await.expect("the workers start")
}

/// Starts from many tasks at once, more than the pooler has connections, and waits for all of them. An outage is waited
/// for; everything else is a failure.
async fn start_and_wait(client: &Client<PostgresState>, numbers: std::ops::Range<u32>) {
    let tasks: Vec<_> = numbers
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let chain = loop {
                    match client.start(Count { number }).await {
                        Ok(chain) => break chain,
                        Err(error) if error.is_transient() => tokio::time::sleep(SOON).await,
                        Err(error) => panic!("{error:?}"),
                    }
                };
                let ended = loop {
                    match client.wait(&chain).poll_interval(SOON).await {
                        Ok(ended) => break ended,
                        Err(error) if error.is_transient() => {}
                        Err(error) => panic!("{error:?}"),
                    }
                };
                assert_eq!(ended, number);
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("every chain ends");
    }
}

/// Whatever a pooler does with the settings that a client asks for, and however many sessions it lends: one of them is
/// never taken for this process's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_a_pooler_lends_is_never_taken_for_our_own() {
    let cluster = tuned_cluster().await;
    let transaction = |connections| PgBouncerOptions::new("transaction", connections);
    let mut poolers = vec![
        transaction(1).ignoring_options(),
        transaction(3).ignoring_options(),
        transaction(1),
        PgBouncerOptions::new("session", 8).ignoring_options(),
        PgBouncerOptions::new("session", 8),
    ];
    // Earlier versions know nothing of prepared statements, which is what the others are told to forget here.
    if PgBouncer::version().await >= (1, 21) {
        poolers.push(transaction(3).ignoring_options().prepared_statements(0));
        poolers.push(transaction(3).ignoring_options().prepared_statements(100));
    }
    let mut next = 0;
    for options in poolers {
        let bouncer = options.start(cluster.port()).await;
        let state = connect(&bouncer.url()).await.expect("a pooler is no hindrance");
        let client = Client::new(state.clone());
        let workers = work(&client).await;
        start_and_wait(&client, next..next + 60).await;
        next += 60;
        workers.stop().await;
        nothing_is_kept(&state).await;
        state.close().await;
    }
}

/// In statement mode there are no transactions, and nothing could be promised: the error says what to change.
#[tokio::test]
async fn a_pooler_in_statement_mode_is_refused() {
    let cluster = tuned_cluster().await;
    for options in [
        PgBouncerOptions::new("statement", 3),
        PgBouncerOptions::new("statement", 3).ignoring_options(),
    ] {
        let bouncer = options.start(cluster.port()).await;
        let error = connect(&bouncer.url()).await.expect_err("it cannot be used");
        assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{error:?}");
        assert!(error.to_string().contains("statement mode"), "{error}");
    }
}

/// A pooler comes between a living process and its server: the connections that are made then are checked like the first
/// one. The process goes on, keeps nothing on the sessions that it is lent, and says no more that it lives by a session that
/// is not its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_comes_later_is_found_out_too() {
    for options in [
        PgBouncerOptions::new("transaction", 2).ignoring_options(),
        PgBouncerOptions::new("transaction", 2),
    ] {
        let cluster = tuned_cluster().await;
        let proxy = Proxy::to(cluster.port()).await;
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port());
        let state = connect(&url).await.expect("the server can be used");
        let client = Client::new(state.clone());
        let workers = work(&client).await;
        start_and_wait(&client, 0..60).await;
        until_registered(&cluster, 1).await;
        let bouncer = options.start(cluster.port()).await;
        proxy.lead_to(bouncer.port());
        start_and_wait(&client, 60..160).await;
        until_registered(&cluster, 0).await;
        start_and_wait(&client, 160..200).await;
        workers.stop().await;
        nothing_is_kept(&state).await;
    }
}

/// Waits until this many processes say of themselves that they live.
async fn until_registered(cluster: &Cluster, processes: i64) {
    let mut connection = cluster.connect().await;
    let registered = async {
        while sqlx::query_scalar::<_, i64>("SELECT count(*) FROM queuert.process")
            .fetch_one(&mut connection)
            .await
            .expect("the table can be read")
            != processes
        {
            tokio::time::sleep(SOON).await;
        }
    };
    let registered = tokio::time::timeout(Duration::from_secs(60), registered).await;
    registered.unwrap_or_else(|_| panic!("there are not {processes} processes"));
}
