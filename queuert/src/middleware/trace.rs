//! A span of the user's own around attempts.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use tracing::Span;

use super::outcome;
use crate::adapter::StateAdapter;
use crate::event::AttemptInfo;
use crate::worker::{AttemptContext, JobResult, Middleware, Next};

/// Runs the inner layers in a `tracing` span.
///
/// Workers already enter a span named `attempt` around each attempt. This span is inside it, for another name, level or
/// fields, or to see which of several middlewares took the time.
///
/// ```
/// use queuert::middleware::TraceAttempts;
///
/// let by_default = TraceAttempts::new();
/// let own = TraceAttempts::with(|attempt| {
///     tracing::debug_span!("mailing", job = %attempt.job.id, outcome = tracing::field::Empty)
/// });
/// ```
#[derive(Clone)]
pub struct TraceAttempts {
    span: Arc<dyn Fn(&AttemptInfo) -> Span + Send + Sync>,
}

impl TraceAttempts {
    /// A span named `process` with the job type, the number of the attempt and, at the end, the outcome.
    pub fn new() -> Self {
        Self::with(|attempt| {
            tracing::info_span!(
                target: "queuert",
                "process",
                job_type = attempt.job.type_name.as_str(),
                attempt = attempt.attempt,
                outcome = tracing::field::Empty,
            )
        })
    }

    /// A span of your own. If it has a field `outcome`, it is set at the end: `finished`, `continued`, `snoozed`,
    /// `failed` or `aborted`.
    pub fn with(span: impl Fn(&AttemptInfo) -> Span + Send + Sync + 'static) -> Self {
        Self { span: Arc::new(span) }
    }
}

impl Default for TraceAttempts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TraceAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceAttempts").finish_non_exhaustive()
    }
}

impl<S: StateAdapter> Middleware<S> for TraceAttempts {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let span = (self.span)(job.info());
        let result = {
            let mut inside = pin!(next.run(job));
            poll_fn(|cx| {
                let _entered = span.enter();
                inside.as_mut().poll(cx)
            })
            .await
        };
        span.record("outcome", outcome(&result));
        result
    }
}
