//! The claimed jobs of one process that wait for a worker, its workers, and how many more jobs to claim.
//!
//! A worker has one job at a time. The write of a job's end does not occupy the worker: with several workers the worker
//! begins its next job meanwhile. A single worker waits for that write, so that its jobs run strictly one after the other;
//! only the claim of the next job goes out at the same time, unless the end itself claims the next job of its chain. If the
//! write takes long, the job that was claimed goes back, and the worker claims no other before the write is done.
//!
//! Jobs are claimed ahead for workers that will be free by the time another claim could be answered, or within a few
//! milliseconds, and for no more: see [`Prefetch`]. So short jobs come in large batches, whatever the number of workers, and
//! long jobs are left to other processes. The store is told how many bytes the inputs may have, see [`ClaimBounds`], so that
//! large inputs do not fill the memory of the process. Jobs begin in the order of the claims, and a job that waits long goes
//! back with its attempt unspent.
//!
//! The queue assigns no job to a worker: a worker that is called takes the first job, if one is still there. So a worker
//! whose task does not get to run keeps no job from the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::__task::{Lock, LockGuard};
use crate::worker::dispatch::prefetch::{BYTES_AHEAD, Prefetch};

/// How long a claimed job waits for a worker before it goes back: far longer than the wait that [`Prefetch`] allows for.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The most jobs that are claimed, running or not yet written, unless there are more workers than that: the most jobs that
/// run again after a crash in the middle of many short jobs.
const IN_HAND: usize = 2_000;

/// A job whose payloads have a size.
pub(crate) trait PayloadSize {
    /// The size in bytes.
    fn payload_bytes(&self) -> usize;
}

/// How much a claim may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimBounds {
    /// How many jobs, whatever the size of their inputs: one for each worker that would be idle otherwise.
    pub(crate) at_least: usize,
    /// How many bytes of inputs, beyond these.
    pub(crate) bytes: usize,
}

impl ClaimBounds {
    /// Any number of bytes.
    pub(crate) const NONE: Self = Self {
        at_least: 1,
        bytes: usize::MAX,
    };
}

/// Claimed jobs of type `T` that wait for workers.
pub(crate) struct LocalQueue<T> {
    concurrency: usize,
    state: Lock<State<T>>,
    /// How many ends are on their way to the store.
    unwritten: AtomicUsize,
    prefetch: Prefetch,
    /// The claimer waits until there is a worker to claim for.
    claimer_waits: AtomicBool,
    /// Wakes the claimer.
    demand_changed: Notify,
    /// Wakes the pool: there are too few workers, or waiting jobs that it does not watch yet.
    pool_needed: Notify,
}

struct State<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The size of the payloads of all waiting jobs.
    waiting_bytes: usize,
    /// All workers by number. A worker that is gone leaves its number to the next one.
    workers: Vec<WorkerState>,
    gone: Vec<usize>,
    /// The workers that wait to be called, the one that had a job last on top.
    idle: Vec<usize>,
    /// How many workers have been called and have not taken a job yet.
    called: usize,
    busy: usize,
    /// Whether the pool has a timer for jobs that wait too long.
    watched: bool,
    /// A single worker gave back the job that it had claimed while its last end was written. It claims no other before that
    /// is done, or it would claim and give back for as long as the write takes.
    gave_back: bool,
    /// The set is stopping.
    closed: bool,
}

struct Waiting<T> {
    job: T,
    bytes: usize,
    since: Instant,
    /// The store was down when the job was queued or last looked at.
    held_up: bool,
}

enum WorkerState {
    Busy,
    Idle(Waker),
    Called,
    Gone,
}

