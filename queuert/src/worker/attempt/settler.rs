//! Group-commits the ends of attempts: the first goes at once, those that arrive meanwhile form the next batch.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::__task::{Lock, LockGuard};
use crate::adapter::{Applied, Outcome, Repeated, Settled, Settlement, StateAdapter};
use crate::effects::Effects;
use crate::error::{StateError, StateErrorKind};
use crate::event::{Ages, JobInfo};
use crate::job::{JobStatus, TypeName};
use crate::worker::attempt::behind::Behind;
use crate::worker::attempt::end::Written;
use crate::worker::attempt::executor::Attempt;
use crate::worker::context::{Runtime, contained};
use crate::worker::health::Backoff;
use crate::worker::user::attempt::Shared;

/// Who waits for what becomes of the end of an attempt.
pub(crate) struct Open<S: StateAdapter> {
    pub(crate) ages: Ages,
    pub(crate) reply: Reply<S>,
}

pub(crate) enum Reply<S: StateAdapter> {
    /// The attempt itself.
    Awaited(Arc<Shared<S>>, oneshot::Sender<Answer>),
    /// Nobody: the settler does the rest.
    Behind(Behind<S>),
}

/// What became of the end of an attempt, and that end.
pub(crate) struct Answer {
    pub(crate) settled: Result<Settled, StateError>,
    pub(crate) outcome: Outcome,
    /// The moment before it was sent.
    pub(crate) sent_at: Instant,
}

impl<S: StateAdapter> Open<S> {
    fn job(&self) -> &JobInfo {
        match &self.reply {
            Reply::Awaited(attempt, _) => &attempt.info.job,
            Reply::Behind(behind) => &behind.attempt().info().job,
        }
    }
}

/// Ends of attempts on their way to the store, each with who waits for it. Apart, because the store wants to see the
/// former in a row.
struct Batch<S: StateAdapter> {
    settlements: Vec<Settlement>,
    open: Vec<Open<S>>,
}

impl<S: StateAdapter> Batch<S> {
    const fn new() -> Self {
        Self {
            settlements: Vec::new(),
            open: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.open.len()
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn push(&mut self, settlement: Settlement, open: Open<S>) {
        self.settlements.push(settlement);
        self.open.push(open);
    }

    fn append(&mut self, mut other: Self) {
        self.settlements.append(&mut other.settlements);
        self.open.append(&mut other.open);
    }

    /// Takes out the first ones.
    fn take(&mut self, most: usize) -> Self {
        if self.len() <= most {
            return std::mem::replace(self, Self::new());
        }
        Self {
            settlements: self.settlements.drain(..most).collect(),
            open: self.open.drain(..most).collect(),
        }
    }
}

impl<S: StateAdapter> IntoIterator for Batch<S> {
    type Item = (Settlement, Open<S>);
    type IntoIter = std::iter::Zip<std::vec::IntoIter<Settlement>, std::vec::IntoIter<Open<S>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.settlements.into_iter().zip(self.open)
    }
}

/// The way to the settler.
pub(crate) struct SettleQueue<S: StateAdapter> {
    queued: Lock<Queued<S>>,
    arrived: Notify,
}

struct Queued<S: StateAdapter> {
    batch: Batch<S>,
    closed: bool,
}

impl<S: StateAdapter> SettleQueue<S> {
    pub(crate) fn new() -> Self {
        let queued = Queued {
            batch: Batch::new(),
            closed: false,
        };
        Self {
            queued: Lock::new(queued),
            arrived: Notify::new(),
        }
    }

    fn queued(&self) -> LockGuard<'_, Queued<S>> {
        self.queued.lock()
    }

    /// Sends an end, and says whether the settler was woken for it; returns it if nobody listens any more.
    pub(crate) fn send(&self, settlement: Settlement, open: Open<S>) -> Result<bool, Box<(Settlement, Open<S>)>> {
        let mut queued = self.queued();
        if queued.closed {
            return Err(Box::new((settlement, open)));
        }
        let first = queued.batch.is_empty();
        queued.batch.push(settlement, open);
        drop(queued);
        if first {
            self.arrived.notify_one();
        }
        Ok(first)
    }

    async fn wait(&self) {
        while self.queued().batch.is_empty() {
            self.arrived.notified().await;
        }
    }
}

/// How long an end waits before it is tried again, when a transaction is in its way.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// After how many failures of a batch its ends are tried one by one.
const SINGLY_AFTER: u32 = 3;

/// After how many failures in a row the store is taken to be at fault, and not the rows that are tried one by one.
const SINGLE_FAILURES: u32 = 3;

