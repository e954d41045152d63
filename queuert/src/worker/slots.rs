//! The workers of one process: how many are idle, and how many jobs to claim for them.
//!
//! A worker has one job at a time. What a job still needs when its processor is done, the write of its end, is not the
//! worker's: with several workers the next job begins meanwhile, as it would on the worker beside it. A single worker
//! waits for that write, so that its jobs happen strictly one after the other; only the claim of the next one goes out
//! with it.
//!
//! Jobs are claimed ahead for workers that will be free by the time another claim could be answered, and for no more:
//! see [`Pace`]. So short jobs come in large batches, whatever the number of workers, and long ones are never kept from
//! other processes. What was claimed ahead begins when a worker is free, in the order of the claims, and goes back
//! unspent if that takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;

/// How long a claimed job waits for a worker before it goes back: far longer than the wait that [`Pace`] allows for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most jobs that are claimed, running or not yet written, unless there are more workers than that: what is run
/// again, at most, after a crash in the middle of many short jobs.
const IN_HAND: usize = 500;

pub(crate) struct Slots {
    all: usize,
    free: Arc<Semaphore>,
    /// Attempts whose end is on its way to the store.
    ending: AtomicUsize,
    /// Claimed jobs that wait for a worker.
    waiting: AtomicUsize,
    pace: Pace,
    changed: Notify,
}

