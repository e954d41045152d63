//! Claims jobs for the workers that are idle or about to be, as many as there are in one call, and runs them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::health::{Backoff, Health};
use super::run::{Attempt, STEPS_IN_A_TURN, run_attempt};
use super::runtime::Runtime;
use super::signal::AbortReason;
use super::slots::{Place, Turn};
use crate::adapter::{ClaimedJob, StateAdapter};
use crate::error::{StateError, StateErrorKind};
use crate::event::Event;
use crate::id::Fence;

/// How long an attempt that was told to stop may still take to do so.
const WIND_DOWN: Duration = Duration::from_millis(250);
/// How long a stopping worker waits for a claim in flight, and for the store to take jobs back.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) async fn claim_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let mut attempts = JoinSet::new();
    let mut backoff = Backoff::new(runtime.client.entropy());
    // The fence of a claim whose answer may have been lost. What it took would lie there until its lease expires, and that
    // would be an attempt that nobody made.
    let mut unanswered: Option<Fence> = None;
    loop {
        while attempts.try_join_next().is_some() {}
        if let Some(fence) = unanswered {
            let recovered = tokio::select! {
                biased;
                () = runtime.stop.cancelled() => break,
                recovered = runtime.recover(fence) => recovered,
            };
            match recovered {
                Ok((jobs, claimed_at)) => {
                    unanswered = None;
                    begin(&runtime, &mut attempts, jobs, claimed_at);
                }
                Err(error) if may_pass(&error) => {
                    if pause(&runtime, backoff.next_pause(), false).await {
                        continue;
                    }
                    break;
                }
                // What cannot be read is left to its lease.
                Err(_) => unanswered = None,
            }
        }
        let wanted = tokio::select! {
            biased;
            () = runtime.stop.cancelled() => break,
            wanted = runtime.slots.demand() => wanted,
        };
        // Before the claim: what is announced while it runs must find somebody who wants it.
        runtime.demand.set(wanted);
        let (claimed_at, fence) = (Instant::now(), runtime.client.entropy().fence());
        let mut claim = Box::pin(runtime.claim(wanted, fence));
        let claimed = tokio::select! {
            biased;
            claimed = &mut claim => claimed,
            () = runtime.stop.cancelled() => {
                runtime.demand.set(0);
                let late = async {
                    match claim.await {
                        Ok(claimed) => Ok((claimed.jobs, claimed_at)),
                        Err(_) => runtime.recover(fence).await,
                    }
                };
                tokio::join!(wind_up(&runtime, attempts), give_back(&runtime, late));
                return;
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                unanswered = may_pass(&error).then_some(fence);
                if pause(&runtime, backoff.next_pause(), false).await {
                    continue;
                }
                break;
            }
        };
        backoff.reset();
        runtime.slots.claimed(claimed_at);
        let taken = claimed.jobs.len();
        begin(&runtime, &mut attempts, claimed.jobs, claimed_at);
        runtime.demand.set(wanted.saturating_sub(taken));
        let short = taken < wanted;
        if short && !pause(&runtime, until_next_look(&runtime, claimed.next_due), true).await {
            break;
        }
    }
    runtime.demand.set(0);
    match unanswered {
        Some(fence) => {
            let late = give_back(&runtime, runtime.recover(fence));
            tokio::join!(wind_up(&runtime, attempts), late);
        }
        None => wind_up(&runtime, attempts).await,
    }
}

/// Whether a claim that failed so may have been made: the store did not refuse it, it did not answer.
fn may_pass(error: &StateError) -> bool {
    error.kind() == StateErrorKind::Transient
}

fn begin<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    attempts: &mut JoinSet<()>,
    jobs: Vec<ClaimedJob>,
    claimed_at: Instant,
) {
    for job in jobs {
        if let Some(attempt) = Attempt::new(runtime, job, claimed_at, STEPS_IN_A_TURN) {
            let place = runtime.slots.line_up();
            // Boxed, because spawning moves a future about a dozen times and this one is large.
            attempts.spawn(Box::pin(run(Arc::clone(runtime), attempt, place)));
        }
    }
}

