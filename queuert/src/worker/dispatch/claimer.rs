//! Claims jobs for the workers that are idle or about to be, as many as there are in one call, and lines them up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{Authority, ClaimedJob, Outcome, Settled, Settlement, StateAdapter};
use crate::effects::Effects;
use crate::error::StateError;
use crate::event::Event;
use crate::id::Fence;
use crate::worker::attempt::executor::{Attempt, STEPS_IN_A_TURN, payload_bytes};
use crate::worker::context::Runtime;
use crate::worker::health::{Backoff, Health};
use crate::worker::user::abort::AbortReason;
use crate::worker::user::attempt::Shared;

/// How long an attempt that was told to stop may still take to do so.
const WIND_DOWN: Duration = Duration::from_millis(250);
/// How long it takes at most to drop the attempts that wait for something. The others block their threads.
const DROPPED_WITHIN: Duration = Duration::from_millis(100);
/// How long a stopping worker waits for a claim in flight, and for the store to take jobs back.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Claims until the worker set is told to stop, and winds up its attempts then.
pub(crate) async fn claim_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    claim_until_stopped(&runtime).await;
    pass_on(&runtime).await;
}

/// Makes another worker set look for jobs of every type once. The last hint that this set took may never have become a
/// claim, and only this set knew when its last retries are due.
async fn pass_on<S: StateAdapter>(runtime: &Runtime<S>) {
    let mut effects = Effects::new(runtime.client.hub());
    for type_name in runtime.types.keys() {
        effects.jobs_available(type_name, 1);
    }
    // Should it not go out in time, the poll of the others finds the jobs.
    let _ = tokio::time::timeout(LAST_WORDS, runtime.flush(effects)).await;
}

async fn claim_until_stopped<S: StateAdapter>(runtime: &Arc<Runtime<S>>) {
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
                    begin(runtime, jobs, claimed_at);
                }
                // What cannot be read is left to its lease.
                Err(error) if error.kind().concerns_one_row() => unanswered = None,
                Err(_) => {
                    if pause(runtime, backoff.next_pause(), false).await {
                        continue;
                    }
                    break;
                }
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
        let mut claim = Box::pin(runtime.claim(wanted, runtime.line.bounds(), fence));
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
                tokio::join!(wind_up(runtime), give_back(runtime, late));
                return;
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(_) => {
                // Whatever the error is: the claim may have been made before it.
                unanswered = Some(fence);
                if pause(runtime, backoff.next_pause(), false).await {
                    continue;
                }
                break;
            }
        };
        backoff.reset();
        let taken = claimed.jobs.len();
        let bytes = claimed
            .jobs
            .iter()
            .map(|claimed| payload_bytes(&claimed.job, &claimed.blockers));
        runtime.line.claimed(claimed_at, taken, bytes.sum());
        begin(runtime, claimed.jobs, claimed_at);
        runtime.demand.set(wanted.saturating_sub(taken));
        let short = taken < wanted;
        if short && !pause(runtime, until_next_look(runtime, claimed.next_due), true).await {
            break;
        }
    }
    runtime.demand.set(0);
    match unanswered {
        Some(fence) => {
            let late = give_back(runtime, runtime.recover(fence));
            tokio::join!(wind_up(runtime), late);
        }
        None => wind_up(runtime).await,
    }
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
    if runtime.flights.all_landed(DROPPED_WITHIN).await {
        return;
    }
    let blocked = runtime.flights.processing();
    give_back_blocked(runtime, &blocked).await;
    // The others wait for the store to take their ends.
    runtime.flights.all_but_landed(blocked.len(), LAST_WORDS).await;
}

/// Gives back the jobs of processors that block their threads, which nobody can drop: another process may run them now, and
/// their fence keeps what these processors still write from being stored. A job that its processor has locked, in a
/// transaction of its own, is left to its lease.
async fn give_back_blocked<S: StateAdapter>(runtime: &Runtime<S>, blocked: &[Arc<Shared<S>>]) {
    let release = |attempt: &Arc<Shared<S>>| Settlement {
        job: attempt.record.id,
        authority: Authority::Fence {
            fence: attempt.fence,
            worker: attempt.info.worker.clone(),
        },
        outcome: Outcome::Release,
    };
    let settlements: Vec<_> = blocked.iter().map(release).collect();
    if !settlements.is_empty() {
        let settle = runtime.client.state().settle_jobs(None, &settlements);
        // Should it fail, the leases decide.
        if let Ok(Ok(settled)) = tokio::time::timeout(LAST_WORDS, settle).await {
            let mut effects = Effects::new(runtime.client.hub());
            for (attempt, settled) in blocked.iter().zip(settled) {
                if matches!(settled, Settled::Applied(_)) {
                    effects.jobs_available(&attempt.record.type_name, 1);
                }
            }
            runtime.flush(effects).await;
        }
    }
}
