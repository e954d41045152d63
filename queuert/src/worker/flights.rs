//! The attempts that this process has, from their claim to the answer to their end.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::attempt::Shared;
use crate::__task::{Lock, LockGuard};
use crate::adapter::StateAdapter;
use crate::id::JobId;

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

    /// The attempts whose processor has begun and has not ended.
    pub(crate) fn processing(&self) -> Vec<Arc<Shared<S>>> {
        let by_job = self.by_job();
        let processing = by_job
            .values()
            .filter(|attempt| !attempt.settling.load(Ordering::SeqCst));
        processing.cloned().collect()
    }

    /// Waits until every attempt has landed that is not among these, for a while. Only for the rare end of a stop: it looks
    /// from time to time.
    pub(crate) async fn others_landed(&self, left: &[Arc<Shared<S>>], limit: Duration) {
        let left: BTreeSet<JobId> = left.iter().map(|attempt| attempt.record.id).collect();
        let landed = async {
            while self.by_job().keys().any(|job| !left.contains(job)) {
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::behind::Behind;
    use super::super::line::Bounds;
    use super::super::run;
    use super::*;
    use crate::Client;
    use crate::memory::{Attempt, MemoryState};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing;

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Nothing(Nothing),
    }

    /// A worker that stops waits for the ends that are on their way to the store, and neither counts a job that is given back
    /// among the blocked processors nor takes the end of one of these for the end of another attempt.
    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_every_end_but_those_of_blocked_processors() {
        let client = Client::new(MemoryState::new());
        client.start_many([Nothing, Nothing, Nothing, Nothing]).await.unwrap();
        let worker = client
            .worker()
            .process(|job: Attempt<Nothing>| async { job.finish(()) });
        let runtime = Arc::new(worker.build().unwrap());
        let fence = client.entropy().fence();
        let claimed = runtime.claim(4, Bounds::NONE, fence).await.unwrap();
        let mut attempts = run::Attempt::all(&runtime, claimed.jobs, Instant::now(), 1);
        Behind::give_back(&runtime, attempts.pop().unwrap());
        let ends = attempts.pop().unwrap();
        ends.shared.settling.store(true, Ordering::SeqCst);
        let blocked = runtime.flights.processing();
        let blocked_jobs: Vec<JobId> = blocked.iter().map(|attempt| attempt.record.id).collect();
        let mut began: Vec<JobId> = attempts.iter().map(|attempt| attempt.shared.record.id).collect();
        began.sort_unstable();
        assert_eq!(blocked_jobs, began);
        // Both blocked processors end after all: two attempts are left, as many as were blocked.
        attempts.clear();
        assert_eq!(runtime.flights.count(), blocked.len());
        let limit = Duration::from_secs(5);
        let began = Instant::now();
        runtime.flights.others_landed(&blocked, limit).await;
        assert_eq!(began.elapsed(), limit, "two ends are still on their way");
    }
}