impl<T: PayloadSize> LocalQueue<T> {
    /// Queues claimed jobs in their order, and returns them if no worker will take any more. `store_is_down` is whether calls
    /// to the store fail, so that the workers are held up.
    pub(crate) fn push(&self, jobs: Vec<T>, store_is_down: bool) -> Vec<T> {
        if jobs.is_empty() {
            return jobs;
        }
        let since = Instant::now();
        let mut state = self.state();
        if state.closed {
            return jobs;
        }
        for job in jobs {
            let bytes = job.payload_bytes();
            state.waiting_bytes += bytes;
            state.waiting.push_back(Waiting {
                job,
                bytes,
                since,
                held_up: store_is_down,
            });
        }
        let called = state.call();
        let unwatched = !std::mem::replace(&mut state.watched, true);
        if unwatched || state.missing(self.concurrency) > 0 {
            self.pool_needed.notify_one();
        }
        drop(state);
        called.into_iter().for_each(Waker::wake);
        Vec::new()
    }
}

impl<T> LocalQueue<T> {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            concurrency,
            state: Lock::new(State {
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                workers: Vec::new(),
                gone: Vec::new(),
                idle: Vec::new(),
                called: 0,
                busy: 0,
                watched: false,
                gave_back: false,
                closed: false,
            }),
            unwritten: AtomicUsize::new(0),
            prefetch: Prefetch::new(concurrency),
            claimer_waits: AtomicBool::new(false),
            demand_changed: Notify::new(),
            pool_needed: Notify::new(),
        }
    }

    fn state(&self) -> LockGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Whether there is one worker, which takes its next job only when the end of the last one has been written.
    pub(crate) fn has_single_worker(&self) -> bool {
        self.concurrency == 1
    }

    /// How many jobs to claim. While several counts change one after the other, this may be too small in between, never too
    /// large.
    fn wanted(&self, state: &State<T>) -> usize {
        let waiting = state.waiting.len();
        let unwritten = self.unwritten.load(Ordering::SeqCst);
        let free = self.concurrency.saturating_sub(state.busy);
        if self.has_single_worker() {
            let soon_free = if state.gave_back { 0 } else { unwritten };
            return (free + soon_free).saturating_sub(waiting);
        }
        let in_hand = waiting + unwritten + state.busy;
        let room = IN_HAND.max(2 * self.concurrency).saturating_sub(in_hand);
        let ahead = self.prefetch.ahead();
        // While the workers have enough for now, the next claim can wait and be larger.
        if waiting > ahead / 2 || state.waiting_bytes > BYTES_AHEAD / 2 {
            return free.saturating_sub(waiting).min(room);
        }
        (free + ahead).saturating_sub(waiting).min(room)
    }

    /// How much the next claim may bring.
    pub(crate) fn bounds(&self) -> ClaimBounds {
        let state = self.state();
        ClaimBounds {
            at_least: self.concurrency.saturating_sub(state.busy + state.waiting.len()),
            bytes: BYTES_AHEAD.saturating_sub(state.waiting_bytes),
        }
    }

    /// Waits until there are workers to claim for, and returns how many jobs they want. The claimer of a saturated process
    /// waits here, and asks the store for nothing.
    pub(crate) async fn demand(&self) -> usize {
        loop {
            let (wanted, all_free) = self.ask_for_demand();
            match wanted {
                0 => self.demand_changed.notified().await,
                wanted if all_free => return wanted,
                // Other attempts may be about to end: those that are ready to go on do so first, and share the claim.
                _ => {
                    tokio::task::yield_now().await;
                    match self.ask_for_demand().0 {
                        0 => {}
                        wanted => return wanted,
                    }
                }
            }
        }
    }

    /// How many jobs to claim, and whether all workers are free. If there are none to claim, the next change wakes the
    /// claimer.
    fn ask_for_demand(&self) -> (usize, bool) {
        let state = self.state();
        // Set before the counts are read: a thread that changes them afterwards sees that the claimer waits.
        self.claimer_waits.store(true, Ordering::SeqCst);
        let wanted = self.wanted(&state);
        if wanted > 0 {
            self.claimer_waits.store(false, Ordering::SeqCst);
        }
        (wanted, state.busy == 0)
    }

    /// Wakes the claimer, if it waits and there is a worker to claim for. Returns whether it did.
    fn wake_claimer(&self, state: &State<T>) -> bool {
        let due = self.claimer_waits.load(Ordering::SeqCst) && self.wanted(state) > 0;
        if due {
            self.claimer_waits.store(false, Ordering::SeqCst);
            self.demand_changed.notify_one();
        }
        due
    }

    /// Records that a claim which was sent then has been answered, how many jobs it brought, and the size of their payloads.
    pub(crate) fn claim_answered(&self, sent_at: Instant, jobs: usize, bytes: usize) {
        self.prefetch.claim_answered(sent_at.elapsed(), jobs, bytes);
    }

    /// Takes no more jobs, and returns those that wait.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut state = self.state();
        state.closed = true;
        state.waiting_bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        waiting.into_iter().map(|waiting| waiting.job).collect()
    }

    /// Takes out the jobs that have waited for too long. While the store is down it holds up the workers, and other processes
    /// could not run the jobs either, so they stay; a job that was held up may wait for a whole period afterwards.
    pub(crate) fn take_overdue(&self, store_is_down: bool) -> Vec<T> {
        let now = Instant::now();
        let mut state = self.state();
        let overdue = state.take(|waiting| {
            if now < waiting.since + LONGEST_WAIT {
                return false;
            }
            let stays = waiting.held_up || store_is_down;
            (waiting.since, waiting.held_up) = (now, store_is_down);
            !stays
        });
        state.gave_back |= self.has_single_worker() && !overdue.is_empty();
        self.wake_claimer(&state);
        overdue
    }

    /// When to look for overdue jobs again; `None` if no job waits, so that the pool is woken for the next one.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let mut state = self.state();
        let first = state.waiting.iter().map(|waiting| waiting.since).min();
        state.watched = first.is_some();
        first.map(|first| first + LONGEST_WAIT)
    }

    /// When to look for overdue jobs first, if jobs have been queued. Most jobs do not wait for long: an earlier look would find
    /// none, and the pool would be woken for each batch.
    pub(crate) fn first_look(&self) -> Option<Instant> {
        self.state().watched.then(|| Instant::now() + LONGEST_WAIT)
    }

    /// Takes out the waiting jobs that meet a condition.
    pub(crate) fn take_if(&self, condition: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.state();
        let taken = state.take(|waiting| condition(&waiting.job));
        self.wake_claimer(&state);
        taken
    }

    /// Waits until the pool has something to do here.
    pub(crate) async fn pool_is_needed(&self) {
        self.pool_needed.notified().await;
    }

    /// One more worker, if there are jobs for it. Workers are made as they are needed, so that idle ones cost nothing.
    pub(crate) fn add_worker(self: &Arc<Self>) -> Option<QueueWorker<T>> {
        let mut state = self.state();
        if state.missing(self.concurrency) == 0 {
            return None;
        }
        let number = match state.gone.pop() {
            Some(number) => number,
            None => {
                state.workers.push(WorkerState::Gone);
                state.workers.len() - 1
            }
        };
        state.workers[number] = WorkerState::Called;
        state.called += 1;
        Some(QueueWorker {
            queue: Arc::clone(self),
            number,
            since: None,
        })
    }

    /// Counts an end that is on its way to the store.
    pub(crate) fn end_posted(&self) {
        self.unwritten.fetch_add(1, Ordering::SeqCst);
        // A single worker keeps its job until the end is written, and claims its next job meanwhile.
        if self.has_single_worker() && self.claimer_waits.load(Ordering::SeqCst) {
            self.wake_claimer(&self.state());
        }
    }

    /// Counts an end whose write is over.
    pub(crate) fn end_written(&self) {
        let left = self.unwritten.fetch_sub(1, Ordering::SeqCst) - 1;
        // Not after the write of the job that was given back, which is an end too: the worker would claim it again at once.
        if self.has_single_worker() && left == 0 {
            self.state().gave_back = false;
        }
        if self.claimer_waits.load(Ordering::SeqCst) {
            self.wake_claimer(&self.state());
        }
    }
}

