//! Group-commits the ends of attempts: the first goes at once, those that arrive meanwhile form the next batch.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::health::Backoff;
use super::runtime::{Runtime, contained};
use crate::adapter::{Applied, Outcome, Settled, Settlement, StateAdapter};
use crate::effects::Effects;
use crate::error::{StateError, StateErrorKind};
use crate::event::JobInfo;
use crate::job::{JobStatus, TypeName};

/// The end of an attempt, on its way to the store.
pub(crate) struct SettleRequest {
    pub(crate) settlement: Settlement,
    pub(crate) job: JobInfo,
    pub(crate) reply: oneshot::Sender<Result<Settled, StateError>>,
}

/// How long an end waits before it is tried again, when a transaction is in its way.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// After how many failures of a batch its ends are tried one by one.
const SINGLY_AFTER: u32 = 3;

/// The most ends in one statement: beyond it, latency grows for little.
const BATCH: usize = 500;

pub(crate) async fn settle_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let mut queue = runtime.settle_queue.lock().await;
    let mut batch = Vec::new();
    // Ends that a transaction of somebody else is in the way of, or that the store could not take. They wait here, so
    // that the others need not.
    let mut postponed: Vec<SettleRequest> = Vec::new();
    let mut failures = 0;
    let mut backoff = Backoff::new(runtime.client.entropy());
    loop {
        let received = tokio::select! {
            biased;
            received = queue.recv_many(&mut batch, BATCH) => received,
            () = tokio::time::sleep(BUSY_PAUSE), if !postponed.is_empty() => postponed.len(),
            () = runtime.quit.cancelled() => 0,
        };
        if received == 0 {
            break;
        }
        if batch.len() < runtime.in_flight().len() {
            // Those attempts that are ready to end do so first and share this batch. Nobody waits for a clock.
            tokio::task::yield_now().await;
            while batch.len() < BATCH
                && let Ok(request) = queue.try_recv()
            {
                batch.push(request);
            }
        }
        batch.append(&mut postponed);
        postponed = settle_batch(&runtime, std::mem::take(&mut batch), &mut failures).await;
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
    queue.close();
    while queue.try_recv().is_ok() {}
}

/// Settles what can be settled, and returns the rest, to be tried again. A repetition is harmless: the fence tells.
async fn settle_batch<S: StateAdapter>(
    runtime: &Runtime<S>,
    batch: Vec<SettleRequest>,
    failures: &mut u32,
) -> Vec<SettleRequest> {
    let settlements: Vec<Settlement> = batch.iter().map(|request| request.settlement.clone()).collect();
    let error = match settle(runtime, &settlements).await {
        Ok(results) => {
            *failures = 0;
            return answer(runtime, batch, results).await;
        }
        Err(error) => error,
    };
    *failures += 1;
    if may_pass(&error) && (batch.len() == 1 || *failures < SINGLY_AFTER) {
        return batch;
    }
    // The store refuses the batch for good, or again and again. One of its rows may be poison, and the others must not
    // suffer for it.
    let mut rest = Vec::new();
    for request in batch {
        match settle(runtime, std::slice::from_ref(&request.settlement)).await {
            Ok(results) => {
                *failures = 0;
                rest.extend(answer(runtime, vec![request], results).await);
            }
            Err(error) if may_pass(&error) => rest.push(request),
            Err(error) => {
                let _ = request.reply.send(Err(error));
            }
        }
    }
    rest
}

fn may_pass(error: &StateError) -> bool {
    matches!(error.kind(), StateErrorKind::Transient | StateErrorKind::Conflict)
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
    runtime: &Runtime<S>,
    batch: Vec<SettleRequest>,
    results: Vec<Settled>,
) -> Vec<SettleRequest> {
    let mut effects = Effects::new(runtime.client.hub());
    for (request, settled) in batch.iter().zip(&results) {
        match settled {
            Settled::Applied(applied) => tell(runtime, &mut effects, request, applied),
            Settled::Repeated(status) if became(&request.settlement.outcome) == *status => {
                // It happened, and only the answer was lost. Whom it unblocked is not known: look for them.
                tell(runtime, &mut effects, request, &known(&request.settlement.outcome));
                runtime.wake.notify_one();
            }
            Settled::Repeated(_) | Settled::Lost(_) | Settled::Refused(_) | Settled::Busy => {}
        }
    }
    // The events of a completion come before that of its attempt's end, and the attempt does not wait for the
    // announcement.
    let notices = runtime.emit(effects);
    let mut postponed = Vec::new();
    for (request, settled) in batch.into_iter().zip(results) {
        if settled == Settled::Busy {
            postponed.push(request);
        } else {
            let _ = request.reply.send(Ok(settled));
        }
    }
    runtime.client.announce(&notices).await;
    postponed
}

/// What a settlement did for sure, if it happened.
fn known(outcome: &Outcome) -> Applied {
    let next = match outcome {
        Outcome::Continue { next } if next.blockers.is_empty() && next.hand_over.is_none() => Some(JobStatus::Pending),
        _ => None,
    };
    Applied {
        next,
        ..Applied::default()
    }
}

/// The status of a job after this end of its attempt.
fn became(outcome: &Outcome) -> JobStatus {
    match outcome {
        Outcome::Finish { .. } | Outcome::Continue { .. } => JobStatus::Completed,
        Outcome::Bury { .. } => JobStatus::Dead,
        Outcome::Retry { .. } | Outcome::Release | Outcome::Snooze { .. } => JobStatus::Pending,
    }
}

fn tell<S: StateAdapter>(runtime: &Runtime<S>, effects: &mut Effects, request: &SettleRequest, applied: &Applied) {
    let job = &request.job;
    match &request.settlement.outcome {
        Outcome::Finish { .. } => effects.completed(job, Some(&runtime.worker), None, applied),
        Outcome::Continue { next } => {
            let next: Option<(_, TypeName)> = Some((next.id, next.type_name.clone()));
            effects.completed(job, Some(&runtime.worker), next, applied);
        }
        Outcome::Bury { error } => effects.died(job, error.clone()),
        // Those who sleep until the next job is due must learn that this one may be due sooner.
        Outcome::Retry { .. } | Outcome::Release | Outcome::Snooze { .. } => {
            effects.jobs_available(&job.type_name, 1);
        }
    }
}
