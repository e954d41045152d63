//! Renews all leases of the process in one call, and finds out which ones are lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{RenewLease, Renewal, StateAdapter};
use crate::error::{StateError, StateErrorKind};
use crate::worker::attempt::executor::Attempt;
use crate::worker::context::{Runtime, contained};
use crate::worker::health::Backoff;
use crate::worker::user::abort::AbortReason;
use crate::worker::user::attempt::{HeldLease, Shared};

pub(crate) async fn renew_loop<S: StateAdapter>(runtime: Arc<Runtime<S>>) {
    let tick = tick(&runtime);
    let mut backoff = Backoff::new(runtime.client.entropy());
    let mut wait = tick;
    loop {
        tokio::select! {
            biased;
            () = runtime.quit.cancelled() => return,
            () = runtime.check_leases.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
        wait = match renew_due(&runtime, tick).await {
            true => {
                backoff.reset();
                tick
            }
            false => backoff.next_pause().min(tick),
        };
    }
}

/// How often to look for leases that need renewal: often enough that none is renewed later than it should be.
fn tick<S: StateAdapter>(runtime: &Runtime<S>) -> Duration {
    let shortest = runtime.types.values().map(|job_type| job_type.lease.renew_every).min();
    (shortest.unwrap_or(Duration::from_secs(1)) / 2).max(Duration::from_millis(1))
}

/// Renews what is due before the next tick. `false` if the store failed.
async fn renew_due<S: StateAdapter>(runtime: &Runtime<S>, tick: Duration) -> bool {
    let sent_at = Instant::now();
    let is_due = |held: &HeldLease| held.doubted || sent_at + tick >= held.renew_at;
    let due: Vec<RenewLease> = runtime
        .flights
        .by_job()
        .iter()
        .filter(|(_, attempt)| is_due(&attempt.held()))
        .map(|(job, attempt)| RenewLease {
            job: *job,
            fence: attempt.fence,
            lease: attempt.lease.duration,
        })
        .collect();
    if due.is_empty() {
        // A renewal that failed for an attempt that has ended since must not leave an idle worker degraded for ever.
        if runtime.flights.by_job().is_empty() {
            runtime.health.succeeded("renew");
        }
        return true;
    }
    let call = tokio::time::timeout_at(
        patience(runtime, sent_at, tick),
        runtime.client.state().renew_leases(None, &due),
    );
    let result = contained(async {
        call.await.unwrap_or_else(|_| {
            Err(StateError::new(
                StateErrorKind::Transient,
                "the store did not answer a renewal in time; check its load and the network, or choose longer leases",
            ))
        })
    })
    .await;
    runtime.heard_from_store("renew", &result);
    let Ok(renewals) = result else {
        give_up_expired(runtime);
        return false;
    };
    for (lease, renewal) in due.iter().zip(renewals) {
        apply(runtime, lease, renewal, sent_at);
    }
    give_up_expired(runtime);
    true
}

/// Until when to wait for an answer. A call that is not answered must not keep attempts from learning that their lease
/// is over, nor eat the chances that are left to renew it.
fn patience<S: StateAdapter>(runtime: &Runtime<S>, sent_at: Instant, tick: Duration) -> Instant {
    let in_flight = runtime.flights.by_job();
    let held = in_flight.values().filter(|attempt| attempt.abort.reason().is_none());
    let first_end = held.map(|attempt| attempt.held().expires_at).min();
    let latest = sent_at + tick.max(Duration::from_secs(1));
    first_end.unwrap_or(latest).clamp(sent_at + tick, latest)
}

fn apply<S: StateAdapter>(runtime: &Runtime<S>, lease: &RenewLease, renewal: Renewal, sent_at: Instant) {
    // The attempt may have ended meanwhile, and the job may even have been claimed by this process again.
    let attempt = runtime.flights.by_job().get(&lease.job).cloned();
    let Some(attempt) = attempt.filter(|attempt| attempt.fence == lease.fence) else {
        return;
    };
    let mut held = attempt.held();
    match renewal {
        Renewal::Renewed(until) => {
            drop(held);
            attempt.extended((sent_at, until));
        }
        // Somebody has it locked: the attempt itself, which has written its completion, or one who is about to complete,
        // cancel or delete it. While it is locked nobody can take it, so this is no reason to give up.
        Renewal::Busy => {
            held.doubted = true;
            held.expires_at = sent_at + attempt.lease.duration;
        }
        Renewal::Lost(reason) => {
            // Not asked for again: what is lost stays lost.
            let never = sent_at + Duration::from_secs(86_400 * 365);
            *held = HeldLease {
                renew_at: never,
                expires_at: never,
                doubted: false,
            };
            drop(held);
            // The store may have settled the job under this very fence already; the answer to that will tell.
            if !attempt.settling.load(Ordering::SeqCst) {
                attempt.lost(reason);
                forget_lost(runtime);
            }
        }
    }
}

/// An attempt whose lease has run out unrenewed should assume the worst.
fn give_up_expired<S: StateAdapter>(runtime: &Runtime<S>) {
    let now = Instant::now();
    let in_flight = runtime.flights.by_job();
    let expired = in_flight
        .values()
        .filter(|attempt| now >= attempt.held().expires_at && !attempt.settling.load(Ordering::SeqCst));
    let expired: Vec<Arc<Shared<S>>> = expired.cloned().collect();
    drop(in_flight);
    if expired.is_empty() {
        return;
    }
    for attempt in expired {
        attempt.lost(AbortReason::Error);
    }
    forget_lost(runtime);
}

/// What was lost while it waited for a worker: somebody else has it, and it would run for nothing.
fn forget_lost<S: StateAdapter>(runtime: &Runtime<S>) {
    drop(runtime.line.take_if(Attempt::is_aborted));
}
