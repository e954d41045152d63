//! A chain over two worker processes on Postgres, seen from a receiver of OTLP.

use std::collections::BTreeMap;
use std::process::Stdio;

use observability_tests::orders::{Approve, Check, Invoice, Pack};
use observability_tests::receiver::{Manner, Receiver, Span, soon};
use observability_tests::telemetry::Telemetry;
use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use queuert::{Client, JobType};
use queuert_otel::Otel;
use queuert_postgres::PostgresState;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::{Child, Command};

fn worker(name: &str, part: &str, database: &str, schema: &str, endpoint: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_observed-worker"))
        .args([name, part, database, schema, endpoint])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the worker process starts")
}

/// Lets a worker process stop, and waits until it has exported everything.
async fn stop(mut worker: Child) {
    drop(worker.stdin.take());
    let status = soon("a worker stops", worker.wait())
        .await
        .expect("it can be waited for");
    assert!(status.success(), "{status}");
}

struct Spans(Vec<Span>);

impl Spans {
    fn named(&self, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.name == name).collect()
    }

    #[track_caller]
    fn one(&self, name: &str) -> &Span {
        let named = self.named(name);
        assert_eq!(named.len(), 1, "{name}: {:#?}", self.0);
        named[0]
    }
}

#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(
            span.attributes.get(*key).map(String::as_str),
            Some(*value),
            "{key} of {span:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_over_two_processes_is_one_trace() {
    let receiver = Receiver::start(Manner::Kind).await.expect("there is a free port");
    let endpoint = receiver.endpoint();
    let database = postgres_support::server_url().await;
    let schema = postgres_support::unique_name("queuert_test");
    let telemetry = Telemetry::export_to(&endpoint, "web").expect("the endpoint is one");
    let state = PostgresState::options()
        .schema(&schema)
        .max_connections(4)
        .connect(&database)
        .await;
    let otel = Otel::new(&telemetry.traces, &telemetry.metrics);
    let client = Client::builder(state.expect("the test server can be used"))
        .observability(otel)
        .build();

    // A request comes in, and starts what is to be done in one transaction; another one is rolled back.
    let tracer = telemetry.traces.tracer("web");
    let request = Context::new().with_span(tracer.start_with_context("POST /orders", &Context::new()));
    let started = opentelemetry::trace::FutureExt::with_context(
        async {
            let mut tx = client.begin().await?;
            client.start(Pack).within(&mut tx).await?;
            tx.rollback().await?;
            let mut tx = client.begin().await?;
            let check = client.start(Check { good: true }).within(&mut tx).await?;
            let pack = client.start(Pack).within(&mut tx).await?;
            let approve = client.start(Approve).within(&mut tx).await?;
            let invoice = client
                .start(Invoice.blocked_by((&pack, &approve)))
                .within(&mut tx)
                .await?;
            tx.commit().await?;
            Ok::<_, queuert::Error>((check, pack, approve, invoice))
        },
        request.clone(),
    );
    let (check, pack, approve, invoice) = started.await.expect("the chains start");
    request.span().end();

    let first = worker("first", "first", &database, &schema, &endpoint);
    let second = worker("second", "second", &database, &schema, &endpoint);
    let shipped = soon("the order is shipped", client.wait(&check).into_future()).await;
    assert_eq!(shipped.expect("it is read"), "shipped");
    // Before the approval, so that it is that which unblocks the invoice.
    let packed = soon("the order is packed", client.wait(&pack).into_future()).await;
    assert_eq!(packed.expect("it is read"), 3);

    // Somebody approves, in another request.
    let approval = Context::new().with_span(tracer.start_with_context("POST /approvals", &Context::new()));
    let approved = opentelemetry::trace::FutureExt::with_context(
        client.transaction(async |tx| client.open::<Approve>(&approve).within(tx).await?.finish(true).await),
        approval.clone(),
    );
    approved.await.expect("it is approved");
    approval.span().end();
    let total = soon("the invoice is written", client.wait(&invoice).into_future()).await;
    assert_eq!(total.expect("it is read"), 30);

    // The gauges of a running worker, before it stops.
    soon("a worker tells how many idle", async {
        let idle = |receiver: &Receiver| {
            let mut points = receiver.points().into_iter();
            points.any(|point| point.service == "first" && point.name == "queuert.worker.idle" && point.value == 3.0)
        };
        receiver.until(idle).await;
    })
    .await;
    stop(first).await;
    stop(second).await;
    tokio::task::spawn_blocking(move || telemetry.shut_down())
        .await
        .expect("telemetry ends");

    check_spans(
        &Spans(receiver.spans()),
        &check.id().to_string(),
        &check.id().first_job().to_string(),
    );
    check_metrics(&receiver);
    let mut connection = PgConnection::connect(&database)
        .await
        .expect("the test server can be reached");
    let drop_schema = format!("DROP SCHEMA {schema} CASCADE");
    drop(client);
    sqlx::raw_sql(AssertSqlSafe(drop_schema))
        .execute(&mut connection)
        .await
        .expect("the schema goes");
}