impl<T> State<T> {
    /// Takes out the waiting jobs that meet a condition; the others keep their order.
    fn take(&mut self, mut condition: impl FnMut(&mut Waiting<T>) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for mut waiting in std::mem::take(&mut self.waiting) {
            if condition(&mut waiting) {
                self.waiting_bytes -= waiting.bytes;
                taken.push(waiting.job);
            } else {
                rest.push_back(waiting);
            }
        }
        self.waiting = rest;
        taken
    }

    /// Calls idle workers, one for each waiting job. The caller wakes them when it has released the lock.
    fn call(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while self.called < self.waiting.len()
            && let Some(number) = self.idle.pop()
        {
            if let WorkerState::Idle(waker) = std::mem::replace(&mut self.workers[number], WorkerState::Called) {
                self.called += 1;
                wakers.push(waker);
            }
        }
        wakers
    }

    /// How many more workers there should be.
    fn missing(&self, concurrency: usize) -> usize {
        let workers = self.workers.len() - self.gone.len();
        let needed = (self.busy + self.waiting.len()).min(concurrency);
        needed.saturating_sub(workers)
    }
}

/// A job that a worker has taken.
pub(crate) struct Taken<T> {
    pub(crate) job: T,
    /// When the worker took it.
    pub(crate) since: Instant,
    /// Whether taking it woke the claimer.
    pub(crate) woke: bool,
}