impl Slots {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            free: Arc::new(Semaphore::new(all)),
            ending: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            pace: Pace::new(all),
            changed: Notify::new(),
        }
    }

    /// Whether a worker takes its next job only when the end of the last one has been written.
    fn strict(&self) -> bool {
        self.all == 1
    }

    /// How many jobs to claim. Every change goes through a state in which this is too small, never too large.
    fn wanted(&self) -> usize {
        let waiting = self.waiting.load(Ordering::SeqCst);
        let ending = self.ending.load(Ordering::SeqCst);
        let free = self.free.available_permits();
        if self.strict() {
            return (free + ending).saturating_sub(waiting);
        }
        let ahead = self.pace.ahead();
        // While the workers have enough for now, the next claim can wait and be larger.
        if waiting > ahead / 2 {
            return free.saturating_sub(waiting);
        }
        let in_hand = waiting + ending + self.all.saturating_sub(free);
        let room = IN_HAND.max(2 * self.all).saturating_sub(in_hand);
        (free + ahead).saturating_sub(waiting).min(room)
    }

    /// Waits until there is a worker to claim for, and says how many there are. A saturated process waits here, and
    /// asks the store for nothing.
    pub(crate) async fn demand(&self) -> usize {
        loop {
            match self.wanted() {
                0 => self.changed.notified().await,
                wanted if self.free.available_permits() == self.all => return wanted,
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

    /// A claim that was sent then has been answered.
    pub(crate) fn claimed(&self, sent_at: Instant) {
        self.pace.claimed(sent_at.elapsed());
    }

    /// A place in the line for a worker.
    pub(crate) fn line_up(self: &Arc<Self>) -> Place {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Place(Arc::clone(self))
    }

    /// Counts an attempt as ending until the value is dropped. The worker goes on to its next job at once, unless its
    /// jobs happen one after the other.
    pub(crate) fn ending(self: &Arc<Self>, slot: Option<Slot>) -> Ending {
        self.ending.fetch_add(1, Ordering::SeqCst);
        let kept = slot.filter(|_| self.strict());
        self.changed.notify_one();
        Ending {
            slots: Arc::clone(self),
            _kept: kept,
        }
    }
}

/// A claimed job's place in the line.
pub(crate) struct Place(Arc<Slots>);

/// What came of waiting for a worker.
pub(crate) enum Turn {
    /// Here is one.
    Now(Slot),
    /// None will be free any more, or none soon.
    GoBack,
}

impl Place {
    /// Waits for a worker. While `all_wait`, because the store is away and holds up the workers, nothing is gained by going
    /// back.
    pub(crate) async fn take(self, stop: &CancellationToken, all_wait: impl Fn() -> bool) -> Turn {
        let slots = &self.0;
        let too_long = async {
            if slots.strict() {
                std::future::pending().await
            }
            // Who was held up has a whole period after it.
            let mut held_up = true;
            while held_up {
                held_up = all_wait();
                tokio::time::sleep(PATIENCE).await;
                held_up |= all_wait();
            }
        };
        let permit = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            permit = Arc::clone(&slots.free).acquire_owned() => permit.ok(),
            () = too_long => None,
        };
        match permit {
            Some(permit) => {
                slots.pace.begun();
                Turn::Now(Slot {
                    slots: Arc::clone(slots),
                    permit: Some(permit),
                    since: Instant::now(),
                })
            }
            None => Turn::GoBack,
        }
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
    since: Instant,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.pace.ended(self.since.elapsed());
        drop(self.permit.take());
        self.slots.changed.notify_one();
    }
}

/// See [`Slots::ending`].
pub(crate) struct Ending {
    slots: Arc<Slots>,
    _kept: Option<Slot>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.slots.ending.fetch_sub(1, Ordering::SeqCst);
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    async fn take(slots: &Arc<Slots>) -> Slot {
        let never = CancellationToken::new();
        match slots.line_up().take(&never, || false).await {
            Turn::Now(slot) => slot,
            Turn::GoBack => panic!("a worker is free"),
        }
    }

    #[tokio::test]
    async fn what_waits_and_what_runs_is_not_asked_for_again() {
        let slots = Arc::new(Slots::new(3));
        assert_eq!(slots.demand().await, 3);
        let place = slots.line_up();
        assert_eq!(slots.demand().await, 2);
        let slot = place.take(&CancellationToken::new(), || false).await;
        assert_eq!(slots.demand().await, 2);
        drop(slot);
        assert_eq!(slots.demand().await, 3);
    }

    #[tokio::test]
    async fn a_single_worker_is_asked_for_once_and_has_its_job_until_that_is_written() {
        let slots = Arc::new(Slots::new(1));
        let first = take(&slots).await;
        assert_eq!(slots.demand().now_or_never(), None);
        let ending = slots.ending(Some(first));
        assert_eq!(slots.demand().await, 1);
        let never = CancellationToken::new();
        let mut second = std::pin::pin!(slots.line_up().take(&never, || false));
        assert!(second.as_mut().now_or_never().is_none(), "one worker has one job");
        assert_eq!(slots.demand().now_or_never(), None, "it has been asked for");
        drop(ending);
        let second = second.await;
        assert_eq!(slots.demand().now_or_never(), None);
        drop(second);
        assert_eq!(slots.demand().await, 1);
    }

    #[tokio::test]
    async fn one_of_several_workers_is_free_when_its_processor_is_done() {
        let slots = Arc::new(Slots::new(2));
        let (first, _second) = (take(&slots).await, take(&slots).await);
        assert_eq!(slots.demand().now_or_never(), None);
        let _ending = slots.ending(Some(first));
        assert_eq!(slots.demand().await, 1);
        take(&slots).await;
    }

    #[tokio::test]
    async fn no_more_is_claimed_while_much_is_not_written_yet() {
        let slots = Arc::new(Slots::new(2));
        let mut unwritten: Vec<Ending> = (0..IN_HAND).map(|_| slots.ending(None)).collect();
        assert_eq!(slots.demand().now_or_never(), None);
        unwritten.pop();
        assert_eq!(slots.demand().await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn short_jobs_are_claimed_ahead_in_batches_that_are_refilled_at_half() {
        let slots = Arc::new(Slots::new(2));
        for _ in 0..50 {
            drop(take(&slots).await);
        }
        let sent_at = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        slots.claimed(sent_at);
        assert_eq!(
            slots.demand().await,
            102,
            "two idle workers, and twice what was begun in the last round"
        );
        let mut line: Vec<Place> = (0..102).map(|_| slots.line_up()).collect();
        assert_eq!(slots.demand().now_or_never(), None);
        line.truncate(51);
        assert_eq!(slots.demand().now_or_never(), None);
        line.truncate(50);
        assert_eq!(slots.demand().await, 52);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_for_a_worker_goes_back() {
        let slots = Arc::new(Slots::new(2));
        let _both = (take(&slots).await, take(&slots).await);
        let turn = slots.line_up().take(&CancellationToken::new(), || false).await;
        assert!(matches!(turn, Turn::GoBack));
        assert_eq!(slots.demand().now_or_never(), None, "and its workers are still busy");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_with_everybody_stays_until_a_while_after() {
        let slots = Arc::new(Slots::new(2));
        let _both = (take(&slots).await, take(&slots).await);
        let begun = Instant::now();
        let away = || begun.elapsed() < 10 * PATIENCE;
        let turn = slots.line_up().take(&CancellationToken::new(), away).await;
        assert!(matches!(turn, Turn::GoBack));
        assert!(begun.elapsed() >= 11 * PATIENCE, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn who_waits_for_a_worker_when_the_process_stops_gets_none() {
        let slots = Arc::new(Slots::new(1));
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(matches!(slots.line_up().take(&stop, || false).await, Turn::GoBack));
        assert_eq!(slots.demand().await, 1, "its place is given up");
    }
}
