//! Claims jobs for the workers that are idle or about to be, as many as they want in one call, and queues them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::adapter::{Backoff, ClaimJobs, ClaimType, Claimed, ClaimedJob, Outcome, Settled, StateAdapter};
use crate::effects::Effects;
use crate::error::StateError;
use crate::event::Event;
use crate::id::Fence;
use crate::job::TypeName;
use crate::worker::attempt::attempts::Attempts;
use crate::worker::attempt::claimed::{STEPS_IN_A_ROW, output_bytes, payload_bytes};
use crate::worker::attempt::recover::recover_claim;
use crate::worker::attempt::settler::{give_back, queue};
use crate::worker::contained::contained;
use crate::worker::context::Context;
use crate::worker::dispatch::local_queue::ClaimBounds;
use crate::worker::dispatch::parts::Dispatch;
use crate::worker::health::Health;
use crate::worker::user::abort::AbortReason;
use crate::worker::user::shared::SharedAttempt;

/// How long an attempt that was told to stop may still take to do so.
const WIND_DOWN: Duration = Duration::from_millis(250);
/// How long it takes at most to drop the attempts that wait for something. The others block their threads.
const DROPPED_WITHIN: Duration = Duration::from_millis(100);
/// How long a stopping claimer waits for a claim that is under way, and for the store to write the ends of its attempts.
const LAST_CALLS: Duration = Duration::from_secs(5);
/// How long a stopping claimer waits for the store to take back the jobs of blocked processors, and for its last announcement.
/// A processor that blocks its thread may hold a lock of the store, and then a longer wait would not help.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(1);

/// Claims until the set is told to stop, and ends its attempts then.
pub(crate) async fn claim_loop<S: StateAdapter>(dispatch: Arc<Dispatch<S>>) {
    claim_until_stopped(&dispatch).await;
    hand_hints_to_others(&dispatch.attempts.context).await;
}

/// Claims up to `limit` jobs within the bounds, and records the success or failure.
pub(crate) async fn claim<S: StateAdapter>(
    dispatch: &Dispatch<S>,
    limit: usize,
    bounds: ClaimBounds,
    fence: Fence,
) -> Result<Claimed, StateError> {
    let context = &*dispatch.attempts.context;
    let types = context.types.iter();
    let types = types.map(|(name, job_type)| ClaimType {
        name: name.clone(),
        lease: job_type.lease.duration,
    });
    let claim = ClaimJobs::new(types.collect(), limit, context.worker.clone(), fence);
    let claim = claim
        .within_bytes(bounds.at_least, bounds.bytes)
        .expecting(dispatch.outputs.lock().clone());
    let result = contained(context.client.state().claim_jobs(&claim)).await;
    context.health.record("claim", &result);
    if let Ok(claimed) = &result {
        note_outputs(dispatch, &claimed.jobs);
    }
    result
}

/// Notes the size of the outputs that these jobs have waited for: the largest of each type.
fn note_outputs<S: StateAdapter>(dispatch: &Dispatch<S>, jobs: &[ClaimedJob]) {
    let mut largest: BTreeMap<&TypeName, usize> = BTreeMap::new();
    for claimed in jobs.iter().filter(|claimed| !claimed.blockers.is_empty()) {
        let bytes = output_bytes(&claimed.blockers);
        let of_type = largest.entry(&claimed.job.type_name).or_default();
        *of_type = bytes.max(*of_type);
    }
    if !largest.is_empty() {
        let mut outputs = dispatch.outputs.lock();
        for (type_name, bytes) in largest {
            outputs.note(type_name, bytes);
        }
    }
}

/// Makes another set of workers look for jobs of every type once. The last hint that this set received may not have led to a
/// claim, and only this set knew when its last retries are due.
async fn hand_hints_to_others<S: StateAdapter>(context: &Context<S>) {
    let mut effects = Effects::new(context.client.hub());
    for type_name in context.types.keys() {
        effects.jobs_available(type_name, 1);
    }
    // If the announcement takes too long, the other sets find the jobs by polling.
    let _ = tokio::time::timeout(TAKEN_BACK_WITHIN, context.flush(effects)).await;
}

