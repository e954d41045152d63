//! A schema of its own for every test, on the server that the tests share.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses what it needs of this module"
)]

use std::str::FromStr;
use std::sync::OnceLock;

use queuert_postgres::{PostgresOptions, PostgresState};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// Where the tests run.
pub fn url() -> String {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        // A thread of its own, because this is called on runtimes, and after they have ended.
        let search = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be built");
            runtime.block_on(postgres_support::server_url())
        });
        search.join().expect("a server is found")
    })
    .clone()
}

/// A statement that adds types by hand, as the library would: a number is the beginning of a hash of the name.
pub fn add_types(names: &[&str]) -> String {
    let names = names.join("', '");
    format!(
        "INSERT INTO {{schema}}.job_type (id, name) \
         SELECT ('x' || left(encode(sha256(convert_to(n, 'UTF8')), 'hex'), 8))::bit(32)::integer, n \
         FROM unnest(ARRAY['{names}']) AS n ON CONFLICT DO NOTHING"
    )
}

/// A schema that no other test uses. Dropped with this value, and with it the connections that were made for it.
#[derive(Debug)]
pub struct Schema {
    name: String,
    url: String,
}

impl Schema {
    pub fn new() -> Self {
        Self::on(url())
    }

    /// On a server of the test's own, where other tests would be in the way.
    pub fn on(url: String) -> Self {
        Self {
            name: postgres_support::unique_name("queuert_test"),
            url,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connections that are known to belong to this test.
    pub fn connect_options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url)
            .expect("the URL of the test server is one")
            .application_name(&self.name)
    }

    /// Settings for a store in this schema, with few connections, because many tests share the server's.
    pub fn options(&self) -> PostgresOptions {
        PostgresState::options().schema(&self.name).max_connections(16)
    }

    pub async fn state(&self) -> PostgresState {
        self.options()
            .connect_with(self.connect_options())
            .await
            .expect("the test server can be used")
    }

    /// A connection outside of any store.
    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect_with(&self.connect_options())
            .await
            .expect("the test server can be reached")
    }

    /// Runs statements with `{schema}` in place of the schema's name.
    pub async fn run(&self, connection: &mut PgConnection, sql: &str) {
        let sql = sql.replace("{schema}", &self.name);
        sqlx::raw_sql(AssertSqlSafe(sql.clone()))
            .execute(connection)
            .await
            .unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let statements = [
            format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
                self.name
            ),
            format!(
                "SET client_min_messages = warning; DROP SCHEMA IF EXISTS {} CASCADE",
                self.name
            ),
        ];
        clean_on(self.url.clone(), statements.to_vec());
    }
}

/// Runs statements when a test is over.
pub fn clean(statements: &[String]) {
    clean_on(url(), statements.to_vec());
}

fn clean_on(url: String, statements: Vec<String>) {
    // A thread of its own: the test's runtime may be gone, or be the one that we are on.
    let cleaner = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&url).await?;
            for statement in statements {
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
            }
            connection.close().await
        })
    });
    match cleaner.join() {
        Ok(Ok(())) => {}
        other => eprintln!("something stays behind on the test server: {other:?}"),
    }
}
