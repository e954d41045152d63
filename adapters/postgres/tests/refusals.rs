//! The server refuses for a while: the role may not log in, lacks a right, or the database takes no connections or writes.
//! Results of processors that succeed meanwhile are stored when that is over, no attempt is charged, and health says so.

mod support;

use std::sync::Arc;
use std::time::Duration;

use queuert::{Event, Health, JobTypes, RetryPolicy};
use queuert_postgres::{Attempt, Client, PostgresState};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::{Semaphore, watch};

/// Until here something must have happened; it only counts if it does not.
const PATIENCE: Duration = Duration::from_secs(60);

const CHAINS: usize = 20;

#[derive(Serialize, Deserialize)]
struct First(usize);

#[derive(Serialize, Deserialize)]
struct Last(usize);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, continues = [Last], output = usize)]
    First(First),
    #[job(output = usize)]
    Last(Last),
}

/// A database with a role that owns it, both dropped with this value.
struct Place {
    database: String,
    role: String,
}

impl Place {
    async fn new() -> Self {
        let place = Self {
            database: postgres_support::unique_name("queuert_refusing"),
            role: postgres_support::unique_name("queuert_refused"),
        };
        place
            .run(&["CREATE ROLE {role} LOGIN", "CREATE DATABASE {database} OWNER {role}"])
            .await;
        place
    }

    /// Runs statements as somebody who may do everything, from another database.
    async fn run(&self, statements: &[&str]) {
        let connection = PgConnection::connect(&support::url()).await;
        self.run_on(connection.expect("the test server can be reached"), statements)
            .await;
    }

    /// The same in the database.
    async fn run_inside(&self, statements: &[&str]) {
        let options: sqlx::postgres::PgConnectOptions = support::url().parse().expect("the URL is one");
        let connection = PgConnection::connect_with(&options.database(&self.database)).await;
        self.run_on(connection.expect("the database can be used"), statements)
            .await;
    }

    async fn run_on(&self, mut connection: PgConnection, statements: &[&str]) {
        for statement in statements {
            let sql = statement
                .replace("{role}", &self.role)
                .replace("{database}", &self.database);
            let done = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut connection).await;
            done.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
    }

