//! The conformance cases, on SQLite. Every case has its own file in a temporary directory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use queuert::JobId;
use queuert::adapter::{NotifyAdapter, StateAdapter};
use queuert_conformance::{
    Capabilities, NotifyCapabilities, NotifyFixture, PairFixture, StateFixture, state_conformance,
};
use queuert_sqlite::{SqliteNotify, SqliteOptions, SqliteState, Synchronous};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;

struct File {
    directory: TempDir,
    /// The store that was opened last, with its path.
    latest: Mutex<Option<(SqliteState, PathBuf)>>,
    opened: AtomicUsize,
    /// The options of the caller; with them, batches run on a connection of sqlx.
    connect: Option<SqliteConnectOptions>,
}

impl File {
    fn new() -> Self {
        Self {
            directory: TempDir::new().expect("a temporary directory can be made"),
            latest: Mutex::default(),
            opened: AtomicUsize::new(0),
            connect: None,
        }
    }

    fn with_options() -> Self {
        Self {
            connect: Some(SqliteConnectOptions::new()),
            ..Self::new()
        }
    }

    fn options(&self) -> SqliteOptions {
        let options = SqliteState::options()
            .ageing_step(AGEING_STEP)
            .synchronous(Synchronous::Normal);
        match &self.connect {
            Some(connect) => options.connect_options(connect.clone()),
            None => options,
        }
    }

    fn latest(&self) -> Option<(SqliteState, PathBuf)> {
        self.latest.lock().expect("no test panics with the lock").clone()
    }
}

/// Statements that end a transaction, and whether they fail.
const ENDS: [(&str, bool); 7] = [
    ("INSERT OR ROLLBACK INTO taken VALUES ('taken')", true),
    ("INSERT INTO forbidden VALUES ('anything')", true),
    // The disk is full.
    (
        "PRAGMA max_page_count = 1; INSERT INTO full VALUES (zeroblob(1000000))",
        true,
    ),
    ("ROLLBACK", false),
    ("COMMIT", false),
    ("ROLLBACK; BEGIN IMMEDIATE", false),
    ("COMMIT; BEGIN IMMEDIATE", false),
];

/// Some milliseconds.
const SLOW: &str = "SELECT 1 WHERE 0 = (WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted \
                    WHERE n < 50000) SELECT max(n) FROM counted)";

const AGEING_STEP: Duration = Duration::from_millis(200);

impl StateFixture for File {
    type State = SqliteState;

    async fn state(&self) -> SqliteState {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        let path = self.directory.path().join(format!("{number}.db"));
        let state = self.options().open(&path).await.expect("a new file can be opened");
        let mut transaction = state.begin().await.expect("a transaction can be begun");
        sqlx::raw_sql(
            "CREATE TABLE marker (name TEXT PRIMARY KEY); \
             CREATE TABLE poison (marker TEXT REFERENCES marker (name) DEFERRABLE INITIALLY DEFERRED); \
             CREATE TABLE taken (name TEXT PRIMARY KEY); INSERT INTO taken VALUES ('taken'); \
             CREATE TABLE full (content BLOB); CREATE TABLE forbidden (name TEXT); \
             CREATE TRIGGER forbid BEFORE INSERT ON forbidden BEGIN SELECT RAISE(ROLLBACK, 'forbidden'); END",
        )
        .execute(&mut *transaction)
        .await
        .expect("the user's tables can be made");
        state
            .commit(transaction)
            .await
            .expect("the user's tables can be committed");
        *self.latest.lock().expect("no test panics with the lock") = Some((state.clone(), path));
        state
    }

    async fn elapse(&self, _: &SqliteState, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().poison().markers().owners().ends(ENDS.len())
    }

    fn ageing_step(&self) -> Duration {
        AGEING_STEP
    }

    async fn twin(&self, _: &SqliteState) -> SqliteState {
        let (_, path) = self.latest().expect("a store has been opened");
        self.options().open(path).await.expect("the file can be opened again")
    }

    /// The last handle releases its locks when it is dropped, as a process does when it ends.
    async fn kill(&self, twin: SqliteState) {
        drop(twin);
    }

    /// A statement that fails undoes only itself in SQLite; a deferred constraint makes the commit fail.
    async fn poison(&self, connection: &mut SqliteConnection) {
        sqlx::query("INSERT INTO poison VALUES ('there is no such marker')")
            .execute(connection)
            .await
            .expect("a deferred constraint fails at the commit only");
    }

