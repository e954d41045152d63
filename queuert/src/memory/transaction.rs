//! The caller's end of a transaction.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MemoryState;
use super::locks::{Key, TransactionId};
use super::overlay::Overlay;
use crate::error::{StateError, StateErrorKind};
use crate::payload::Payload;

/// An open transaction of a [`MemoryState`]. Dereferences to its [`MemoryConnection`]; dropped, it rolls back at once
/// and lets go of its locks.
#[derive(Debug)]
pub struct MemoryTransaction {
    pub(super) connection: MemoryConnection,
}

impl Deref for MemoryTransaction {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        &self.connection
    }
}

impl DerefMut for MemoryTransaction {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        &mut self.connection
    }
}

/// What runs inside a [`MemoryTransaction`]: the verbs of the library, and [`put`](Self::put) and [`get`](Self::get)
/// for the application's own data, which stand for the statements that a real service would run on its database.
pub struct MemoryConnection {
    pub(super) state: MemoryState,
    pub(super) id: TransactionId,
    pub(super) overlay: Overlay,
    pub(super) held: Vec<Key>,
    savepoints: Vec<(u32, Overlay)>,
}

impl MemoryConnection {
    pub(super) fn new(state: MemoryState, id: TransactionId) -> Self {
        Self {
            state,
            id,
            overlay: Overlay::default(),
            held: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    /// Writes an entry of the application's data, as JSON text. It is there for others if and only if the transaction
    /// commits. Locks the key until the transaction ends, and waits for another transaction that has it locked.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StateErrorKind::Misconfigured) if the value cannot be written as JSON,
    /// [`Conflict`](StateErrorKind::Conflict) on a deadlock.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, it has written nothing.
    pub async fn put(&mut self, key: &str, value: impl Serialize) -> Result<(), StateError> {
        let value = Payload::encode(&value).map_err(|error| {
            StateError::new(
                StateErrorKind::Misconfigured,
                format!("the value for `{key}` cannot be written as JSON"),
            )
            .with_source(error)
        })?;
        let state = self.state.clone();
        let lock = |_: &super::view::View<'_>| vec![Key::Data(key.to_owned())];
        state
            .run(Some(self), lock, |view| {
                if let Some(overlay) = &mut view.overlay {
                    overlay.data.insert(key.to_owned(), value.clone());
                }
            })
            .await
    }

    /// Reads an entry of the application's data for update: locks the key as [`put`](Self::put) does, so that what is
    /// written back later is based on what is still true.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](StateErrorKind::Corrupt) if the entry is not a `T`, [`Conflict`](StateErrorKind::Conflict) on a
    /// deadlock.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, it has locked nothing.
    pub async fn get<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, StateError> {
        let state = self.state.clone();
        let lock = |_: &super::view::View<'_>| vec![Key::Data(key.to_owned())];
        let entry = state
            .run(Some(self), lock, |view| {
                let own = view.overlay.as_ref().and_then(|overlay| overlay.data.get(key));
                own.or_else(|| view.store.data.get(key)).cloned()
            })
            .await?;
        decode(key, entry)
    }

    pub(super) fn set_savepoint(&mut self, depth: u32) {
        self.savepoints.push((depth, self.overlay.clone()));
    }

    /// Takes the savepoint off the stack, with all that were set after it.
    pub(super) fn take_savepoint(&mut self, depth: u32) -> Result<Overlay, StateError> {
        let found = self.savepoints.iter().rposition(|(set, _)| *set == depth);
        let dropped = found.and_then(|index| self.savepoints.drain(index..).next());
        match dropped {
            Some((_, overlay)) => Ok(overlay),
            None => Err(StateError::new(
                StateErrorKind::Misconfigured,
                format!("there is no savepoint at depth {depth}; set it before releasing it or rolling back to it"),
            )),
        }
    }
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, entry: Option<Payload>) -> Result<Option<T>, StateError> {
    let Some(entry) = entry else {
        return Ok(None);
    };
    entry.decode().map(Some).map_err(|error| {
        StateError::new(
            StateErrorKind::Corrupt,
            format!("the entry `{key}` is not of the expected type"),
        )
        .with_source(error)
    })
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.state.lock().locks.end(self.id, &held);
    }
}

impl fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnection")
            .field("id", &self.id)
            .field("locks", &self.held.len())
            .field("savepoints", &self.savepoints.len())
            .finish_non_exhaustive()
    }
}
