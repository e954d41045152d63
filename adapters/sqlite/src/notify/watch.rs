//! The thread that watches the file for this process.
//!
//! It is a thread and not a task, so that it depends on no runtime: a runtime that ends, or that the program does not drive,
//! would leave the subscribers of the other runtimes without hints. The first subscription starts the thread.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use queuert::{ChainId, StateError, StateErrorKind, TypeName};
use rusqlite::OpenFlags;
use sqlx::{Connection as _, SqliteConnection};

use super::{Shared, WatchPhase, notices, watched_types};
use crate::clock;
use crate::connection::connections::{OpenConnection, track};
use crate::connection::{Connection, query};
use crate::error::{StatementError, corrupt, translate};
use crate::runtime_thread;
use crate::state::SqliteState;
use crate::store::Store;
use crate::verbs::create::chain_statuses;

/// How often the change counter is read.
const INTERVAL: Duration = Duration::from_millis(25);

/// After how many looks without subscribers the thread ends. Not at once, because subscribers come and go, and opening a
/// connection for each would cost too much.
const LOOKS_WITHOUT_SUBSCRIBERS: u32 = 200;

/// The pause after a look that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// How long a look waits for a lock. In WAL mode that happens only during a checkpoint or a recovery.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the thread.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(), StateError> {
    let failed = |error| {
        StateError::new(
            StateErrorKind::Transient,
            "no thread could be started to look at the file for wake-ups; check the limits of threads and memory of the process \
             (`ulimit -u`)",
        )
        .with_source(error)
    };
    let guard = WatchGuard {
        shared: Arc::downgrade(shared),
        done: false,
    };
    let started = runtime_thread::start("queuert-watch", move |runtime| match runtime {
        Ok(runtime) => runtime.block_on(guard.run()),
        Err(error) => {
            if let Some(shared) = guard.shared.upgrade() {
                shared.watch_has_started(&Err(failed(error)));
            }
        }
    });
    started.map_err(failed)
}

/// Lets the next subscription start another thread, however this one ends.
struct WatchGuard {
    shared: Weak<Shared>,
    /// Whether the thread has said itself that it ends.
    done: bool,
}

impl WatchGuard {
    async fn run(mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let started = Watch::open(&shared.state).await;
        let (watch, answer) = match started {
            Ok(watch) => (Some(watch), Ok(())),
            Err(error) => (None, Err(error)),
        };
        shared.watch_has_started(&answer);
        drop(shared);
        if let Some(watch) = watch {
            watch.run(&self.shared).await;
        }
        self.done = true;
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            let before = std::mem::take(&mut shared.lock().watch);
            // Not under the lock: dropping it wakes the callers that wait.
            drop(before);
        }
    }
}

/// The connection that looks at the file, and what it has seen.
struct Watch {
    store: Arc<Store>,
    connection: WatchConnection,
    /// The number of the last notice that was read.
    last_notice: i64,
    /// The change counter at the last look; `None` before the first.
    data_version: Option<i64>,
    /// Dropped after `connection`, which it counts.
    _open: Option<OpenConnection>,
}

/// A connection that is not one of the readers: they would lack it for as long as there are subscribers.
enum WatchConnection {
    Rusqlite(rusqlite::Connection),
    /// For a file that only sqlx can open.
    Sqlx(SqliteConnection),
}

impl WatchConnection {
    fn as_connection(&mut self) -> Connection<'_> {
        match self {
            Self::Rusqlite(connection) => Connection::Rusqlite(connection),
            Self::Sqlx(connection) => Connection::Sqlx(connection),
        }
    }
}

/// Opens the file without sqlx, if no options of the caller are needed for that: a look takes some microseconds, and sqlx
/// would add hundreds for the way to its thread and back.
fn open_plain(file: &Path) -> Result<rusqlite::Connection, StatementError> {
    // For writing, because the last connection to close folds the log into the file.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    let connection = rusqlite::Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", "ON")?;
    Ok(connection)
}

impl Watch {
    async fn open(state: &SqliteState) -> Result<Self, StateError> {
        let Some(readers) = state.readers() else {
            return Err(corrupt("a database in memory is not shared"));
        };
        let mut open = state.store().connections.admit();
        if open.is_none() {
            return Err(translate(sqlx::Error::PoolClosed));
        }
        state.store().check_file()?;
        let mut connection = match state.file() {
            Some(file) => WatchConnection::Rusqlite(open_plain(file)?),
            None => {
                let connected = SqliteConnection::connect_with(&readers.connect_options()).await;
                let mut connection = connected.map_err(translate)?;
                if let Some(open) = open.take() {
                    track(&mut connection, open).await.map_err(translate)?;
                }
                WatchConnection::Sqlx(connection)
            }
        };
        let last_notice = connection
            .as_connection()
            .first(query(&state.store().statements.last_notice), |last| last.get("seq"))
            .await?;
        Ok(Self {
            store: Arc::clone(state.store()),
            connection,
            last_notice: last_notice.unwrap_or_default(),
            data_version: None,
            _open: open,
        })
    }

