//! Finishes chains with the functions of the schema: one statement, whether or not jobs wait for the chains, and whatever the
//! planner settings of the connection are.

use std::collections::HashMap;
use std::time::Duration;

use queuert::adapter::{Applied, Authority, Outcome, Settlement};
use queuert::{ChainId, JobId, StateError};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::error::translate;
use crate::row;
use crate::sabotage::Bug;
use crate::store::Store;
use crate::verbs::settle::general::named;

/// A chain that an attempt finishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish<'a> {
    pub(crate) job: JobId,
    fence: Uuid,
    worker: &'a str,
    output: &'a str,
}

impl<'a> Finish<'a> {
    /// `None` for what the functions do not do.
    pub(crate) fn of(settlement: &'a Settlement) -> Option<Self> {
        // These bugs are in the statements of this crate, and not in the functions.
        if Bug::Fencing.is_on() || Bug::Unblocking.is_on() {
            return None;
        }
        match (&settlement.authority, &settlement.outcome) {
            (Authority::Fence { fence, worker }, Outcome::Finish { output }) => Some(Self {
                job: settlement.job,
                fence: fence.as_uuid(),
                worker: worker.as_str(),
                output: output.as_str(),
            }),
            _ => None,
        }
    }
}

/// Finishes a chain for which no job waits, and says whether it has: if not, nothing has changed.
pub(crate) async fn finish_one(
    session: &mut Session<'_>,
    store: &Store,
    finish: Finish<'_>,
) -> Result<bool, StateError> {
    let call = query(&store.sql.finish_one)
        .bind(finish.job.as_uuid())
        .bind(finish.fence)
        .bind(finish.worker.to_owned())
        .bind(finish.output.to_owned());
    let rows = session.call(call).await.map_err(translate)?;
    let finished = rows.first().map(|found| row::get(found, "finished")).transpose()?;
    Ok(finished.unwrap_or_default())
}

/// Chains that were finished.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// The answers by job. A job that is not in it does not run under the fence.
    pub(crate) applied: HashMap<JobId, Applied>,
    /// Whether a job had one of the chains as blocker.
    pub(crate) awaited: bool,
}

/// Finishes chains, whether or not jobs wait for them. Each job must be there once. The outer error is that of the statement:
/// lock_not_available if a lock was not granted within the time given; then nothing has changed.
pub(crate) async fn finish_many(
    session: &mut Session<'_>,
    store: &Store,
    finishes: &[Finish<'_>],
    lock_wait: Option<Duration>,
) -> Result<Result<Finished, StateError>, sqlx::Error> {
    let size = finishes.len();
    let (mut jobs, mut fences) = (Vec::with_capacity(size), Vec::with_capacity(size));
    let (mut workers, mut outputs) = (Vec::with_capacity(size), Vec::with_capacity(size));
    for finish in finishes {
        jobs.push(finish.job.as_uuid());
        fences.push(finish.fence);
        workers.push(finish.worker.to_owned());
        outputs.push(finish.output.to_owned());
    }
    let call = query(&store.sql.finish_many)
        .bind(jobs)
        .bind(fences)
        .bind(workers)
        .bind(outputs)
        .bind(store.step())
        .bind(lock_wait.map(|lock_wait| format!("{}ms", lock_wait.as_millis())));
    let rows = session.call(call).await?;
    Ok(read(session, store, &rows).await)
}

async fn read(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[sqlx::postgres::PgRow],
) -> Result<Finished, StateError> {
    let mut finished = Finished::default();
    let (mut causes, mut unblocked) = (Vec::new(), Vec::new());
    for found in rows {
        let job = JobId::from_uuid(row::get(found, "finished")?);
        finished.awaited |= row::get::<bool>(found, "was_awaited")?;
        finished.applied.entry(job).or_default();
        if let Some(free) = row::get::<Option<Uuid>>(found, "unblocked")? {
            let chain = ChainId::from_uuid(row::get(found, "unblocked_chain")?);
            unblocked.push((JobId::from_uuid(free), chain, row::get(found, "unblocked_type")?));
            causes.push(job);
        }
    }
    for (cause, free) in causes.into_iter().zip(named(session, store, unblocked).await?) {
        finished.applied.entry(cause).or_default().unblocked.push(free);
    }
    Ok(finished)
}
