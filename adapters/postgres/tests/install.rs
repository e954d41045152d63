//! Connecting: the schema is made once, and whatever is wrong is told in words that help.

mod support;

use queuert::adapter::{ClaimJobs, ClaimType, NewChain, NewJob, StateAdapter};
use queuert::{Fence, JobId, Payload, StateError, StateErrorKind, WorkerId};
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::time::Duration;
use support::{Schema, clean};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

/// The whole error, as a log would show it.
fn told(error: &StateError) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn refused(result: Result<PostgresState, StateError>, kind: StateErrorKind, says: &str) -> String {
    let error = result.expect_err("this must not work");
    let message = told(&error);
    assert_eq!(error.kind(), kind, "{message}");
    assert!(message.contains(says), "`{says}` is missing in: {message}");
    message
}

/// Starts a chain and claims it.
async fn works(state: &PostgresState) {
    let id = JobId::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let chain = NewChain::new(NewJob::new(id, "mail", Payload::from_text("1")));
    state
        .create_chains(None, &[chain])
        .await
        .expect("the store is well")
        .expect("no refusal");
    let mail = ClaimType {
        name: "mail".into(),
        lease: Duration::from_secs(60),
    };
    let fence = Fence::from_uuid(Uuid::from_u128(fastrand::u128(..)));
    let claim = ClaimJobs::new(vec![mail], 1, WorkerId::new("worker"), fence);
    let claimed = state.claim_jobs(&claim).await.expect("the store is well");
    assert_eq!(claimed.jobs.len(), 1);
}

