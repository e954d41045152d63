//! What the gauges read: how many workers there are and how many of them run, and how much waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use queuert::__task::{Lock, LockGuard};
use queuert::adapter::QueueSample;
use queuert::{TypeName, WorkerId};

/// The state that gauges are read from. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Gauges {
    running: Arc<AtomicU64>,
    workers: Arc<Lock<Workers>>,
}

#[derive(Default)]
struct Workers {
    concurrency: HashMap<WorkerId, usize>,
    queues: HashMap<TypeName, QueueSample>,
}

impl Gauges {
    fn workers(&self) -> LockGuard<'_, Workers> {
        self.workers.lock()
    }

    pub(crate) fn started(&self, worker: &WorkerId, concurrency: usize) {
        self.workers().concurrency.insert(worker.clone(), concurrency);
    }

    pub(crate) fn stopped(&self, worker: &WorkerId) {
        let mut workers = self.workers();
        workers.concurrency.remove(worker);
        // Nobody looks any more, and what was seen last is no longer true.
        if workers.concurrency.is_empty() {
            workers.queues.clear();
        }
    }

    pub(crate) fn sampled(&self, samples: &[QueueSample]) {
        let mut workers = self.workers();
        for sample in samples {
            workers.queues.insert(sample.type_name.clone(), sample.clone());
        }
    }

    pub(crate) fn queues(&self) -> Vec<QueueSample> {
        self.workers().queues.values().cloned().collect()
    }

    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn idle(&self) -> u64 {
        let all: usize = self.workers().concurrency.values().sum();
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(self.running())
    }

    pub(crate) fn run(&self) -> Running {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(&self.running))
    }
}

/// An attempt that runs, until it is dropped.
pub(crate) struct Running(Arc<AtomicU64>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
