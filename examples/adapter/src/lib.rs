//! A complete state adapter over a `BTreeMap`: what a new store needs, and nothing else.
//!
//! The map implements [`Records`]: transactions, a clock, and how jobs are found and written. [`General`] makes every verb
//! of a [`StateAdapter`](queuert::adapter::StateAdapter) of that. The store has one writer at a time, as SQLite has:
//! whoever has begun a transaction has locked everything, so there is no other lock.
//!
//! `tests/conformance.rs` runs the contract of all adapters and the behaviour of client and workers on it.
//!
//! `Client::new(adapter::open())` is a client on it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::adapter::{AGEING_STEP, Find, General, Records, StoredJob};
use queuert::memory::MemoryClock;
use queuert::{JobId, StateError, StateErrorKind, Timestamp};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// The adapter.
pub type MapState = General<MapRecords>;

/// The store. Clones share it.
#[derive(Clone)]
pub struct MapRecords {
    committed: Arc<Mutex<Committed>>,
    /// The right to write.
    turn: Arc<Turn<()>>,
    clock: MemoryClock,
    ageing_step: Duration,
}

/// What everybody sees.
#[derive(Default)]
struct Committed {
    jobs: BTreeMap<JobId, StoredJob>,
    entries: BTreeMap<String, String>,
    /// The earliest time that the open transaction has read: it creates no job that is older.
    writing_since: Option<Timestamp>,
}

/// What one transaction has changed.
#[derive(Clone, Default)]
struct Changes {
    /// `None` for a deleted job.
    jobs: BTreeMap<JobId, Option<StoredJob>>,
    entries: BTreeMap<String, String>,
}

/// What the application's own statements run on.
pub struct MapConnection {
    committed: Arc<Mutex<Committed>>,
    changes: Changes,
    savepoints: Vec<(u32, Changes)>,
}

/// An open transaction. Dropped, it rolls back: its changes go, and then its turn.
pub struct MapTransaction {
    connection: MapConnection,
    _turn: OwnedMutexGuard<()>,
}

/// An empty store on the wall clock.
pub fn open() -> MapState {
    with_clock(MemoryClock::system(), AGEING_STEP)
}

/// An empty store on this clock, where one step of priority is worth so much waiting.
pub fn with_clock(clock: MemoryClock, ageing_step: Duration) -> MapState {
    General::new(MapRecords {
        committed: Arc::default(),
        turn: Arc::default(),
        clock,
        ageing_step,
    })
}

impl MapRecords {
    /// Reads a committed entry of the application's own data.
    pub fn entry(&self, key: &str) -> Option<String> {
        lock(&self.committed).entries.get(key).cloned()
    }

    fn transaction(&self, turn: OwnedMutexGuard<()>) -> MapTransaction {
        let connection = MapConnection {
            committed: Arc::clone(&self.committed),
            changes: Changes::default(),
            savepoints: Vec::new(),
        };
        MapTransaction {
            connection,
            _turn: turn,
        }
    }
}

impl Records for MapRecords {
    type Connection = MapConnection;
    type Transaction = MapTransaction;

