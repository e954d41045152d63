//! The ends of attempts.
//!
//! There are two ways to end one. [`finish`] is for the end that almost every job has: one statement for a whole batch, in
//! which the statement itself checks that nothing else has to be read or written. [`general`] is for all others.

mod general;
mod repeated;

use std::collections::HashSet;

use queuert::adapter::{Applied, Authority, NewJob, Outcome, Settled, Settlement};
use queuert::{Fence, JobId, Payload, StateError, WorkerId};

use crate::clock;
use crate::connection::Connection;
use crate::sabotage;
use crate::store::Store;

/// Settles in the order given. Settlements that follow one another are one batch. A settlement that creates a job with
/// blockers is a batch by itself, because whether it closes a circle depends on all settlements before it.
pub(crate) async fn settle(
    connection: &mut Connection<'_>,
    store: &Store,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, StateError> {
    let mut settled = Vec::with_capacity(settlements.len());
    let mut rest = settlements;
    while !rest.is_empty() {
        let has_blockers = |settlement| next_job(settlement).is_some_and(|next| !next.blockers.is_empty());
        let length = match rest.iter().position(has_blockers) {
            Some(0) => 1,
            Some(next) => next,
            None => rest.len(),
        };
        let (batch, after) = rest.split_at(length);
        let finished = finish(connection, store, batch).await?;
        let others: Vec<&Settlement> = batch.iter().filter(|one| !finished.contains(&one.job)).collect();
        let mut others = general::settle(connection, store, &others).await?.into_iter();
        settled.extend(batch.iter().filter_map(|one| {
            if finished.contains(&one.job) {
                return Some(Settled::Applied(Applied::default()));
            }
            others.next()
        }));
        rest = after;
    }
    Ok(settled)
}

/// Finishes, in one statement, the jobs whose ends need nothing else to be read or written, and returns their ids.
async fn finish(
    connection: &mut Connection<'_>,
    store: &Store,
    settlements: &[Settlement],
) -> Result<HashSet<JobId>, StateError> {
    let mut jobs = HashSet::with_capacity(settlements.len());
    // Of two ends of one job the first one counts, which one statement cannot promise.
    if !settlements.iter().all(|settlement| jobs.insert(settlement.job)) || sabotage::fencing_is_off() {
        return Ok(HashSet::new());
    }
    let plain: Vec<_> = settlements.iter().filter_map(plain_finish).collect();
    let now = clock::now();
    let finish = store
        .statements
        .finish_jobs
        .execute(connection, &plain, |values, (job, fence, worker, output)| {
            values
                .add(job.as_uuid())
                .add(fence.as_uuid())
                .add(worker.as_str())
                .add(output.as_str())
                .number(now.as_micros());
        });
    let changed = finish.await?;
    if changed == 0 || changed == plain.len() {
        let finished = plain.iter().take(changed);
        return Ok(finished.map(|(job, ..)| *job).collect());
    }
    let finished = store.statements.finished_jobs.fetch(
        connection,
        &plain,
        |values, (job, fence, ..)| {
            values.add(job.as_uuid()).add(fence.as_uuid()).number(now.as_micros());
        },
        |found| Ok(JobId::from_uuid(found.get("id")?)),
    );
    Ok(finished.await?.into_iter().collect())
}

/// The parts of a settlement by which an attempt ends its chain.
fn plain_finish(settlement: &Settlement) -> Option<(JobId, Fence, &WorkerId, &Payload)> {
    match (&settlement.authority, &settlement.outcome) {
        (Authority::Fence { fence, worker }, Outcome::Finish { output }) => {
            Some((settlement.job, *fence, worker, output))
        }
        _ => None,
    }
}

/// The job that a settlement creates.
fn next_job(settlement: &Settlement) -> Option<&NewJob> {
    match &settlement.outcome {
        Outcome::Continue { next } => Some(next),
        _ => None,
    }
}
