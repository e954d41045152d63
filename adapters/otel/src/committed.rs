//! Keeps spans about writes that were rolled back from being exported.

use std::time::Duration;

use opentelemetry::{Context, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};

use crate::attributes;

/// A span processor that drops the spans of queuert whose write was rolled back, and passes all others on.
///
/// A producer span must begin before its job is written, because its context is stored with the job; whether the write
/// is committed turns out later. The SDK exports every span that was begun. Wrap your processor in this one to drop the
/// spans of rolled-back writes. Without it, they are exported with the status *error* and the attribute
/// `queuert.rolled_back`.
///
/// ```
/// use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};
/// use queuert_otel::Committed;
///
/// # let exporter = opentelemetry_sdk::trace::InMemorySpanExporter::default(); // stands for that of OTLP
/// let batches = BatchSpanProcessor::builder(exporter).build();
/// let traces = SdkTracerProvider::builder()
///     .with_span_processor(Committed::new(batches))
///     .build();
/// ```
#[derive(Clone, Debug)]
pub struct Committed<P> {
    inner: P,
}

impl<P: SpanProcessor> Committed<P> {
    /// Wraps a span processor.
    pub fn new(inner: P) -> Self {
        Self { inner }
    }
}

impl<P: SpanProcessor> SpanProcessor for Committed<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let is_ours = span.instrumentation_scope.name() == crate::SCOPE;
        let is_mark = |attribute: &opentelemetry::KeyValue| {
            attribute.key.as_str() == attributes::ROLLED_BACK && attribute.value == Value::Bool(true)
        };
        if !(is_ours && span.attributes.iter().any(is_mark)) {
            self.inner.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
