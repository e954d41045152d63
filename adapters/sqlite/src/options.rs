//! Settings, and how a file is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::AGEING_STEP;
use queuert::{StateError, StateErrorKind};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqliteSynchronous, SqliteTransactionManager};
use sqlx::{ConnectOptions, Connection, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;

use crate::connection::connections::{Connections, Open, track};
use crate::connection::hidden::Hidden;
use crate::connection::identity::Opened;
use crate::error::{is_locked, translate, translate_first};
use crate::liveness::Presence;
use crate::migrate;
use crate::state::SqliteState;
use crate::store::Core;
use crate::transaction::Lendable;
use crate::writer::Plan;
use crate::writer::queue::Queue;
use crate::writer::thread::{Own, OwnOptions};

/// How much of a commit has reached the disk when it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synchronous {
    /// All of it: a commit survives the loss of power. One flush per transaction, which concurrent operations share.
    #[default]
    Full,
    /// Usually: a commit survives the end of the process, however sudden, but the last ones may be undone by a loss of
    /// power or a crash of the operating system. The file stays intact, and jobs that had been claimed or completed in
    /// those commits run again. Several times faster for single operations.
    Normal,
}

/// Settings of a [`SqliteState`], made with [`SqliteState::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqliteOptions {
    prefix: String,
    synchronous: Synchronous,
    lock_timeout: Duration,
    readers: u32,
    ageing_step: Duration,
    connect: Hidden<Option<SqliteConnectOptions>>,
}

/// Ranks are whole numbers of microseconds; a longer step could overflow them.
const LONGEST_AGEING_STEP: Duration = Duration::from_secs(365 * 86_400);

/// Nobody waits for longer, and times stay far from what a clock can hold.
const LONGEST_LOCK_TIMEOUT: Duration = Duration::from_secs(86_400);

/// How long SQLite itself waits for a lock before this library's own loop takes over, which does not block a thread.
const SHORT_WAIT: Duration = Duration::from_millis(5);

/// Readers hardly ever wait in WAL mode; when they do, for a checkpoint or a recovery.
const READER_WAIT: Duration = Duration::from_secs(5);

/// The page cache of the writer: 16 MiB at most, in the unit of the pragma. Not more: whenever a tree has been balanced,
/// the commit looks through the whole directory of the cache.
const WRITER_CACHE: (&str, &str) = ("cache_size", "-16384");

/// After how many pages the log is moved into the file: 16 MiB of the usual pages.
const CHECKPOINT_PAGES: (&str, &str) = ("wal_autocheckpoint", "4000");

/// Rows that a connection's thread may be ahead: a batch should not make two threads take turns.
const ROW_BUFFER: usize = 1_024;

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            prefix: "queuert_".to_owned(),
            synchronous: Synchronous::Full,
            lock_timeout: Duration::from_secs(10),
            readers: 4,
            ageing_step: AGEING_STEP,
            connect: Hidden(None),
        }
    }
}