async fn tables(schema: &Schema, connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY 1")
        .bind(schema.name())
        .fetch_all(connection)
        .await
        .expect("the catalogue can be read")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_start_at_once() {
    let schema = Schema::new();
    let starting: Vec<_> = (0..20)
        .map(|_| {
            let (options, connect) = (schema.options().max_connections(1), schema.connect_options());
            tokio::spawn(async move {
                let state = options.connect_with(connect).await.expect("every one of them connects");
                state.close().await;
            })
        })
        .collect();
    for one in starting {
        one.await.expect("no task panics");
    }
    let mut connection = schema.connection().await;
    let ledger = format!("SELECT count(*) FROM {}.migration", schema.name());
    let applied: i64 = sqlx::query_scalar(AssertSqlSafe(ledger))
        .fetch_one(&mut connection)
        .await
        .expect("the ledger is there");
    let steps = PostgresState::migrations("any").expect("the name is good").len();
    assert_eq!(usize::try_from(applied).expect("a count"), steps);
    works(&schema.state().await).await;
}

#[tokio::test]
async fn a_schema_from_the_future_is_refused() {
    let schema = Schema::new();
    schema.state().await.close().await;
    let mut connection = schema.connection().await;
    schema
        .run(
            &mut connection,
            "INSERT INTO {schema}.migration (version, name) VALUES (999, 'later')",
        )
        .await;
    let again = schema.options().connect_with(schema.connect_options()).await;
    refused(again, StateErrorKind::Misconfigured, "version 999");
}

#[tokio::test]
async fn tables_of_somebody_else_are_left_alone() {
    let schema = Schema::new();
    let mut connection = schema.connection().await;
    schema
        .run(
            &mut connection,
            "CREATE SCHEMA {schema}; CREATE TABLE {schema}.job (id integer)",
        )
        .await;
    let taken = schema.options().connect_with(schema.connect_options()).await;
    refused(taken, StateErrorKind::Misconfigured, "not queuert's");
}

async fn number(connection: &mut PgConnection, text: String) -> i64 {
    let number = sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(connection).await;
    number.expect("the number can be read")
}

/// There is nothing to check in it.
#[tokio::test]
async fn a_new_store_counts_as_checked() {
    let schema = Schema::new();
    schema.state().await.close().await;
    let mut connection = schema.connection().await;
    let checked = format!("SELECT checked_at FROM {}.maintainer", schema.name());
    assert!(number(&mut connection, checked).await > 0);
}

/// The exported statements make the same schema, and a role that may not create anything works with it.
#[tokio::test]
async fn migrations_can_be_applied_by_hand() {
    let (own, by_hand) = (Schema::new(), Schema::new());
    own.state().await.close().await;
    let mut connection = own.connection().await;
    let missing = by_hand.options().without_migrating();
    let missing = missing.connect_with(by_hand.connect_options()).await;
    refused(missing, StateErrorKind::Misconfigured, "PostgresState::migrations");
    for step in PostgresState::migrations(by_hand.name()).expect("the name is good") {
        by_hand.run(&mut connection, &step.sql).await;
    }
    let expected: Vec<_> = tables(&own, &mut connection)
        .await
        .iter()
        .map(|index| index.replace(own.name(), by_hand.name()))
        .collect();
    assert_eq!(tables(&by_hand, &mut connection).await, expected);
    let options = by_hand.options().without_migrating();
    let state = options.connect_with(by_hand.connect_options()).await;
    works(&state.expect("the schema is complete")).await;
}

/// A role of its own for a test.
struct Role(String);

impl Role {
    async fn new(connection: &mut PgConnection, schema: &Schema, settings: &str) -> Self {
        let name = format!("{}_role", schema.name());
        schema
            .run(connection, &format!("CREATE ROLE {name} LOGIN {settings}"))
            .await;
        Self(name)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        clean(&[format!("DROP OWNED BY {0}; DROP ROLE {0}", self.0)]);
    }
}

/// The message names every right that is missing, as statements that can be run as they are.
#[tokio::test]
async fn missing_rights_are_named() {
    let schema = Schema::new();
    let mut connection = schema.connection().await;
    let role = Role::new(&mut connection, &schema, "").await;
    let connect = || {
        let options = schema.connect_options().username(&role.0);
        schema.options().connect_with(options)
    };
    let message = refused(
        connect().await,
        StateErrorKind::Misconfigured,
        "GRANT CREATE ON DATABASE",
    );
    assert!(message.contains(&role.0), "{message}");
    schema.state().await.close().await;
    // Bit by bit, until it works: what the message asks for is enough, and is asked for at once where it can be.
    for round in 0.. {
        assert!(round < 4, "the messages do not lead anywhere");
        let error = match connect().await {
            Ok(state) => {
                works(&state).await;
                break;
            }
            Err(error) => error,
        };
        assert_eq!(error.kind(), StateErrorKind::Misconfigured, "{}", told(&error));
        let message = error.to_string();
        let (_, grants) = message.split_once("run as the owner: ").expect("it says what to run");
        schema.run(&mut connection, grants).await;
    }
}

/// To change a table takes its owner, whatever else a role may do.
#[tokio::test]
async fn who_may_not_change_the_tables_is_told_who_may() {
    let schema = Schema::new();
    let mut connection = schema.connection().await;
    schema.state().await.close().await;
    // A step is missing then.
    schema.run(&mut connection, "DELETE FROM {schema}.migration").await;
    let role = Role::new(&mut connection, &schema, "").await;
    let grant = format!(
        "GRANT USAGE, CREATE ON SCHEMA {{schema}} TO {0}; \
         GRANT ALL ON ALL TABLES IN SCHEMA {{schema}} TO {0}",
        role.0
    );
    schema.run(&mut connection, &grant).await;
    let options = schema.connect_options().username(&role.0);
    let refusal = schema.options().connect_with(options).await;
    refused(refusal, StateErrorKind::Misconfigured, "its tables belong to");
}

/// A role that writes nothing unless told to is not taken for a replica.
#[tokio::test]
async fn a_role_that_is_read_only_by_default_is_told_as_such() {
    let schema = Schema::new();
    schema.state().await.close().await;
    let mut connection = schema.connection().await;
    let role = Role::new(&mut connection, &schema, "").await;
    let read_only = format!("ALTER ROLE {} SET default_transaction_read_only = on", role.0);
    schema.run(&mut connection, &read_only).await;
    let options = schema.connect_options().username(&role.0);
    let refusal = schema.options().connect_with(options).await;
    let message = refused(
        refusal,
        StateErrorKind::Misconfigured,
        "`default_transaction_read_only` is on",
    );
    assert!(message.contains(&role.0) && !message.contains("replica"), "{message}");
}

#[tokio::test]
async fn a_full_server_is_told_as_such() {
    let schema = Schema::new();
    let mut connection = schema.connection().await;
    let role = Role::new(&mut connection, &schema, "CONNECTION LIMIT 0").await;
    let options = schema.connect_options().username(&role.0);
    let full = schema.options().connect_with(options).await;
    refused(full, StateErrorKind::Transient, "no connection left");
}

#[tokio::test]
async fn a_wrong_url_is_told_as_such() {
    for url in ["", "not a url", "mysql://localhost/test", "postgres://host:port/test"] {
        let message = refused(PostgresState::connect(url).await, StateErrorKind::Misconfigured, "URL");
        assert!(!message.contains("secret"));
    }
    let schema = Schema::new();
    let options = schema.connect_options().database("queuert_there_is_no_such_database");
    let missing = schema.options().connect_with(options).await;
    refused(missing, StateErrorKind::Misconfigured, "does not exist");
    // Port 1 is nobody's.
    let unreachable = PostgresState::connect("postgres://nobody:secret@127.0.0.1:1/test").await;
    let message = refused(unreachable, StateErrorKind::Transient, "cannot be reached");
    assert!(!message.contains("secret"), "{message}");
}

#[tokio::test]
async fn odd_names_of_schemas_are_quoted() {
    for bad in ["", "pg_mine", "nul\0nul", &"x".repeat(64)] {
        let state = PostgresState::options().schema(bad).connect(&support::url()).await;
        refused(state, StateErrorKind::Misconfigured, "cannot be used");
    }
    let name = format!("qué \"e'rt\\\"; $$ $body0$ {{schema}} {}", std::process::id());
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let state = PostgresState::options()
        .schema(&name)
        .max_connections(2)
        .connect(&support::url())
        .await
        .expect("any name will do");
    works(&state).await;
    state.close().await;
    clean(&[format!(
        "SET client_min_messages = warning; DROP SCHEMA {quoted} CASCADE"
    )]);
}

/// The caller's statements run with the settings that they have elsewhere.
#[tokio::test]
async fn transactions_have_the_usual_settings() {
    let schema = Schema::new();
    let state = schema.state().await;
    let settings = "SELECT current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), \
                    current_setting('plan_cache_mode')";
    let row = sqlx::raw_sql(settings)
        .fetch_one(state.pool())
        .await
        .expect("settings can be read");
    assert_eq!(
        row.get::<String, _>(0),
        "off",
        "the library's own connections are tuned"
    );
    let mut transaction = state.begin().await.expect("a transaction can be begun");
    let row = sqlx::raw_sql(settings)
        .fetch_one(&mut *transaction)
        .await
        .expect("settings can be read");
    let usual: [String; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(usual, ["on", "on", "auto"]);
    state.commit(transaction).await.expect("nothing failed");
}

/// Without settings and prepared statements, as a pooler wants it.
#[tokio::test]
async fn nothing_is_kept_on_connections_of_a_pooler() {
    let schema = Schema::new();
    let options = schema.options().max_connections(1).pooler();
    let state = options
        .connect_with(schema.connect_options())
        .await
        .expect("the test server can be used");
    works(&state).await;
    let kept = "SELECT current_setting('enable_seqscan'), (SELECT count(*) FROM pg_prepared_statements)::text";
    let row = sqlx::raw_sql(kept)
        .fetch_one(state.pool())
        .await
        .expect("settings can be read");
    let kept: [String; 2] = [row.get(0), row.get(1)];
    assert_eq!(kept, ["on", "0"]);
}

/// One message of the protocol.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short");
    let mut message = vec![kind];
    message.extend(length.to_be_bytes());
    message.extend(body);
    message
}

/// Says what a server would say: there is none here that is too old, and the one that is trusts everybody.
async fn pretender(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has a port").port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("somebody comes");
        let mut request = vec![0; 4_096];
        for answer in answers {
            let mut read = socket.read(&mut request).await.expect("a request");
            // A request for encryption is declined.
            while read == 8 {
                socket.write_all(b"N").await.expect("an answer");
                read = socket.read(&mut request).await.expect("a request");
            }
            socket.write_all(&answer).await.expect("an answer");
        }
        // Stays open until the client has read everything.
        let _ = socket.read(&mut request).await;
    });
    format!("postgres://somebody:secret@127.0.0.1:{port}/test?sslmode=disable")
}

