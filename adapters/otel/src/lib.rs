//! OpenTelemetry for queuert: traces that follow a chain across processes, machines and days, and metrics.
//!
//! ```
//! use opentelemetry_sdk::metrics::SdkMeterProvider;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use queuert::Client;
//! use queuert::memory::MemoryState;
//! use queuert_otel::Otel;
//!
//! let (traces, metrics) = (SdkTracerProvider::default(), SdkMeterProvider::default()); // yours, with exporters
//! let client = Client::builder(MemoryState::new())
//!     .observability(Otel::new(&traces, &metrics))
//!     .build();
//! ```
//!
//! # Traces
//!
//! The spans follow the semantic conventions for messaging: a `PRODUCER` span for each job that is created, by a start or
//! by a continuation; a `CONSUMER` span for each attempt, the child of the job's producer, with links to the producers of
//! the job's blockers; an `INTERNAL` span for a completion from outside. The W3C context of the producer is stored with the
//! job, so the trace continues in the process that runs the job, however late. A processor's own spans are children of its
//! attempt.
//!
//! The SDK exports every span that was begun, also the span of a write that is rolled back. Wrap each of your span
//! processors in [`Committed`], which drops such spans.
//!
//! # Metrics
//!
//! A counter for every event, histograms of durations and waits, gauges of workers and queues. No attribute holds an id.
//! The names are in `docs/observability.md` of the repository.
//!
//! # Exporters
//!
//! Nothing here waits for an exporter. Use the SDK's batch processor and periodic reader: they have threads of their
//! own and bounded queues, so an exporter that is down, slow or refuses costs telemetry and no job. The SDK's *simple*
//! span processor exports where the span ends, and is for tests.

mod attributes;
mod committed;
mod context;
mod instruments;
mod metrics;
mod queues;
mod spans;
mod types;

pub use committed::Committed;

use std::fmt;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::{Tracer, TracerProvider};
use queuert::Event;
use queuert::adapter::{
    AttemptSpan, AttemptStart, CommitSpan, Creation, Delivery, ObservabilityAdapter, OutsideCompletion,
};

use metrics::Metrics;
use spans::{HeldSpan, RunningSpan};

/// The instrumentation scope of everything that is recorded.
const SCOPE: &str = "queuert";

const SAMPLE_EVERY: Duration = Duration::from_secs(15);

/// Records what a client and its workers do as traces and metrics.
pub struct Otel<T> {
    tracer: T,
    metrics: Metrics,
    sample_every: Option<Duration>,
}

impl<T> Otel<T> {
    /// Records with these providers. A meter provider other than the SDK's must be able to bind instruments to attributes
    /// (`SyncInstrument::bind`); the default of that method records nothing.
    pub fn new<P>(traces: &P, metrics: &impl MeterProvider) -> Self
    where
        P: TracerProvider<Tracer = T>,
    {
        Self::with(traces.tracer_with_scope(scope()), &metrics.meter_with_scope(scope()))
    }

    fn with(tracer: T, meter: &Meter) -> Self {
        Self {
            tracer,
            metrics: Metrics::new(meter),
            sample_every: Some(SAMPLE_EVERY),
        }
    }

    /// Sets how often workers sample the queues, for the gauges of queues. A sample costs the store one short read, whose
    /// cost does not grow with the backlog. Default: every 15 seconds.
    #[must_use]
    pub fn sample_queues_every(mut self, interval: Duration) -> Self {
        self.sample_every = Some(interval);
        self
    }

    /// Switches the sampling of queues off. Default: on.
    #[must_use]
    pub fn without_queue_samples(mut self) -> Self {
        self.sample_every = None;
        self
    }
}

impl Otel<BoxedTracer> {
    /// Records with the global providers, as they are now.
    pub fn global() -> Self {
        Self::with(global::tracer_with_scope(scope()), &global::meter_with_scope(scope()))
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder(SCOPE)
        .with_version(env!("CARGO_PKG_VERSION"))
        .build()
}

impl<T> fmt::Debug for Otel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otel")
            .field("sample_every", &self.sample_every)
            .finish_non_exhaustive()
    }
}

impl<T> ObservabilityAdapter for Otel<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    fn event(&self, event: &Event) {
        self.metrics.record(event);
    }

    /// The instruments of the SDK and its batching processors do not block.
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn creation_span(&self, creation: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        Some(Box::new(HeldSpan::creation(
            &self.tracer,
            self.metrics.types(),
            creation,
        )))
    }

    fn completion_span(&self, completion: &OutsideCompletion<'_>) -> Option<Box<dyn CommitSpan>> {
        let types = self.metrics.types();
        Some(Box::new(HeldSpan::completion(&self.tracer, types, completion)))
    }

    fn attempt_span(&self, start: &AttemptStart<'_>) -> Option<Box<dyn AttemptSpan>> {
        let (types, running) = (self.metrics.types(), self.metrics.running());
        Some(Box::new(RunningSpan::new(&self.tracer, types, start, running)))
    }

    fn sample_queues_every(&self) -> Option<Duration> {
        self.sample_every
    }
}
