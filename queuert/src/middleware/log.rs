//! Logs one line when an attempt begins, and one when it ends.

use tokio::time::Instant;

use super::outcome;
use crate::adapter::StateAdapter;
use crate::worker::{AttemptContext, JobResult, Middleware, Next};

/// Logs one line when the inner layers begin and one when they have ended, with the target `queuert::attempts`: at
/// level `info`, failures at `warn`. It shows every job without the other lines of level `debug`.
///
/// The lines say what the processor did. The lines of the worker itself say whether it was committed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogAttempts(());

impl LogAttempts {
    /// Logs every attempt.
    pub fn new() -> Self {
        Self(())
    }
}

impl<S: StateAdapter> Middleware<S> for LogAttempts {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let begun = Instant::now();
        let info = job.info();
        tracing::info!(
            target: "queuert::attempts",
            job_id = %info.job.id,
            job_type = info.job.type_name.as_str(),
            attempt = info.attempt,
            "attempt begins"
        );
        let result = next.run(job).await;
        let (info, took, outcome) = (job.info(), begun.elapsed(), outcome(&result));
        match &result {
            Ok(_) => tracing::info!(
                target: "queuert::attempts",
                job_id = %info.job.id,
                job_type = info.job.type_name.as_str(),
                attempt = info.attempt,
                outcome,
                ?took,
                "attempt ends"
            ),
            Err(error) => tracing::warn!(
                target: "queuert::attempts",
                job_id = %info.job.id,
                job_type = info.job.type_name.as_str(),
                attempt = info.attempt,
                outcome,
                ?took,
                %error,
                "attempt ends"
            ),
        }
        result
    }
}
