//! Workers and waits of several processes that share a store, with nothing but these wake-ups between them.

use std::future::IntoFuture;

use postgres_support::{Cluster, Shutdown};
use queuert::memory::{Attempt, MemoryState};
use queuert::{Client, Event, JobTypes, Workers};
use queuert_postgres::PostgresNotify;
use serde::{Deserialize, Serialize};

use super::line::{Line, NEVER, SOON, eventually, options};

#[derive(Serialize, Deserialize)]
struct Double(u32);

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = u32)]
    Double(Double),
}

/// A process: a client with a line of its own.
fn process(store: &MemoryState, notify: PostgresNotify) -> Client<MemoryState> {
    Client::builder(store.clone()).notify(notify).build()
}

async fn work(client: &Client<MemoryState>) -> Workers<MemoryState> {
    client
        .worker()
        .process(|job: Attempt<Double>| async move {
            let doubled = job.0 * 2;
            job.finish(doubled)
        })
        .poll_interval(NEVER)
        .start()
        .await
        .expect("the worker starts")
}

/// Starts a chain and waits for its end, which another process brings about.
async fn doubled(client: &Client<MemoryState>, number: u32) -> u32 {
    let chain = client.start(Double(number)).await.expect("it starts");
    let wait = client.wait(&chain).poll_interval(NEVER).into_future();
    tokio::time::timeout(SOON, wait)
        .await
        .expect("it is woken")
        .expect("the chain ends well")
}

#[tokio::test]
async fn a_job_of_one_process_wakes_a_worker_of_another_and_its_end_the_waiter() {
    let line = Line::new();
    let store = MemoryState::new();
    let (here, there) = (process(&store, line.join().await), process(&store, line.join().await));
    let worker = work(&there).await;
    for number in 0..20 {
        assert_eq!(doubled(&here, number).await, number * 2);
    }
    line.end_all_sessions().await;
    for number in 0..20 {
        assert_eq!(doubled(&here, number).await, number * 2);
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_server_that_goes_away_is_an_event_and_what_was_missed_is_found_when_it_is_back() {
    let cluster = Cluster::launch().await;
    let store = MemoryState::new();
    let join = || options().connect_lazy(&cluster.url(), "queuert").expect("a URL");
    let ears = join();
    let (here, there) = (process(&store, ears.clone()), process(&store, join()));
    let worker = work(&there).await;
    assert_eq!(doubled(&here, 1).await, 2);
    // The worker may have found the job by itself, before it listened.
    eventually("the worker listens", async || ears.peers() == 1).await;
    let mut events = there.events();
    cluster.stop(Shutdown::Immediate).await;
    let told = async {
        loop {
            if let Some(Event::NotifyFailed { operation, error }) = events.next().await
                && (operation == "listen" || operation == "subscribe")
            {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(SOON, told).await.expect("it is told");
    assert!(error.contains("listener"), "{error}");
    // Nobody hears of this one.
    let missed = here.start(Double(4)).await.expect("the store is there");
    cluster.start().await;
    let wait = here.wait(&missed).poll_interval(NEVER).into_future();
    let output = tokio::time::timeout(SOON, wait).await.expect("it is found");
    assert_eq!(output.expect("the chain ends well"), 8);
    worker.stop().await;
}
