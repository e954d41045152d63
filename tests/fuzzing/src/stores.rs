//! One store of each kind, with a table of somebody else's beside it.

use queuert::memory::MemoryState;
use queuert_postgres::PostgresState;
use queuert_sqlite::{SqliteState, Synchronous};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A store of each kind.
#[derive(Debug)]
pub struct Stores {
    /// Where everything runs.
    pub runtime: Runtime,
    /// In memory.
    pub memory: MemoryState,
    /// In a file.
    pub sqlite: SqliteState,
    /// In a schema of its own.
    pub postgres: PostgresState,
    /// The schema, and what must not be touched beside it.
    pub watched: Watched,
}

/// A file and a schema with a table in each that nobody but these tests may touch.
#[derive(Debug)]
pub struct Watched {
    /// The directory of the file.
    pub directory: TempDir,
    /// The schema of the table on the server.
    pub schema: String,
    /// The server.
    pub url: String,
}

impl Watched {
    /// Makes both, with one row in each.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may leave a schema behind.
    pub async fn new() -> Self {
        let watched = Self {
            directory: TempDir::new().expect("a temporary directory can be made"),
            schema: postgres_support::unique_name("queuert_fuzz"),
            url: postgres_support::server_url().await,
        };
        let schema = &watched.schema;
        watched
            .on_server(&format!(
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.precious (word text); \
                 INSERT INTO {schema}.precious VALUES ('untouched')"
            ))
            .await;
        let create = "CREATE TABLE precious (word TEXT); INSERT INTO precious VALUES ('untouched')";
        let mut connection = watched.file_connection().await;
        sqlx::raw_sql(create)
            .execute(&mut connection)
            .await
            .expect("the table can be made");
        watched
    }

    /// The file.
    pub fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("app.db")
    }

    async fn file_connection(&self) -> SqliteConnection {
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(self.file())
            .create_if_missing(true);
        SqliteConnection::connect_with(&options)
            .await
            .expect("the file can be opened")
    }

    /// Runs statements on the server.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has run some of them.
    pub async fn on_server(&self, statements: &str) {
        let mut connection = self.server_connection().await;
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{error}: {statements}"));
    }

    /// A connection to the server.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no connection behind.
    pub async fn server_connection(&self) -> PgConnection {
        PgConnection::connect(&self.url)
            .await
            .expect("the test server can be reached")
    }

    /// Whether both tables are as they were.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    pub async fn assert_untouched(&self) {
        let in_file: Vec<String> = sqlx::query_scalar("SELECT word FROM precious")
            .fetch_all(&mut self.file_connection().await)
            .await
            .expect("the table in the file is there");
        let select = AssertSqlSafe(format!("SELECT word FROM {}.precious", self.schema));
        let on_server: Vec<String> = sqlx::query_scalar(select)
            .fetch_all(&mut self.server_connection().await)
            .await
            .expect("the table on the server is there");
        assert_eq!(
            (in_file, on_server),
            (vec!["untouched".to_owned()], vec!["untouched".to_owned()])
        );
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let (url, drop) = (
            self.url.clone(),
            format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema),
        );
        // A thread of its own: this may be on a runtime.
        let cleaner = std::thread::spawn(move || {
            let runtime = Runtime::new().expect("a runtime can be built");
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&url).await?;
                sqlx::raw_sql("SET client_min_messages = warning")
                    .execute(&mut connection)
                    .await?;
                sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await
            })
        });
        if !matches!(cleaner.join(), Ok(Ok(_))) {
            eprintln!("something stays behind on the test server");
        }
    }
}

impl Stores {
    /// Opens all of them.
    pub fn open() -> Self {
        let runtime = Runtime::new().expect("a runtime can be built");
        let (watched, sqlite, postgres) = runtime.block_on(async {
            let watched = Watched::new().await;
            let sqlite = SqliteState::options()
                .synchronous(Synchronous::Normal)
                .open(watched.file());
            let sqlite = sqlite.await.expect("the file can be opened");
            let postgres = PostgresState::options().schema(&watched.schema).max_connections(4);
            let postgres = postgres.connect(&watched.url).await;
            (watched, sqlite, postgres.expect("the test server can be used"))
        });
        Self {
            runtime,
            memory: MemoryState::new(),
            sqlite,
            postgres,
            watched,
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        self.runtime.block_on(async {
            self.sqlite.close().await.expect("closed");
            self.postgres.close().await;
        });
    }
}
