//! Tracing: a span around every request and around every attempt. The trace context that comes with a request is stored
//! with the jobs that it causes, so the logs of all processes can be put together.

use axum::extract::Request;
use axum::middleware::Next as NextHandler;
use axum::response::Response;
use queuert::adapter::{CommitSpan, Creation, Delivery, ObservabilityAdapter, StateAdapter};
use queuert::{AttemptContext, Completion, CompletionKind, Event, JobResult, Middleware, Next};
use tracing::{Instrument, error, info, info_span, warn};

tokio::task_local! {
    /// The trace context of the request or the attempt that this task works for.
    static TRACE: Option<String>;
}

/// A span around every request; the context is that of the header `traceparent`.
pub(crate) async fn trace_request(request: Request, next: NextHandler) -> Response {
    let trace = request
        .headers()
        .get("traceparent")
        .and_then(|header| header.to_str().ok());
    let trace = trace.map(str::to_owned);
    let span = info_span!("request", method = %request.method(), path = request.uri().path(), trace);
    let answer = async {
        let response = next.run(request).await;
        info!(status = response.status().as_u16(), "answers");
        response
    };
    TRACE.scope(trace, answer.instrument(span)).await
}

/// A span around every attempt, whatever the store.
pub(crate) struct TraceAttempts;

impl<S: StateAdapter> Middleware<S> for TraceAttempts {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let info = job.info();
        let trace = info.trace_context.clone();
        let span = info_span!(
            "attempt",
            job = %info.job.type_name,
            chain = %info.job.chain_id,
            attempt = info.attempt,
            worker = %info.worker,
            trace,
        );
        let attempt = async {
            let result = next.run(job).await;
            match result.as_ref().map(Completion::kind) {
                Ok(CompletionKind::Continue { next_type, .. }) => info!(next = %next_type, "continues"),
                Ok(CompletionKind::Snooze) => info!("snoozes"),
                Ok(_) => info!("finishes"),
                Err(error) => warn!(%error, "fails"),
            }
            result
        };
        TRACE.scope(trace, attempt.instrument(span)).await
    }
}

/// Gives new jobs their trace context, and logs the events that an operator should know.
pub(crate) struct Tracing;

impl ObservabilityAdapter for Tracing {
    fn event(&self, event: &Event) {
        match event {
            Event::JobReaped { job, owner, .. } => {
                warn!(chain = %job.chain_id, job = %job.type_name, %owner, "taken from a worker that went silent");
            }
            Event::JobDead { job, error, .. } => error!(chain = %job.chain_id, job = %job.type_name, %error, "died"),
            Event::WorkerDegraded { error, .. } => error!(%error, "the database does not answer"),
            Event::WorkerRecovered { .. } => info!("the database answers again"),
            Event::NotifyFailed { error, .. } => warn!(%error, "wake-ups fail, so jobs are found by polling"),
            _ => {}
        }
    }

    /// The events become lines in the spans of the code that causes them, so the library must call this adapter directly.
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn creation_span(&self, _: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        Some(Box::new(Self))
    }
}

impl CommitSpan for Tracing {
    fn trace_context(&self) -> Option<String> {
        TRACE.try_with(Clone::clone).ok().flatten()
    }
}