async fn claim_until_stopped<S: StateAdapter>(dispatch: &Dispatch<S>) {
    let attempts = &*dispatch.attempts;
    let context = &*attempts.context;
    let mut backoff = Backoff::new(context.client.entropy());
    // The fence of a claim whose answer may have been lost. The jobs that it took would wait until their leases expire, and
    // each would count an attempt that never ran.
    let mut unanswered: Option<Fence> = None;
    loop {
        if let Some(fence) = unanswered {
            let recovered = tokio::select! {
                biased;
                () = context.stop.cancelled() => break,
                recovered = recover_claim(context, fence) => recovered,
            };
            match recovered {
                Ok((jobs, claimed_at)) => {
                    unanswered = None;
                    enqueue(attempts, jobs, claimed_at);
                }
                // A row cannot be read, so the jobs are left to their leases.
                Err(error) if error.kind().concerns_one_row() => unanswered = None,
                Err(_) => {
                    if pause(context, backoff.next_pause(), false).await {
                        continue;
                    }
                    break;
                }
            }
        }
        let wanted = tokio::select! {
            biased;
            () = context.stop.cancelled() => break,
            wanted = dispatch.queue.demand() => wanted,
        };
        // Before the claim: a notice that arrives during the claim must find that this set wants jobs.
        context.demand.set(wanted);
        let (claimed_at, fence) = (Instant::now(), context.client.entropy().fence());
        let mut claim = Box::pin(claim(dispatch, wanted, dispatch.queue.bounds(), fence));
        let claimed = tokio::select! {
            biased;
            claimed = &mut claim => claimed,
            () = context.stop.cancelled() => {
                context.demand.set(0);
                let late = async {
                    match claim.await {
                        Ok(claimed) => Ok((claimed.jobs, claimed_at)),
                        Err(_) => recover_claim(context, fence).await,
                    }
                };
                tokio::join!(end_attempts(attempts), give_back_late(attempts, late));
                return;
            }
        };
        let Ok(claimed) = claimed else {
            // Whatever the error is: the store may have made the claim before it.
            unanswered = Some(fence);
            if pause(context, backoff.next_pause(), false).await {
                continue;
            }
            break;
        };
        backoff.reset();
        let taken = claimed.jobs.len();
        let bytes = claimed
            .jobs
            .iter()
            .map(|claimed| payload_bytes(&claimed.job, &claimed.blockers));
        dispatch.queue.claim_answered(claimed_at, taken, bytes.sum());
        enqueue(attempts, claimed.jobs, claimed_at);
        context.demand.set(wanted.saturating_sub(taken));
        let short = taken < wanted;
        if short && !pause(context, until_next_look(context, claimed.next_due), true).await {
            break;
        }
    }
    context.demand.set(0);
    match unanswered {
        Some(fence) => {
            let late = give_back_late(attempts, recover_claim(context, fence));
            tokio::join!(end_attempts(attempts), late);
        }
        None => end_attempts(attempts).await,
    }
}

fn enqueue<S: StateAdapter>(attempts: &Attempts<S>, jobs: Vec<ClaimedJob>, claimed_at: Instant) {
    queue(attempts, attempts.take_charge(jobs, claimed_at, STEPS_IN_A_ROW));
}

/// Gives back the jobs of a claim that was under way when the set was stopped, rather than leaving them to expire. The claim
/// may wait for the transaction of an attempt, so the attempts end at the same time.
async fn give_back_late<S: StateAdapter>(
    attempts: &Attempts<S>,
    claim: impl Future<Output = Result<(Vec<ClaimedJob>, Instant), StateError>>,
) {
    let give_back_all = async {
        let Ok((jobs, claimed_at)) = claim.await else {
            return;
        };
        let late = attempts.take_charge(jobs, claimed_at, 1).into_iter();
        let written = late.map(|attempt| {
            let (reply, written) = oneshot::channel();
            give_back(attempts, attempt, Some(reply));
            written
        });
        futures_util::future::join_all(written).await;
    };
    let _ = tokio::time::timeout(LAST_CALLS, give_back_all).await;
}

