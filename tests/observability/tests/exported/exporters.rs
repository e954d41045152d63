//! Exporters that are down, slow or refuse cost telemetry, and no job.

use observability_tests::receiver::{Manner, Receiver, soon};
use observability_tests::telemetry::Telemetry;
use queuert::memory::{Attempt, MemoryState};
use queuert::{Client, JobTypes};
use queuert_otel::Otel;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Count {
    number: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u32)]
    Count(Count),
}

/// More than fit into the queue of the exporter.
const CHAINS: u32 = 2_000;

/// Runs jobs whose telemetry goes to `endpoint`, and lets `meanwhile` end before the rest of them is started.
async fn run(endpoint: &str, meanwhile: impl Future<Output = ()>) {
    let telemetry = Telemetry::export_to(endpoint, "test").expect("the endpoint is one");
    let client = Client::builder(MemoryState::new())
        .observability(Otel::new(&telemetry.traces, &telemetry.metrics))
        .build();
    let workers = client
        .worker()
        .concurrency(10)
        .process(|job: Attempt<Count>| async move { job.finish(job.number) })
        .start()
        .await
        .expect("the worker starts");
    client.start(Count { number: 0 }).await.expect("the chain starts");
    meanwhile.await;
    let chains = client
        .start_many((0..CHAINS).map(|number| Count { number }))
        .await
        .expect("the chains start");
    for (number, chain) in (0..CHAINS).zip(&chains) {
        let output = soon("the job runs", client.wait(chain).into_future()).await;
        assert_eq!(output.expect("it completes"), number);
    }
    soon("the workers stop", workers.stop()).await;
    let jobs = client.list_jobs().await.expect("jobs can be listed");
    assert!(
        jobs.items.iter().all(|job| job.attempt == 1),
        "no attempt was spent on telemetry"
    );
    // Not waited for: a process that ends decides itself how long it waits for its exporter.
    std::thread::spawn(move || telemetry.shut_down());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has an address"));
    drop(listener);
    run(&endpoint, async {}).await;
}

/// While all jobs run, the exporter waits for an answer that never comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_does_not_answer() {
    let receiver = Receiver::start(Manner::Silent).await.expect("there is a free port");
    let asked = soon("the exporter asks", receiver.until(|receiver| receiver.requests() > 0));
    run(&receiver.endpoint(), asked).await;
    assert!(receiver.spans().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_refuses() {
    let receiver = Receiver::start(Manner::Refusing).await.expect("there is a free port");
    let refused = soon(
        "the exporter is refused",
        receiver.until(|receiver| receiver.requests() > 1),
    );
    run(&receiver.endpoint(), refused).await;
    assert!(receiver.spans().is_empty());
}