/// The most ends in one statement: beyond it, latency grows for little.
const BATCH: usize = 2_000;

pub(crate) async fn settle_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let queue = &runtime.settlements;
    // Ends that a transaction of somebody else is in the way of, or that the store could not take. They wait here, so
    // that the others need not.
    let mut postponed = Batch::new();
    let mut failures = 0;
    let mut backoff = Backoff::new(runtime.client.entropy());
    loop {
        tokio::select! {
            biased;
            () = queue.wait() => {}
            () = tokio::time::sleep(BUSY_PAUSE), if !postponed.is_empty() => {}
            () = runtime.quit.cancelled() => break,
        }
        if queue.queued().batch.len() < runtime.flights.count() {
            // Those attempts that are ready to end do so first and share this batch. Nobody waits for a clock.
            tokio::task::yield_now().await;
        }
        // Older ends first: of two attempts of one job, the store must hear of the first before the second.
        let mut batch = std::mem::replace(&mut postponed, Batch::new());
        batch.append(queue.queued().batch.take(BATCH));
        postponed = settle_batch(&runtime, batch, &mut failures).await;
        if failures == 0 {
            backoff.reset();
            continue;
        }
        tokio::select! {
            biased;
            () = runtime.quit.cancelled() => break,
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    }
    // Whoever sends something now, or has sent it too late, is told that nobody listens.
    let unheard = {
        let mut queued = queue.queued();
        queued.closed = true;
        std::mem::replace(&mut queued.batch, Batch::new())
    };
    drop(unheard);
}

/// Settles what can be settled, and returns the rest, to be tried again. A repetition is harmless: the fence tells.
async fn settle_batch<S: StateAdapter>(runtime: &Arc<Runtime<S>>, batch: Batch<S>, failures: &mut u32) -> Batch<S> {
    let sent_at = Instant::now();
    let error = match settle(runtime, &batch.settlements).await {
        Ok(results) => {
            *failures = 0;
            return answer(runtime, batch, results, sent_at).await;
        }
        Err(error) => error,
    };
    *failures += 1;
    let one_row = error.kind().concerns_one_row();
    if !one_row && (batch.len() == 1 || *failures < SINGLY_AFTER) {
        return batch;
    }
    // The store refuses one row of the batch, or the batch again and again. One of its rows may be poison, and the others
    // must not suffer for it.
    settle_singly(runtime, batch, failures).await
}

/// Settles one end after the other, and returns those that are to be tried again. Only an end whose own row the store
/// refuses is given up.
async fn settle_singly<S: StateAdapter>(runtime: &Arc<Runtime<S>>, batch: Batch<S>, failures: &mut u32) -> Batch<S> {
    let mut failed = Batch::new();
    let mut failed_in_a_row = 0;
    let mut ends = batch.into_iter();
    while failed_in_a_row < SINGLE_FAILURES
        && let Some((settlement, open)) = ends.next()
    {
        let sent_at = Instant::now();
        match settle(runtime, std::slice::from_ref(&settlement)).await {
            Ok(results) => {
                (*failures, failed_in_a_row) = (0, 0);
                let mut single = Batch::new();
                single.push(settlement, open);
                failed.append(answer(runtime, single, results, sent_at).await);
            }
            Err(error) if error.kind().concerns_one_row() => {
                failed_in_a_row = 0;
                let next = reply(runtime, open, Err(error), settlement.outcome, sent_at);
                runtime.line_up(next.into_iter().collect());
            }
            Err(_) => {
                failed_in_a_row += 1;
                failed.push(settlement, open);
            }
        }
    }
    // Ends that were not tried go first the next time: a few bad rows cannot keep the others waiting for ever.
    let mut rest = Batch::new();
    for (settlement, open) in ends {
        rest.push(settlement, open);
    }
    rest.append(failed);
    rest
}

async fn settle<S: StateAdapter>(runtime: &Runtime<S>, settlements: &[Settlement]) -> Result<Vec<Settled>, StateError> {
    let result = contained(runtime.client.state().settle_jobs(None, settlements)).await;
    runtime.heard_from_store("settle", &result);
    match result {
        Ok(settled) if settled.len() != settlements.len() => Err(StateError::new(
            StateErrorKind::Corrupt,
            "the state adapter answered for another number of jobs than it was asked to settle",
        )),
        other => other,
    }
}

