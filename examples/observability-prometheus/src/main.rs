//! A service whose metrics are scraped by Prometheus at `/metrics`.
//!
//! ```sh
//! cargo run -p observability-prometheus -- 127.0.0.1:9464   # then: curl http://127.0.0.1:9464/metrics
//! ```
//!
//! `docs/grafana-queuert.json` is a dashboard over what is scraped.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prometheus::{Encoder, Registry, TextEncoder};
use queuert::JobTypes;
use queuert_otel::Otel;
use queuert_sqlite::{Attempt, Client, SqliteState};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Resize {
    picture: u32,
}

#[derive(JobTypes)]
enum Pictures {
    #[job(entry, output = (), retry(initial = "100ms"))]
    Resize(Resize),
}

/// The metrics as text for Prometheus.
fn scrape(registry: &Registry) -> Result<(String, Vec<u8>), prometheus::Error> {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    encoder.encode(&registry.gather(), &mut text)?;
    Ok((encoder.format_type().to_owned(), text))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9464".to_owned());

    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        .build()?;
    let metrics = SdkMeterProvider::builder().with_reader(exporter).build();
    // No exporter of spans: they cost next to nothing then.
    let traces = SdkTracerProvider::builder().build();

    let otel = Otel::new(&traces, &metrics).sample_queues_every(Duration::from_secs(5));
    let client = Client::builder(SqliteState::open(":memory:").await?)
        .observability(otel)
        .build();
    let workers = client
        .worker()
        .process(|job: Attempt<Resize>| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if job.picture.is_multiple_of(10) && job.number() == 1 {
                return Err("the picture is upside down".into());
            }
            job.finish(())
        })
        .concurrency(4)
        .start()
        .await?;
    client.start_many((1..=100).map(|picture| Resize { picture })).await?;

    let metrics_page = move || async move {
        match scrape(&registry) {
            Ok((format, text)) => Ok(([(CONTENT_TYPE, format)], text)),
            Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        }
    };
    let listener = tokio::net::TcpListener::bind(address).await?;
    writeln!(
        std::io::stdout(),
        "metrics at http://{}/metrics",
        listener.local_addr()?
    )?;
    let server = axum::serve(listener, Router::new().route("/metrics", get(metrics_page)));
    server
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    workers.stop().await;
    Ok(())
}
