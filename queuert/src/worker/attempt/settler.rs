//! Drives the end of every attempt: writes it together with others, and carries out what [`end`](crate::worker::attempt::end)
//! decides about the answer.
//!
//! The first end is written at once, and the ends that arrive meanwhile form the next batch. A second write of an attempt is
//! posted like the first. Only a recovery is a task of its own, because it may wait long for the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::__task::spawn_in;
use crate::adapter::{Backoff, Outcome, Settled, Settlement, StateAdapter};
use crate::effects::Effects;
use crate::error::{StateError, StateErrorKind};
use crate::event::AttemptOutcome;
use crate::worker::attempt::announce;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::attempt::claim_next::requested;
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::dispatcher::UnwrittenEnd;
use crate::worker::attempt::end::{Answer, Facts, NextStep, Pending, release, resume};
use crate::worker::attempt::recover::recover_next;
use crate::worker::attempt::settle_queue::{Batch, EndingAttempt, PostedEnd, Recovery};
use crate::worker::contained::contained;
use crate::worker::user::abort::AbortReason;

/// How long an end waits before it is tried again when another transaction holds a lock that it needs.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// After how many failures of a batch its ends are tried one by one.
const SINGLY_AFTER: u32 = 3;

/// After how many failures in a row the store is taken to be at fault, and not the rows that are tried one by one.
const SINGLE_FAILURES: u32 = 3;

/// The most ends in one statement: beyond it, latency grows for little.
const BATCH: usize = 2_000;

/// The result of a step.
pub(crate) enum Advanced<S: StateAdapter> {
    /// The end is on its way to the store.
    Posted {
        /// Whether that woke the settler.
        woke: bool,
    },
    /// The attempt is over, with the next job of its chain if this process has it.
    Over(Option<ClaimedAttempt<S>>),
}

/// Takes the next step of an end.
pub(crate) fn advance<S: StateAdapter>(
    attempts: &Attempts<S>,
    mut ending: EndingAttempt<S>,
    next: NextStep,
) -> Advanced<S> {
    match next {
        NextStep::Write(outcome, pending) => Advanced::Posted {
            woke: post(attempts, ending, outcome, pending),
        },
        NextStep::Recover(outcome, fence) => {
            // The end is written, whenever the next job is found.
            ending.unwritten = None;
            let recovery = Recovery { ending, outcome, fence };
            Advanced::Over(match attempts.ends.push_recovery(recovery) {
                Ok(()) => None,
                Err(unheard) => conclude(attempts, unheard.ending, unheard.outcome, None),
            })
        }
        NextStep::Lost(reason) => {
            lose(attempts, ending, reason);
            Advanced::Over(None)
        }
        NextStep::Done(outcome, next) => {
            let next = next.and_then(|next| {
                let ClaimedAttempt { shared, steps_left, .. } = &ending.attempt;
                let sent_at = next.sent_at;
                let job = next.into_claimed_job(&shared.record, &attempts.context.worker);
                attempts.take_charge(vec![job], sent_at, *steps_left).pop()
            });
            Advanced::Over(conclude(attempts, ending, outcome, next))
        }
    }
}

/// Gives back a job that no worker has begun. `reply` is told when that is written.
pub(crate) fn give_back<S: StateAdapter>(
    attempts: &Attempts<S>,
    attempt: ClaimedAttempt<S>,
    reply: Option<oneshot::Sender<AttemptOutcome>>,
) {
    let ending = EndingAttempt {
        attempt,
        report: None,
        reply,
        unwritten: None,
    };
    advance(attempts, ending, release());
}

/// Queues claimed jobs for the workers. Jobs that no worker will take go back to the store.
pub(crate) fn queue<S: StateAdapter>(attempts: &Attempts<S>, claimed: Vec<ClaimedAttempt<S>>) {
    if claimed.is_empty() {
        return;
    }
    let store_is_down = attempts.context.health.is_degraded();
    for refused in attempts.dispatcher.push(claimed, store_is_down) {
        give_back(attempts, refused, None);
    }
}

