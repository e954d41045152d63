//! Finds the chain that a new one would repeat.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::view::View;
use crate::deduplication::{Deduplication, DeduplicationScope};
use crate::id::ChainId;
use crate::job::{JobRecord, TypeName};
use crate::time::Timestamp;

/// The committed chains that were started with a key.
#[derive(Debug, Default)]
pub(super) struct KeyIndex(HashMap<TypeName, BTreeMap<String, Keyed>>);

#[derive(Debug, Default)]
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

    fn get(&self, type_name: &TypeName, key: &str) -> Option<&Keyed> {
        self.0.get(type_name)?.get(key)
    }
}

impl View<'_> {
    /// The newest chain of the type that counts.
    pub(super) fn find_duplicate(&mut self, type_name: &TypeName, wanted: &Deduplication) -> Option<ChainId> {
        let oldest = wanted.window.map(|window| self.now.saturating_sub(window));
        let in_window = |created_at: Timestamp| oldest.is_none_or(|oldest| created_at >= oldest);
        let counts = |chain: ChainId| {
            !wanted.except.contains(&chain)
                && match wanted.scope {
                    DeduplicationScope::Any => self.first(chain).is_some(),
                    DeduplicationScope::Open => self.is_open(chain),
                }
        };
        let mut ended = Vec::new();
        let mut newest = None;
        if let Some(keyed) = self.store.keys.get(type_name, &wanted.key) {
            let entries = match wanted.scope {
                DeduplicationScope::Open => &keyed.open,
                DeduplicationScope::Any => &keyed.all,
            };
            // Entries come newest first, so the search ends where the window does.
            for entry in entries
                .iter()
                .rev()
                .take_while(|(created_at, _)| in_window(*created_at))
            {
                if counts(entry.1) {
                    newest = Some(*entry);
                    break;
                }
                if self.has_ended(entry.1) {
                    ended.push(*entry);
                }
            }
        }
        let own = self.overlay.iter().flat_map(|overlay| overlay.reopened.iter());
        let own = own.filter_map(|chain| {
            let job = &self.first(*chain)?.job;
            let same = job.type_name == *type_name && job.deduplication_key.as_ref() == Some(&wanted.key);
            (same && in_window(job.created_at) && counts(*chain)).then_some((job.created_at, *chain))
        });
        newest = own.chain(newest).max();
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