impl SqliteOptions {
    /// What the names of the tables start with: letters, digits and underscores. Default: `queuert_`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How much of a commit has reached the disk when it is reported. Default: [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long to wait for the write lock while another process, or one transaction of this process, keeps it; after
    /// that a transient error says whom to look for. At most a day. Default: 10 seconds.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout.min(LONGEST_LOCK_TIMEOUT);
        self
    }

    /// How many connections read at once, at most; each has a thread while it is in use. Default: 4.
    pub fn readers(mut self, readers: u32) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// How much waiting one step of priority is worth, for jobs that are written from now on; at most a year. All
    /// processes on one file should agree. Default: [`AGEING_STEP`].
    pub fn ageing_step(mut self, step: Duration) -> Self {
        self.ageing_step = step.min(LONGEST_AGEING_STEP);
        self
    }

    /// What connections are made with: extensions, collations, pragmas, keys. The file name is that given to
    /// [`open`](Self::open); the journal mode, `synchronous` and the busy timeout are this library's. Default: sqlx's.
    ///
    /// Without options of yours, this library writes on a connection of its own that sqlx is not in the way of; with
    /// them, everything goes through sqlx, at about half the speed.
    pub fn connect_options(mut self, options: SqliteConnectOptions) -> Self {
        self.connect = Hidden(Some(options));
        self
    }

    /// Opens the file, creates it if it does not exist, and brings the schema up to date.
    ///
    /// Must be called within a tokio runtime. The store may be used from other runtimes too, at the same time or when this
    /// one has ended: each has a writer of its own, a task that ends with it.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StateErrorKind::Misconfigured) if the file is not a database, cannot be written, has a schema
    /// of a newer version, or has tables of these names that are not queuert's; nothing has been written then.
    /// [`Transient`](StateErrorKind::Transient) if it stays locked.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may leave a file without a schema, or with the whole of it.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteState, StateError> {
        let path = resolved(path.as_ref())?;
        let options = Option::clone(&self.connect)
            .unwrap_or_default()
            .filename(&path)
            .create_if_missing(true);
        self.open_with(options, path == Path::new(":memory:"), path).await
    }

    /// Opens a database that lives in memory and is lost with the last handle. It has one connection: what reads
    /// without a transaction waits for a transaction that is open.
    ///
    /// # Errors
    ///
    /// Only if memory is short or the prefix is wrong.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves nothing behind.
    pub async fn open_in_memory(self) -> Result<SqliteState, StateError> {
        self.open(":memory:").await
    }

    /// Opens the file that the pool of the application is on, with the pool's connection options.
    ///
    /// The store has connections of its own beside the pool's, because all its writing goes through one queue; the
    /// pool stays the application's. Where the pool's options have nothing special in them, [`open`](Self::open) with
    /// its path is faster (see [`connect_options`](Self::connect_options)). Transactions that start or complete chains are begun through the client, or are
    /// the pool's own and given to `client.adopt(..)`.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open). [`Misconfigured`](StateErrorKind::Misconfigured) too for a pool on a database in
    /// memory: every connection would have a database of its own.
    ///
    /// # Cancel safety
    ///
    /// See [`open`](Self::open).
    pub async fn from_pool(mut self, pool: &SqlitePool) -> Result<SqliteState, StateError> {
        let options = SqliteConnectOptions::clone(&pool.connect_options());
        let path = options.get_filename().to_path_buf();
        let name = path.to_string_lossy();
        if name.is_empty() || name == ":memory:" || name.starts_with("file:sqlx-in-memory-") {
            return Err(StateError::new(
                StateErrorKind::Misconfigured,
                "the pool is on a database in memory, which other connections cannot see; use a file, or \
                 `SqliteState::options().open_in_memory()` and the transactions of its client",
            ));
        }
        self.connect = Hidden(Some(options));
        self.open(path).await
    }

    async fn open_with(
        self,
        options: SqliteConnectOptions,
        in_memory: bool,
        path: PathBuf,
    ) -> Result<SqliteState, StateError> {
        migrate::check_prefix(&self.prefix)?;
        let plain = options
            .busy_timeout(SHORT_WAIT)
            .row_buffer_size(ROW_BUFFER)
            .log_statements(log_off());
        // The writer touches the indexes of the whole backlog: with SQLite's own 2 MB it would read pages again and again,
        // and spill half-written transactions. Longer logs make for fewer flushes of the file itself.
        let writing = plain
            .clone()
            .synchronous(match self.synchronous {
                Synchronous::Full => SqliteSynchronous::Full,
                Synchronous::Normal => SqliteSynchronous::Normal,
            })
            .pragma(WRITER_CACHE.0, WRITER_CACHE.1)
            .pragma(CHECKPOINT_PAGES.0, CHECKPOINT_PAGES.1);
        let deadline = Instant::now() + self.lock_timeout;
        let mut connection = loop {
            match self.prepare(&writing, in_memory).await {
                Err(Failure::Busy(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2 + fastrand::u64(..8))).await;
                }
                Err(Failure::Busy(error) | Failure::Other(error)) => return Err(named(error, &path)),
                Ok(connection) => break connection,
            }
        };
        let database = database(&mut connection).await.map_err(|error| named(error, &path))?;
        let presence = Presence::new(database.clone());
        // A link that is made to lead elsewhere is another file at the path too, so it is not followed once and for all.
        let opened = match path.to_string_lossy().starts_with("file:") {
            true => database.clone().and_then(Opened::at),
            false => database.as_ref().and_then(|_| Opened::at(path.clone())),
        };
        let core = Arc::new(Core::new(&self.prefix, self.ageing_step, presence, opened));
        let Some(open) = core.connections.admit() else {
            return Err(translate(sqlx::Error::PoolClosed));
        };
        let connection = Lendable::new(connection, open.clone(), database.as_deref())
            .await
            .map_err(|error| named(translate(error), &path))?;
        let readers = (!in_memory).then(|| self.reader_pool(&plain, &core.connections));
        // With options of the caller's, or in memory, only sqlx knows how to open it.
        let file = (!in_memory && self.connect.is_none()).then_some(path);
        let own_options = match (&file, &database) {
            (Some(path), Some(database)) => Some(self.own_options(path.clone(), database.clone())),
            _ => None,
        };
        let own = match &own_options {
            Some(options) => Some(start_own(&core, options, &open, deadline).await?),
            None => None,
        };
        let plan = Plan {
            core: Arc::clone(&core),
            own: own_options,
            options: Hidden(writing.create_if_missing(false)),
            database,
            lock_timeout: self.lock_timeout,
        };
        let queue = match in_memory {
            true => Queue::start_in_memory(&plan, open, connection).await?,
            false => Queue::start(plan, open, own, connection),
        };
        Ok(SqliteState::new(core, queue, readers, file, self.lock_timeout))
    }

    fn own_options(&self, path: PathBuf, database: PathBuf) -> OwnOptions {
        let synchronous = match self.synchronous {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        };
        OwnOptions {
            path,
            database,
            busy_timeout: SHORT_WAIT,
            // The keys of the application's own tables may refer to ours; sqlx has them checked too.
            pragmas: vec![
                ("synchronous", synchronous),
                ("foreign_keys", "ON"),
                WRITER_CACHE,
                CHECKPOINT_PAGES,
            ],
        }
    }

    /// A connection that is opened here has read nothing of the file before [`SqliteState::read`] has looked whether it is
    /// the right one, and so has no log that it would write into a wrong one when it is closed. `PRAGMA synchronous` would
    /// read; readers do not need it.
    fn reader_pool(&self, plain: &SqliteConnectOptions, connections: &Connections) -> SqlitePool {
        let connections = connections.clone();
        let options = plain
            .clone()
            .create_if_missing(false)
            .busy_timeout(READER_WAIT)
            .pragma("query_only", "ON");
        PoolOptions::new()
            .min_connections(0)
            .max_connections(self.readers)
            .test_before_acquire(false)
            .max_lifetime(None)
            .idle_timeout(Duration::from_secs(60))
            .after_connect(move |connection, _| {
                let open = connections.admit();
                Box::pin(async move { track(connection, open.ok_or(sqlx::Error::PoolClosed)?).await })
            })
            .connect_lazy_with(options)
    }

    /// One try at opening, looking and migrating. Looks before it writes: a file that is refused stays as it is.
    async fn prepare(&self, options: &SqliteConnectOptions, in_memory: bool) -> Result<SqliteConnection, Failure> {
        let mut connection = SqliteConnection::connect_with(options).await?;
        let prepared = self.migrate(&mut connection, in_memory).await;
        match prepared {
            Ok(()) => Ok(connection),
            Err(failure) => {
                let _ = connection.close().await;
                Err(failure)
            }
        }
    }

    async fn migrate(&self, connection: &mut SqliteConnection, in_memory: bool) -> Result<(), Failure> {
        let current = migrate::is_current(connection, &self.prefix).await?;
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut *connection)
            .await?;
        if !in_memory && mode != "wal" {
            let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
                .fetch_one(&mut *connection)
                .await?;
            if pages == 0 {
                // Must be chosen before the first page is written: it lets the file shrink without a full vacuum.
                sqlx::query("PRAGMA auto_vacuum = INCREMENTAL")
                    .execute(&mut *connection)
                    .await?;
            }
            let changed: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
                .fetch_one(&mut *connection)
                .await?;
            if changed != "wal" {
                return Err(Failure::Other(StateError::new(
                    StateErrorKind::Misconfigured,
                    format!(
                        "the database cannot be switched to write-ahead logging (its journal mode stays `{changed}`); \
                         network file systems cannot hold a queue, put the file on a local disk"
                    ),
                )));
            }
        }
        if current {
            return Ok(());
        }
        SqliteTransactionManager::begin(connection, Some("BEGIN IMMEDIATE".into_sql_str())).await?;
        // Looks again: another process may have done it while this one waited for the lock.
        let applied = migrate::apply(connection, &self.prefix).await;
        match applied {
            Ok(()) => Ok(SqliteTransactionManager::commit(connection).await?),
            Err(error) => {
                // The first error counts; the connection is closed in any case.
                let _ = SqliteTransactionManager::rollback(connection).await;
                Err(Failure::Other(error))
            }
        }
    }
}

