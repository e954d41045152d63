//! State and notify adapters that live in this process: for tests, examples and work that may be lost with it.
//!
//! [`MemoryState`] has the full semantics of a database: transactions that no other caller sees until they commit, savepoints,
//! locks with deadlock detection, one clock. It keeps payloads as text, never by reference, so what cannot be
//! serialised shows here first. [`InProcessNotify`] wakes about as many workers as there are new jobs.
//!
//! ```
//! use std::time::Duration;
//!
//! use queuert::Timestamp;
//! use queuert::adapter::StateAdapter;
//! use queuert::memory::{MemoryClock, MemoryState};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), queuert::StateError> {
//! let clock = MemoryClock::manual(Timestamp::from_micros(0));
//! let state = MemoryState::with_clock(clock.clone());
//!
//! let mut transaction = state.begin().await?;
//! transaction.put("visits", 1).await?;
//! assert_eq!(state.get::<u32>("visits")?, None); // not committed yet
//! state.commit(transaction).await?;
//! assert_eq!(state.get::<u32>("visits")?, Some(1));
//!
//! clock.advance(Duration::from_secs(3_600)); // whatever was due within the hour is due now
//! # Ok(()) }
//! ```

mod adapter;
mod claim;
mod clock;
mod create;
mod deduplicate;
mod locks;
mod notify;
mod operate;
mod overlay;
mod query;
mod queues;
mod sabotage;
mod settle;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod view;

pub use clock::MemoryClock;
pub use notify::{InProcessNotify, NoNotify};
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use transaction::{MemoryConnection, MemoryTransaction};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::futures::OwnedNotified;

use self::locks::{Key, Locks, LocksOfOthers, TransactionId};
use self::queues::Queues;
use self::sabotage::Saboteur;
use self::store::Store;
use self::view::View;
use crate::__task::{Lock, LockGuard};
use crate::adapter::AGEING_STEP;
use crate::error::{StateError, StateErrorKind};

/// A store in this process's memory. Clones share it.
///
/// Jobs and chains are lost with the process; everything else is as with a database, see the
/// [module documentation](self).
#[derive(Clone)]
pub struct MemoryState {
    shared: Arc<Shared>,
}

struct Shared {
    /// One lock around everything, for short sections that never wait: simpler than finer ones, and a batch per
    /// section makes it cheap.
    inner: Lock<Inner>,
    clock: MemoryClock,
}

struct Inner {
    store: Store,
    locks: Locks,
    saboteur: Saboteur,
}

impl MemoryState {
    /// An empty store on the wall clock.
    pub fn new() -> Self {
        Self::with_clock(MemoryClock::system())
    }

    /// An empty store on the given clock.
    pub fn with_clock(clock: MemoryClock) -> Self {
        let inner = Inner {
            store: Store::new(Queues::new(AGEING_STEP)),
            locks: Locks::default(),
            saboteur: Saboteur::default(),
        };
        Self {
            shared: Arc::new(Shared {
                inner: Lock::new(inner),
                clock,
            }),
        }
    }

    /// How much waiting one step of priority is worth. Holds for all clones, also for jobs that wait already. Default:
    /// [`AGEING_STEP`].
    #[must_use]
    pub fn ageing_step(self, step: Duration) -> Self {
        {
            let store = &mut self.lock().store;
            store.queues.set_ageing_step(step, &store.rows);
        }
        self
    }

    /// The store's clock.
    pub fn clock(&self) -> &MemoryClock {
        &self.shared.clock
    }

