//! Claims jobs for the workers that are idle or about to be, as many as there are in one call, and lines them up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::health::{Backoff, Health};
use super::run::{Attempt, STEPS_IN_A_TURN};
use super::runtime::Runtime;
use super::signal::AbortReason;
use crate::adapter::{ClaimedJob, StateAdapter};
use crate::error::{StateError, StateErrorKind};
use crate::event::Event;
use crate::id::Fence;

/// How long an attempt that was told to stop may still take to do so.
const WIND_DOWN: Duration = Duration::from_millis(250);
/// How long a stopping worker waits for a claim in flight, and for the store to take jobs back.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) async fn claim_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let mut backoff = Backoff::new(runtime.client.entropy());
    // The fence of a claim whose answer may have been lost. What it took would lie there until its lease expires, and that
    // would be an attempt that nobody made.
    let mut unanswered: Option<Fence> = None;
    loop {
        if let Some(fence) = unanswered {
            let recovered = tokio::select! {
                biased;
                () = runtime.stop.cancelled() => break,
                recovered = runtime.recover(fence) => recovered,
            };
            match recovered {
                Ok((jobs, claimed_at)) => {
                    unanswered = None;
                    begin(&runtime, jobs, claimed_at);
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
            wanted = runtime.line.demand() => wanted,
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
                tokio::join!(wind_up(&runtime), give_back(&runtime, late));
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
        runtime.line.claimed(claimed_at);
        let taken = claimed.jobs.len();
        begin(&runtime, claimed.jobs, claimed_at);
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
            tokio::join!(wind_up(&runtime), late);
        }
        None => wind_up(&runtime).await,
    }
}

/// Whether a claim that failed so may have been made: the store did not refuse it, it did not answer.
fn may_pass(error: &StateError) -> bool {
    error.kind() == StateErrorKind::Transient
}

fn begin<S: StateAdapter>(runtime: &Arc<Runtime<S>>, jobs: Vec<ClaimedJob>, claimed_at: Instant) {
    runtime.line_up(Attempt::all(runtime, jobs, claimed_at, STEPS_IN_A_TURN));
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
        let attempts = Attempt::all(runtime, jobs, claimed_at, 1).into_iter();
        let attempts = attempts.map(|attempt| async move { attempt.release(runtime).await });
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
async fn wind_up<S: StateAdapter>(runtime: &Runtime<S>) {
    runtime.health.set(Health::Stopping);
    runtime.client.hub().emit_with(|| Event::WorkerStopping {
        worker: runtime.worker.clone(),
    });
    if runtime.flights.all_landed(runtime.settings.grace).await {
        return;
    }
    let handles: Vec<_> = runtime
        .flights
        .by_job()
        .values()
        .map(|attempt| attempt.abort.clone())
        .collect();
    for handle in handles {
        handle.abort(AbortReason::Shutdown);
    }
    if runtime.flights.all_landed(WIND_DOWN).await {
        return;
    }
    runtime.kill.cancel();
    // What still does not end blocks its thread; nobody can drop it, and its lease will expire.
    runtime.flights.all_landed(LAST_WORDS).await;
}
