//! The store as one verb sees it: what is committed, under what its transaction has changed.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::locks::Key;
use super::overlay::Overlay;
use super::queues::{FIRST, LAST};
use super::store::{Row, Store};
use crate::adapter::rules::{chain_record, waiting_status};
use crate::chain::ChainRecord;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus};
use crate::time::Timestamp;

/// Reads through the overlay and writes to it; without one, to the committed store. Lives within one critical section.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) store: &'a mut Store,
    pub(super) overlay: Option<&'a mut Overlay>,
    /// The time of the statement.
    pub(super) now: Timestamp,
}

impl View<'_> {
    pub(super) fn row(&self, id: JobId) -> Option<&Row> {
        match self.overlay.as_ref().and_then(|overlay| overlay.rows.get(&id)) {
            Some(change) => change.as_deref(),
            None => self.store.rows.get(&id).map(|row| &**row),
        }
    }

    /// A job that is known to exist, as a record.
    pub(super) fn job(&self, id: JobId) -> Option<JobRecord> {
        self.row(id).map(|row| row.job.clone())
    }

    /// The first row of a chain. The id of a later job is not a chain's id.
    pub(super) fn first(&self, chain: ChainId) -> Option<&Row> {
        self.row(chain.first_job()).filter(|row| row.job.chain_index == 0)
    }

    /// The latest row of a chain.
    pub(super) fn latest(&self, chain: ChainId) -> Option<&Row> {
        let first = self.first(chain)?;
        match first.later.last() {
            Some(id) => self.row(*id),
            None => Some(first),
        }
    }

    /// The locks of those chains that exist: what another transaction has not committed is not waited for.
    pub(super) fn chain_keys(&self, chains: &[ChainId]) -> impl Iterator<Item = Key> {
        let existing = chains.iter().filter(|chain| self.first(**chain).is_some());
        existing.copied().map(Key::Chain)
    }

    pub(super) fn is_completed(&self, chain: ChainId) -> bool {
        self.latest(chain)
            .is_some_and(|row| row.job.status == JobStatus::Completed)
    }

    /// Blocked while one of the blockers has not completed, pending otherwise.
    pub(super) fn waiting_status(&self, blockers: &[ChainId]) -> JobStatus {
        waiting_status(blockers, |chain| self.is_completed(chain))
    }

    pub(super) fn chain_record(&self, chain: ChainId) -> Option<ChainRecord> {
        Some(chain_record(&self.first(chain)?.job, &self.latest(chain)?.job))
    }

    /// The blockers of a job that still exist, in the declared order. A chain that was deleted and started anew under
    /// the same id is another chain: the edge tells.
    pub(super) fn blockers<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = ChainId> + 'a {
        let edges = row.blockers.iter().copied();
        edges.filter(|chain| self.has_edge(*chain, row.job.id))
    }

    pub(super) fn has_edge(&self, chain: ChainId, job: JobId) -> bool {
        let edge = (chain, job);
        match self.overlay.as_ref().and_then(|overlay| overlay.edges.get(&edge)) {
            Some(present) => *present,
            None => self.store.edges.contains(&edge),
        }
    }

    /// The jobs that have the chain as blocker, in order of id, whether or not they still wait.
    pub(super) fn dependants(&self, chain: ChainId) -> Vec<JobId> {
        let range = (chain, FIRST)..=(chain, LAST);
        let committed = self.store.edges.range(range.clone());
        let Some(overlay) = self.overlay.as_ref().filter(|overlay| !overlay.edges.is_empty()) else {
            return committed.map(|(_, job)| *job).collect();
        };
        let kept = committed.filter(|edge| !overlay.edges.contains_key(edge));
        let added = overlay.edges.range(range).filter(|(_, present)| **present);
        let mut jobs: Vec<_> = kept.chain(added.map(|(edge, _)| edge)).map(|(_, job)| *job).collect();
        jobs.sort_unstable();
        jobs
    }

    /// Adds a job with its edges.
    pub(super) fn insert(&mut self, row: Row) {
        let id = row.job.id;
        for index in 0..row.blockers.len() {
            self.set_edge(row.blockers[index], id, true);
        }
        match &mut self.overlay {
            Some(overlay) => {
                let created = row.job.created_at;
                overlay.created = Some(overlay.created.map_or(created, |earlier| earlier.min(created)));
                overlay.reopened.insert(&row.job);
                overlay.rows.insert(id, Some(Arc::new(row)));
            }
            None => self.store.insert(Arc::new(row), self.now),
        }
    }

    pub(super) fn update(&mut self, id: JobId, change: impl FnOnce(&mut Row)) {
        let Some(overlay) = &mut self.overlay else {
            return self.store.update(id, self.now, change);
        };
        let slot = match overlay.rows.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match self.store.rows.get(&id) {
                Some(row) => entry.insert(Some(Arc::clone(row))),
                None => return,
            },
        };
        if let Some(row) = slot {
            change(Arc::make_mut(row));
        }
    }

    /// Says that a chain that had ended is open again, so that its key counts.
    pub(super) fn reopen(&mut self, chain: ChainId) {
        let first = chain.first_job();
        match &mut self.overlay {
            Some(overlay) => {
                let row = match overlay.rows.get(&first) {
                    Some(change) => change.as_ref(),
                    None => self.store.rows.get(&first),
                };
                if let Some(row) = row {
                    overlay.reopened.insert(&row.job);
                }
            }
            None => {
                if let Some(row) = self.store.rows.get(&first) {
                    self.store.keys.insert(&row.job);
                }
            }
        }
    }

    /// Removes a job with its edges.
    pub(super) fn remove(&mut self, id: JobId) {
        let Some(row) = self.row(id) else {
            return;
        };
        let first = row.job.chain_index == 0;
        let chain = row.job.chain_id;
        for blocker in row.blockers.clone() {
            self.set_edge(blocker, id, false);
        }
        if first {
            for dependant in self.dependants(chain) {
                self.set_edge(chain, dependant, false);
            }
        }
        match &mut self.overlay {
            Some(overlay) => {
                let removed = match overlay.rows.insert(id, None) {
                    Some(change) => change,
                    None => self.store.rows.get(&id).cloned(),
                };
                if let Some(row) = removed {
                    overlay.reopened.remove(&row.job);
                }
            }
            None => self.store.remove(id),
        }
    }

    fn set_edge(&mut self, chain: ChainId, job: JobId, present: bool) {
        let edge = (chain, job);
        match &mut self.overlay {
            Some(overlay) => {
                overlay.edges.insert(edge, present);
            }
            None if present => {
                self.store.edges.insert(edge);
            }
            None => {
                self.store.edges.remove(&edge);
            }
        }
    }
}
