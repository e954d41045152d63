//! Reports panics of processors.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use futures_util::FutureExt;

use crate::adapter::StateAdapter;
use crate::event::AttemptInfo;
use crate::worker::{AttemptContext, JobResult, Middleware, Next, panic_message};

/// Calls a function for each panic in the inner layers, for example to send it to a service that collects crashes. The
/// attempt fails as it would without this middleware. A panic in the function itself is caught.
///
/// ```
/// use queuert::middleware::ReportPanics;
///
/// let reporter = ReportPanics::new(|panic| eprintln!("{} of {}", panic.message, panic.attempt.job.type_name));
/// ```
#[derive(Clone)]
pub struct ReportPanics {
    report: Arc<dyn Fn(&PanicReport<'_>) + Send + Sync>,
}

/// A panic in an attempt.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PanicReport<'a> {
    /// The attempt that panicked.
    pub attempt: &'a AttemptInfo,
    /// The message of the panic. Only the panic hook knows the location.
    pub message: &'a str,
}

impl fmt::Display for PanicReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttemptInfo { job, attempt, .. } = self.attempt;
        let (id, type_name, message) = (job.id, &job.type_name, self.message);
        write!(
            f,
            "attempt {attempt} of job {id} of type {type_name} panicked: {message}"
        )
    }
}

impl ReportPanics {
    /// Calls `report` for each panic, on the thread on which it happened. The function must not block.
    pub fn new(report: impl Fn(&PanicReport<'_>) + Send + Sync + 'static) -> Self {
        Self {
            report: Arc::new(report),
        }
    }

    /// Logs each panic as an error.
    pub fn logged() -> Self {
        Self::new(|panic| tracing::error!(target: "queuert", "{panic}"))
    }
}

impl fmt::Debug for ReportPanics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportPanics").finish_non_exhaustive()
    }
}

impl<S: StateAdapter> Middleware<S> for ReportPanics {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        match AssertUnwindSafe(next.run(job)).catch_unwind().await {
            Ok(result) => result,
            Err(panic) => {
                let report = PanicReport {
                    attempt: job.info(),
                    message: panic_message(&*panic),
                };
                let _ = catch_unwind(AssertUnwindSafe(|| (self.report)(&report)));
                // The worker counts it as the failure that it is.
                resume_unwind(panic)
            }
        }
    }
}
