//! A receiver of OTLP over gRPC, as a collector has one: real messages over a real socket.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as trace;
use queuert::__task::{Lock, LockGuard};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Attributes as text.
pub type Attributes = BTreeMap<String, String>;

/// A span that was received.
#[derive(Clone, Debug)]
pub struct Span {
    /// The service that sent it.
    pub service: String,
    /// The instrumentation scope.
    pub scope: String,
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: trace::span::SpanKind,
    /// The trace.
    pub trace: Vec<u8>,
    /// The span.
    pub id: Vec<u8>,
    /// Its parent; empty if it has none.
    pub parent: Vec<u8>,
    /// The spans that it is linked to, with the attributes of each link.
    pub links: Vec<(Vec<u8>, Attributes)>,
    /// The attributes.
    pub attributes: Attributes,
    /// The names of its events, with their attributes.
    pub events: Vec<(String, Attributes)>,
    /// Whether it is an error, and with which message.
    pub error: Option<String>,
}

/// A point of a metric that was received.
#[derive(Clone, Debug)]
pub struct Point {
    /// The service that sent it.
    pub service: String,
    /// The metric.
    pub name: String,
    /// The attributes.
    pub attributes: Attributes,
    /// The value of a counter or gauge; of a histogram the number of values.
    pub value: f64,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    /// The latest of each service, metric and set of attributes: the counters are cumulative.
    points: BTreeMap<(String, String, Attributes), Point>,
    requests: usize,
}

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Takes everything.
    Kind,
    /// Refuses everything.
    Refusing,
    /// Takes requests and does not answer.
    Silent,
}

/// A running receiver. It ends with the runtime.
#[derive(Clone)]
pub struct Receiver {
    received: Arc<Lock<Received>>,
    changed: Arc<watch::Sender<u64>>,
    manner: Manner,
    address: SocketAddr,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// Listens on a free port.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub async fn start(manner: Manner) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let receiver = Self {
            received: Arc::default(),
            changed: Arc::new(watch::Sender::new(0)),
            manner,
            address: listener.local_addr()?,
        };
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(receiver.clone()))
            .add_service(MetricsServiceServer::new(receiver.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Ok(receiver)
    }

    /// Where exporters send to.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.received().spans.clone()
    }

    /// The latest point of each metric, service and set of attributes.
    pub fn points(&self) -> Vec<Point> {
        self.received().points.values().cloned().collect()
    }

    /// How many requests came.
    pub fn requests(&self) -> usize {
        self.received().requests
    }

    /// Waits until what was received is enough.
    pub async fn until(&self, enough: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        while !enough(self) {
            // The sender is this value's own.
            let _ = changed.changed().await;
        }
    }

    fn received(&self) -> LockGuard<'_, Received> {
        self.received.lock()
    }

    async fn take(&self, take: impl FnOnce(&mut Received)) -> Result<(), Status> {
        {
            let mut received = self.received();
            received.requests += 1;
            if self.manner == Manner::Kind {
                take(&mut received);
            }
        }
        self.changed.send_modify(|changes| *changes += 1);
        match self.manner {
            Manner::Kind => Ok(()),
            Manner::Refusing => Err(Status::permission_denied("no")),
            Manner::Silent => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let request = request.into_inner();
        let take = |received: &mut Received| {
            for of_resource in request.resource_spans {
                let service = service(of_resource.resource.as_ref());
                for of_scope in of_resource.scope_spans {
                    let scope = of_scope.scope.map(|scope| scope.name).unwrap_or_default();
                    let spans = of_scope.spans.into_iter();
                    received
                        .spans
                        .extend(spans.map(|span| read_span(span, &service, &scope)));
                }
            }
        };
        self.take(take).await?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let request = request.into_inner();
        let take = |received: &mut Received| {
            for of_resource in request.resource_metrics {
                let service = service(of_resource.resource.as_ref());
                for metric in of_resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                    for (attributes, value) in metric.data.map(read_points).unwrap_or_default() {
                        let key = (service.clone(), metric.name.clone(), attributes.clone());
                        let point = Point {
                            service: service.clone(),
                            name: metric.name.clone(),
                            attributes,
                            value,
                        };
                        received.points.insert(key, point);
                    }
                }
            }
        };
        self.take(take).await?;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn read_span(span: trace::Span, service: &str, scope: &str) -> Span {
    let kind = span.kind();
    let error = span
        .status
        .filter(|status| status.code == trace::status::StatusCode::Error as i32);
    Span {
        service: service.to_owned(),
        scope: scope.to_owned(),
        kind,
        name: span.name,
        trace: span.trace_id,
        id: span.span_id,
        parent: span.parent_span_id,
        links: span
            .links
            .into_iter()
            .map(|link| (link.span_id, attributes(&link.attributes)))
            .collect(),
        attributes: attributes(&span.attributes),
        events: span
            .events
            .into_iter()
            .map(|event| (event.name, attributes(&event.attributes)))
            .collect(),
        error: error.map(|status| status.message),
    }
}

fn read_points(data: Data) -> Vec<(Attributes, f64)> {
    let number = |point: opentelemetry_proto::tonic::metrics::v1::NumberDataPoint| {
        let value = match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            Some(number_data_point::Value::AsInt(value)) => value as f64,
            None => f64::NAN,
        };
        (attributes(&point.attributes), value)
    };
    match data {
        Data::Sum(sum) => sum.data_points.into_iter().map(number).collect(),
        Data::Gauge(gauge) => gauge.data_points.into_iter().map(number).collect(),
        Data::Histogram(histogram) => histogram
            .data_points
            .into_iter()
            .map(|point| (attributes(&point.attributes), point.count as f64))
            .collect(),
        _ => Vec::new(),
    }
}

fn service(resource: Option<&Resource>) -> String {
    let of_resource = resource.map(|resource| attributes(&resource.attributes));
    of_resource
        .and_then(|mut attributes| attributes.remove("service.name"))
        .unwrap_or_default()
}

fn attributes(attributes: &[KeyValue]) -> Attributes {
    let text = |value: Option<&AnyValue>| match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(value)) => value.to_string(),
        other => format!("{other:?}"),
    };
    attributes
        .iter()
        .map(|attribute| (attribute.key.clone(), text(attribute.value.as_ref())))
        .collect()
}

/// Waits for something that should come soon.
///
/// # Panics
///
/// If it does not.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(std::time::Duration::from_secs(60), future).await {
        Ok(value) => value,
        Err(_) => panic!("it never happens that {what}"),
    }
}
