//! Settings, and opening a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::AGEING_STEP;
use queuert::{StateError, StateErrorKind};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqliteSynchronous, SqliteTransactionManager};
use sqlx::{ConnectOptions, Connection as _, SqlSafeStr, SqliteConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;

use crate::connection::connections::{Connections, OpenConnection, track};
use crate::connection::hidden::Hidden;
use crate::connection::identity::OpenedFile;
use crate::connection::lendable::Lendable;
use crate::error::{is_locked, translate, translate_first};
use crate::liveness::Liveness;
use crate::migrate;
use crate::state::SqliteState;
use crate::statements::DATABASE_FILE;
use crate::store::Store;
use crate::writer::WriterOptions;
use crate::writer::queue::WriterQueue;
use crate::writer::thread::{ThreadOptions, WriterThread};

/// How much of a commit is on disk when the call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synchronous {
    /// All of it: a commit survives a power failure. One flush per transaction, which concurrent operations share.
    #[default]
    Full,
    /// Perhaps none: a commit survives the end of the process, however sudden, but a power failure or a crash of the operating
    /// system may undo the last commits. The file stays intact, and jobs that were claimed or completed in those commits run
    /// again. Several times faster for single operations.
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

/// The longest `lock_timeout`, so that deadlines do not overflow.
const LONGEST_LOCK_TIMEOUT: Duration = Duration::from_secs(86_400);

/// How long SQLite itself waits for a lock before this library's loop takes over, which does not block a thread.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);

/// The same for readers. In WAL mode they wait only during a checkpoint or a recovery.
const READER_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The page cache of the writer: 16 MiB at most, in the unit of the pragma. Not more, because a commit searches the whole
/// directory of the cache whenever a tree was rebalanced.
const WRITER_CACHE: (&str, &str) = ("cache_size", "-16384");

/// The number of pages after which the log is moved into the file: 16 MiB with the usual page size.
const CHECKPOINT_PAGES: (&str, &str) = ("wal_autocheckpoint", "4000");

/// How many rows the thread of a connection reads ahead, so that the two threads do not take turns for each row.
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
    /// The prefix of the names of the tables: letters, digits and underscores. Default: `queuert_`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How much of a commit is on disk when the call returns. Default: [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long to wait for the write lock while another process, or a transaction of this process, has it; after that the
    /// call fails with a transient error that says where to look. At most a day. Default: 10 seconds.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout.min(LONGEST_LOCK_TIMEOUT);
        self
    }

    /// The most connections that read at once; each has a thread while it is in use. Default: 4.
    pub fn readers(mut self, readers: u32) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// How much waiting time one step of priority is worth, for jobs that are written from now on; at most a year. All
    /// processes on one file should use the same value. Default: [`AGEING_STEP`].
    pub fn ageing_step(mut self, step: Duration) -> Self {
        self.ageing_step = step.min(LONGEST_AGEING_STEP);
        self
    }

    /// The options of connections: extensions, collations, pragmas, keys. The file name is the one given to
    /// [`open`](Self::open); this library sets the journal mode, `synchronous` and the busy timeout. Default: those of sqlx.
    ///
    /// Without this, the library writes on a connection that does not go through sqlx; with it, all connections go through
    /// sqlx, at about half the speed.
    pub fn connect_options(mut self, options: SqliteConnectOptions) -> Self {
        self.connect = Hidden(Some(options));
        self
    }

    /// Opens the file, creates it if it does not exist, and brings the schema up to date.
    ///
    /// Must be called within a tokio runtime. The store may be used from other runtimes too, at the same time or after this
    /// one has ended: each has its own writer, a task that ends with it.
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

    /// Opens a database in memory, which is lost with the last handle. It has one connection: a read outside of a transaction
    /// waits for a transaction that is open.
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
    /// The store does not use the connections of the pool, because all its writes go through one queue. If the options of the
    /// pool are not needed to open the file, [`open`](Self::open) with its path is faster (see
    /// [`connect_options`](Self::connect_options)). Transactions that start or complete chains are begun through the client,
    /// or are transactions of the pool that are given to `client.adopt(..)`.
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
            .busy_timeout(BUSY_TIMEOUT)
            .row_buffer_size(ROW_BUFFER)
            .log_statements(log_off());
        // The writer uses the indexes of the whole backlog: with SQLite's default of 2 MB it would read pages again and again,
        // and spill half-written transactions. With a longer log, the file itself is flushed less often.
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
                Err(Failure::Busy(error) | Failure::Other(error)) => return Err(with_path(error, &path)),
                Ok(connection) => break connection,
            }
        };
        let database = database(&mut connection)
            .await
            .map_err(|error| with_path(error, &path))?;
        let liveness = Liveness::new(database.clone());
        // The path of the caller, not the resolved one: a symbolic link that is changed to lead elsewhere counts as another
        // file.
        let opened = if path.to_string_lossy().starts_with("file:") {
            database.clone().and_then(OpenedFile::at)
        } else {
            database.as_ref().and_then(|_| OpenedFile::at(path.clone()))
        };
        let store = Arc::new(Store::new(&self.prefix, self.ageing_step, liveness, opened));
        let Some(open) = store.connections.admit() else {
            return Err(translate(sqlx::Error::PoolClosed));
        };
        let connection = Lendable::new(connection, open.clone(), database.as_deref())
            .await
            .map_err(|error| with_path(translate(error), &path))?;
        let readers = (!in_memory).then(|| self.reader_pool(&plain, &store.connections));
        // With options of the caller, or in memory, only sqlx can open it.
        let file = (!in_memory && self.connect.is_none()).then_some(path);
        let thread_options = match (&file, &database) {
            (Some(path), Some(database)) => Some(self.thread_options(path.clone(), database.clone())),
            _ => None,
        };
        let thread = match &thread_options {
            Some(options) => Some(start_thread(&store, options, &open, deadline).await?),
            None => None,
        };
        let options = WriterOptions {
            store: Arc::clone(&store),
            thread: thread_options,
            connect: Hidden(writing.create_if_missing(false)),
            database,
            lock_timeout: self.lock_timeout,
        };
        let queue = if in_memory {
            WriterQueue::start_in_memory(&options, open, connection).await?
        } else {
            WriterQueue::start(options, open, thread, connection)
        };
        Ok(SqliteState::new(store, queue, readers, file, self.lock_timeout))
    }

    fn thread_options(&self, path: PathBuf, database: PathBuf) -> ThreadOptions {
        let synchronous = match self.synchronous {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        };
        ThreadOptions {
            path,
            database,
            busy_timeout: BUSY_TIMEOUT,
            // Tables of the application may have foreign keys to the tables of this library. sqlx turns this on too.
            pragmas: vec![
                ("synchronous", synchronous),
                ("foreign_keys", "ON"),
                WRITER_CACHE,
                CHECKPOINT_PAGES,
            ],
        }
    }

    /// A connection that the pool opens has read nothing of the file before [`SqliteState::read`] has checked that it is the
    /// right file. So it has opened no log that it would write into a wrong file when it is closed. `PRAGMA synchronous` would
    /// read the file; readers do not need it.
    fn reader_pool(&self, plain: &SqliteConnectOptions, connections: &Connections) -> SqlitePool {
        let connections = connections.clone();
        let options = plain
            .clone()
            .create_if_missing(false)
            .busy_timeout(READER_BUSY_TIMEOUT)
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

    /// Opens the file, checks it and migrates it. It reads before it writes: a file that is refused is not changed.
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
                // Must be set before the first page is written: it lets the file shrink without a full vacuum.
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
        // Reads the version again: another process may have migrated while this one waited for the lock.
        let applied = migrate::apply(connection, &self.prefix).await;
        match applied {
            Ok(()) => Ok(SqliteTransactionManager::commit(connection).await?),
            Err(error) => {
                // The first error is returned; the connection is closed in any case.
                let _ = SqliteTransactionManager::rollback(connection).await;
                Err(Failure::Other(error))
            }
        }
    }
}

async fn start_thread(
    store: &Arc<Store>,
    options: &ThreadOptions,
    open: &OpenConnection,
    deadline: Instant,
) -> Result<WriterThread, StateError> {
    loop {
        match WriterThread::start(Arc::clone(store), options.clone(), open.clone()).await {
            Err(error) if is_locked(&error) && Instant::now() < deadline => {
                tokio::time::sleep(BUSY_TIMEOUT).await;
            }
            started => return started.map_err(|error| with_path(error, &options.path)),
        }
    }
}

/// The path of the file as SQLite has resolved it; `None` for a database in memory.
async fn database(connection: &mut SqliteConnection) -> Result<Option<PathBuf>, StateError> {
    let found: Option<String> = sqlx::query_scalar(DATABASE_FILE)
        .fetch_optional(connection)
        .await
        .map_err(translate)?;
    Ok(found.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// The absolute path, so that a program that changes its directory keeps using its file.
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

/// Why the file could not be opened.
enum Failure {
    /// Another process has the file locked, perhaps to create the schema.
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
        if is_locked(&error) {
            Self::Busy(error)
        } else {
            Self::Other(error)
        }
    }
}

/// Adds the path to an error.
fn with_path(error: StateError, path: &Path) -> StateError {
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
