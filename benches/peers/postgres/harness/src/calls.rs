//! Counts what processors do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use queuert_measured::Letter;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Counts calls of the processor, and tells when all have been made. Clones share the count.
#[derive(Clone, Debug)]
pub struct Calls(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    made: AtomicUsize,
    all: usize,
    done: Notify,
    /// When each letter was seen, if somebody wants to know.
    seen: Option<Mutex<BTreeMap<u64, Instant>>>,
}

impl Calls {
    /// Until `all` have been made.
    pub(crate) fn new(all: usize) -> Self {
        Self::of(all, None)
    }

    /// The same, and remembers when.
    pub(crate) fn with_times(all: usize) -> Self {
        Self::of(all, Some(Mutex::default()))
    }

    fn of(all: usize, seen: Option<Mutex<BTreeMap<u64, Instant>>>) -> Self {
        Self(Arc::new(Counts {
            made: AtomicUsize::new(0),
            all,
            done: Notify::new(),
            seen,
        }))
    }

    /// The first thing that a processor does.
    pub fn call(&self, letter: &Letter) {
        if let Some(seen) = &self.0.seen {
            let now = Instant::now();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(letter.number).or_insert(now);
        }
        if self.0.made.fetch_add(1, Ordering::Relaxed) + 1 == self.0.all {
            self.0.done.notify_one();
        }
    }

    pub(crate) async fn all_made(&self) {
        self.0.done.notified().await;
    }

    pub(crate) fn seen(&self, number: u64) -> Option<Instant> {
        let seen = self.0.seen.as_ref()?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&number).copied()
    }
}
