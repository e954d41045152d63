//! For tests: runs the jobs that are due, one after the other, and returns what ran.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::__task::spawn_in;
use crate::adapter::StateAdapter;
use crate::error::Error;
use crate::event::{AttemptInfo, AttemptOutcome};
use crate::job_type::JobType;
use crate::worker::attempt::executor::execute;
use crate::worker::attempt::settler::settle_loop;
use crate::worker::context::Context;
use crate::worker::dispatch::claimer::claim;
use crate::worker::dispatch::local_queue::ClaimBounds;
use crate::worker::dispatch::parts::Dispatch;
use crate::worker::upkeep::reaper::sweep;
use crate::worker::upkeep::renewer::renew_loop;
use crate::worker::user::abort::AbortReason;

/// The attempts that [`drain`](crate::WorkerBuilder::drain) ran, in order.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// The attempts.
    pub attempts: Vec<DrainedAttempt>,
}

/// One attempt that was run.
#[derive(Clone, Debug)]
pub struct DrainedAttempt {
    /// The job, the number of the attempt, and its times.
    pub attempt: AttemptInfo,
    /// How it ended.
    pub outcome: AttemptOutcome,
}

impl Drained {
    /// How many attempts ran.
    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Whether nothing was due.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// The names of the job types, in the order in which they ran.
    pub fn types(&self) -> Vec<&str> {
        self.attempts
            .iter()
            .map(|run| run.attempt.job.type_name.as_str())
            .collect()
    }

    /// The attempts of one job type.
    pub fn of<J: JobType>(&self) -> Vec<&DrainedAttempt> {
        self.attempts
            .iter()
            .filter(|run| run.attempt.job.type_name.as_str() == J::NAME)
            .collect()
    }

    /// The attempts that failed, with the error of each.
    pub fn failures(&self) -> Vec<(&AttemptInfo, &str)> {
        self.attempts
            .iter()
            .filter_map(|run| match &run.outcome {
                AttemptOutcome::Failed { error, .. } | AttemptOutcome::Died { error } => {
                    Some((&run.attempt, error.as_str()))
                }
                _ => None,
            })
            .collect()
    }
}

pub(crate) async fn drain<S: StateAdapter>(context: Context<S>) -> Result<Drained, Error> {
    let dispatch = Dispatch::new(context);
    let attempts = &dispatch.attempts;
    let entropy = attempts.context.client.entropy();
    let mut services = JoinSet::new();
    spawn_in(&mut services, settle_loop(Arc::clone(attempts)));
    spawn_in(&mut services, renew_loop(Arc::clone(attempts)));
    let mut drained = Drained::default();
    while sweep(attempts).await.is_some_and(|taken| taken > 0) {}
    loop {
        // A processor or middleware may have paused a type, and there is no listener that would hear of it.
        attempts.context.pauses.ask(&attempts.context.client).await;
        let claimed_at = Instant::now();
        let claimed = claim(&dispatch, 1, ClaimBounds::NONE, entropy.fence()).await?;
        if claimed.jobs.is_empty() {
            return Ok(drained);
        }
        // One step at a time, so that the next job that runs is always the first of the store's queue.
        for claimed in attempts.take_charge(claimed.jobs, claimed_at, 1) {
            let attempt = AttemptInfo::clone(&claimed.shared.info);
            let (reply, ended) = oneshot::channel();
            execute(attempts, claimed, Instant::now(), Some(reply)).await;
            let outcome = ended.await.unwrap_or(AttemptOutcome::Aborted(AbortReason::Error));
            drained.attempts.push(DrainedAttempt { attempt, outcome });
        }
    }
}
