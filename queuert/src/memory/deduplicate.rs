//! Finds the chain that a new one would repeat.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::view::View;
use crate::adapter::rules::counts;
use crate::deduplication::Deduplication;
use crate::id::ChainId;
use crate::job::{JobRecord, TypeName};
use crate::time::Timestamp;

/// Chains that were started with a key: all that are committed, or those that a transaction has opened.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyIndex(HashMap<TypeName, BTreeMap<String, Keyed>>);

#[derive(Clone, Debug, Default)]
struct Keyed {
    all: BTreeSet<(Timestamp, ChainId)>,
    /// Every open chain, and perhaps some that have ended: those go when a search meets them, so that a key with a long
    /// history costs no more than a new one.
    open: BTreeSet<(Timestamp, ChainId)>,
}

impl KeyIndex {
    /// Adds a first job, or says that its chain is open again.
    pub(super) fn insert(&mut self, job: &JobRecord) {
        let Some(key) = &job.deduplication_key else {
            return;
        };
        let keys = self.0.entry(job.type_name.clone()).or_default();
        if !keys.contains_key(key.as_str()) {
            keys.insert(key.clone(), Keyed::default());
        }
        if let Some(keyed) = keys.get_mut(key.as_str()) {
            let entry = (job.created_at, job.chain_id);
            keyed.all.insert(entry);
            keyed.open.insert(entry);
        }
    }

    pub(super) fn remove(&mut self, job: &JobRecord) {
        let Some(key) = &job.deduplication_key else {
            return;
        };
        let Some(keys) = self.0.get_mut(&job.type_name) else {
            return;
        };
        if let Some(keyed) = keys.get_mut(key.as_str()) {
            let entry = (job.created_at, job.chain_id);
            keyed.all.remove(&entry);
            keyed.open.remove(&entry);
            if keyed.all.is_empty() {
                keys.remove(key.as_str());
            }
        }
    }

    /// Drops ended chains from the open ones.
    fn forget(&mut self, type_name: &TypeName, key: &str, ended: &[(Timestamp, ChainId)]) {
        if let Some(keyed) = self.0.get_mut(type_name).and_then(|keys| keys.get_mut(key)) {
            for entry in ended {
                keyed.open.remove(entry);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn open_entries(&self) -> usize {
        let keyed = self.0.values().flat_map(BTreeMap::values);
        keyed.map(|keyed| keyed.open.len()).sum()
    }

    #[cfg(test)]
    pub(super) fn all_entries(&self) -> usize {
        let keyed = self.0.values().flat_map(BTreeMap::values);
        keyed.map(|keyed| keyed.all.len()).sum()
    }

    /// The chains, in no particular order.
    pub(super) fn chains(&self) -> impl Iterator<Item = ChainId> + '_ {
        let keyed = self.0.values().flat_map(BTreeMap::values);
        keyed.flat_map(|keyed| keyed.all.iter().map(|(_, chain)| *chain))
    }

    fn get(&self, type_name: &TypeName, key: &str) -> Option<&Keyed> {
        self.0.get(type_name)?.get(key)
    }
}

impl View<'_> {
    /// The newest chain of the type that counts.
    pub(super) fn find_duplicate(&mut self, type_name: &TypeName, wanted: &Deduplication) -> Option<ChainId> {
        let since = wanted.scope.ended_since(self.now);
        let except: HashSet<&ChainId> = wanted.except.iter().collect();
        let counts = |(created_at, chain): (Timestamp, ChainId)| {
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            let stored = self.latest(chain).filter(|_| !except.contains(&chain));
            stored.is_some_and(|row| counts(wanted.scope, created_at, row.job.status.is_open(), self.now))
        };
        let mut ended = Vec::new();
        let mut newest = None;
        if let Some(keyed) = self.store.keys.get(type_name, &wanted.key) {
            // Entries come newest first, so the search among the ended ones stops where the window does.
            let young = |entry: &&(Timestamp, ChainId)| since.is_some_and(|since| entry.0 >= since);
            newest = keyed
                .all
                .iter()
                .rev()
                .take_while(young)
                .copied()
                .find(|entry| counts(*entry));
            for entry in keyed.open.iter().rev() {
                if newest.is_some() {
                    break;
                }
                if counts(*entry) {
                    newest = Some(*entry);
                } else if self.has_ended(entry.1) {
                    ended.push(*entry);
                }
            }
        }
        let own = self.overlay.as_ref();
        let own = own.and_then(|overlay| overlay.reopened.get(type_name, &wanted.key));
        let own = own.and_then(|keyed| keyed.all.iter().rev().copied().find(|entry| counts(*entry)));
        newest = own.into_iter().chain(newest).max();
        self.store.keys.forget(type_name, &wanted.key, &ended);
        newest.map(|(_, chain)| chain)
    }

    /// Whether the chain has ended for everyone: an end that only this transaction sees may be rolled back.
    fn has_ended(&self, chain: ChainId) -> bool {
        let rows = &self.store.rows;
        rows.get(&chain.first_job()).is_none_or(|first| {
            let latest = first.later.last().and_then(|id| rows.get(id)).unwrap_or(first);
            !latest.job.status.is_open()
        })
    }
}

#[cfg(test)]
thread_local! {
    /// How many chains were looked at in search of one with a key.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::adapter::{CreatedChain, NewChain, NewJob, StateAdapter};
    use crate::id::JobId;
    use crate::memory::MemoryState;
    use crate::payload::Payload;

    /// Chains of which each has a key of its own.
    fn chains(keys: usize, first_id: usize) -> Vec<NewChain> {
        let chain = |number: usize| {
            let id = JobId::from_uuid(Uuid::from_u128((first_id + number) as u128));
            let mut chain = NewChain::new(NewJob::new(id, "mail", Payload::from_text("1")));
            chain.deduplication = Some(format!("key-{number}").into());
            chain
        };
        (0..keys).map(chain).collect()
    }

    #[tokio::test]
    async fn a_start_with_a_key_looks_at_the_chains_of_that_key_only() {
        const KEYS: usize = 500;
        let state = MemoryState::new();
        let mut transaction = state.begin().await.unwrap();
        for within in [true, false] {
            let mut start = async |first_id| {
                let within = within.then_some(&mut *transaction);
                LOOKED_AT.set(0);
                let created = state.create_chains(within, &chains(KEYS, first_id)).await;
                let created: Vec<CreatedChain> = created.unwrap().unwrap();
                created.iter().filter(|chain| chain.deduplicated).count()
            };
            assert_eq!((start(1).await, LOOKED_AT.get()), (0, 0));
            assert_eq!(
                (start(KEYS + 1).await, LOOKED_AT.get()),
                (KEYS, KEYS),
                "one for each key"
            );
            if within {
                state
                    .rollback(std::mem::replace(&mut transaction, state.begin().await.unwrap()))
                    .await
                    .unwrap();
            }
        }
    }
}