/// Runs a claimed job when a worker is free for it, and the jobs of its chain that are handed over after it.
async fn run<S: StateAdapter>(runtime: Arc<Runtime<S>>, mut attempt: Attempt<S>, mut place: Place) {
    loop {
        let turn = tokio::select! {
            biased;
            // Lost while it waited: somebody else has it, and it would run for nothing.
            _ = attempt.aborted() => return,
            turn = place.take(&runtime.stop, || runtime.health.is_degraded()) => turn,
        };
        let Turn::Now(slot) = turn else {
            // Claimed too late, or too far ahead: it has not begun, so it goes back as it was.
            attempt.release().await;
            return;
        };
        let Some(next) = run_attempt(attempt.on(slot)).await.next else {
            return;
        };
        attempt = next;
        place = runtime.slots.line_up();
    }
}

/// Gives back what a claim takes that was in flight when the worker was stopped, rather than leaving it to expire. The
/// claim may wait for the transaction of an attempt, so attempts wind up meanwhile.
async fn give_back<S: StateAdapter>(
    runtime: &Arc<Runtime<S>>,
    claim: impl Future<Output = Result<(Vec<ClaimedJob>, Instant), StateError>>,
) {
    let give_back = async {
        let Ok((jobs, claimed_at)) = claim.await else {
            return;
        };
        let attempts = jobs
            .into_iter()
            .filter_map(|job| Attempt::new(runtime, job, claimed_at, 1));
        let attempts = attempts.map(|attempt| async move { attempt.release().await });
        futures_util::future::join_all(attempts).await;
    };
    let _ = tokio::time::timeout(LAST_WORDS, give_back).await;
}

/// Pauses; `false` when the worker is to stop.
async fn pause<S: StateAdapter>(runtime: &Runtime<S>, pause: Duration, wakeable: bool) -> bool {
    let woken = async {
        if wakeable {
            runtime.wake.notified().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = runtime.stop.cancelled() => false,
        () = woken => true,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Not at the same moment in all processes, unless a job becomes due.
fn until_next_look<S: StateAdapter>(runtime: &Runtime<S>, next_due: Option<Duration>) -> Duration {
    let entropy = runtime.client.entropy();
    let poll = entropy.jittered(runtime.settings.poll_interval, 0.1);
    // A pause that is too short to be one would keep a processor core busy.
    poll.min(next_due.unwrap_or(poll)).max(Duration::from_millis(1))
}

/// Gives running attempts their grace, then tells them to stop, then drops them and gives their jobs back.
async fn wind_up<S: StateAdapter>(runtime: &Runtime<S>, mut attempts: JoinSet<()>) {
    runtime.health.set(Health::Stopping);
    runtime.client.hub().emit_with(|| Event::WorkerStopping {
        worker: runtime.worker.clone(),
    });
    if all_ended(&mut attempts, runtime.settings.grace).await {
        return;
    }
    let handles: Vec<_> = runtime
        .in_flight()
        .values()
        .map(|attempt| attempt.abort.clone())
        .collect();
    for handle in handles {
        handle.abort(AbortReason::Shutdown);
    }
    if all_ended(&mut attempts, WIND_DOWN).await {
        return;
    }
    runtime.kill.cancel();
    // What still does not end blocks its thread; nobody can drop it, and its lease will expire.
    if !all_ended(&mut attempts, LAST_WORDS).await {
        attempts.abort_all();
        attempts.detach_all();
    }
}

async fn all_ended(attempts: &mut JoinSet<()>, limit: Duration) -> bool {
    let ended = async { while attempts.join_next().await.is_some() {} };
    tokio::time::timeout(limit, ended).await.is_ok()
}
