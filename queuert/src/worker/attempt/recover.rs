//! Finds the jobs that the store has claimed for this process in a call whose answer was lost: no process would run them
//! before their leases expire.

use tokio::time::Instant;

use crate::adapter::{Backoff, ClaimedJob, RenewLease, Renewal, StateAdapter};
use crate::error::StateError;
use crate::id::Fence;
use crate::worker::contained::contained;
use crate::worker::context::Context;

/// The jobs that were claimed under this fence and are still this process's, and a moment at which their leases began or
/// were renewed. It renews the leases, because they may be about to expire, and leaves out jobs that were taken back.
///
/// A success says nothing about the health of claims: a store that refuses writes can be read.
pub(crate) async fn recover_claim<S: StateAdapter>(
    context: &Context<S>,
    fence: Fence,
) -> Result<(Vec<ClaimedJob>, Instant), StateError> {
    let result = find_and_renew(context, fence).await;
    if let Err(error) = &result {
        context.health.failed("claim", error);
    }
    result
}

async fn find_and_renew<S: StateAdapter>(
    context: &Context<S>,
    fence: Fence,
) -> Result<(Vec<ClaimedJob>, Instant), StateError> {
    let state = context.client.state();
    let mut jobs = contained(state.claimed_jobs(fence)).await?;
    jobs.retain(|claimed| context.types.contains_key(&claimed.job.type_name));
    let renewals: Vec<RenewLease> = jobs
        .iter()
        .filter_map(|claimed| {
            let lease = context.types.get(&claimed.job.type_name)?.lease.duration;
            let job = claimed.job.id;
            Some(RenewLease { job, fence, lease })
        })
        .collect();
    let renewed_at = Instant::now();
    if !renewals.is_empty() {
        let mut answers = contained(state.renew_leases(None, &renewals)).await?.into_iter();
        jobs.retain(|_| matches!(answers.next(), Some(Renewal::Renewed(_))));
    }
    Ok((jobs, renewed_at))
}

/// The same for the one job that an end asked for. Tries until the store answers, or the set is told to stop.
pub(crate) async fn recover_next<S: StateAdapter>(
    context: &Context<S>,
    fence: Fence,
) -> Option<(Vec<ClaimedJob>, Instant)> {
    let mut backoff = Backoff::new(context.client.entropy());
    loop {
        match recover_claim(context, fence).await {
            Ok(recovered) => return Some(recovered),
            // The row cannot be read, so the job is left to its lease.
            Err(error) if error.kind().concerns_one_row() => return None,
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    }
}