/// Pauses, until the claimer is woken if it is `wakeable`. Returns `false` when the set is told to stop.
async fn pause<S: StateAdapter>(context: &Context<S>, pause: Duration, wakeable: bool) -> bool {
    let woken = async {
        if wakeable {
            context.wake.notified().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = context.stop.cancelled() => false,
        () = woken => true,
        () = tokio::time::sleep(pause) => true,
    }
}

/// How long to pause when no more jobs are due. Jittered, so that processes do not poll at the same moment, unless a job
/// becomes due.
fn until_next_look<S: StateAdapter>(context: &Context<S>, next_due: Option<Duration>) -> Duration {
    let entropy = context.client.entropy();
    let poll = entropy.jittered(context.settings.poll_interval, 0.1);
    // A shorter pause would keep a processor core busy.
    poll.min(next_due.unwrap_or(poll)).max(Duration::from_millis(1))
}

/// Gives running attempts their grace period, then aborts them, then drops them and gives their jobs back.
async fn end_attempts<S: StateAdapter>(attempts: &Attempts<S>) {
    let (context, in_flight) = (&*attempts.context, &*attempts.in_flight);
    context.health.set(Health::Stopping);
    context.client.hub().emit_with(|| Event::WorkerStopping {
        worker: context.worker.clone(),
    });
    if in_flight.wait_until_empty(context.settings.grace).await {
        return;
    }
    let handles: Vec<_> = in_flight
        .by_job()
        .values()
        .map(|attempt| attempt.abort.clone())
        .collect();
    for handle in handles {
        handle.abort(AbortReason::Shutdown);
    }
    if in_flight.wait_until_empty(WIND_DOWN).await {
        return;
    }
    context.kill.cancel();
    if in_flight.wait_until_empty(DROPPED_WITHIN).await {
        return;
    }
    let blocked = in_flight.processing();
    // The other attempts wait for the store to write their ends.
    let others = in_flight.wait_for_all_but(&blocked, LAST_CALLS);
    let given_back = tokio::time::timeout(TAKEN_BACK_WITHIN, Box::pin(give_back_blocked(context, &blocked)));
    let _ = tokio::join!(others, given_back);
}

/// Gives back the jobs of processors that block their threads, which cannot be dropped: another process may run the jobs now,
/// and the fence keeps later writes of these processors from being stored. A job that its processor has locked, in a
/// transaction of its own, is left to its lease.
async fn give_back_blocked<S: StateAdapter>(context: &Context<S>, blocked: &[Arc<SharedAttempt<S>>]) {
    let settlements: Vec<_> = blocked
        .iter()
        .map(|attempt| attempt.settlement(Outcome::Release))
        .collect();
    if settlements.is_empty() {
        return;
    }
    // Boxed before anything wraps it: the futures of stores are large, and unoptimised code copies them at every wrapper.
    let settle = Box::pin(context.client.state().settle_jobs(None, &settlements));
    // If it fails, the leases decide.
    if let Ok(settled) = contained(settle).await {
        let mut effects = Effects::new(context.client.hub());
        for (attempt, settled) in blocked.iter().zip(settled) {
            if matches!(settled, Settled::Applied(_)) {
                effects.jobs_available(&attempt.record.type_name, 1);
            }
        }
        context.flush(effects).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::Client;
    use crate::id::JobId;
    use crate::memory::{Attempt, MemoryState};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing;

    #[derive(crate::JobTypes)]
    #[job(crate = crate)]
    enum Jobs {
        #[job(entry, output = ())]
        Nothing(Nothing),
    }

    /// A set of workers that stops waits for the ends that are on their way to the store. It neither counts a job that is given
    /// back among the blocked processors nor takes the end of one of these for the end of another attempt.
    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_every_end_but_those_of_blocked_processors() {
        let client = Client::new(MemoryState::new());
        client.start_many([Nothing, Nothing, Nothing, Nothing]).await.unwrap();
        let worker = client
            .worker()
            .process(|job: Attempt<Nothing>| async move { job.finish(()) });
        let dispatch = Dispatch::new(worker.build().unwrap());
        let (attempts, in_flight) = (&dispatch.attempts, &dispatch.attempts.in_flight);
        let fence = client.entropy().fence();
        let claimed = claim(&dispatch, 4, ClaimBounds::NONE, fence).await.unwrap();
        let mut claimed = attempts.take_charge(claimed.jobs, Instant::now(), 1);
        give_back(attempts, claimed.pop().unwrap(), None);
        let ends = claimed.pop().unwrap();
        ends.shared.settling.store(true, Ordering::SeqCst);
        let blocked = in_flight.processing();
        let blocked_jobs: Vec<JobId> = blocked.iter().map(|attempt| attempt.record.id).collect();
        let mut began: Vec<JobId> = claimed.iter().map(|attempt| attempt.shared.record.id).collect();
        began.sort_unstable();
        assert_eq!(blocked_jobs, began);
        // Both blocked processors end after all: two attempts are left, as many as were blocked.
        claimed.clear();
        assert_eq!(in_flight.count(), blocked.len());
        let limit = Duration::from_secs(5);
        let began = Instant::now();
        in_flight.wait_for_all_but(&blocked, limit).await;
        assert_eq!(began.elapsed(), limit, "two ends are still on their way");
    }
}