    /// Reads a committed entry of the application's data; see [`MemoryConnection::put`].
    ///
    /// # Errors
    ///
    /// [`Corrupt`](StateErrorKind::Corrupt) if the entry is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        let entry = self.lock().store.data.get(key).cloned();
        transaction::decode(key, entry)
    }

    /// Switches a bug on, to show that a test finds it. Does nothing outside debug builds of the repository itself.
    #[doc(hidden)]
    pub fn sabotage(&self, bug: Sabotage) {
        self.lock().saboteur.switch_on(bug);
    }

    fn lock(&self) -> LockGuard<'_, Inner> {
        self.shared.inner.lock()
    }

    fn check_connection(&self, connection: &MemoryConnection) -> Result<(), StateError> {
        if Arc::ptr_eq(&self.shared, &connection.state.shared) {
            return Ok(());
        }
        Err(StateError::new(
            StateErrorKind::Misconfigured,
            "the transaction belongs to another memory store; begin it on this one",
        ))
    }

    /// Runs a verb when all of its keys are free or the caller's own, and inside a transaction keeps them until its
    /// end. `keys` and `apply` run in one critical section, so what `keys` saw is what `apply` changes; after a wait
    /// both start afresh. Dropped while it waits, nothing has happened.
    async fn run<T>(
        &self,
        mut within: Option<&mut MemoryConnection>,
        keys: impl Fn(&View<'_>) -> Vec<Key>,
        mut apply: impl FnMut(&mut View<'_>) -> T,
    ) -> Result<T, StateError> {
        loop {
            match self.try_run(within.as_deref_mut(), &keys, &mut apply)? {
                Step::Done(value) => return Ok(value),
                Step::Wait { end, entry } => {
                    end.await;
                    drop(entry);
                }
            }
        }
    }

    fn try_run<T>(
        &self,
        within: Option<&mut MemoryConnection>,
        keys: &impl Fn(&View<'_>) -> Vec<Key>,
        apply: &mut impl FnMut(&mut View<'_>) -> T,
    ) -> Result<Step<T>, StateError> {
        let mut inner = self.lock();
        let Inner { store, locks, .. } = &mut *inner;
        let now = self.shared.clock.now();
        let (caller, overlay, held) = match within {
            Some(connection) => {
                self.check_connection(connection)?;
                (
                    Some(connection.id),
                    Some(&mut connection.overlay),
                    Some(&mut connection.held),
                )
            }
            None => (None, None, None),
        };
        let mut view = View { store, overlay, now };
        // A verb that runs by itself needs no locks while no transaction holds any: the usual case, and the hot one.
        if caller.is_some() || !locks.is_empty() {
            let mut keys = keys(&view);
            keys.sort_unstable();
            keys.dedup();
            if let Some(holder) = locks.holder(&keys, caller) {
                let end = locks.wait(caller, holder)?;
                let entry = caller.map(|caller| WaitEntry {
                    state: self.clone(),
                    caller,
                });
                return Ok(Step::Wait { end, entry });
            }
            if let (Some(caller), Some(held)) = (caller, held) {
                locks.acquire(keys, caller, held);
            }
        }
        let done = apply(&mut view);
        let created = view.overlay.as_ref().and_then(|overlay| overlay.created);
        if let (Some(caller), Some(created)) = (caller, created) {
            locks.created(caller, created);
        }
        Ok(Step::Done(done))
    }

    /// Runs a verb that looks at the lock table itself and never waits.
    fn run_now<T>(&self, apply: impl FnOnce(&mut View<'_>, &Locks, Saboteur) -> T) -> T {
        let mut inner = self.lock();
        let Inner { store, locks, saboteur } = &mut *inner;
        let mut view = View {
            store,
            overlay: None,
            now: self.shared.clock.now(),
        };
        apply(&mut view, locks, *saboteur)
    }

    /// Writes without waiting for a lock, inside the caller's transaction if there is one.
    fn run_at_once<T>(
        &self,
        within: Option<&mut MemoryConnection>,
        apply: impl FnOnce(&mut View<'_>, LocksOfOthers<'_>, Saboteur) -> T,
    ) -> Result<T, StateError> {
        let (caller, overlay) = match within {
            Some(connection) => {
                self.check_connection(connection)?;
                (Some(connection.id), Some(&mut connection.overlay))
            }
            None => (None, None),
        };
        let mut inner = self.lock();
        let Inner { store, locks, saboteur } = &mut *inner;
        let now = self.shared.clock.now();
        let mut view = View { store, overlay, now };
        Ok(apply(&mut view, locks.of_others(caller), *saboteur))
    }

    /// Reads, inside the caller's transaction if there is one.
    fn read<T>(
        &self,
        within: Option<&mut MemoryConnection>,
        read: impl FnOnce(&View<'_>) -> T,
    ) -> Result<T, StateError> {
        let overlay = match within {
            Some(connection) => {
                self.check_connection(connection)?;
                Some(&mut connection.overlay)
            }
            None => None,
        };
        let mut inner = self.lock();
        let view = View {
            store: &mut inner.store,
            overlay,
            now: self.shared.clock.now(),
        };
        Ok(read(&view))
    }
}

enum Step<T> {
    Done(T),
    Wait {
        end: OwnedNotified,
        entry: Option<WaitEntry>,
    },
}

/// The caller's entry in the graph of waiting transactions; gone when the wait is over or given up.
struct WaitEntry {
    state: MemoryState,
    caller: TransactionId,
}

impl Drop for WaitEntry {
    fn drop(&mut self) {
        self.state.lock().locks.stop_waiting(self.caller);
    }
}

impl Default for MemoryState {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryState")
            .field("clock", &self.shared.clock)
            .field("jobs", &self.lock().store.rows.len())
            .finish_non_exhaustive()
    }
}

/// [`Attempt`](crate::Attempt) on this store.
pub type Attempt<J> = crate::Attempt<J, MemoryState>;

/// [`JobResult`](crate::JobResult) on this store.
pub type JobResult = crate::JobResult<MemoryState>;
