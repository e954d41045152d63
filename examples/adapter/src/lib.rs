//! A complete state adapter over a `BTreeMap`: what a new store needs, and nothing else.
//!
//! The map implements [`Records`]: transactions, a clock, and how jobs are found and written. [`General`] makes every verb
//! of a [`StateAdapter`](queuert::adapter::StateAdapter) of that. The store has one writer at a time, as SQLite has: an open
//! transaction has locked everything, so there is no other lock.
//!
//! `Client::new(adapter::open())` is a client on it. `tests/conformance.rs` runs the contract of all adapters on it, and the
//! behaviour of client and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::adapter::{AGEING_STEP, Find, General, Records, StoredJob};
use queuert::memory::MemoryClock;
use queuert::{ChainId, JobId, Pause, StateError, StateErrorKind, Timestamp, TypeName};
use tokio::sync::Notify;

/// The adapter.
pub type MapState = General<MapRecords>;

/// An empty store on the wall clock.
pub fn open() -> MapState {
    with_clock(MemoryClock::system(), AGEING_STEP)
}

/// An empty store on this clock, where one step of priority is worth so much waiting.
pub fn with_clock(clock: MemoryClock, ageing_step: Duration) -> MapState {
    let shared = Shared {
        committed: Mutex::default(),
        ended: Notify::new(),
        clock,
        ageing_step,
    };
    General::new(MapRecords(Arc::new(shared)))
}

/// The store. Clones share it.
#[derive(Clone)]
pub struct MapRecords(Arc<Shared>);

struct Shared {
    committed: Mutex<Committed>,
    /// Tells those that wait for their turn that a transaction has ended.
    ended: Notify,
    clock: MemoryClock,
    ageing_step: Duration,
}

/// What all callers see.
#[derive(Default)]
struct Committed {
    jobs: BTreeMap<JobId, StoredJob>,
    /// The jobs of each chain: without it, every look at a chain would be a look at all jobs.
    chains: BTreeMap<ChainId, BTreeSet<JobId>>,
    pauses: BTreeMap<TypeName, Pause>,
    entries: BTreeMap<String, String>,
    /// Whether a transaction is open. A flag, and no fair lock: a fair lock would give the turn to the caller that has waited
    /// longest, also if its future is kept and not polled.
    writing: bool,
    /// The earliest time that the open transaction has read: it creates no job that is older.
    writing_since: Option<Timestamp>,
}

/// What one transaction has changed.
#[derive(Clone, Default)]
struct Changes {
    /// `None` for a deleted job.
    jobs: BTreeMap<JobId, Option<StoredJob>>,
    /// `None` for a deleted pause.
    pauses: BTreeMap<TypeName, Option<Pause>>,
    entries: BTreeMap<String, String>,
}

/// What the application's own statements run on.
pub struct MapConnection {
    shared: Arc<Shared>,
    changes: Changes,
    savepoints: Vec<(u32, Changes)>,
}

/// An open transaction. Dropped, it rolls back.
#[derive(Debug)]
pub struct MapTransaction(MapConnection);

impl Records for MapRecords {
    type Connection = MapConnection;
    type Transaction = MapTransaction;

