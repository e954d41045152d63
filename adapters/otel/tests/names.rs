//! The table of metrics in `docs/observability.md` says what is emitted, no more and no less.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, InMemoryMetricExporterBuilder, SdkMeterProvider, Temporality,
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use queuert::adapter::{Delivery, ObservabilityAdapter, QueueSample, ReapCause};
use queuert::memory::{Attempt, MemoryState};
use queuert::{AbortReason, AttemptOutcome, ChainId, Client, Event, JobTypes, Timestamp, TypeName, WorkerId};
use queuert_otel::Otel;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Work;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = ())]
    Work(Work),
}

/// Kind, unit and attributes.
type Described = (String, String, BTreeSet<String>);

/// The table of the document.
fn documented() -> BTreeMap<String, Described> {
    let text = include_str!("../../../docs/observability.md");
    let code = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let mut table = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `queuert.")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, attributes] = cells[..] else {
            panic!("not a row of the table: {line}");
        };
        let described = (
            kind.to_owned(),
            code(unit).concat(),
            code(attributes).into_iter().collect(),
        );
        assert!(table.insert(code(name).concat(), described).is_none(), "twice: {line}");
    }
    table
}

fn emitted(metrics: &[ResourceMetrics]) -> BTreeMap<String, Described> {
    let mut table = BTreeMap::new();
    let scopes = metrics.iter().flat_map(ResourceMetrics::scope_metrics);
    for metric in scopes.flat_map(|scope| scope.metrics()) {
        let (kind, attributes) = match metric.data() {
            AggregatedMetrics::U64(data) => described(data),
            AggregatedMetrics::F64(data) => described(data),
            AggregatedMetrics::I64(data) => described(data),
        };
        table.insert(
            metric.name().to_owned(),
            (kind.to_owned(), metric.unit().to_owned(), attributes),
        );
    }
    table
}

fn described<T: Copy>(data: &MetricData<T>) -> (&'static str, BTreeSet<String>) {
    let mut keys = BTreeSet::new();
    let mut add = |attribute: &opentelemetry::KeyValue| {
        keys.insert(attribute.key.to_string());
    };
    let kind = match data {
        MetricData::Sum(sum) => {
            assert!(sum.is_monotonic());
            sum.data_points()
                .for_each(|point| point.attributes().for_each(&mut add));
            "counter"
        }
        MetricData::Gauge(gauge) => {
            gauge
                .data_points()
                .for_each(|point| point.attributes().for_each(&mut add));
            "gauge"
        }
        MetricData::Histogram(histogram) => {
            histogram
                .data_points()
                .for_each(|point| point.attributes().for_each(&mut add));
            "histogram"
        }
        MetricData::ExponentialHistogram(_) => "exponential histogram",
    };
    (kind, keys)
}

/// Every event there is, made of those of one real job.
async fn every_event() -> Vec<Event> {
    let client = Client::new(MemoryState::new());
    let mut events = client.events();
    client.start(Work).await.unwrap();
    let worker = client
        .worker()
        .process(|job: Attempt<Work>| async move { job.finish(()) });
    worker.drain().await.unwrap();
    let mut all: Vec<Event> = std::iter::from_fn(|| events.try_next()).collect();
    let attempt = all.iter().find_map(|event| match event {
        Event::AttemptStarted(attempt) => Some(attempt.clone()),
        _ => None,
    });
    let attempt = attempt.unwrap();
    let (job, worker) = (attempt.job.clone(), WorkerId::new("w"));
    let (chain, type_name) = (job.chain_id, job.type_name.clone());
    let duration = Some(Duration::from_secs(1));
    let ended = |outcome| Event::AttemptEnded {
        attempt: attempt.clone(),
        outcome,
        duration: Duration::from_secs(1),
    };
    let error = || "error".to_owned();
    let samples = vec![QueueSample {
        type_name: type_name.clone(),
        ready: 3,
        oldest: duration,
    }];
    all.extend([
        Event::WorkerStarted {
            worker: worker.clone(),
            concurrency: 4,
        },
        Event::WorkerDegraded {
            worker: worker.clone(),
            error: "error".into(),
        },
        Event::WorkerRecovered { worker: worker.clone() },
        Event::WorkerStopping { worker: worker.clone() },
        Event::WorkerStopped {
            worker: WorkerId::new("another"),
        },
        Event::ChainDeduplicated {
            chain,
            type_name: type_name.clone(),
        },
        Event::ChainDead {
            chain,
            type_name: type_name.clone(),
            duration,
        },
        Event::ChainCancelled {
            chain,
            type_name: type_name.clone(),
            duration,
        },
        Event::ChainRetried {
            chain,
            type_name: type_name.clone(),
        },
        Event::ChainDeleted {
            chain,
            type_name: type_name.clone(),
        },
        Event::JobBlocked(job.clone()),
        Event::JobUnblocked {
            job: job.id,
            chain,
            type_name,
        },
        Event::JobTriggered(job.clone()),
        Event::JobDead {
            job: job.clone(),
            error: error(),
            duration,
        },
        Event::JobCancelled(job.clone()),
        Event::JobReaped {
            job,
            owner: worker.clone(),
            expired_at: Timestamp::from_micros(0),
            cause: ReapCause::LeaseExpired,
            worker: worker.clone(),
        },
        Event::AttemptTimedOut {
            attempt: attempt.clone(),
            timeout: Duration::from_secs(1),
        },
        ended(AttemptOutcome::Continued {
            next: attempt.job.id,
            next_type: "next".into(),
        }),
        ended(AttemptOutcome::Failed {
            error: error(),
            retry_in: None,
            by_store: false,
        }),
        ended(AttemptOutcome::Died { error: error() }),
        ended(AttemptOutcome::Snoozed),
        ended(AttemptOutcome::Aborted(AbortReason::Cancelled)),
        Event::LeaseRenewed {
            attempt: attempt.clone(),
            until: Timestamp::from_micros(0),
        },
        Event::LeaseLost {
            attempt: attempt.clone(),
            reason: AbortReason::Cancelled,
        },
        Event::StateFailed {
            operation: "claim",
            error: "error".into(),
        },
        Event::MaintenanceFinding {
            worker: worker.clone(),
            finding: "finding".into(),
        },
        Event::NotifyFailed {
            operation: "announce",
            error: "error".into(),
        },
        Event::QueuesSampled { worker, samples },
        Event::Advice {
            advice: "advice".into(),
        },
        Event::EventsMissed { count: 2 },
    ]);
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_says_what_is_emitted() {
    let exporter = InMemoryMetricExporter::default();
    let metrics = SdkMeterProvider::builder()
        .with_periodic_exporter(exporter.clone())
        .build();
    let otel = Otel::new(&SdkTracerProvider::default(), &metrics);
    assert_eq!(otel.delivery(), Delivery::Inline);
    for event in every_event().await {
        otel.event(&event);
    }
    metrics.force_flush().unwrap();
    let emitted = emitted(&exporter.get_finished_metrics().unwrap());
    let documented = documented();
    assert!(documented.len() > 35, "the table is found");
    assert_eq!(emitted, documented);
}

/// Every series of counters and of histograms with its attributes and its count.
fn counted(exporter: &InMemoryMetricExporter) -> BTreeMap<String, u64> {
    let key = |name: &str, attributes: &mut dyn Iterator<Item = &opentelemetry::KeyValue>| {
        let values: BTreeSet<String> = attributes.map(|attribute| attribute.value.to_string()).collect();
        format!("{name} {values:?}")
    };
    let mut series = BTreeMap::new();
    let collected = exporter.get_finished_metrics().unwrap();
    for metric in collected
        .iter()
        .flat_map(ResourceMetrics::scope_metrics)
        .flat_map(|scope| scope.metrics())
    {
        match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => series.extend(
                sum.data_points()
                    .map(|point| (key(metric.name(), &mut point.attributes()), point.value())),
            ),
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => series.extend(
                histogram
                    .data_points()
                    .map(|point| (key(metric.name(), &mut point.attributes()), point.count())),
            ),
            _ => {}
        }
    }
    series
}

/// That a series was bound before changes nothing in what is exported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_series_counts_what_was_of_its_type() {
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        let exporter = InMemoryMetricExporterBuilder::new()
            .with_temporality(temporality)
            .build();
        let metrics = SdkMeterProvider::builder()
            .with_periodic_exporter(exporter.clone())
            .build();
        let otel = Otel::new(&SdkTracerProvider::default(), &metrics);
        let chain: ChainId = "00000000-0000-0000-0000-000000000000".parse().unwrap();
        let record = |type_name: TypeName, duration: Option<Duration>| {
            otel.event(&Event::ChainCompleted {
                chain,
                type_name,
                duration,
            });
        };
        // Of whatever memory the name is.
        record("first".into(), Some(Duration::from_secs(1)));
        record("first".to_owned().into(), None);
        record("second".into(), None);
        metrics.force_flush().unwrap();
        let expected = |first: u64, second: u64, durations: u64| {
            BTreeMap::from([
                ("queuert.chain.completed {\"first\"}".to_owned(), first),
                ("queuert.chain.completed {\"second\"}".to_owned(), second),
                (
                    "queuert.chain.duration {\"completed\", \"first\"}".to_owned(),
                    durations,
                ),
            ])
        };
        assert_eq!(counted(&exporter), expected(2, 1, 1), "{temporality:?}");
        exporter.reset();
        record("first".into(), None);
        metrics.force_flush().unwrap();
        let mut second = expected(3, 1, 1);
        if temporality == Temporality::Delta {
            second = expected(1, 0, 0);
            second.retain(|_, count| *count > 0);
        }
        assert_eq!(counted(&exporter), second, "{temporality:?}");
    }
}