async fn answer<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    batch: Batch<S>,
    results: Vec<Settled>,
    sent_at: Instant,
) -> Batch<S> {
    let mut effects = Effects::new(runtime.client.hub());
    let ends = batch.settlements.iter().zip(&batch.open);
    for ((settlement, open), settled) in ends.zip(&results) {
        match settled {
            Settled::Applied(applied) => tell(runtime, &mut effects, &settlement.outcome, open, applied),
            // It happened, and only the answer was lost.
            Settled::Repeated(repeated) if stands(&settlement.outcome, repeated.status) => {
                let applied = recalled(&settlement.outcome, repeated);
                tell(runtime, &mut effects, &settlement.outcome, open, &applied);
            }
            Settled::Repeated(_) | Settled::Lost(_) | Settled::Refused(_) | Settled::Busy => {}
        }
    }
    // The events of a completion come before that of its attempt's end, and the attempt does not wait for the
    // announcement.
    let notices = runtime.emit(effects);
    let (mut postponed, mut next) = (Batch::new(), Vec::new());
    for ((settlement, open), settled) in batch.into_iter().zip(results) {
        match settled {
            Settled::Busy => postponed.push(settlement, open),
            settled => next.extend(reply(runtime, open, Ok(settled), settlement.outcome, sent_at)),
        }
    }
    runtime.line_up(next);
    runtime.client.announce(&notices).await;
    postponed
}

/// Answers whoever waits, and returns the next job of its chain if it was handed over and nobody else cares for it.
fn reply<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    open: Open<S>,
    settled: Result<Settled, StateError>,
    outcome: Outcome,
    sent_at: Instant,
) -> Option<Attempt<S>> {
    match open.reply {
        Reply::Awaited(_, sender) => {
            let _ = sender.send(Answer {
                settled,
                outcome,
                sent_at,
            });
            None
        }
        Reply::Behind(behind) => behind.hear(runtime, Written::new(settled, sent_at), outcome),
    }
}

/// Whether the end that stands under the fence of an attempt is this one. An attempt writes one end, except that a
/// completion whose fate is unknown is followed by the failure of the attempt, which then finds the job completed, and that
/// a worker that stops gives back the job of a processor which may complete it afterwards, and finds it open. A completed
/// job stays completed; what became of an open one since does not tell.
pub(crate) fn stands(outcome: &Outcome, status: JobStatus) -> bool {
    let completes = matches!(outcome, Outcome::Finish { .. } | Outcome::Continue { .. });
    completes == (status == JobStatus::Completed)
}

/// What an end did whose answer was lost, from what the store knows of it.
fn recalled(outcome: &Outcome, repeated: &Repeated) -> Applied {
    let next = match outcome {
        Outcome::Continue { .. } if repeated.next_blocked => Some(JobStatus::Blocked),
        Outcome::Continue { next } if next.hand_over.is_some() => Some(JobStatus::Running),
        Outcome::Continue { .. } => Some(JobStatus::Pending),
        _ => None,
    };
    Applied {
        next,
        unblocked: repeated.unblocked.clone(),
        ..Applied::default()
    }
}

/// Tells of a completion that the store had taken although it seemed to fail.
pub(crate) async fn tell_completed<S: StateAdapter>(
    runtime: &Runtime<S>,
    attempt: &Shared<S>,
    outcome: &Outcome,
    repeated: &Repeated,
) {
    let mut effects = Effects::new(runtime.client.hub());
    let applied = recalled(outcome, repeated);
    tell_end(
        runtime,
        &mut effects,
        outcome,
        (&attempt.info.job, attempt.ages()),
        &applied,
    );
    runtime.flush(effects).await;
}

fn tell<S: StateAdapter>(
    runtime: &Runtime<S>,
    effects: &mut Effects,
    outcome: &Outcome,
    open: &Open<S>,
    applied: &Applied,
) {
    tell_end(runtime, effects, outcome, (open.job(), open.ages), applied);
}

fn tell_end<S: StateAdapter>(
    runtime: &Runtime<S>,
    effects: &mut Effects,
    outcome: &Outcome,
    (job, ages): (&JobInfo, Ages),
    applied: &Applied,
) {
    match outcome {
        Outcome::Finish { .. } => effects.completed(job, ages, Some(&runtime.worker), None, applied),
        Outcome::Continue { next } => {
            let next: Option<(_, TypeName)> = Some((next.id, next.type_name.clone()));
            effects.completed(job, ages, Some(&runtime.worker), next, applied);
        }
        Outcome::Bury { error } => effects.died(job, ages, error.clone()),
        // Those who sleep until the next job is due must learn that this one may be due sooner.
        Outcome::Retry { .. } | Outcome::Release | Outcome::Snooze { .. } => {
            effects.jobs_available(&job.type_name, 1);
        }
    }
}