/// Posts the write of an end. Returns whether that woke the settler.
fn post<S: StateAdapter>(
    attempts: &Attempts<S>,
    mut ending: EndingAttempt<S>,
    outcome: Outcome,
    pending: Pending,
) -> bool {
    let dispatcher = &attempts.dispatcher;
    // A single worker claims its next job while its end is written, unless the answer will bring that job.
    if requested(&outcome).is_none() || !dispatcher.has_single_worker() {
        ending.unwritten.get_or_insert_with(|| UnwrittenEnd::new(dispatcher));
    }
    let shared = &ending.attempt.shared;
    if let Pending::Release = pending {
        shared.abort.abort(AbortReason::Shutdown);
        // The processor has ended or never began, so nothing is left of the attempt but this write.
        shared.settling.store(true, Ordering::SeqCst);
    }
    let settlement = shared.settlement(outcome);
    let ages = shared.ages();
    match attempts.ends.push(settlement, PostedEnd { ending, pending, ages }) {
        Ok(woke) => woke,
        // The settler has quit, because the set has stopped: the lease will expire.
        Err(unheard) => {
            lose(attempts, unheard.ending, AbortReason::Shutdown);
            false
        }
    }
}

fn lose<S: StateAdapter>(attempts: &Attempts<S>, ending: EndingAttempt<S>, reason: AbortReason) {
    ending.attempt.shared.lost(reason);
    conclude(attempts, ending, AttemptOutcome::Aborted(reason), None);
}

/// Reports the end of an attempt. Returns its next job, unless a worker waits for the end: then that job is queued first,
/// so that the worker finds it.
fn conclude<S: StateAdapter>(
    attempts: &Attempts<S>,
    ending: EndingAttempt<S>,
    outcome: AttemptOutcome,
    next: Option<ClaimedAttempt<S>>,
) -> Option<ClaimedAttempt<S>> {
    let EndingAttempt {
        attempt,
        report,
        reply,
        unwritten,
    } = ending;
    if let Some(mut report) = report {
        report.end(&attempt.shared, &outcome);
    }
    drop((attempt, unwritten));
    let Some(reply) = reply else {
        return next;
    };
    queue(attempts, next.into_iter().collect());
    let _ = reply.send(outcome);
    None
}

/// Writes posted ends until the supervisor ends all services.
pub(crate) async fn settle_loop<S: StateAdapter>(attempts: Arc<Attempts<S>>) {
    let (context, queue) = (&attempts.context, &attempts.ends);
    // Ends that wait for another transaction, or that the store could not take. They wait here, so that others need not.
    let mut postponed = Batch::new();
    let mut failures = 0;
    let mut backoff = Backoff::new(context.client.entropy());
    let mut recoveries = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = queue.wait() => {}
            () = tokio::time::sleep(BUSY_PAUSE), if !postponed.is_empty() => {}
            () = context.quit.cancelled() => break,
        }
        if queue.len() < attempts.in_flight.count() {
            // Attempts that are ready to end do so first and share this batch. No attempt waits for a clock.
            tokio::task::yield_now().await;
        }
        // Older ends first: of two attempts of one job, the store must hear of the first before the second.
        let mut batch = std::mem::replace(&mut postponed, Batch::new());
        let (arrived, to_recover) = queue.take(BATCH);
        batch.append(arrived);
        while recoveries.try_join_next().is_some() {}
        for recovery in to_recover {
            spawn_in(&mut recoveries, recover(Arc::clone(&attempts), recovery));
        }
        if batch.is_empty() {
            continue;
        }
        postponed = settle_batch(&attempts, batch, &mut failures).await;
        if failures == 0 {
            backoff.reset();
            continue;
        }
        tokio::select! {
            biased;
            () = context.quit.cancelled() => break,
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    }
    let (unwritten, unrecovered) = queue.close();
    postponed.append(unwritten);
    for end in postponed.ends {
        lose(&attempts, end.ending, AbortReason::Shutdown);
    }
    for Recovery { ending, outcome, .. } in unrecovered {
        conclude(&attempts, ending, outcome, None);
    }
}

/// Finds the next job of an attempt whose answer was lost, and concludes the attempt.
async fn recover<S: StateAdapter>(attempts: Arc<Attempts<S>>, recovery: Recovery<S>) {
    let Recovery { ending, outcome, fence } = recovery;
    let recovered = recover_next(&attempts.context, fence).await;
    let next = recovered.and_then(|(jobs, since)| attempts.take_charge(jobs, since, ending.attempt.steps_left).pop());
    queue(
        &attempts,
        conclude(&attempts, ending, outcome, next).into_iter().collect(),
    );
}