    fn damages(&self) -> &'static [&'static str] {
        &[
            "chain_type = CAST(x'ff' AS TEXT)",
            "input = CAST(x'22ff22' AS TEXT)",
            "trace_context = CAST(x'ff' AS TEXT)",
            "attempt = -5",
            "attempt = 9223372036854775807",
            "claims = 5000000000",
            "max_attempts = -1",
            "priority = 100000",
            "blockers = -1",
            "error_at = 1, error_attempt = -1",
        ]
    }

    fn lease_damages(&self) -> &'static [&'static str] {
        &[
            "lease_until = NULL",
            "lease_until = NULL, lease_owner = NULL, fence = NULL",
            "lease_owner = NULL",
            "fence = NULL",
        ]
    }

    async fn damage(&self, _: &SqliteState, job: JobId, how: &str) {
        let (_, path) = self.latest().expect("a store has been opened");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let pool = sqlx::SqlitePool::connect_with(options)
            .await
            .expect("the file can be opened by the user");
        let update = format!("UPDATE queuert_job SET {how} WHERE id = ?1");
        let updated = sqlx::query(sqlx::AssertSqlSafe(update))
            .bind(job.as_uuid().into_bytes().to_vec())
            .execute(&pool)
            .await
            .expect("a row can be changed");
        assert_eq!(updated.rows_affected(), 1, "the row is there");
        pool.close().await;
    }

    async fn end_transaction(&self, connection: &mut SqliteConnection, way: usize) {
        let (statement, fails) = ENDS[way];
        let ended = sqlx::raw_sql(statement).execute(&mut *connection).await;
        assert_eq!(ended.is_err(), fails, "{statement}: {ended:?}");
        // Removes the size limit for the statements after this.
        sqlx::raw_sql("PRAGMA max_page_count = 1000000")
            .execute(connection)
            .await
            .expect("there is room again");
    }

    async fn abandon_end(&self, connection: &mut SqliteConnection, way: usize) {
        let (statements, _) = ENDS[way];
        // The first keeps SQLite busy until the caller has gone on.
        for statement in std::iter::once(SLOW).chain(statements.split("; ")) {
            let sent = sqlx::raw_sql(statement).execute(&mut *connection).now_or_never();
            assert!(sent.is_none(), "{statement}: {sent:?}");
        }
    }

    async fn write_marker(&self, connection: &mut SqliteConnection, marker: &str) {
        sqlx::query("INSERT INTO marker VALUES (?1)")
            .bind(marker.to_owned())
            .execute(connection)
            .await
            .expect("a marker can be written");
    }

    async fn read_marker(&self, _: &SqliteState, marker: &str) -> bool {
        let (_, path) = self.latest().expect("a store has been opened");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let pool = sqlx::SqlitePool::connect_with(options)
            .await
            .expect("the file can be opened by the user");
        let found: Option<String> = sqlx::query_scalar("SELECT name FROM marker WHERE name = ?1")
            .bind(marker.to_owned())
            .fetch_optional(&pool)
            .await
            .expect("a marker can be read");
        pool.close().await;
        found.is_some()
    }
}

state_conformance!(File::new());

mod with_options {
    use super::File;

    queuert_conformance::state_conformance!(File::with_options());
}

/// Every participant has its own handle on the file, as another process would.
impl NotifyFixture for File {
    async fn connect(&self) -> Arc<dyn NotifyAdapter> {
        let state = SqliteState::open(self.directory.path().join("notify.db"))
            .await
            .expect("a file can be opened");
        Arc::new(SqliteNotify::new(&state))
    }

    fn capabilities(&self) -> NotifyCapabilities {
        NotifyCapabilities::none().hints()
    }
}

/// Client and workers, with hints through the file.
impl PairFixture for File {
    async fn notify(&self) -> Arc<dyn NotifyAdapter> {
        match self.latest() {
            Some((state, _)) => Arc::new(SqliteNotify::new(&state)),
            None => self.connect().await,
        }
    }
}

mod client {
    use super::File;

    queuert_conformance::client_behaviour!(File::new());
}

mod worker {
    use super::File;

    queuert_conformance::worker_behaviour!(File::new());
}

mod notify {
    use super::File;

    queuert_conformance::notify_conformance!(File::new());
}
