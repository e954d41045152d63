//! For tests: runs what is due, one job after the other, and tells what ran.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::__task::spawn_in;
use crate::adapter::StateAdapter;
use crate::error::Error;
use crate::event::{AttemptInfo, AttemptOutcome};
use crate::job_type::JobType;
use crate::worker::attempt::executor::{Attempt, Ended, run_attempt};
use crate::worker::attempt::settler::settle_loop;
use crate::worker::context::Runtime;
use crate::worker::dispatch::local_queue::Bounds;
use crate::worker::upkeep::reaper::sweep;
use crate::worker::upkeep::renewer::renew_loop;

/// What [`drain`](super::WorkerBuilder::drain) ran, in order.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// The attempts.
    pub attempts: Vec<DrainedAttempt>,
}

/// One attempt that was run.
#[derive(Clone, Debug)]
pub struct DrainedAttempt {
    /// Which.
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

    /// What failed, with the error of each.
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

pub(crate) async fn drain<S: StateAdapter>(runtime: Runtime<S>) -> Result<Drained, Error> {
    let runtime = Arc::new(runtime);
    let mut loops = JoinSet::new();
    spawn_in(&mut loops, settle_loop(Arc::clone(&runtime)));
    spawn_in(&mut loops, renew_loop(Arc::clone(&runtime)));
    let mut drained = Drained::default();
    while sweep(&runtime).await.is_some_and(|taken| taken > 0) {}
    loop {
        let claimed_at = Instant::now();
        let claimed = runtime.claim(1, Bounds::NONE, runtime.client.entropy().fence()).await?;
        if claimed.jobs.is_empty() {
            return Ok(drained);
        }
        for job in claimed.jobs {
            // One step at a time, so that what runs next is always what is first in line.
            if let Some(attempt) = Attempt::new(&runtime, job, claimed_at, 1) {
                let Ended { attempt, outcome, .. } = run_attempt(&runtime, attempt, Instant::now()).await;
                let attempt = attempt.info().clone();
                drained.attempts.push(DrainedAttempt { attempt, outcome });
            }
        }
    }
}
