//! The attempts of this process, from their claim to the answer to their end.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::__task::{Lock, LockGuard};
use crate::adapter::StateAdapter;
use crate::id::JobId;
use crate::worker::user::shared::SharedAttempt;

/// The attempts of this process. Claimed attempts add and remove themselves; the renewer, the reaper and the claimer read.
pub(crate) struct InFlight<S: StateAdapter> {
    /// The latest attempt of each job: the renewer renews its lease.
    by_job: Lock<BTreeMap<JobId, Arc<SharedAttempt<S>>>>,
    /// The number of all attempts, including those whose job this process has claimed again.
    count: AtomicUsize,
    /// Notified when the count becomes zero.
    empty: Notify,
}

impl<S: StateAdapter> InFlight<S> {
    pub(crate) fn new() -> Self {
        Self {
            by_job: Lock::default(),
            count: AtomicUsize::new(0),
            empty: Notify::new(),
        }
    }

    pub(crate) fn by_job(&self) -> LockGuard<'_, BTreeMap<JobId, Arc<SharedAttempt<S>>>> {
        self.by_job.lock()
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Adds attempts, and returns earlier attempts of the same jobs.
    pub(crate) fn add<'a>(
        &self,
        attempts: impl Iterator<Item = &'a Arc<SharedAttempt<S>>>,
    ) -> Vec<Arc<SharedAttempt<S>>> {
        let mut by_job = self.by_job();
        let mut earlier = Vec::new();
        for attempt in attempts {
            self.count.fetch_add(1, Ordering::SeqCst);
            earlier.extend(by_job.insert(attempt.record.id, Arc::clone(attempt)));
        }
        earlier
    }

    pub(crate) fn remove(&self, attempt: &Arc<SharedAttempt<S>>) {
        // The entry may be that of a later attempt of the same job, which goes on.
        if let Entry::Occupied(entry) = self.by_job().entry(attempt.record.id)
            && Arc::ptr_eq(entry.get(), attempt)
        {
            entry.remove();
        }
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.empty.notify_waiters();
        }
    }

    /// The attempts whose processor has begun and has not ended.
    pub(crate) fn processing(&self) -> Vec<Arc<SharedAttempt<S>>> {
        let by_job = self.by_job();
        let processing = by_job
            .values()
            .filter(|attempt| !attempt.settling.load(Ordering::SeqCst));
        processing.cloned().collect()
    }

    /// Waits until no attempt is there except these, for at most `limit`. Only for the rare end of a stop: it polls.
    pub(crate) async fn wait_for_all_but(&self, left: &[Arc<SharedAttempt<S>>], limit: Duration) {
        let left: BTreeSet<JobId> = left.iter().map(|attempt| attempt.record.id).collect();
        let others_gone = async {
            while self.by_job().keys().any(|job| !left.contains(job)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, others_gone).await;
    }

    /// Waits until no attempt is there, for at most `limit`. Returns whether none is there.
    pub(crate) async fn wait_until_empty(&self, limit: Duration) -> bool {
        let empty = async {
            loop {
                // Created before the count is read: it is notified of every change from here on.
                let notified = self.empty.notified();
                if self.count() == 0 {
                    return;
                }
                notified.await;
            }
        };
        tokio::time::timeout(limit, empty).await.is_ok()
    }
}
