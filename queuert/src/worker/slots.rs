//! The workers of one process: how many are idle, and how many are about to be.
//!
//! An attempt whose processor is done still has its worker until the store has taken its end, so that one worker never
//! has two jobs. But what it will do next can be claimed meanwhile: the store is asked for both at the same time, and
//! one that groups what it is asked for does both in one transaction. A job that was claimed ahead starts when a worker
//! is free, in the order of the claims, and goes back unspent if that never happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) struct Slots {
    all: usize,
    free: Arc<Semaphore>,
    /// Attempts whose end is on its way to the store.
    ending: AtomicUsize,
    /// Claimed jobs that wait for a worker.
    waiting: AtomicUsize,
    changed: Notify,
}

impl Slots {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            free: Arc::new(Semaphore::new(all)),
            ending: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }

    /// How many jobs to claim. Every change goes through a state in which this is too small, never too large.
    fn wanted(&self) -> usize {
        let waiting = self.waiting.load(Ordering::SeqCst);
        let soon = self.free.available_permits() + self.ending.load(Ordering::SeqCst);
        soon.saturating_sub(waiting)
    }

    /// Waits until there is a worker to claim for, and says how many there are. A saturated process waits here, and
    /// asks the store for nothing.
    pub(crate) async fn demand(&self) -> usize {
        loop {
            match self.wanted() {
                0 => self.changed.notified().await,
                all if all == self.all => return all,
                // Other attempts may be about to end: those that are ready to go on do so first, and share the claim.
                _ => {
                    tokio::task::yield_now().await;
                    match self.wanted() {
                        0 => {}
                        wanted => return wanted,
                    }
                }
            }
        }
    }

    /// A place in the line for a worker.
    pub(crate) fn line_up(self: &Arc<Self>) -> Place {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Place(Arc::clone(self))
    }

    /// Counts an attempt as ending until the value is dropped.
    pub(crate) fn ending(&self) -> Ending<'_> {
        self.ending.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
        Ending(self)
    }
}

/// A claimed job's place in the line.
pub(crate) struct Place(Arc<Slots>);

impl Place {
    /// Waits for a worker; `None` when none will be free any more.
    pub(crate) async fn take(self, stop: &CancellationToken) -> Option<Slot> {
        let free = Arc::clone(&self.0.free);
        let permit = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            permit = free.acquire_owned() => permit.ok(),
        };
        permit.map(|permit| Slot {
            slots: Arc::clone(&self.0),
            permit: Some(permit),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

/// A worker that has a job.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.slots.changed.notify_one();
    }
}

/// See [`Slots::ending`].
pub(crate) struct Ending<'a>(&'a Slots);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    async fn take(slots: &Arc<Slots>) -> Slot {
        let never = CancellationToken::new();
        slots.line_up().take(&never).await.expect("a worker is free")
    }

    #[tokio::test]
    async fn what_waits_and_what_runs_is_not_asked_for_again() {
        let slots = Arc::new(Slots::new(3));
        assert_eq!(slots.demand().await, 3);
        let place = slots.line_up();
        assert_eq!(slots.demand().await, 2);
        let slot = place.take(&CancellationToken::new()).await;
        assert_eq!(slots.demand().await, 2);
        drop(slot);
        assert_eq!(slots.demand().await, 3);
    }

    #[tokio::test]
    async fn an_attempt_that_ends_is_asked_for_once_and_keeps_its_worker_until_it_has_ended() {
        let slots = Arc::new(Slots::new(1));
        let first = take(&slots).await;
        assert_eq!(slots.demand().now_or_never(), None);
        let ending = slots.ending();
        assert_eq!(slots.demand().await, 1);
        let never = CancellationToken::new();
        let mut second = std::pin::pin!(slots.line_up().take(&never));
        assert!(second.as_mut().now_or_never().is_none(), "one worker has one job");
        assert_eq!(slots.demand().now_or_never(), None, "it has been asked for");
        drop(ending);
        assert_eq!(slots.demand().now_or_never(), None);
        drop(first);
        let second = second.await;
        assert_eq!(slots.demand().now_or_never(), None);
        drop(second);
        assert_eq!(slots.demand().await, 1);
    }

    #[tokio::test]
    async fn who_waits_for_a_worker_when_the_process_stops_gets_none() {
        let slots = Arc::new(Slots::new(1));
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(slots.line_up().take(&stop).await.is_none());
        assert_eq!(slots.demand().await, 1, "its place is given up");
    }
}
