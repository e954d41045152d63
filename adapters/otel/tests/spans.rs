//! What the SDK is given to export, in one process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use opentelemetry::trace::{FutureExt, SpanId, SpanKind, Status, TraceContextExt, TraceId, Tracer, TracerProvider};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SimpleSpanProcessor, SpanData};
use queuert::memory::{Attempt, MemoryState};
use queuert::{Client, Error, JobTypes};
use queuert_otel::{Committed, Otel};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct First;

#[derive(Serialize, Deserialize)]
struct Second;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, continues = [Second])]
    First(First),
    #[job(output = (), retry(max_attempts = 1))]
    Second(Second),
}

fn traced(sampler: Sampler) -> (InMemorySpanExporter, SdkTracerProvider, Client<MemoryState>) {
    let exporter = InMemorySpanExporter::default();
    let traces = SdkTracerProvider::builder()
        .with_sampler(sampler)
        .with_span_processor(Committed::new(SimpleSpanProcessor::new(exporter.clone())))
        .build();
    let client = client(&traces);
    (exporter, traces, client)
}

fn client(traces: &SdkTracerProvider) -> Client<MemoryState> {
    Client::builder(MemoryState::new())
        .observability(Otel::new(traces, &SdkMeterProvider::default()))
        .build()
}

fn names(spans: &[SpanData]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_ref()).collect()
}

fn attribute<'a>(span: &'a SpanData, key: &str) -> Option<&'a Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| &attribute.value)
}

async fn drain(client: &Client<MemoryState>) {
    client
        .worker()
        .process(|job: Attempt<First>| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            job.continue_with(Second)
        })
        .process(|_: Attempt<Second>| async move { Err("never".into()) })
        .drain()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_chain_is_one_trace_and_a_death_is_an_error() {
    let (exporter, _, client) = traced(Sampler::AlwaysOn);
    client.start(First).await.unwrap();
    drain(&client).await;
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(
        names(&spans),
        ["create first", "create second", "process first", "process second"]
    );
    let [create, next, first, second] = &spans[..] else {
        unreachable!()
    };
    assert_eq!(create.parent_span_id, SpanId::INVALID);
    assert_eq!(first.parent_span_id, create.span_context.span_id());
    assert_eq!(next.parent_span_id, first.span_context.span_id());
    assert_eq!(second.parent_span_id, next.span_context.span_id());
    assert!(
        spans
            .iter()
            .all(|span| span.span_context.trace_id() == create.span_context.trace_id())
    );
    assert_eq!(
        (create.span_kind.clone(), first.span_kind.clone()),
        (SpanKind::Producer, SpanKind::Consumer)
    );
    assert_eq!(second.status, Status::error("never"));
    assert_eq!(attribute(second, "queuert.outcome"), Some(&Value::from("died")));
    assert_eq!(attribute(second, "error.type"), Some(&Value::from("died")));
}

#[tokio::test]
async fn what_is_rolled_back_leaves_no_span() {
    let (exporter, _, client) = traced(Sampler::AlwaysOn);
    let mut tx = client.begin().await.unwrap();
    client.start(First).within(&mut tx).await.unwrap();
    let undone = tx.savepoint(async |tx| {
        client.start_many([First, First]).within(tx).await?;
        Err::<(), Error>(Error::NoProcessor)
    });
    undone.await.unwrap_err();
    assert!(
        exporter.get_finished_spans().unwrap().is_empty(),
        "nothing before the commit"
    );
    tx.commit().await.unwrap();
    assert_eq!(names(&exporter.get_finished_spans().unwrap()), ["create first"]);
    let mut tx = client.begin().await.unwrap();
    client.start(First).within(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(exporter.get_finished_spans().unwrap().len(), 1);
}

#[tokio::test]
async fn a_processor_that_is_not_wrapped_sees_what_was_rolled_back_as_an_error() {
    let exporter = InMemorySpanExporter::default();
    let traces = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let client = client(&traces);
    let mut tx = client.begin().await.unwrap();
    client.start(First).within(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(attribute(&spans[0], "queuert.rolled_back"), Some(&Value::Bool(true)));
    assert_eq!(spans[0].status, Status::error("rolled back"));
}

#[tokio::test]
async fn a_decision_against_sampling_is_carried_on() {
    let (exporter, traces, client) = traced(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
    let chain = client.start(First).await.unwrap();
    drain(&client).await;
    assert!(exporter.get_finished_spans().unwrap().is_empty());
    let jobs = client.list_chain_jobs(&chain).await.unwrap().items;
    let contexts: Vec<_> = jobs.iter().map(|job| job.trace_context.as_deref().unwrap()).collect();
    assert_eq!(contexts.len(), 2);
    assert!(
        contexts
            .iter()
            .all(|context| context.ends_with("-00") && context[..35] == contexts[0][..35])
    );
    // A caller who is sampled decides for the chain.
    let remote = opentelemetry::trace::SpanContext::new(
        TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap(),
        SpanId::from_hex("b7ad6b7169203331").unwrap(),
        opentelemetry::trace::TraceFlags::SAMPLED,
        true,
        opentelemetry::trace::TraceState::default(),
    );
    let parent = Context::new().with_remote_span_context(remote);
    let request = parent.with_span(traces.tracer("web").start_with_context("request", &parent));
    client.start(First).into_future().with_context(request).await.unwrap();
    drain(&client).await;
    let spans = exporter.get_finished_spans().unwrap();
    assert!(names(&spans).contains(&"process second"), "{:?}", names(&spans));
}

#[tokio::test]
async fn a_processors_own_spans_are_children_of_its_attempt() {
    let (exporter, traces, client) = traced(Sampler::AlwaysOn);
    client.start(First).await.unwrap();
    let tracer = traces.tracer("mine");
    client
        .worker()
        .process(move |job: Attempt<First>| {
            let tracer = tracer.clone();
            async move {
                tokio::task::yield_now().await;
                tracer.in_span("inside", |_| ());
                job.continue_with(Second)
            }
        })
        .drain()
        .await
        .unwrap();
    assert!(!Context::current().has_active_span(), "nothing is left current");
    let spans = exporter.get_finished_spans().unwrap();
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    assert_eq!(
        named("inside").parent_span_id,
        named("process first").span_context.span_id()
    );
}

#[tokio::test]
async fn inside_an_attempt_that_is_not_sampled_its_context_is_current() {
    let (exporter, traces, client) = traced(Sampler::AlwaysOff);
    let chain = client.start(First).await.unwrap();
    let (seen, told) = std::sync::mpsc::channel();
    client
        .worker()
        .process(move |job: Attempt<First>| {
            let seen = seen.clone();
            async move {
                tokio::task::yield_now().await;
                seen.send(Context::current().span().span_context().clone()).unwrap();
                job.continue_with(Second)
            }
        })
        .drain()
        .await
        .unwrap();
    let seen = told.recv().unwrap();
    let jobs = client.list_chain_jobs(&chain).await.unwrap().items;
    let created = jobs[0].trace_context.as_deref().unwrap();
    assert!(seen.is_valid() && !seen.is_sampled() && !seen.is_remote());
    assert_eq!(
        seen.trace_id().to_string(),
        created[3..35],
        "it is the trace of the job"
    );
    assert_ne!(seen.span_id().to_string(), created[36..52], "and a span of its own");
    drop(traces);
    assert!(exporter.get_finished_spans().unwrap().is_empty());
}
