//! The workers of one process, the claimed jobs that wait for them, and how many more to claim.
//!
//! A worker has one job at a time. What a job still needs when its processor is done, the write of its end, is not the
//! worker's: with several workers the next job begins meanwhile, as it would on the worker beside it. A single worker
//! waits for that write, so that its jobs happen strictly one after the other; only the claim of the next one goes out
//! with it, unless it asks for the next job of its chain. If the write takes long, the claimed job goes back, and the
//! worker claims no other before the write is done.
//!
//! Jobs are claimed ahead for workers that will be free by the time another claim could be answered, or within a few
//! milliseconds, and for no more: see [`Pace`]. So short jobs come in large batches, whatever the number of workers, and
//! long ones are not kept from other processes. The store is told how many bytes the inputs may have, see [`Bounds`], so that
//! large inputs do not fill the memory of the process. What was claimed ahead begins when a worker is free, in the order of the claims, and goes back
//! unspent if that takes long.
//!
//! Nobody is given a job: a worker that is told of one takes the first in line, if there still is one. So a worker that
//! does not get to run keeps no job from the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::worker::dispatch::prefetch::Pace;

use crate::__task::{Lock, LockGuard};

/// How long a claimed job waits for a worker before it goes back: far longer than the wait that [`Pace`] allows for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most jobs that are claimed, running or not yet written, unless there are more workers than that: what is run
/// again, at most, after a crash in the middle of many short jobs.
const IN_HAND: usize = 2_000;

/// How many bytes of payloads wait in line at most, beyond one job for each idle worker: no claim brings more, but for its
/// first job.
pub(crate) const BYTES_AHEAD: usize = 4 << 20;

/// What can be lined up.
pub(crate) trait Payloads {
    /// How many bytes its payloads have.
    fn bytes(&self) -> usize;
}

/// What a claim may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// How many jobs, whatever their inputs weigh: one for each worker that would be idle otherwise.
    pub(crate) at_least: usize,
    /// How many bytes of inputs, beyond these.
    pub(crate) bytes: usize,
}

impl Bounds {
    /// Any number of bytes.
    pub(crate) const NONE: Self = Self {
        at_least: 1,
        bytes: usize::MAX,
    };
}

/// Claimed jobs of type `T` in line for workers.
pub(crate) struct Line<T> {
    all: usize,
    state: Lock<State<T>>,
    /// Attempts whose end is on its way to the store.
    ending: AtomicUsize,
    pace: Pace,
    /// The claimer waits until there is somebody to claim for.
    hungry: AtomicBool,
    changed: Notify,
    /// The crew has something to do: there are too few workers, or jobs that nobody has an eye on.
    crew: Notify,
}

struct State<T> {
    waiting: VecDeque<Waiting<T>>,
    /// How many bytes the payloads of those that wait have.
    waiting_bytes: usize,
    /// All workers that there are, by number; those that are gone leave their number to the next.
    members: Vec<Presence>,
    gone: Vec<usize>,
    /// Those that wait to be told of a job, the one that had one last on top.
    idle: Vec<usize>,
    /// How many have been told of a job and have not come for it.
    called: usize,
    busy: usize,
    /// Whether the crew looks after those who wait too long.
    watched: bool,
    /// A single worker gave back the job that it had claimed while its last end was written: it claims no other before
    /// that is done, or it would claim and give back for as long as the write takes.
    gave_back: bool,
    closed: bool,
}

struct Waiting<T> {
    job: T,
    bytes: usize,
    since: Instant,
    held_up: bool,
}

enum Presence {
    Busy,
    Idle(Waker),
    Called,
    Gone,
}

impl<T: Payloads> Line<T> {
    /// Lines up claimed jobs in their order, and returns them if no worker will take any more. `held_up` is whether the
    /// store is away and holds up the workers.
    pub(crate) fn push(&self, jobs: Vec<T>, held_up: bool) -> Vec<T> {
        if jobs.is_empty() {
            return jobs;
        }
        let since = Instant::now();
        let mut state = self.state();
        if state.closed {
            return jobs;
        }
        for job in jobs {
            let bytes = job.bytes();
            state.waiting_bytes += bytes;
            state.waiting.push_back(Waiting {
                job,
                bytes,
                since,
                held_up,
            });
        }
        let called = state.call();
        let unwatched = !std::mem::replace(&mut state.watched, true);
        if unwatched || state.missing(self.all) > 0 {
            self.crew.notify_one();
        }
        drop(state);
        called.into_iter().for_each(Waker::wake);
        Vec::new()
    }
}