    async fn begin(&self) -> Result<MapTransaction, StateError> {
        loop {
            let mut ended = pin!(self.0.ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            if let Some(transaction) = self.try_begin().await? {
                return Ok(transaction);
            }
            ended.await;
        }
    }

    async fn try_begin(&self) -> Result<Option<MapTransaction>, StateError> {
        if std::mem::replace(&mut self.0.lock().writing, true) {
            return Ok(None);
        }
        Ok(Some(MapTransaction(MapConnection {
            shared: Arc::clone(&self.0),
            changes: Changes::default(),
            savepoints: Vec::new(),
        })))
    }

    async fn commit(&self, mut transaction: MapTransaction) -> Result<(), StateError> {
        let Changes { jobs, pauses, entries } = std::mem::take(&mut transaction.changes);
        let mut committed = self.0.lock();
        for (id, change) in jobs {
            committed.change(id, change);
        }
        for (type_name, pause) in pauses {
            match pause {
                Some(pause) => committed.pauses.insert(type_name, pause),
                None => committed.pauses.remove(&type_name),
            };
        }
        committed.entries.extend(entries);
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

    async fn now(&self, within: Option<&mut MapConnection>) -> Result<Timestamp, StateError> {
        let mut committed = self.0.lock();
        let now = self.0.clock.now();
        if within.is_some() {
            committed.writing_since.get_or_insert(now);
        }
        Ok(now)
    }

    async fn read(&self, within: Option<&mut MapConnection>, find: Find<'_>) -> Result<Vec<StoredJob>, StateError> {
        let none = Changes::default();
        let own = within.map_or(&none, |connection| &connection.changes);
        let committed = self.0.lock();
        if let Find::Jobs(ids) = find {
            let job = |id| match own.jobs.get(id) {
                Some(change) => change.as_ref(),
                None => committed.jobs.get(id),
            };
            return Ok(ids.iter().filter_map(job).cloned().collect());
        }
        if let Find::Chains(chains) = find {
            let chains: BTreeSet<&ChainId> = chains.iter().collect();
            let ids = chains
                .into_iter()
                .filter_map(|chain| committed.chains.get(chain))
                .flatten();
            let unchanged = ids.filter(|id| !own.jobs.contains_key(id));
            let jobs = unchanged.filter_map(|id| committed.jobs.get(id));
            let changed = own.jobs.values().flatten().filter(|stored| find.matches(stored));
            return Ok(jobs.chain(changed).cloned().collect());
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

    async fn pauses(&self, within: Option<&mut MapConnection>) -> Result<Vec<Pause>, StateError> {
        let mut pauses = self.0.lock().pauses.clone();
        for (type_name, change) in within.iter().flat_map(|connection| &connection.changes.pauses) {
            match change {
                Some(pause) => pauses.insert(type_name.clone(), pause.clone()),
                None => pauses.remove(type_name),
            };
        }
        Ok(pauses.into_values().collect())
    }

    async fn write_pause(
        &self,
        connection: &mut MapConnection,
        type_name: &TypeName,
        pause: Option<Pause>,
    ) -> Result<(), StateError> {
        connection.changes.pauses.insert(type_name.clone(), pause);
        Ok(())
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        let committed = self.0.lock();
        let now = self.0.clock.now();
        Ok(committed.writing_since.map_or(now, |since| since.min(now)))
    }

    fn ageing_step(&self) -> Duration {
        self.0.ageing_step
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MapRecords {
    /// Reads a committed entry of the application's own data.
    pub fn entry(&self, key: &str) -> Option<String> {
        self.0.lock().entries.get(key).cloned()
    }
}

impl Committed {
    /// Writes a job, or deletes it.
    fn change(&mut self, id: JobId, change: Option<StoredJob>) {
        let chain = change.as_ref().map(|stored| stored.job.chain_id);
        let before = match change {
            Some(stored) => self.jobs.insert(id, stored),
            None => self.jobs.remove(&id),
        };
        if let Some(chain) = chain {
            self.chains.entry(chain).or_default().insert(id);
        } else if let Some(before) = before
            && let Some(jobs) = self.chains.get_mut(&before.job.chain_id)
        {
            jobs.remove(&id);
        }
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

/// The end of the transaction, committed or not.
impl Drop for MapConnection {
    fn drop(&mut self) {
        let mut committed = self.shared.lock();
        (committed.writing, committed.writing_since) = (false, None);
        drop(committed);
        self.shared.ended.notify_waiters();
    }
}

impl Deref for MapTransaction {
    type Target = MapConnection;

    fn deref(&self) -> &MapConnection {
        &self.0
    }
}

impl DerefMut for MapTransaction {
    fn deref_mut(&mut self) -> &mut MapConnection {
        &mut self.0
    }
}

/// Only how much is stored: inputs and outputs belong to the application.
impl fmt::Debug for MapRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.0.lock().jobs.len();
        f.debug_struct("MapRecords").field("jobs", &jobs).finish()
    }
}

impl fmt::Debug for MapConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = self.changes.jobs.len();
        f.debug_struct("MapConnection").field("changed", &changed).finish()
    }
}
