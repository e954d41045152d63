//! A time limit for the inner layers.

use std::time::Duration;

use crate::adapter::StateAdapter;
use crate::job::TypeName;
use crate::job_type::JobType;
use crate::worker::{AttemptContext, JobResult, Middleware, Next};

/// Fails attempts whose inner layers take too long: they are dropped, the attempt's signal fires with
/// [`TimedOut`](crate::AbortReason::TimedOut), and the failure counts like any other.
///
/// A timeout of the job type or the worker covers the whole attempt. This one covers the layers inside it, so that the
/// time that an outer middleware spends, for example waiting for a limit, does not count.
#[derive(Clone, Debug)]
#[must_use]
pub struct Timeout {
    limit: Option<Duration>,
    of_types: Vec<(TypeName, Duration)>,
}

impl Timeout {
    /// The same limit for all job types.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            of_types: Vec::new(),
        }
    }

    /// A limit for one job type, and none for others.
    pub fn of<J: JobType>(limit: Duration) -> Self {
        Self {
            limit: None,
            of_types: vec![(J::NAME.into(), limit)],
        }
    }

    /// Sets another limit for one job type. Default: the limit for all types, if there is one.
    pub fn and_of<J: JobType>(mut self, limit: Duration) -> Self {
        self.of_types.push((J::NAME.into(), limit));
        self
    }

    fn limit_of(&self, type_name: &TypeName) -> Option<Duration> {
        let own = self.of_types.iter().rev().find(|(name, _)| name == type_name);
        own.map(|(_, limit)| *limit).or(self.limit)
    }
}

impl<S: StateAdapter> Middleware<S> for Timeout {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let Some(limit) = self.limit_of(&job.info().job.type_name) else {
            return next.run(job).await;
        };
        match tokio::time::timeout(limit, next.run(job)).await {
            Ok(result) => result,
            Err(_) => {
                job.shared.timed_out(limit);
                Err(format!("timed out after {limit:?}").into())
            }
        }
    }
}