/// Writes the ends that can be written, and returns the rest, to be tried again. A repetition is harmless because of the
/// fence.
async fn settle_batch<S: StateAdapter>(attempts: &Attempts<S>, batch: Batch<S>, failures: &mut u32) -> Batch<S> {
    let sent_at = Instant::now();
    let error = match settle(attempts, &batch.settlements).await {
        Ok(results) => {
            *failures = 0;
            return answer(attempts, batch, results, sent_at).await;
        }
        Err(error) => error,
    };
    *failures += 1;
    let one_row = error.kind().concerns_one_row();
    if !one_row && (batch.len() == 1 || *failures < SINGLY_AFTER) {
        return batch;
    }
    // The store refuses one row of the batch, or it has refused the batch again and again. One of the rows may be at fault,
    // and the others must not suffer for it.
    settle_singly(attempts, batch, failures).await
}

/// Writes one end after the other, and returns those that are to be tried again. It gives up an end only if the store refuses
/// that end's own row.
async fn settle_singly<S: StateAdapter>(attempts: &Attempts<S>, batch: Batch<S>, failures: &mut u32) -> Batch<S> {
    let mut failed = Batch::new();
    let mut failed_in_a_row = 0;
    let mut ends = batch.into_iter();
    while failed_in_a_row < SINGLE_FAILURES
        && let Some((settlement, end)) = ends.next()
    {
        let sent_at = Instant::now();
        match settle(attempts, std::slice::from_ref(&settlement)).await {
            Ok(results) => {
                (*failures, failed_in_a_row) = (0, 0);
                let mut single = Batch::new();
                single.push(settlement, end);
                failed.append(answer(attempts, single, results, sent_at).await);
            }
            Err(error) if error.kind().concerns_one_row() => {
                failed_in_a_row = 0;
                let next = answered(attempts, end, settlement.outcome, Answer::Failed(error));
                queue(attempts, next.into_iter().collect());
            }
            Err(_) => {
                failed_in_a_row += 1;
                failed.push(settlement, end);
            }
        }
    }
    // Ends that were not tried go first the next time: a few bad rows cannot keep the others waiting for ever.
    let mut rest = Batch::new();
    for (settlement, end) in ends {
        rest.push(settlement, end);
    }
    rest.append(failed);
    rest
}

async fn settle<S: StateAdapter>(
    attempts: &Attempts<S>,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    let context = &attempts.context;
    let result = contained(context.client.state().settle_jobs(None, settlements)).await;
    context.health.record("settle", &result);
    match result {
        Ok(settled) if settled.len() != settlements.len() => Err(StateError::new(
            StateErrorKind::Corrupt,
            "the state adapter answered for another number of jobs than it was asked to settle",
        )),
        other => other,
    }
}

/// Continues with the answers of the store, and returns the ends that another transaction holds up.
async fn answer<S: StateAdapter>(
    attempts: &Attempts<S>,
    mut batch: Batch<S>,
    results: Vec<Settled>,
    sent_at: Instant,
) -> Batch<S> {
    let context = &attempts.context;
    let mut effects = Effects::new(context.client.hub());
    let ends = batch.settlements.iter().zip(&mut batch.ends);
    for ((settlement, end), settled) in ends.zip(&results) {
        announce::collect(&mut effects, &settlement.outcome, end, settled);
    }
    // The events of a completion come before that of its attempt's end, and no attempt waits for the announcement.
    let notices = context.emit(effects);
    let (mut postponed, mut next) = (Batch::new(), Vec::new());
    for ((settlement, end), settled) in batch.into_iter().zip(results) {
        match Answer::new(settled, sent_at) {
            Some(answer) => next.extend(answered(attempts, end, settlement.outcome, answer)),
            None => postponed.push(settlement, end),
        }
    }
    queue(attempts, next);
    context.client.announce(&notices).await;
    postponed
}

/// Continues an end with the answer of the store, and returns the next job of its chain if this process has it.
fn answered<S: StateAdapter>(
    attempts: &Attempts<S>,
    end: PostedEnd<S>,
    wrote: Outcome,
    answer: Answer,
) -> Option<ClaimedAttempt<S>> {
    let PostedEnd { ending, pending, .. } = end;
    let next = resume(&Facts::of(&ending.attempt), pending, wrote, answer);
    match advance(attempts, ending, next) {
        Advanced::Posted { .. } => None,
        Advanced::Over(next) => next,
    }
}