    /// Looks until there have been no subscribers for a while, or the store is closed.
    async fn run(mut self, shared: &Weak<Shared>) {
        let mut pause = INTERVAL;
        let mut looks_without_subscribers = 0;
        let mut failing = false;
        loop {
            // Closing the store waits for this connection.
            let _ = tokio::time::timeout(pause, self.store.connections.closed()).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            {
                let mut listeners = shared.lock();
                if listeners.subscribers.is_empty() {
                    looks_without_subscribers += 1;
                } else {
                    looks_without_subscribers = 0;
                }
                if looks_without_subscribers > LOOKS_WITHOUT_SUBSCRIBERS || self.store.connections.is_closed() {
                    // Under the lock, so that the next subscription starts another thread.
                    listeners.watch = WatchPhase::Idle;
                    return;
                }
            }
            let looked = match self.look(&shared).await {
                Ok(()) if failing => {
                    shared.lock().subscribers.resync();
                    Ok(())
                }
                Ok(()) => Ok(()),
                Err(lost) => match Self::open(&shared.state).await {
                    // The new connection sees changes from now on, so the subscribers look at the store after that.
                    Ok(again) => {
                        self = again;
                        let listeners = shared.lock();
                        if !failing {
                            // The failure is over, but notices may have been lost.
                            listeners.subscribers.fail(&lost.to_string().into());
                        }
                        listeners.subscribers.resync();
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            pause = match &looked {
                Ok(()) => INTERVAL,
                Err(_) => PAUSE_AFTER_FAILURE,
            };
            if let (false, Err(error)) = (failing, &looked) {
                shared.lock().subscribers.fail(&error.to_string().into());
            }
            failing = looked.is_err();
        }
    }

    /// Reads the change counter, which moves when another connection commits, and looks at the store if it has moved.
    async fn look(&mut self, shared: &Shared) -> Result<(), StateError> {
        self.store.check_file()?;
        let version: Option<i64> = self
            .connection
            .as_connection()
            .first(query(&self.store.statements.data_version), |found| found.first())
            .await?;
        let version = version.ok_or_else(|| corrupt("the change counter is not there"))?;
        if self.data_version == Some(version) {
            return Ok(());
        }
        self.data_version = Some(version);
        self.read_notices(shared).await?;
        let (types, chains): (Vec<TypeName>, Vec<ChainId>) = {
            let listeners = shared.lock();
            let subscribers = &listeners.subscribers;
            (subscribers.types().cloned().collect(), subscribers.chains().collect())
        };
        if !types.is_empty() {
            self.look_for_jobs(shared, &types).await?;
        }
        if !chains.is_empty() {
            self.look_for_ended_chains(shared, &chains).await?;
        }
        Ok(())
    }

    async fn read_notices(&mut self, shared: &Shared) -> Result<(), StateError> {
        let read = query(&self.store.statements.read_notices).bind(self.last_notice);
        let read = self.connection.as_connection().fetch(read, notices::read).await?;
        for notice in read {
            self.last_notice = notice.seq;
            // This process has delivered what it has written itself.
            if notice.origin != self.store.origin
                && let Some(notice) = notice.notice
            {
                shared.lock().subscribers.tell(&notice);
            }
        }
        Ok(())
    }

    /// Offers the jobs that are due, and wakes a subscriber if the next job of a type is due sooner than was known.
    async fn look_for_jobs(&mut self, shared: &Shared, types: &[TypeName]) -> Result<(), StateError> {
        let now = clock::now();
        let found = watched_types(&mut self.connection.as_connection(), &self.store, types).await?;
        let mut listeners = shared.lock();
        for watched in found {
            let mut count = watched.ready;
            match watched.next_due {
                Some(due) => {
                    let known = listeners.next_due.insert(watched.type_name.clone(), due);
                    if due <= now || known.is_none_or(|known| due < known) {
                        count = count.max(1);
                    }
                }
                None => {
                    listeners.next_due.remove(&watched.type_name);
                }
            }
            if count > 0 {
                listeners.subscribers.offer(&watched.type_name, count);
            }
        }
        Ok(())
    }

    async fn look_for_ended_chains(&mut self, shared: &Shared, chains: &[ChainId]) -> Result<(), StateError> {
        let connection = &mut self.connection.as_connection();
        let statuses = chain_statuses(connection, &self.store, chains.iter().copied()).await?;
        let mut listeners = shared.lock();
        for chain in chains {
            let open = statuses.get(chain).map(|status| status.is_open());
            listeners.subscribers.found_chain(*chain, open);
        }
        Ok(())
    }
}
