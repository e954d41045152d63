//! Renews all leases of the process in one call, and aborts the attempts whose lease is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{Backoff, RenewLease, Renewal, StateAdapter};
use crate::error::{StateError, StateErrorKind};
use crate::worker::attempt::attempts::Attempts;
use crate::worker::contained::contained;
use crate::worker::context::Context;
use crate::worker::user::abort::AbortReason;
use crate::worker::user::shared::{HeldLease, SharedAttempt};

pub(crate) async fn renew_loop<S: StateAdapter>(attempts: Arc<Attempts<S>>) {
    let context = &*attempts.context;
    let tick = tick(context);
    let mut backoff = Backoff::new(context.client.entropy());
    let mut wait = tick;
    loop {
        tokio::select! {
            biased;
            () = context.quit.cancelled() => return,
            () = context.check_leases.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
        wait = if renew_due(&attempts, tick).await {
            backoff.reset();
            tick
        } else {
            backoff.next_pause().min(tick)
        };
    }
}

/// How often to look for leases that need renewal: often enough that none is renewed later than it should be.
fn tick<S: StateAdapter>(context: &Context<S>) -> Duration {
    let shortest = context.types.values().map(|job_type| job_type.lease.renew_every).min();
    (shortest.unwrap_or(Duration::from_secs(1)) / 2).max(Duration::from_millis(1))
}

/// Renews the leases that are due before the next tick. Returns `false` if the store failed.
async fn renew_due<S: StateAdapter>(attempts: &Attempts<S>, tick: Duration) -> bool {
    let (context, in_flight) = (&*attempts.context, &*attempts.in_flight);
    let sent_at = Instant::now();
    let is_due = |held: &HeldLease| held.doubted || sent_at + tick >= held.renew_at;
    let due: Vec<RenewLease> = in_flight
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
        if in_flight.by_job().is_empty() {
            context.health.succeeded("renew");
        }
        return true;
    }
    let call = tokio::time::timeout_at(
        longest_call(attempts, sent_at, tick),
        context.client.state().renew_leases(None, &due),
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
    context.health.record("renew", &result);
    let Ok(renewals) = result else {
        abort_expired(attempts);
        return false;
    };
    for (lease, renewal) in due.iter().zip(renewals) {
        apply(attempts, lease, renewal, sent_at);
    }
    abort_expired(attempts);
    true
}

/// Until when to wait for an answer. A call that is not answered must not keep attempts from learning that their lease is over,
/// and must leave time to try again before a lease expires.
fn longest_call<S: StateAdapter>(attempts: &Attempts<S>, sent_at: Instant, tick: Duration) -> Instant {
    let in_flight = attempts.in_flight.by_job();
    let held = in_flight.values().filter(|attempt| attempt.abort.reason().is_none());
    let first_end = held.map(|attempt| attempt.held().expires_at).min();
    let latest = sent_at + tick.max(Duration::from_secs(1));
    first_end.unwrap_or(latest).clamp(sent_at + tick, latest)
}

fn apply<S: StateAdapter>(attempts: &Attempts<S>, lease: &RenewLease, renewal: Renewal, sent_at: Instant) {
    // The attempt may have ended meanwhile, and the job may even have been claimed by this process again.
    let attempt = attempts.in_flight.by_job().get(&lease.job).cloned();
    let Some(attempt) = attempt.filter(|attempt| attempt.fence == lease.fence) else {
        return;
    };
    let mut held = attempt.held();
    match renewal {
        Renewal::Renewed(until) => {
            drop(held);
            attempt.extended((sent_at, until));
        }
        // A transaction has the job locked: that of the attempt itself, which has written its completion, or one that is about
        // to complete, cancel or delete the job. While it is locked no process can take it, so the attempt may go on.
        Renewal::Busy => {
            held.doubted = true;
            held.expires_at = sent_at + attempt.lease.duration;
        }
        Renewal::Lost(reason) => {
            // Not asked for again: a lost lease stays lost.
            let never = sent_at + Duration::from_secs(86_400 * 365);
            *held = HeldLease {
                renew_at: never,
                expires_at: never,
                doubted: false,
            };
            drop(held);
            // The store may have written the end of this attempt already; the answer to that write decides.
            if !attempt.settling.load(Ordering::SeqCst) {
                attempt.lost(reason);
                attempts.dispatcher.drop_aborted();
            }
        }
    }
}

/// Aborts the attempts whose lease has expired without a renewal: another process may have their jobs.
fn abort_expired<S: StateAdapter>(attempts: &Attempts<S>) {
    let now = Instant::now();
    let in_flight = attempts.in_flight.by_job();
    let expired = in_flight
        .values()
        .filter(|attempt| now >= attempt.held().expires_at && !attempt.settling.load(Ordering::SeqCst));
    let expired: Vec<Arc<SharedAttempt<S>>> = expired.cloned().collect();
    drop(in_flight);
    if expired.is_empty() {
        return;
    }
    for attempt in expired {
        attempt.lost(AbortReason::Error);
    }
    attempts.dispatcher.drop_aborted();
}
