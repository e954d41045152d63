//! The example runs, and a receiver of OTLP sees its order as one trace; without a receiver it runs all the same.

use std::collections::BTreeSet;
use std::process::Output;

use observability_tests::receiver::{Manner, Receiver, soon};
use tokio::process::Command;

async fn run(endpoint: &str) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_observability-otlp"))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .kill_on_drop(true)
        .output();
    soon("the example ends", run).await.expect("the example starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_one_trace() {
    let receiver = Receiver::start(Manner::Kind).await.expect("there is a free port");
    let output = run(&receiver.endpoint()).await;
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("total=500"), "{text}");
    // The lines of a processor carry its attempt.
    let charged = text.lines().find(|line| line.contains("charged")).expect("it logs");
    assert!(
        charged.contains("attempt{") && charged.contains("job_type=\"charge\""),
        "{charged}"
    );
    let spans = receiver.spans();
    assert!(spans.iter().all(|span| span.service == "orders"));
    let traces: BTreeSet<_> = spans.iter().map(|span| &span.trace).collect();
    assert_eq!(traces.len(), 1, "{spans:#?}");
    let names = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!(
        (
            names("create reserve"),
            names("process charge"),
            names("process invoice")
        ),
        (2, 4, 1)
    );
    let finished =
        |point: &observability_tests::receiver::Point| point.name == "queuert.attempt.failed" && point.value == 2.0;
    assert!(receiver.points().iter().any(finished), "{:#?}", receiver.points());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_it_runs_all_the_same() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has an address"));
    drop(listener);
    let output = run(&endpoint).await;
    assert!(output.status.success(), "{output:?}");
}
