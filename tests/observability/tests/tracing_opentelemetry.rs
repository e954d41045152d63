//! `tracing-opentelemetry` next to `queuert-otel`: the spans of processors belong to the trace of their chain. Without it,
//! each attempt is a trace of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SimpleSpanProcessor, SpanData};
use queuert::memory::{Attempt, MemoryState};
use queuert::{Client, Event, JobType as _, JobTypes};
use queuert_otel::{Committed, Otel};
use serde::{Deserialize, Serialize};
use tracing::Instrument;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};

#[derive(Serialize, Deserialize)]
struct Work;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Work(Work),
}

struct World {
    exporter: InMemorySpanExporter,
    traces: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl World {
    /// A layer that exports every span of `tracing` that this filter admits.
    fn new(exported: Targets) -> Self {
        let exporter = InMemorySpanExporter::default();
        let traces = SdkTracerProvider::builder()
            .with_span_processor(Committed::new(SimpleSpanProcessor::new(exporter.clone())))
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(traces.tracer("application"));
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(exported));
        Self {
            exporter,
            traces,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    async fn run(&self, client: &Client<MemoryState>) -> Vec<SpanData> {
        client.start(Work).await.unwrap();
        let process = |job: Attempt<Work>| {
            let own = async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                job.finish(())
            };
            own.instrument(tracing::info_span!(target: "application", "charge the card"))
        };
        client.worker().process(process).drain().await.unwrap();
        self.traces.force_flush().unwrap();
        self.exporter.get_finished_spans().unwrap()
    }
}

fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
    assert_eq!(found.len(), 1, "{name} in {names:?}");
    found[0]
}

#[tokio::test]
async fn the_spans_of_a_processor_are_in_the_trace_of_its_chain() {
    let world = World::new(Targets::new().with_default(LevelFilter::INFO));
    let client = Client::builder(MemoryState::new())
        .observability(Otel::new(&world.traces, &SdkMeterProvider::default()))
        .build();
    let spans = world.run(&client).await;
    let roots: Vec<_> = spans
        .iter()
        .filter(|span| span.parent_span_id == SpanId::INVALID)
        .map(|span| span.name.as_ref())
        .collect();
    assert_eq!(roots.len(), 1, "one trace, with the start as its root: {roots:?}");
    let (own, attempt) = (named(&spans, "charge the card"), named(&spans, "attempt"));
    assert_eq!(own.parent_span_id, attempt.span_context.span_id());
    let process = spans
        .iter()
        .find(|span| span.span_context.span_id() == attempt.parent_span_id)
        .expect("the span of the adapter is around it");
    assert_eq!(own.span_context.trace_id(), process.span_context.trace_id());
    assert!(process.end_time >= attempt.end_time, "the outer span ends last");
}

#[tokio::test]
async fn the_span_for_log_lines_can_be_left_out_of_the_traces() {
    let exported = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("queuert::span", LevelFilter::OFF);
    let world = World::new(exported);
    let client = Client::builder(MemoryState::new())
        .observability(Otel::new(&world.traces, &SdkMeterProvider::default()))
        .build();
    let spans = world.run(&client).await;
    assert!(spans.iter().all(|span| span.name != "attempt"));
    let own = named(&spans, "charge the card");
    let process = spans
        .iter()
        .find(|span| span.span_context.span_id() == own.parent_span_id)
        .expect("the span of the adapter is around it");
    assert_eq!(own.span_context.trace_id(), process.span_context.trace_id());
}

fn attribute(span: &SpanData, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    let names: Vec<_> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    found
        .unwrap_or_else(|| panic!("{key} in {names:?}"))
        .value
        .as_str()
        .into_owned()
}

#[tokio::test]
async fn without_the_adapter_an_attempt_is_a_trace_that_says_which_job_it_was_and_how_it_ended() {
    let world = World::new(Targets::new().with_default(LevelFilter::INFO));
    let client = Client::new(MemoryState::new());
    let mut events = client.events();
    let spans = world.run(&client).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    let (own, attempt) = (named(&spans, "charge the card"), named(&spans, "attempt"));
    assert_eq!(attempt.parent_span_id, SpanId::INVALID);
    assert_eq!(own.parent_span_id, attempt.span_context.span_id());
    let chain = std::iter::from_fn(|| events.try_next()).find_map(|event| match event {
        Event::ChainCreated { chain, .. } => Some(chain),
        _ => None,
    });
    let chain = chain.expect("the chain was created");
    assert_eq!(attribute(attempt, "chain_id"), chain.to_string());
    assert_eq!(attribute(attempt, "job_id"), chain.first_job().to_string());
    assert_eq!(attribute(attempt, "job_type"), Work::NAME);
    assert_eq!(attribute(attempt, "outcome"), "finished");
}

#[tokio::test]
async fn without_the_adapter_nothing_but_the_spans_of_processors_is_exported_if_the_library_is_left_out() {
    let exported = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("queuert", LevelFilter::OFF);
    let world = World::new(exported);
    let spans = world.run(&Client::new(MemoryState::new())).await;
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(named(&spans, "charge the card").parent_span_id, SpanId::INVALID);
}