#[tokio::test]
async fn a_wrong_password_is_told_as_such() {
    let mut body = Vec::new();
    for (field, text) in [
        (b'S', "FATAL"),
        (b'V', "FATAL"),
        (b'C', "28P01"),
        (b'M', "password authentication failed"),
    ] {
        body.push(field);
        body.extend(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let url = pretender(vec![message(b'E', &body)]).await;
    let message = refused(
        PostgresState::connect(&url).await,
        StateErrorKind::Misconfigured,
        "password",
    );
    assert!(!message.contains("secret"), "{message}");
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let mut hello = message(b'R', &0_u32.to_be_bytes());
    hello.extend(message(b'K', &[0; 8]));
    hello.extend(message(b'Z', b"I"));
    let values = [("version_number", "130015"), ("version", "13.15"), ("encoding", "UTF8")];
    let mut columns = u16::try_from(values.len()).expect("few").to_be_bytes().to_vec();
    let mut row = columns.clone();
    for (name, value) in values {
        // Name, table, column, type (text), length, modifier, format.
        columns.extend(format!("{name}\0").as_bytes());
        columns.extend([0; 6]);
        columns.extend(25_u32.to_be_bytes());
        columns.extend((-1_i16).to_be_bytes());
        columns.extend((-1_i32).to_be_bytes());
        columns.extend([0; 2]);
        row.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
        row.extend(value.as_bytes());
    }
    let mut answer = message(b'T', &columns);
    answer.extend(message(b'D', &row));
    answer.extend(message(b'C', b"SELECT 1\0"));
    answer.extend(message(b'Z', b"I"));
    let url = pretender(vec![hello, answer]).await;
    refused(
        PostgresState::connect(&url).await,
        StateErrorKind::Misconfigured,
        "Postgres 14",
    );
}

/// An application that gives up while the store looks at its pool, at any moment, gets no connection back that is in a
/// transaction which the library has begun.
#[tokio::test]
async fn a_pool_is_left_without_an_open_transaction() {
    let schema = Schema::new();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let pool = pool.connect_with(schema.connect_options()).await.expect("a server");
    for polls in 1.. {
        let mut adopt = Box::pin(schema.options().from_pool(pool.clone()));
        let mut left = polls;
        let ended = std::future::poll_fn(|context| {
            let ended = adopt.as_mut().poll(context).is_ready();
            left -= 1;
            match ended || left == 0 {
                true => std::task::Poll::Ready(ended),
                false => std::task::Poll::Pending,
            }
        });
        let ended = ended.await;
        drop(adopt);
        let mut connection = pool.acquire().await.expect("the pool has its connection again");
        let transaction = "SELECT pg_current_xact_id()::text";
        let first: String = sqlx::query_scalar(transaction)
            .fetch_one(&mut *connection)
            .await
            .expect("it works");
        let second: String = sqlx::query_scalar(transaction)
            .fetch_one(&mut *connection)
            .await
            .expect("it works");
        assert_ne!(first, second, "after {polls} polls the connection is in a transaction");
        if ended {
            // How many polls a connect takes depends on how fast the server answers: nine were seen on one without fsync.
            assert!(
                polls > 5,
                "{polls} polls are too few to be dropped in the middle of anything"
            );
            return;
        }
    }
}