/// A worker, as the local queue knows it.
pub(crate) struct QueueWorker<T> {
    queue: Arc<LocalQueue<T>>,
    number: usize,
    /// Since when it has its job.
    since: Option<Instant>,
}

impl<T> QueueWorker<T> {
    /// Ends the current job, if the worker has one, and waits for the next.
    pub(crate) async fn next(&mut self) -> Taken<T> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Taken<T>> {
        let now = Instant::now();
        let mut state = self.queue.state();
        if let Some(since) = self.since.take() {
            self.queue.prefetch.job_ended(now.saturating_duration_since(since));
            state.busy -= 1;
        }
        match &mut state.workers[self.number] {
            // Not the queue woke the task.
            WorkerState::Idle(waker) => {
                waker.clone_from(context.waker());
                return Poll::Pending;
            }
            WorkerState::Called => state.called -= 1,
            WorkerState::Busy | WorkerState::Gone => {}
        }
        let Some(waiting) = state.waiting.pop_front() else {
            state.workers[self.number] = WorkerState::Idle(context.waker().clone());
            state.idle.push(self.number);
            self.queue.wake_claimer(&state);
            return Poll::Pending;
        };
        state.waiting_bytes -= waiting.bytes;
        state.workers[self.number] = WorkerState::Busy;
        state.busy += 1;
        self.since = Some(now);
        self.queue.prefetch.job_begun();
        let woke = self.queue.wake_claimer(&state);
        Poll::Ready(Taken {
            job: waiting.job,
            since: now,
            woke,
        })
    }
}

impl<T> Drop for QueueWorker<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if self.since.is_some() {
            state.busy -= 1;
        }
        match std::mem::replace(&mut state.workers[self.number], WorkerState::Gone) {
            WorkerState::Called => state.called -= 1,
            WorkerState::Idle(_) => state.idle.retain(|number| *number != self.number),
            WorkerState::Busy | WorkerState::Gone => {}
        }
        state.gone.push(self.number);
        if state.missing(self.queue.concurrency) > 0 {
            self.queue.pool_needed.notify_one();
        }
        self.queue.wake_claimer(&state);
    }
}

#[cfg(test)]
mod tests;