impl<T> Line<T> {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            state: Lock::new(State {
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                members: Vec::new(),
                gone: Vec::new(),
                idle: Vec::new(),
                called: 0,
                busy: 0,
                watched: false,
                gave_back: false,
                closed: false,
            }),
            ending: AtomicUsize::new(0),
            pace: Pace::new(all),
            hungry: AtomicBool::new(false),
            changed: Notify::new(),
            crew: Notify::new(),
        }
    }

    fn state(&self) -> LockGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Whether a worker takes its next job only when the end of the last one has been written.
    pub(crate) fn strict(&self) -> bool {
        self.all == 1
    }

    /// How many jobs to claim. Every change goes through a state in which this is too small, never too large.
    fn wanted(&self, state: &State<T>) -> usize {
        let waiting = state.waiting.len();
        let ending = self.ending.load(Ordering::SeqCst);
        let free = self.all.saturating_sub(state.busy);
        if self.strict() {
            let soon_free = if state.gave_back { 0 } else { ending };
            return (free + soon_free).saturating_sub(waiting);
        }
        let in_hand = waiting + ending + state.busy;
        let room = IN_HAND.max(2 * self.all).saturating_sub(in_hand);
        let ahead = self.pace.ahead();
        // While the workers have enough for now, the next claim can wait and be larger.
        if waiting > ahead / 2 || state.waiting_bytes > BYTES_AHEAD / 2 {
            return free.saturating_sub(waiting).min(room);
        }
        (free + ahead).saturating_sub(waiting).min(room)
    }

    /// What the next claim may bring.
    pub(crate) fn bounds(&self) -> Bounds {
        let state = self.state();
        Bounds {
            at_least: self.all.saturating_sub(state.busy + state.waiting.len()),
            bytes: BYTES_AHEAD.saturating_sub(state.waiting_bytes),
        }
    }

    /// Waits until there is a worker to claim for, and says how many there are. A saturated process waits here, and
    /// asks the store for nothing.
    pub(crate) async fn demand(&self) -> usize {
        loop {
            let (wanted, all_free) = self.look();
            match wanted {
                0 => self.changed.notified().await,
                wanted if all_free => return wanted,
                // Other attempts may be about to end: those that are ready to go on do so first, and share the claim.
                _ => {
                    tokio::task::yield_now().await;
                    match self.look().0 {
                        0 => {}
                        wanted => return wanted,
                    }
                }
            }
        }
    }

    fn look(&self) -> (usize, bool) {
        let state = self.state();
        // Before the look: who changes something after it sees that the claimer is hungry.
        self.hungry.store(true, Ordering::SeqCst);
        let wanted = self.wanted(&state);
        if wanted > 0 {
            self.hungry.store(false, Ordering::SeqCst);
        }
        (wanted, state.busy == 0)
    }

    /// Tells the claimer, if it waits and there is somebody to claim for. Says whether it did.
    fn feed(&self, state: &State<T>) -> bool {
        let due = self.hungry.load(Ordering::SeqCst) && self.wanted(state) > 0;
        if due {
            self.hungry.store(false, Ordering::SeqCst);
            self.changed.notify_one();
        }
        due
    }

    /// A claim that was sent then has been answered, with so many jobs whose payloads have so many bytes.
    pub(crate) fn claimed(&self, sent_at: Instant, jobs: usize, bytes: usize) {
        self.pace.claimed(sent_at.elapsed(), jobs, bytes);
    }

    /// Takes no more jobs, and returns those that wait.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut state = self.state();
        state.closed = true;
        state.waiting_bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        waiting.into_iter().map(|waiting| waiting.job).collect()
    }

    /// Takes out those who have waited for too long. While they are `held_up`, because the store is away and holds up the
    /// workers, nothing is gained by going back; who was held up has a whole period after it.
    pub(crate) fn take_impatient(&self, held_up: bool) -> Vec<T> {
        let now = Instant::now();
        let mut state = self.state();
        let impatient = state.take(|waiting| {
            if now < waiting.since + PATIENCE {
                return false;
            }
            let stays = waiting.held_up || held_up;
            (waiting.since, waiting.held_up) = (now, held_up);
            !stays
        });
        state.gave_back |= self.strict() && !impatient.is_empty();
        self.feed(&state);
        impatient
    }

    /// When to look for those who have waited for too long; `None` when nobody needs to look before it is asked to.
    pub(crate) fn look_again(&self) -> Option<Instant> {
        let mut state = self.state();
        let first = state.waiting.iter().map(|waiting| waiting.since).min();
        state.watched = first.is_some();
        first.map(|first| first + PATIENCE)
    }

    /// When to look first, if it was asked for. Most jobs do not wait for long: who looks now would find nothing, and be
    /// asked again for the next ones.
    pub(crate) fn look_first(&self) -> Option<Instant> {
        self.state().watched.then(|| Instant::now() + PATIENCE)
    }

    /// Takes out those that meet a condition.
    pub(crate) fn take_if(&self, condition: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.state();
        let taken = state.take(|waiting| condition(&waiting.job));
        self.feed(&state);
        taken
    }

    /// There is something to do for the crew.
    pub(crate) fn call_crew(&self) {
        self.crew.notify_one();
    }

    /// Waits until there is.
    pub(crate) async fn crew_is_needed(&self) {
        self.crew.notified().await;
    }

    /// A worker more, if there are jobs for it. They are made as they are needed, so that many cost nothing while they
    /// have nothing to do.
    pub(crate) fn join(self: &Arc<Self>) -> Option<Member<T>> {
        let mut state = self.state();
        if state.missing(self.all) == 0 {
            return None;
        }
        let number = match state.gone.pop() {
            Some(number) => number,
            None => {
                state.members.push(Presence::Gone);
                state.members.len() - 1
            }
        };
        state.members[number] = Presence::Called;
        state.called += 1;
        Some(Member {
            line: Arc::clone(self),
            number,
            since: None,
        })
    }

    /// Counts an attempt as ending until the value is dropped.
    pub(crate) fn ending(self: &Arc<Self>) -> Ending<T> {
        self.ending.fetch_add(1, Ordering::SeqCst);
        // A single worker keeps its job until that is written, and its next one is claimed meanwhile.
        if self.strict() && self.hungry.load(Ordering::SeqCst) {
            self.feed(&self.state());
        }
        Ending(Arc::clone(self))
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

    /// Calls idle workers for those who wait, one for each. They are to be woken when the lock is gone.
    fn call(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while self.called < self.waiting.len()
            && let Some(number) = self.idle.pop()
        {
            if let Presence::Idle(waker) = std::mem::replace(&mut self.members[number], Presence::Called) {
                self.called += 1;
                wakers.push(waker);
            }
        }
        wakers
    }

    /// How many workers there should be and are not.
    fn missing(&self, all: usize) -> usize {
        let members = self.members.len() - self.gone.len();
        let needed = (self.busy + self.waiting.len()).min(all);
        needed.saturating_sub(members)
    }
}

