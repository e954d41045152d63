//! A service whose traces and metrics go to a collector over OTLP, and whose log lines carry the attempt they belong to.
//!
//! ```sh
//! docker run --rm -p 4317:4317 -p 16686:16686 jaegertracing/jaeger   # or any other collector
//! cargo run -p observability-otlp                                     # OTEL_EXPORTER_OTLP_ENDPOINT to send elsewhere
//! ```
//!
//! Then look for the service `orders` at <http://localhost:16686>: one trace per order, from the request to the invoice.

use std::error::Error;
use std::time::Duration;

use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};
use queuert::{JobType, JobTypes};
use queuert_otel::{Committed, Otel};
use queuert_sqlite::{Attempt, Client, JobResult, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Reserve {
    item: String,
}

#[derive(Serialize, Deserialize)]
struct Charge {
    item: String,
}

#[derive(Serialize, Deserialize)]
struct Invoice;

#[derive(JobTypes)]
enum Orders {
    #[job(entry, continues = [Charge])]
    Reserve(Reserve),
    #[job(output = u32, retry(initial = "100ms"))]
    Charge(Charge),
    #[job(entry, output = u32, blockers = [Reserve])]
    Invoice(Invoice),
}

async fn reserve(job: Attempt<Reserve>) -> JobResult {
    let item = job.item.clone();
    tracing::info!(item, "reserved");
    job.continue_with(Charge { item })
}

async fn charge(job: Attempt<Charge>) -> JobResult {
    if job.number() == 1 {
        return Err("the bank does not answer".into()); // shows as a failed attempt, and a second one
    }
    tracing::info!(item = job.item, "charged");
    job.finish(250)
}

async fn invoice(job: Attempt<Invoice>) -> JobResult {
    let total: u32 = job.blockers().iter().sum(); // linked to the traces of its blockers
    tracing::info!(total, "invoiced");
    job.finish(total)
}

/// The endpoint and the headers are read from the usual variables: `OTEL_EXPORTER_OTLP_ENDPOINT` and its like.
fn telemetry() -> Result<(SdkTracerProvider, SdkMeterProvider), Box<dyn Error>> {
    let service = Resource::builder()
        .with_attribute(KeyValue::new("service.name", "orders"))
        .build();
    let batches = BatchSpanProcessor::builder(SpanExporter::builder().with_tonic().build()?).build();
    let traces = SdkTracerProvider::builder()
        .with_resource(service.clone())
        .with_span_processor(Committed::new(batches)) // a write that is rolled back leaves no span
        .build();
    let metrics = SdkMeterProvider::builder()
        .with_resource(service)
        .with_periodic_exporter(MetricExporter::builder().with_tonic().build()?)
        .build();
    Ok((traces, metrics))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    let (traces, metrics) = telemetry()?;

    // the one line
    let client = Client::builder(SqliteState::open(":memory:").await?)
        .observability(Otel::new(&traces, &metrics))
        .build();

    let workers = client
        .worker()
        .process(reserve)
        .process(charge)
        .process(invoice)
        .concurrency(4)
        .start()
        .await?;

    // a request handler: the span that is current when a chain starts is the parent of its spans
    let request = traces.tracer("web").start("POST /orders");
    let order = async {
        let items = ["book", "lamp"].map(|item| Reserve { item: item.into() });
        client
            .transaction(async |tx| {
                let items = client.start_many(items).within(tx).await?;
                client.start(Invoice.blocked_by(&items)).within(tx).await
            })
            .await
    };
    let invoice = order.with_context(Context::new().with_span(request)).await?;
    let total = client.wait(&invoice).timeout(Duration::from_secs(30)).await?;
    tracing::info!(total, "the order is done");
    workers.stop().await;

    // exports the rest; if the collector is away, only this wait takes longer
    tokio::task::spawn_blocking(move || {
        let _ = (traces.shutdown(), metrics.shutdown());
    })
    .await?;
    Ok(())
}
