//! What is committed: rows, and the indexes that find them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::deduplicate::KeyIndex;
use super::overlay::Overlay;
use super::queues::Queues;
use crate::adapter::rules::{Change, JobHead};
use crate::id::{ChainId, Fence, JobId};
#[cfg(test)]
use crate::job::JobStatus;
use crate::job::{JobRecord, TypeName};
use crate::pause::Pause;
use crate::payload::Payload;
use crate::time::Timestamp;

/// A job with what the record does not show. The first row of a chain is also the chain's row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) job: JobRecord,
    /// Where [`Queues`] keeps the type.
    pub(super) type_index: usize,
    /// In the declared order, repetitions included. A chain that was deleted may still be named here; the edge is gone.
    pub(super) blockers: Vec<ChainId>,
    /// The fence under which it was settled last, so that a repeated settlement is recognised.
    pub(super) settled: Option<Fence>,
    /// The chain whose end made it pending, if it was blocked.
    pub(super) unblocked_by: Option<ChainId>,
    /// The time that decides its place in line, where that is not the scheduled time.
    pub(super) place: Option<Timestamp>,
    /// The later jobs of the chain, by index from one; first rows only.
    pub(super) later: Vec<JobId>,
}

impl Row {
    pub(super) fn head(&self) -> JobHead {
        JobHead::of(&self.job, self.settled)
    }

    pub(super) fn apply(&mut self, change: Change) {
        let place = self.place.unwrap_or(self.job.scheduled_at);
        let place = change.rank.apply(place, change.scheduled_at);
        self.place = (place != change.scheduled_at).then_some(place);
        self.settled = change.settled_fence.or(self.settled);
        change.apply(&mut self.job);
    }
}

/// A chain that a job has as blocker, and that job: ordered so that the dependants of a chain are a range.
pub(super) type Edge = (ChainId, JobId);

pub(super) type Rows = HashMap<JobId, Arc<Row>, BuildHasherDefault<IdHasher>>;

/// The committed data. Changing a row means taking it out of the indexes, changing it and putting it back.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) rows: Rows,
    pub(super) queues: Queues,
    pub(super) edges: BTreeSet<Edge>,
    pub(super) keys: KeyIndex,
    pub(super) data: BTreeMap<String, Payload>,
    pub(super) pauses: BTreeMap<TypeName, Pause>,
}

impl Store {
    pub(super) fn new(queues: Queues) -> Self {
        Self {
            rows: Rows::default(),
            queues,
            edges: BTreeSet::new(),
            keys: KeyIndex::default(),
            data: BTreeMap::new(),
            pauses: BTreeMap::new(),
        }
    }

    pub(super) fn insert(&mut self, row: Arc<Row>, now: Timestamp) {
        self.queues.insert(&row, now);
        if row.job.deduplication_key.is_some() {
            self.keys.insert(&row.job);
        }
        self.rows.insert(row.job.id, row);
    }

    pub(super) fn update(&mut self, id: JobId, now: Timestamp, change: impl FnOnce(&mut Row)) {
        if let Some(row) = self.rows.get_mut(&id) {
            self.queues.remove(row);
            change(Arc::make_mut(row));
            self.queues.insert(row, now);
        }
    }

    /// Changes a row that its queue has already given away.
    pub(super) fn update_taken(&mut self, id: JobId, now: Timestamp, change: impl FnOnce(&mut Row)) -> Option<&Row> {
        let row = self.rows.get_mut(&id)?;
        change(Arc::make_mut(row));
        self.queues.insert(row, now);
        Some(row)
    }

    pub(super) fn remove(&mut self, id: JobId) {
        if let Some(row) = self.rows.remove(&id) {
            self.queues.remove(&row);
            self.keys.remove(&row.job);
        }
    }

    /// Asserts that the indexes hold what the rows say, and nothing else.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut queued = 0;
        let mut total = 0;
        let mut edges = BTreeSet::new();
        let mut keyed = 0;
        for row in self.rows.values() {
            let job = &row.job;
            let (all, own) = self.queues.count(row);
            let expected = usize::from(matches!(job.status, JobStatus::Pending | JobStatus::Running));
            assert_eq!(own, expected, "{job:?}");
            assert_eq!(job.lease.is_some(), job.status == JobStatus::Running, "{job:?}");
            assert_eq!(job.ended_at.is_none(), job.status.is_open(), "{job:?}");
            queued += own;
            total = all;
            keyed += usize::from(job.deduplication_key.is_some());
            edges.extend(row.blockers.iter().map(|chain| (*chain, job.id)));
            let first = &self.rows[&job.chain_id.first_job()];
            let length = first.later.len() as u32;
            let latest = first.later.last().copied().unwrap_or(first.job.id);
            assert!(job.chain_index <= length);
            assert!(job.id == latest || job.status == JobStatus::Completed, "{job:?}");
            if job.status == JobStatus::Blocked {
                let open = row.blockers.iter().any(|chain| {
                    let first = &self.rows[&chain.first_job()];
                    let latest = first.later.last().map_or(first, |id| &self.rows[id]);
                    latest.job.status != JobStatus::Completed
                });
                assert!(open, "nothing blocks {job:?}");
            }
        }
        assert_eq!(total, queued);
        assert!(self.edges.is_subset(&edges));
        assert_eq!(self.keys.all_entries(), keyed);
    }

    /// Makes the changes of a transaction the truth. Its locks guarantee that no other transaction has changed these rows.
    pub(super) fn apply(&mut self, overlay: Overlay, now: Timestamp) {
        for (id, change) in overlay.rows {
            self.remove(id);
            if let Some(row) = change {
                self.insert(row, now);
            }
        }
        for (edge, present) in overlay.edges {
            if present {
                self.edges.insert(edge);
            } else {
                self.edges.remove(&edge);
            }
        }
        for chain in overlay.reopened.chains() {
            if let Some(row) = self.rows.get(&chain.first_job()) {
                self.keys.insert(&row.job);
            }
        }
        self.data.extend(overlay.data);
        for (type_name, pause) in overlay.pauses {
            match pause {
                Some(pause) => self.pauses.insert(type_name, pause),
                None => self.pauses.remove(&type_name),
            };
        }
    }
}

/// Hashes an id by the half that is random, or ascending where the caller supplied simple ids: both spread well once
/// multiplied. Not meant for ids chosen by an adversary.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(low) = bytes.last_chunk::<8>() {
            // The multiplication carries into the high bits, which the map uses as tags.
            self.0 = u64::from_be_bytes(*low).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}
