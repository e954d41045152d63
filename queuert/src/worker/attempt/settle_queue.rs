//! Ends of attempts on their way to the settler.

use tokio::sync::{Notify, oneshot};

use crate::__task::Lock;
use crate::adapter::{Settlement, StateAdapter};
use crate::event::{Ages, AttemptOutcome};
use crate::id::Fence;
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::dispatcher::UnwrittenEnd;
use crate::worker::attempt::end::Pending;
use crate::worker::attempt::run_report::RunReport;

/// An attempt whose processor has ended, or that goes back before it began.
pub(crate) struct EndingAttempt<S: StateAdapter> {
    pub(crate) attempt: ClaimedAttempt<S>,
    /// `None` if no worker has begun the attempt: there is no end to report then.
    pub(crate) report: Option<RunReport>,
    /// Told how the attempt ended. `None` if no worker waits for that.
    pub(crate) reply: Option<oneshot::Sender<AttemptOutcome>>,
    /// Set when the end is posted for the first time.
    pub(crate) unwritten: Option<UnwrittenEnd<S>>,
}

/// An end that the store has not written yet. The write itself is a [`Settlement`] beside it.
pub(crate) struct PostedEnd<S: StateAdapter> {
    pub(crate) ending: EndingAttempt<S>,
    pub(crate) pending: Pending,
    /// How long job and chain have existed, for events.
    pub(crate) ages: Ages,
}

/// An end that is written, and whose next job may have been claimed under this fence.
pub(crate) struct Recovery<S: StateAdapter> {
    pub(crate) ending: EndingAttempt<S>,
    pub(crate) outcome: AttemptOutcome,
    pub(crate) fence: Fence,
}

/// Posted ends, each with its write. In two vectors, because the store takes a slice of the writes.
pub(crate) struct Batch<S: StateAdapter> {
    pub(crate) settlements: Vec<Settlement>,
    pub(crate) ends: Vec<PostedEnd<S>>,
}

impl<S: StateAdapter> Batch<S> {
    pub(crate) const fn new() -> Self {
        Self {
            settlements: Vec::new(),
            ends: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn push(&mut self, settlement: Settlement, end: PostedEnd<S>) {
        self.settlements.push(settlement);
        self.ends.push(end);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.settlements.append(&mut other.settlements);
        self.ends.append(&mut other.ends);
    }

    /// Takes out the first ones.
    fn take(&mut self, most: usize) -> Self {
        if self.len() <= most {
            return std::mem::replace(self, Self::new());
        }
        Self {
            settlements: self.settlements.drain(..most).collect(),
            ends: self.ends.drain(..most).collect(),
        }
    }
}

impl<S: StateAdapter> IntoIterator for Batch<S> {
    type Item = (Settlement, PostedEnd<S>);
    type IntoIter = std::iter::Zip<std::vec::IntoIter<Settlement>, std::vec::IntoIter<PostedEnd<S>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.settlements.into_iter().zip(self.ends)
    }
}

/// The way to the settler. Executors push, and the settler takes.
pub(crate) struct SettleQueue<S: StateAdapter> {
    queued: Lock<Queued<S>>,
    /// Notified when the queue is not empty any more.
    arrived: Notify,
}

struct Queued<S: StateAdapter> {
    batch: Batch<S>,
    recoveries: Vec<Recovery<S>>,
    /// The settler has quit.
    closed: bool,
}

impl<S: StateAdapter> Queued<S> {
    fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.recoveries.is_empty()
    }
}

impl<S: StateAdapter> SettleQueue<S> {
    pub(crate) fn new() -> Self {
        let queued = Queued {
            batch: Batch::new(),
            recoveries: Vec::new(),
            closed: false,
        };
        Self {
            queued: Lock::new(queued),
            arrived: Notify::new(),
        }
    }

    /// Posts an end, and returns whether that woke the settler; returns the end if the settler has quit.
    pub(crate) fn push(&self, settlement: Settlement, end: PostedEnd<S>) -> Result<bool, Box<PostedEnd<S>>> {
        let mut queued = self.queued.lock();
        if queued.closed {
            drop(queued);
            return Err(Box::new(end));
        }
        let first = queued.is_empty();
        queued.batch.push(settlement, end);
        drop(queued);
        if first {
            self.arrived.notify_one();
        }
        Ok(first)
    }

    /// Posts a recovery, which the settler runs as a task; returns it if the settler has quit.
    pub(crate) fn push_recovery(&self, recovery: Recovery<S>) -> Result<(), Box<Recovery<S>>> {
        let mut queued = self.queued.lock();
        if queued.closed {
            drop(queued);
            return Err(Box::new(recovery));
        }
        queued.recoveries.push(recovery);
        drop(queued);
        self.arrived.notify_one();
        Ok(())
    }

    /// How many ends wait for the settler.
    pub(crate) fn len(&self) -> usize {
        self.queued.lock().batch.len()
    }

    /// Waits until there is something to take.
    pub(crate) async fn wait(&self) {
        while self.queued.lock().is_empty() {
            self.arrived.notified().await;
        }
    }

    /// Takes the oldest ends, `most` at most, and all recoveries.
    pub(crate) fn take(&self, most: usize) -> (Batch<S>, Vec<Recovery<S>>) {
        let mut queued = self.queued.lock();
        let recoveries = std::mem::take(&mut queued.recoveries);
        (queued.batch.take(most), recoveries)
    }

    /// Takes no more, and returns everything that is left.
    pub(crate) fn close(&self) -> (Batch<S>, Vec<Recovery<S>>) {
        let mut queued = self.queued.lock();
        queued.closed = true;
        let recoveries = std::mem::take(&mut queued.recoveries);
        (std::mem::replace(&mut queued.batch, Batch::new()), recoveries)
    }
}