    async fn begin(&self) -> Result<MapTransaction, StateError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        Ok(self.transaction(turn))
    }

    async fn try_begin(&self) -> Result<Option<MapTransaction>, StateError> {
        let turn = Arc::clone(&self.turn).try_lock_owned().ok();
        Ok(turn.map(|turn| self.transaction(turn)))
    }

    async fn commit(&self, mut transaction: MapTransaction) -> Result<(), StateError> {
        let Changes { jobs, entries } = std::mem::take(&mut transaction.changes);
        let mut committed = lock(&self.committed);
        for (id, change) in jobs {
            match change {
                Some(stored) => committed.jobs.insert(id, stored),
                None => committed.jobs.remove(&id),
            };
        }
        committed.entries.extend(entries);
        // In the same critical section, so that the watermark passes what was committed.
        committed.writing_since = None;
        Ok(())
    }

    async fn rollback(&self, transaction: MapTransaction) -> Result<(), StateError> {
        drop(transaction);
        Ok(())
    }

    async fn savepoint(&self, connection: &mut MapConnection, depth: u32) -> Result<(), StateError> {
        connection.savepoints.push((depth, connection.changes.clone()));
        Ok(())
    }

    async fn release_savepoint(&self, connection: &mut MapConnection, depth: u32) -> Result<(), StateError> {
        connection.take_savepoint(depth).map(drop)
    }

    async fn rollback_to_savepoint(&self, connection: &mut MapConnection, depth: u32) -> Result<(), StateError> {
        connection.changes = connection.take_savepoint(depth)?;
        Ok(())
    }

    async fn now(&self, connection: &mut MapConnection) -> Result<Timestamp, StateError> {
        let mut committed = lock(&connection.committed);
        let now = self.clock.now();
        committed.writing_since.get_or_insert(now);
        Ok(now)
    }

    async fn read(&self, within: Option<&mut MapConnection>, find: Find<'_>) -> Result<Vec<StoredJob>, StateError> {
        let own = Changes::default();
        let own = within.map_or(&own, |connection| &connection.changes);
        let committed = lock(&self.committed);
        if let Find::Jobs(ids) = find {
            let job = |id| own.jobs.get(id).map_or_else(|| committed.jobs.get(id), Option::as_ref);
            return Ok(ids.iter().filter_map(job).cloned().collect());
        }
        let unchanged = committed.jobs.iter().filter(|(id, _)| !own.jobs.contains_key(id));
        let jobs = unchanged.map(|(_, stored)| stored).chain(own.jobs.values().flatten());
        Ok(jobs.filter(|stored| find.matches(stored)).cloned().collect())
    }

    async fn write(
        &self,
        connection: &mut MapConnection,
        put: Vec<StoredJob>,
        delete: Vec<JobId>,
    ) -> Result<(), StateError> {
        let put = put.into_iter().map(|stored| (stored.job.id, Some(stored)));
        let changes = put.chain(delete.into_iter().map(|id| (id, None)));
        connection.changes.jobs.extend(changes);
        Ok(())
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        let committed = lock(&self.committed);
        let now = self.clock.now();
        Ok(committed.writing_since.map_or(now, |since| since.min(now)))
    }

    fn ageing_step(&self) -> Duration {
        self.ageing_step
    }
}

impl MapConnection {
    /// Writes an entry of the application's own data, which stands for the statements that a service runs on its database.
    pub fn put(&mut self, key: &str, value: &str) {
        self.changes.entries.insert(key.to_owned(), value.to_owned());
    }

    /// Takes the savepoint off the stack, with all that were set after it.
    fn take_savepoint(&mut self, depth: u32) -> Result<Changes, StateError> {
        let found = self.savepoints.iter().rposition(|(set, _)| *set == depth);
        let taken = found.and_then(|index| self.savepoints.drain(index..).next());
        taken.map(|(_, changes)| changes).ok_or_else(|| {
            let message = format!("there is no savepoint at depth {depth}; set it before it is released");
            StateError::new(StateErrorKind::Misconfigured, message)
        })
    }
}

impl Drop for MapConnection {
    fn drop(&mut self) {
        lock(&self.committed).writing_since = None;
    }
}

impl Deref for MapTransaction {
    type Target = MapConnection;

    fn deref(&self) -> &MapConnection {
        &self.connection
    }
}

impl DerefMut for MapTransaction {
    fn deref_mut(&mut self) -> &mut MapConnection {
        &mut self.connection
    }
}

fn lock(committed: &Mutex<Committed>) -> MutexGuard<'_, Committed> {
    committed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Only how much is stored: inputs and outputs belong to the application.
impl fmt::Debug for MapRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = lock(&self.committed).jobs.len();
        f.debug_struct("MapRecords")
            .field("jobs", &jobs)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MapConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = self.changes.jobs.len();
        f.debug_struct("MapConnection")
            .field("changed", &changed)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for MapTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MapTransaction").field(&self.connection).finish()
    }
}