/// A job that a worker has now.
pub(crate) struct Taken<T> {
    pub(crate) job: T,
    /// Since when.
    pub(crate) since: Instant,
    /// Whether the claimer was woken for what the worker has left behind.
    pub(crate) woke: bool,
}

/// A worker.
pub(crate) struct Member<T> {
    line: Arc<Line<T>>,
    number: usize,
    /// Since when it has its job.
    since: Option<Instant>,
}

impl<T> Member<T> {
    /// Is done with its job, if it had one, and waits for the next.
    pub(crate) async fn next(&mut self) -> Taken<T> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Taken<T>> {
        let now = Instant::now();
        let mut state = self.line.state();
        if let Some(since) = self.since.take() {
            self.line.pace.ended(now.saturating_duration_since(since));
            state.busy -= 1;
        }
        match &mut state.members[self.number] {
            // Somebody else woke the task.
            Presence::Idle(waker) => {
                waker.clone_from(context.waker());
                return Poll::Pending;
            }
            Presence::Called => state.called -= 1,
            Presence::Busy | Presence::Gone => {}
        }
        let Some(waiting) = state.waiting.pop_front() else {
            state.members[self.number] = Presence::Idle(context.waker().clone());
            state.idle.push(self.number);
            self.line.feed(&state);
            return Poll::Pending;
        };
        state.waiting_bytes -= waiting.bytes;
        state.members[self.number] = Presence::Busy;
        state.busy += 1;
        self.since = Some(now);
        self.line.pace.begun();
        let woke = self.line.feed(&state);
        Poll::Ready(Taken {
            job: waiting.job,
            since: now,
            woke,
        })
    }
}

impl<T> Drop for Member<T> {
    fn drop(&mut self) {
        let mut state = self.line.state();
        if self.since.is_some() {
            state.busy -= 1;
        }
        match std::mem::replace(&mut state.members[self.number], Presence::Gone) {
            Presence::Called => state.called -= 1,
            Presence::Idle(_) => state.idle.retain(|number| *number != self.number),
            Presence::Busy | Presence::Gone => {}
        }
        state.gone.push(self.number);
        if state.missing(self.line.all) > 0 {
            self.line.crew.notify_one();
        }
        self.line.feed(&state);
    }
}

/// See [`Line::ending`].
pub(crate) struct Ending<T>(Arc<Line<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::SeqCst);
        if self.0.strict() {
            self.0.state().gave_back = false;
        }
        if self.0.hungry.load(Ordering::SeqCst) {
            self.0.feed(&self.0.state());
        }
    }
}

#[cfg(test)]
mod tests;
