//! Tracing: a span around every attempt, events as log lines, and the request's trace context, which the database keeps for
//! the jobs that the request started, whichever process runs them.
//!
//! `cargo run -p patterns --bin tracing` prints (ids are new each time):
//!
//! ```text
//!  INFO request{trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: chain started chain=<id> type=resize
//!  INFO attempt{job=resize chain=<id> attempt=1 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: begins
//!  WARN attempt{job=resize chain=<id> attempt=1 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: fails error=the disk is full
//!  INFO attempt{job=resize chain=<id> attempt=2 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: begins
//!  INFO attempt{job=resize chain=<id> attempt=2 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: resized width=640
//!  INFO attempt{job=resize chain=<id> attempt=2 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: ends
//!  INFO attempt{job=publish chain=<id> attempt=1 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: begins
//!  INFO attempt{job=publish chain=<id> attempt=1 trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}: ends
//!  INFO chain completed chain=<id> type=resize
//! ```
use queuert::adapter::{CommitSpan, Creation, Delivery, ObservabilityAdapter, StateAdapter};
use queuert::{AttemptContext, Event, JobResult, JobTypes, Middleware, Next};
use queuert_sqlite::{Attempt, Client, SqliteState};
use serde::{Deserialize, Serialize};
use tracing::{Instrument, error, info, info_span, warn};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Serialize, Deserialize)]
struct Resize {
    width: u32,
}

#[derive(Serialize, Deserialize)]
struct Publish;

#[derive(JobTypes)]
enum Images {
    #[job(entry, continues = [Publish], retry(initial = "20ms"))]
    Resize(Resize),
    #[job(output = ())]
    Publish(Publish),
}

tokio::task_local! {
    /// The trace context of the request or the attempt that this task works for.
    static TRACE: String;
}

/// Logs what happened to chains, and chooses the trace context that is stored with new jobs.
struct Tracing;

impl ObservabilityAdapter for Tracing {
    fn event(&self, event: &Event) {
        match event {
            Event::ChainCreated { chain, type_name } => info!(%chain, r#type = %type_name, "chain started"),
            Event::ChainCompleted { chain, type_name, .. } => info!(%chain, r#type = %type_name, "chain completed"),
            Event::JobDead { job, error, .. } => {
                error!(chain = %job.chain_id, job = %job.type_name, %error, "job died")
            }
            Event::WorkerDegraded { error, .. } => error!(%error, "the database does not answer"),
            _ => {} // there are many more
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
        TRACE.try_with(Clone::clone).ok()
    }
}

/// A span around every attempt. It is the same for every store.
struct TraceAttempts;

impl<S: StateAdapter> Middleware<S> for TraceAttempts {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let info = job.info();
        let trace = info.trace_context.clone().unwrap_or_default();
        let span = info_span!(
            "attempt",
            job = %info.job.type_name,
            chain = %info.job.chain_id,
            attempt = info.attempt,
            trace,
        );
        let attempt = async {
            info!("begins");
            let result = next.run(job).await;
            match &result {
                Ok(_) => info!("ends"),
                Err(error) => warn!(%error, "fails"),
            }
            result
        };
        // Jobs that the attempt starts or continues with belong to the same trace.
        TRACE.scope(trace, attempt.instrument(span)).await
    }
}

async fn resize(job: Attempt<Resize>) -> JobResult<SqliteState> {
    if job.number() == 1 {
        return Err("the disk is full".into());
    }
    info!(width = job.width, "resized"); // inside the span of its attempt
    job.continue_with(Publish)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The library has spans and lines of its own, with targets that begin with `queuert`: this program shows how to make
    // others.
    tracing_subscriber::fmt()
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .finish()
        .with(filter_fn(|metadata| !metadata.target().starts_with("queuert")))
        .init();
    let client = Client::builder(SqliteState::open(":memory:").await?)
        .observability(Tracing)
        .build();

    // A web framework's middleware does this: the context comes with the request, in the header `traceparent`.
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned();
    let span = info_span!("request", trace = traceparent);
    let request = async { client.start(Resize { width: 640 }).await };
    let chain = TRACE.scope(traceparent, request.instrument(span)).await?;

    let workers = client
        .worker()
        .process(resize)
        .process(|job: Attempt<Publish>| async move { job.finish(()) })
        .middleware(TraceAttempts)
        .start()
        .await?;
    client.wait(&chain).await?;
    workers.stop().await;
    Ok(())
}