fn check_spans(spans: &Spans, chain: &str, job: &str) {
    let request = spans.one("POST /orders");
    let created = spans.one("create check");
    assert_eq!(
        (created.kind, &created.parent, &created.trace),
        (SpanKind::Producer, &request.id, &request.trace)
    );
    assert_eq!((created.service.as_str(), created.scope.as_str()), ("web", "queuert"));
    assert_attributes(
        created,
        &[
            ("messaging.system", "queuert"),
            ("messaging.operation.name", "create"),
            ("messaging.operation.type", "create"),
            ("messaging.destination.name", "check"),
            ("messaging.message.id", job),
            ("messaging.message.conversation_id", chain),
        ],
    );
    let mut checks = spans.named("process check");
    checks.sort_by_key(|span| span.attributes["queuert.attempt"].clone());
    let [failed, continued] = checks[..] else {
        panic!("two attempts are seen: {checks:#?}");
    };
    for (attempt, span) in [("1", failed), ("2", continued)] {
        assert_eq!(
            (span.kind, &span.parent, &span.trace),
            (SpanKind::Consumer, &created.id, &request.trace)
        );
        assert_eq!((span.service.as_str(), span.scope.as_str()), ("first", "queuert"));
        assert_attributes(
            span,
            &[
                ("messaging.operation.type", "process"),
                ("messaging.message.id", job),
                ("messaging.message.conversation_id", chain),
                ("queuert.chain.type", "check"),
                ("queuert.attempt", attempt),
            ],
        );
        assert!(span.attributes["messaging.client.id"].starts_with("first"), "{span:#?}");
    }
    assert_eq!(failed.error.as_deref(), Some("not yet"));
    assert_attributes(failed, &[("queuert.outcome", "failed"), ("error.type", "failed")]);
    assert!(failed.attributes.contains_key("queuert.retry.delay"));
    assert_eq!(failed.events[0].0, "exception");
    assert_eq!(failed.events[0].1["exception.message"], "not yet");
    assert_eq!(continued.error, None);
    assert_attributes(
        continued,
        &[("queuert.outcome", "continued"), ("queuert.next.type", "ship")],
    );

    let next = spans.one("create ship");
    assert_eq!(
        (next.kind, &next.parent, &next.trace),
        (SpanKind::Producer, &continued.id, &request.trace)
    );
    assert_eq!(next.service, "first");
    let shipped = spans.one("process ship");
    assert_eq!(
        (shipped.kind, &shipped.parent, &shipped.trace),
        (SpanKind::Consumer, &next.id, &request.trace)
    );
    assert_eq!((shipped.service.as_str(), &shipped.error), ("second", &None));
    assert_attributes(
        shipped,
        &[("queuert.outcome", "finished"), ("queuert.chain.type", "check")],
    );

    // One, although a second was begun and rolled back.
    let packed = spans.one("create pack");
    assert_eq!(spans.one("process pack").parent, packed.id);
    let to_approve = spans.one("create approve");
    assert_eq!(
        (&to_approve.parent, spans.named("process approve").len()),
        (&request.id, 0)
    );
    let approval = spans.one("POST /approvals");
    let approved = spans.one("settle approve");
    assert_eq!(
        (approved.kind, &approved.parent, &approved.trace),
        (SpanKind::Internal, &approval.id, &approval.trace)
    );
    let links: Vec<_> = approved.links.iter().map(|(id, _)| id).collect();
    assert_eq!(links, [&to_approve.id]);

    let to_invoice = spans.one("create invoice");
    let invoiced = spans.one("process invoice");
    assert_eq!((&to_invoice.parent, &invoiced.parent), (&request.id, &to_invoice.id));
    assert_eq!((&invoiced.trace, invoiced.service.as_str()), (&request.trace, "second"));
    let links: Vec<_> = invoiced.links.iter().map(|(id, _)| id).collect();
    assert_eq!(links, [&packed.id, &to_approve.id]);
    let chains: Vec<_> = invoiced
        .links
        .iter()
        .map(|(_, attributes)| &attributes["queuert.chain.id"])
        .collect();
    let expected = [&packed, &to_approve].map(|span| &span.attributes["messaging.message.conversation_id"]);
    assert_eq!(chains, expected);
    assert_eq!(spans.0.len(), 13, "and nothing else: {:#?}", spans.0);
}