    async fn client(&self) -> Client {
        let options: sqlx::postgres::PgConnectOptions = support::url().parse().expect("the URL is one");
        let options = options.username(&self.role).database(&self.database);
        let state = PostgresState::options().max_connections(5).connect_with(options).await;
        Client::new(state.expect("the role may do everything in its database"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self { database, role } = self;
        support::clean(&[
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"),
            format!("DROP DATABASE {database}"),
            format!("DROP ROLE {role}"),
        ]);
    }
}

const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'";

/// Twenty processors succeed, half of them with a next job, while the server refuses. They have one attempt each.
async fn outlasts(said: &str, begin: impl AsyncFn(&Place), end: impl AsyncFn(&Place)) {
    let place = Place::new().await;
    let client = place.client().await;
    let chains = client
        .start_many((0..CHAINS).map(First))
        .await
        .expect("the chains start");
    let (arrived, gate) = (Arc::new(watch::Sender::new(0)), Arc::new(Semaphore::new(0)));
    let (arriving, passing) = (Arc::clone(&arrived), Arc::clone(&gate));
    let worker = client
        .worker()
        .concurrency(CHAINS)
        .retry(RetryPolicy::new().max_attempts(1))
        .process(move |job: Attempt<First>| {
            let (arrived, gate) = (Arc::clone(&arriving), Arc::clone(&passing));
            async move {
                arrived.send_modify(|count| *count += 1);
                let _ = gate.acquire().await;
                match job.0 % 2 {
                    0 => {
                        let n = job.0;
                        job.continue_with(Last(n))
                    }
                    _ => {
                        let n = job.0;
                        job.finish(n)
                    }
                }
            }
        })
        .process(|job: Attempt<Last>| async move {
            let n = job.0;
            job.finish(n)
        });
    let workers = worker.start().await.expect("the workers start");
    let all = async { arrived.subscribe().wait_for(|count| *count == CHAINS).await.map(drop) };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("all run")
        .expect("they live");

    let mut events = client.events();
    begin(&place).await;
    gate.close();
    // Often enough that a worker that gives up at a refusal has done so.
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
        Health::Degraded { error } => assert!(error.contains(said), "health says `{error}`"),
        other => panic!("health is {other:?} while the server refuses"),
    }
    end(&place).await;

    for (n, chain) in chains.iter().enumerate() {
        let output = client.wait(chain).timeout(PATIENCE).await;
        assert_eq!(output.unwrap_or_else(|error| panic!("{error:?}")), n);
    }
    let recovered = workers.wait_for_health(|health| *health == Health::Running);
    tokio::time::timeout(PATIENCE, recovered)
        .await
        .expect("the workers recover");
    workers.stop().await;
    let jobs = client.list_jobs().limit(100).await.expect("jobs can be listed").items;
    assert_eq!(jobs.len(), CHAINS + CHAINS / 2);
    for job in jobs {
        assert_eq!((job.attempt, job.claims), (1, 1), "{job:?}");
    }
    client.state().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_log_in_loses_no_result() {
    outlasts(
        "refuses this user",
        async |place| place.run(&["ALTER ROLE {role} NOLOGIN", END_SESSIONS]).await,
        async |place| place.run(&["ALTER ROLE {role} LOGIN"]).await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_was_taken_away_loses_no_result() {
    outlasts(
        "lacks a right",
        async |place| {
            place
                .run_inside(&["REVOKE ALL ON ALL TABLES IN SCHEMA queuert FROM {role}"])
                .await;
        },
        async |place| {
            place
                .run_inside(&["GRANT ALL ON ALL TABLES IN SCHEMA queuert TO {role}"])
                .await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_accepts_no_connections_loses_no_result() {
    outlasts(
        "accepts no connections",
        async |place| {
            place
                .run(&["ALTER DATABASE {database} ALLOW_CONNECTIONS false", END_SESSIONS])
                .await;
        },
        async |place| place.run(&["ALTER DATABASE {database} ALLOW_CONNECTIONS true"]).await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_renamed_loses_no_result() {
    outlasts(
        "does not exist",
        async |place| {
            let rename = "ALTER DATABASE {database} RENAME TO {database}_elsewhere";
            let refuse = "ALTER DATABASE {database} ALLOW_CONNECTIONS false";
            place.run(&[refuse, END_SESSIONS, rename]).await;
        },
        async |place| {
            let rename = "ALTER DATABASE {database}_elsewhere RENAME TO {database}";
            place
                .run(&[rename, "ALTER DATABASE {database} ALLOW_CONNECTIONS true"])
                .await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_no_writes_loses_no_result() {
    outlasts(
        "may not write",
        async |place| {
            let refuse = "ALTER ROLE {role} SET default_transaction_read_only = on";
            place.run(&[refuse, END_SESSIONS]).await;
        },
        async |place| {
            let allow = "ALTER ROLE {role} RESET default_transaction_read_only";
            place.run(&[allow, END_SESSIONS]).await;
        },
    )
    .await;
}

/// A trigger of the user's that refuses the row of one job's end: that attempt fails, for as often as the job is tried, and the
/// other ends are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_that_refuses_an_end_fails_that_attempt_and_no_other() {
    let place = Place::new().await;
    let client = place.client().await;
    let refuse = "CREATE FUNCTION queuert.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                  IF NEW.output = '7' THEN RAISE EXCEPTION 'seven is not welcome'; END IF; RETURN NEW; END $$; \
                  CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON queuert.result FOR EACH ROW EXECUTE FUNCTION queuert.refuse()";
    place.run_inside(&[refuse]).await;
    let workers = client
        .worker()
        .concurrency(10)
        .retry(RetryPolicy::new().max_attempts(2).initial(Duration::from_millis(10)))
        .process(|job: Attempt<First>| async move {
            let n = job.0;
            job.finish(n)
        })
        .process(|job: Attempt<Last>| async move {
            let n = job.0;
            job.finish(n)
        })
        .start()
        .await
        .expect("the workers start");
    let chains = client.start_many((0..10).map(First)).await.expect("the chains start");
    for (n, chain) in chains.iter().enumerate() {
        let end = client.wait(chain).timeout(PATIENCE).await;
        match n {
            7 => assert!(
                format!("{:?}", end.unwrap_err()).contains("Dead"),
                "it has had its attempts"
            ),
            _ => assert_eq!(end.expect("nothing refuses it"), n),
        }
    }
    let jobs = client.list_jobs().limit(100).await.expect("jobs can be listed").items;
    let refused: Vec<_> = jobs.iter().filter(|job| job.attempt != 1).collect();
    assert_eq!(refused.len(), 1);
    let error = format!("{:?}", refused[0]);
    assert!(error.contains("a trigger refused a row"), "{error}");
    workers.stop().await;
    client.state().close().await;
}