async fn start_own(core: &Arc<Core>, options: &OwnOptions, open: &Open, deadline: Instant) -> Result<Own, StateError> {
    loop {
        match Own::start(Arc::clone(core), options.clone(), open.clone()).await {
            Err(error) if is_locked(&error) && Instant::now() < deadline => {
                tokio::time::sleep(SHORT_WAIT).await;
            }
            started => return started.map_err(|error| named(error, &options.path)),
        }
    }
}

/// The path of the file, as SQLite knows it; `None` for a database in memory.
async fn database(connection: &mut SqliteConnection) -> Result<Option<PathBuf>, StateError> {
    let found: Option<String> = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
        .fetch_optional(connection)
        .await
        .map_err(translate)?;
    Ok(found.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// The path from the root, so that a program that changes its directory keeps its file.
fn resolved(path: &Path) -> Result<PathBuf, StateError> {
    let name = path.to_string_lossy();
    if name == ":memory:" {
        return Ok(path.to_path_buf());
    }
    let uri = name.starts_with("file:");
    if name.is_empty() || uri && (name.contains(":memory:") || name.contains("mode=memory")) {
        return Err(StateError::new(
            StateErrorKind::Misconfigured,
            format!(
                "`{name}` is a database that other connections cannot see; give the path of a file, or use \
                 `SqliteState::options().open_in_memory()`"
            ),
        ));
    }
    if uri {
        return Ok(path.to_path_buf());
    }
    std::path::absolute(path).map_err(|error| {
        StateError::new(
            StateErrorKind::Misconfigured,
            format!("{name}: the current directory is not known; give the whole path"),
        )
        .with_source(error)
    })
}

fn log_off() -> log::LevelFilter {
    log::LevelFilter::Off
}

/// Why an attempt to open failed.
enum Failure {
    /// Another process has the file locked; perhaps it is just setting it up.
    Busy(StateError),
    Other(StateError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        translate_first(error).into()
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        match is_locked(&error) {
            true => Self::Busy(error),
            false => Self::Other(error),
        }
    }
}

/// Says which file it is about.
fn named(error: StateError, path: &Path) -> StateError {
    use std::error::Error as _;
    let message = format!("{}: {error}", path.display());
    match error.source() {
        Some(source) => StateError::new(error.kind(), message).with_source(source.to_string()),
        None => StateError::new(error.kind(), message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_holds_wherever_the_program_goes() {
        let path = resolved(Path::new("app.db")).unwrap();
        assert!(path.is_absolute() && path.ends_with("app.db"), "{path:?}");
        for kept in [":memory:", "file:app.db?mode=rw"] {
            assert_eq!(resolved(Path::new(kept)).unwrap(), Path::new(kept));
        }
        for refused in ["", "file::memory:", "file:app?mode=memory&cache=shared"] {
            let error = resolved(Path::new(refused)).unwrap_err();
            assert_eq!(error.kind(), StateErrorKind::Misconfigured);
            assert!(error.to_string().contains("open_in_memory"), "{error}");
        }
    }
}