fn check_metrics(receiver: &Receiver) {
    let points = receiver.points();
    let sum = |service: &str, name: &str, job_type: &str| -> f64 {
        let of = points.iter().filter(|point| {
            let types = [
                point.attributes.get("queuert.job.type"),
                point.attributes.get("queuert.chain.type"),
            ];
            let is_type = types.into_iter().flatten().any(|found| found == job_type);
            point.service == service && point.name == name && (is_type || job_type.is_empty())
        });
        of.map(|point| point.value).sum()
    };
    let expected = [
        ("web", "queuert.chain.created", Check::NAME, 1.0),
        ("web", "queuert.chain.created", Pack::NAME, 1.0),
        ("web", "queuert.job.created", Invoice::NAME, 1.0),
        ("web", "queuert.job.blocked", Invoice::NAME, 1.0),
        ("web", "queuert.job.unblocked", Invoice::NAME, 1.0),
        ("web", "queuert.job.completed", Approve::NAME, 1.0),
        ("web", "queuert.chain.completed", Approve::NAME, 1.0),
        ("web", "queuert.job.duration", Approve::NAME, 1.0),
        ("first", "queuert.worker.started", "", 1.0),
        ("first", "queuert.worker.stopping", "", 1.0),
        ("first", "queuert.worker.stopped", "", 1.0),
        ("first", "queuert.attempt.started", Check::NAME, 2.0),
        ("first", "queuert.attempt.failed", Check::NAME, 1.0),
        ("first", "queuert.attempt.continued", Check::NAME, 1.0),
        ("first", "queuert.attempt.duration", Check::NAME, 2.0),
        ("first", "queuert.job.wait", Check::NAME, 2.0),
        ("first", "queuert.job.completed", Check::NAME, 1.0),
        ("first", "queuert.job.duration", Check::NAME, 1.0),
        ("first", "queuert.job.created", "ship", 1.0),
        ("first", "queuert.chain.completed", Pack::NAME, 1.0),
        ("first", "queuert.chain.duration", Pack::NAME, 1.0),
        ("second", "queuert.attempt.finished", "ship", 1.0),
        ("second", "queuert.chain.completed", Check::NAME, 1.0),
        ("second", "queuert.chain.duration", Check::NAME, 1.0),
        ("second", "queuert.attempt.finished", Invoice::NAME, 1.0),
        ("second", "queuert.attempt.failed", "", 0.0),
    ];
    for (service, name, job_type, value) in expected {
        assert_eq!(
            sum(service, name, job_type),
            value,
            "{service} {name} {job_type}: {points:#?}"
        );
    }
    let samples = points
        .iter()
        .filter(|point| point.name == "queuert.queue.ready" && point.service == "second");
    let by_type: BTreeMap<_, _> = samples
        .map(|point| (&point.attributes["queuert.job.type"], point.value))
        .collect();
    assert_eq!(
        by_type.len(),
        3,
        "one for each type that it has a processor for: {by_type:?}"
    );
    // Nothing that grows with the number of jobs.
    for point in &points {
        for value in point.attributes.values() {
            assert!(
                value.len() < 30 && !value.contains('-'),
                "an id, or a text, in {point:?}"
            );
        }
    }
}
