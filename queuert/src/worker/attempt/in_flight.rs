//! The attempts that this process has, from their claim to the answer to their end.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::__task::{Lock, LockGuard};
use crate::adapter::StateAdapter;
use crate::id::JobId;
use crate::worker::user::attempt::Shared;

pub(crate) struct Flights<S: StateAdapter> {
    /// The latest attempt of each job: its lease is renewed.
    by_job: Lock<BTreeMap<JobId, Arc<Shared<S>>>>,
    /// All of them, also those whose job this process has claimed again.
    count: AtomicUsize,
    landed: Notify,
}

impl<S: StateAdapter> Flights<S> {
    pub(crate) fn new() -> Self {
        Self {
            by_job: Lock::default(),
            count: AtomicUsize::new(0),
            landed: Notify::new(),
        }
    }

    pub(crate) fn by_job(&self) -> LockGuard<'_, BTreeMap<JobId, Arc<Shared<S>>>> {
        self.by_job.lock()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Adds attempts, and returns those whose job they have taken over.
    pub(crate) fn add<'a>(&self, attempts: impl Iterator<Item = &'a Arc<Shared<S>>>) -> Vec<Arc<Shared<S>>> {
        let mut by_job = self.by_job();
        let mut before = Vec::new();
        for attempt in attempts {
            self.count.fetch_add(1, Ordering::SeqCst);
            before.extend(by_job.insert(attempt.record.id, Arc::clone(attempt)));
        }
        before
    }

    pub(crate) fn remove(&self, attempt: &Arc<Shared<S>>) {
        // The entry may be that of a later attempt of the same job, which goes on.
        if let Entry::Occupied(entry) = self.by_job().entry(attempt.record.id)
            && Arc::ptr_eq(entry.get(), attempt)
        {
            entry.remove();
        }
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.landed.notify_waiters();
        }
    }

    /// Those whose processor has not ended.
    pub(crate) fn processing(&self) -> Vec<Arc<Shared<S>>> {
        let by_job = self.by_job();
        let processing = by_job
            .values()
            .filter(|attempt| !attempt.settling.load(Ordering::SeqCst));
        processing.cloned().collect()
    }

    /// Waits until there are at most so many, for a while. Only for the rare end of a stop: it looks from time to time.
    pub(crate) async fn all_but_landed(&self, left: usize, limit: Duration) {
        let landed = async {
            while self.count() > left {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, landed).await;
    }

    /// Waits until there are none, for a while; says whether there are none.
    pub(crate) async fn all_landed(&self, limit: Duration) -> bool {
        let landed = async {
            loop {
                // Made before the look: it sees every notification from here on.
                let landed = self.landed.notified();
                if self.count() == 0 {
                    return;
                }
                landed.await;
            }
        };
        tokio::time::timeout(limit, landed).await.is_ok()
    }
}
