//! One verb in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use crate::adapter::records::{Find, LockKey, Records, StoredJob};
use crate::adapter::rules::chain_record;
use crate::chain::ChainRecord;
use crate::error::StateError;
use crate::id::{ChainId, JobId};
use crate::job::JobStatus;
use crate::time::Timestamp;

/// Reads through what the verb has changed, and writes all of it at once at the end: a verb that is dropped before has
/// changed nothing.
pub(super) struct Work<'a, R: Records> {
    pub(super) records: &'a R,
    connection: &'a mut R::Connection,
    /// The time of the statement, read after the latest lock was granted.
    pub(super) now: Timestamp,
    held: BTreeSet<LockKey>,
    /// Jobs as the verb leaves them; `None` for a deleted one.
    changed: BTreeMap<JobId, Option<StoredJob>>,
}

/// What became of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// The verb had it already: what it has read since is true until the transaction ends.
    Held,
    /// It was granted just now: what the verb has read before may have changed.
    New,
    /// Another transaction has it, and the verb does not wait.
    Busy,
}

impl<'a, R: Records> Work<'a, R> {
    pub(super) async fn new(records: &'a R, connection: &'a mut R::Connection) -> Result<Self, StateError> {
        let now = records.now(Some(connection)).await?;
        Ok(Self {
            records,
            connection,
            now,
            held: BTreeSet::new(),
            changed: BTreeMap::new(),
        })
    }

    pub(super) async fn lock(&mut self, keys: Vec<LockKey>, waits: bool) -> Result<Lock, StateError> {
        let wanted = keys.into_iter().filter(|key| !self.held.contains(key));
        let wanted: BTreeSet<LockKey> = wanted.collect();
        if wanted.is_empty() {
            return Ok(Lock::Held);
        }
        let keys: Vec<LockKey> = wanted.into_iter().collect();
        if !self.records.lock(self.connection, &keys, waits).await? {
            return Ok(Lock::Busy);
        }
        self.held.extend(keys);
        self.now = self.records.now(Some(self.connection)).await?;
        Ok(Lock::New)
    }

    pub(super) async fn read(&mut self, find: Find<'_>) -> Result<Vec<StoredJob>, StateError> {
        let mut found = self.records.read(Some(self.connection), find).await?;
        found.retain(|stored| !self.changed.contains_key(&stored.job.id));
        let changed = self.changed.values().flatten().filter(|stored| find.matches(stored));
        found.extend(changed.cloned());
        Ok(found)
    }

    pub(super) async fn job(&mut self, id: JobId) -> Result<Option<StoredJob>, StateError> {
        Ok(self.read(Find::Jobs(&[id])).await?.pop())
    }

    pub(super) async fn chains(&mut self, ids: &[ChainId]) -> Result<Chains, StateError> {
        if ids.is_empty() {
            return Ok(Chains::default());
        }
        Ok(Chains::of(self.read(Find::Chains(ids)).await?))
    }

    pub(super) fn put(&mut self, stored: StoredJob) {
        self.changed.insert(stored.job.id, Some(stored));
    }

    pub(super) fn delete(&mut self, job: JobId) {
        self.changed.insert(job, None);
    }

    pub(super) async fn write(self) -> Result<(), StateError> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let (mut put, mut delete) = (Vec::new(), Vec::new());
        for (id, change) in self.changed {
            match change {
                Some(stored) => put.push(stored),
                None => delete.push(id),
            }
        }
        self.records.write(self.connection, put, delete).await
    }
}

/// Whole chains, their jobs in order.
#[derive(Debug, Default)]
pub(super) struct Chains(BTreeMap<ChainId, Vec<StoredJob>>);

impl Chains {
    pub(super) fn of(jobs: Vec<StoredJob>) -> Self {
        let mut chains: BTreeMap<ChainId, Vec<StoredJob>> = BTreeMap::new();
        for stored in jobs {
            chains.entry(stored.job.chain_id).or_default().push(stored);
        }
        for jobs in chains.values_mut() {
            jobs.sort_unstable_by_key(|stored| stored.job.chain_index);
        }
        Self(chains)
    }

    pub(super) fn jobs(&self, chain: ChainId) -> &[StoredJob] {
        self.0.get(&chain).map_or(&[], Vec::as_slice)
    }

    pub(super) fn first(&self, chain: ChainId) -> Option<&StoredJob> {
        self.jobs(chain).first()
    }

    pub(super) fn latest(&self, chain: ChainId) -> Option<&StoredJob> {
        self.jobs(chain).last()
    }

    pub(super) fn status(&self, chain: ChainId) -> Option<JobStatus> {
        self.latest(chain).map(|latest| latest.job.status)
    }

    pub(super) fn is_completed(&self, chain: ChainId) -> bool {
        self.status(chain) == Some(JobStatus::Completed)
    }

    pub(super) fn record(&self, chain: ChainId) -> Option<ChainRecord> {
        Some(chain_record(&self.first(chain)?.job, &self.latest(chain)?.job))
    }

    /// The locks of those of the chains that exist: what another transaction has not committed is not waited for.
    pub(super) fn keys(&self, chains: &[ChainId]) -> Vec<LockKey> {
        let existing = chains.iter().filter(|chain| self.0.contains_key(chain));
        existing.copied().map(LockKey::Chain).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[StoredJob]> {
        self.0.values().map(Vec::as_slice)
    }
}
