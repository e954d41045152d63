//! Claims jobs for idle workers, as many as there are in one call, and runs them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::health::{Backoff, Health};
use super::run::{Attempt, run_attempt};
use super::runtime::Runtime;
use super::settler::SettleRequest;
use super::signal::AbortReason;
use crate::adapter::{Authority, Claimed, Outcome, Settlement, StateAdapter};
use crate::event::{Event, JobInfo};

/// How long an attempt that was told to stop may still take to do so.
const WIND_DOWN: Duration = Duration::from_millis(250);
/// How long a stopping worker waits for a claim in flight, and for the store to take jobs back.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) async fn claim_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let mut attempts = JoinSet::new();
    let slots = Arc::new(Semaphore::new(runtime.settings.concurrency));
    let mut backoff = Backoff::new(runtime.client.entropy());
    loop {
        while attempts.try_join_next().is_some() {}
        let Some(mut idle) = idle_slots(&runtime, &slots).await else {
            break;
        };
        let count = idle.num_permits();
        // Before the claim: what is announced while it runs must find somebody who wants it.
        runtime.demand.set(count);
        let claimed_at = Instant::now();
        let claimed = match claim(&runtime, count).await {
            Some(Ok(claimed)) => claimed,
            Some(Err(_)) => {
                drop(idle);
                if pause(&runtime, backoff.next_pause(), false).await {
                    continue;
                }
                break;
            }
            None => break,
        };
        backoff.reset();
        let short = claimed.jobs.len() < count;
        let next_due = claimed.next_due;
        if runtime.stop.is_cancelled() {
            give_back(&runtime, claimed).await;
            break;
        }
        for job in claimed.jobs {
            let Some(attempt) = Attempt::new(&runtime, job, claimed_at) else {
                continue;
            };
            let slot = idle.split(1);
            // Boxed, because spawning moves a future about a dozen times and this one is large.
            attempts.spawn(Box::pin(async move {
                run_attempt(attempt).await;
                drop(slot);
            }));
        }
        runtime.demand.set(idle.num_permits());
        drop(idle);
        if short && !pause(&runtime, until_next_look(&runtime, next_due), true).await {
            break;
        }
    }
    runtime.demand.set(0);
    wind_up(&runtime, attempts).await;
}

/// Waits until a worker is idle and takes all that are; `None` when the worker is to stop. A saturated worker waits
/// here, and asks the store for nothing.
async fn idle_slots<S: StateAdapter>(runtime: &Runtime<S>, slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let mut first = tokio::select! {
        biased;
        () = runtime.stop.cancelled() => return None,
        slot = Arc::clone(slots).acquire_owned() => slot.ok()?,
    };
    if slots.available_permits() + 1 < runtime.settings.concurrency {
        // Other attempts may be about to end: those that are ready to go on do so first, and share this claim.
        tokio::task::yield_now().await;
    }
    let more = u32::try_from(slots.available_permits()).unwrap_or(u32::MAX);
    if more > 0
        && let Ok(others) = Arc::clone(slots).try_acquire_many_owned(more)
    {
        first.merge(others);
    }
    Some(first)
}

/// A claim that is not cut off by stop at once: what it has taken should be given back, not left to expire.
async fn claim<S: StateAdapter>(runtime: &Runtime<S>, count: usize) -> Option<Result<Claimed, crate::StateError>> {
    let too_late = async {
        runtime.stop.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        biased;
        claimed = runtime.claim(count) => Some(claimed),
        () = too_late => None,
    }
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

async fn give_back<S: StateAdapter>(runtime: &Runtime<S>, claimed: Claimed) {
    let mut answers = Vec::new();
    for claimed in claimed.jobs {
        let Some(lease) = claimed.job.lease.as_ref() else {
            continue;
        };
        let (reply, answer) = tokio::sync::oneshot::channel();
        let request = SettleRequest {
            settlement: Settlement {
                job: claimed.job.id,
                authority: Authority::Fence {
                    fence: lease.fence,
                    worker: runtime.worker.clone(),
                },
                outcome: Outcome::Release,
            },
            job: JobInfo::of(&claimed.job),
            reply,
        };
        if runtime.settlements.send(request).is_ok() {
            answers.push(answer);
        }
    }
    let all = futures_util::future::join_all(answers);
    let _ = tokio::time::timeout(LAST_WORDS, all).await;
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
