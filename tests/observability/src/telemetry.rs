//! The telemetry of one process, exported over OTLP.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use queuert_otel::Committed;

/// The providers of a process.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// For spans.
    pub traces: SdkTracerProvider,
    /// For metrics.
    pub metrics: SdkMeterProvider,
}

impl Telemetry {
    /// Exports to `endpoint` as the service `name`, often. Call it on a runtime.
    ///
    /// # Errors
    ///
    /// If the endpoint is not one.
    pub fn export_to(endpoint: &str, name: &str) -> Result<Self, ExporterBuildError> {
        let patience = Duration::from_secs(2);
        let spans = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(patience)
            .build()?;
        let metrics = MetricExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(patience)
            .build()?;
        let resource = Resource::builder_empty()
            .with_attribute(KeyValue::new("service.name", name.to_owned()))
            .build();
        let often = BatchConfigBuilder::default()
            .with_scheduled_delay(Duration::from_millis(50))
            .with_max_queue_size(512)
            .build();
        let batches = BatchSpanProcessor::builder(spans).with_batch_config(often).build();
        let reader = PeriodicReader::builder(metrics)
            .with_interval(Duration::from_millis(100))
            .build();
        Ok(Self {
            traces: SdkTracerProvider::builder()
                .with_resource(resource.clone())
                .with_span_processor(Committed::new(batches))
                .build(),
            metrics: SdkMeterProvider::builder()
                .with_resource(resource)
                .with_reader(reader)
                .build(),
        })
    }

    /// Exports what is left, and ends. Blocks: call it where that is allowed.
    pub fn shut_down(&self) {
        // What cannot be exported is lost, which is what telemetry may be.
        let _ = self.traces.shutdown();
        let _ = self.metrics.shutdown();
    }
}
