//! The locks of transactions, and the waits between them: a wait that would close a circle is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::error::{StateError, StateErrorKind};
use crate::id::ChainId;
use crate::job::TypeName;
use crate::time::Timestamp;

/// What can be locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A chain. The id of a job that is about to be created is locked as if it were a chain's, which makes concurrent
    /// creators of one id wait for each other.
    Chain(ChainId),
    /// A deduplication key of a type.
    Deduplication(TypeName, String),
    /// An entry of the application's data.
    Data(String),
}

/// A running transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransactionId(u64);

/// The lock table. Only transactions are in it: a verb that runs by itself takes what it needs inside one critical
/// section, so it never holds anything while it waits.
#[derive(Debug, Default)]
pub(super) struct Locks {
    owners: BTreeMap<Key, TransactionId>,
    ends: BTreeMap<TransactionId, Arc<Notify>>,
    /// Each waiting transaction waits for one other at a time, so a circle is found by walking a single path.
    waits: BTreeMap<TransactionId, TransactionId>,
    /// The transactions that have created jobs, each with the earliest time at which it did. A rollback to a savepoint
    /// leaves them.
    creators: BTreeMap<TransactionId, Timestamp>,
    last: u64,
}

/// The locks that a transaction, or a verb that runs by itself, does not hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocksOfOthers<'a> {
    all: &'a Locks,
    caller: Option<TransactionId>,
}

impl LocksOfOthers<'_> {
    pub(super) fn hold_chain(self, chain: ChainId) -> bool {
        let owner = self.all.owners.get(&Key::Chain(chain));
        owner.is_some_and(|owner| Some(*owner) != self.caller)
    }
}

impl Locks {
    pub(super) fn of_others(&self, caller: Option<TransactionId>) -> LocksOfOthers<'_> {
        LocksOfOthers { all: self, caller }
    }

    pub(super) fn begin(&mut self) -> TransactionId {
        self.last += 1;
        let id = TransactionId(self.last);
        self.ends.insert(id, Arc::new(Notify::new()));
        id
    }

    /// Forgets a transaction and wakes the callers that wait for it, in the order in which they came.
    pub(super) fn end(&mut self, transaction: TransactionId, held: &[Key]) {
        for key in held {
            self.owners.remove(key);
        }
        self.creators.remove(&transaction);
        if let Some(end) = self.ends.remove(&transaction) {
            end.notify_waiters();
        }
    }

    /// Notes that a transaction has created a job at this time.
    pub(super) fn created(&mut self, transaction: TransactionId, at: Timestamp) {
        let earliest = self.creators.entry(transaction).or_insert(at);
        *earliest = at.min(*earliest);
    }

    /// The earliest time at which a transaction that is open has created a job.
    pub(super) fn earliest_creation(&self) -> Option<Timestamp> {
        self.creators.values().min().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn holds_chain(&self, chain: ChainId) -> bool {
        !self.owners.is_empty() && self.owners.contains_key(&Key::Chain(chain))
    }

    /// The first of the keys that another transaction holds.
    pub(super) fn holder(&self, keys: &[Key], caller: Option<TransactionId>) -> Option<TransactionId> {
        keys.iter()
            .filter_map(|key| self.owners.get(key).copied())
            .find(|owner| Some(*owner) != caller)
    }

    /// Takes keys that no other transaction holds.
    pub(super) fn acquire(&mut self, keys: Vec<Key>, transaction: TransactionId, held: &mut Vec<Key>) {
        for key in keys {
            if self.owners.insert(key.clone(), transaction).is_none() {
                held.push(key);
            }
        }
    }

    /// Notes that the caller waits for `holder`, and returns what completes at the holder's end, counted from now.
    pub(super) fn wait(
        &mut self,
        caller: Option<TransactionId>,
        holder: TransactionId,
    ) -> Result<OwnedNotified, StateError> {
        if let Some(caller) = caller {
            let mut ahead = Some(holder);
            while let Some(next) = ahead {
                if next == caller {
                    return Err(StateError::new(
                        StateErrorKind::Conflict,
                        "deadlock: this transaction waits for a lock of one that waits for a lock of this one; roll it \
                         back and run it again",
                    ));
                }
                ahead = self.waits.get(&next).copied();
            }
            self.waits.insert(caller, holder);
        }
        let end = self.ends.entry(holder).or_default();
        Ok(Arc::clone(end).notified_owned())
    }

    pub(super) fn stop_waiting(&mut self, caller: TransactionId) {
        self.waits.remove(&caller);
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waits.len()
    }
}
