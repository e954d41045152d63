//! A runtime that ends holds up no other, and a store outlives the runtime on which it was opened.

use std::future::IntoFuture;
use std::thread;
use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{Client, JobStatus};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

use super::jobs::{Count, greet, greeting, run_all};
use super::probe::status;
use crate::behaviour::PairFixture;

/// How often a runtime ends with calls inside.
const ROUNDS: usize = 5;

/// How often waits look, where no hint tells them.
const OFTEN: Duration = Duration::from_millis(10);

/// How many tasks call the store.
const TASKS: u32 = 20;

/// What a thread of its own does, without a runtime around it.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = oneshot::channel();
    thread::spawn(move || {
        let _ = done.send(work());
    });
    answer.await.expect("the thread does not panic")
}

fn threads() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built")
}

fn single() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built")
}

/// Starts, reads, waits, begins and ends, again and again, and tells of every round.
async fn call_on<S: StateAdapter>(client: Client<S>, number: u32, told: mpsc::UnboundedSender<()>) {
    loop {
        // Calls may fail while the runtime ends; others look at the store afterwards.
        if let Ok(started) = client.start(Count { number }).await {
            let _ = client.get_chain_record(&started).await;
            let _ = client.wait(&started).timeout(Duration::from_millis(1)).await;
            if let Ok(mut tx) = client.begin().await {
                let _ = client.cancel(&started).within(&mut tx).await;
                let _ = tx.commit().await;
            }
        }
        let _ = told.send(());
    }
}

/// Every kind of call works.
async fn everything_works<S: StateAdapter>(client: &Client<S>) {
    let started = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(status(client, &started).await, JobStatus::Pending);
    let mut tx = client.begin().await.expect("a transaction opens");
    let other = client.start(greet("Eve")).within(&mut tx).await.expect("it starts");
    tx.commit().await.expect("it commits");
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.wait(&other).poll_interval(OFTEN).await }
    });
    run_all(client).await;
    let output = waits.await.expect("the wait does not panic");
    assert_eq!(output.expect("it ended"), greeting("Eve"));
    assert_eq!(
        client.wait(&started).poll_interval(OFTEN).await.expect("it ended"),
        greeting("Ada")
    );
}

/// A runtime with threads that is dropped while tasks call the store ends, and others go on.
pub async fn a_runtime_ends_with_calls_inside<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    for round in 0..ROUNDS {
        let inside = client.clone();
        on_a_thread(move || {
            let runtime = threads();
            let (told, mut heard) = mpsc::unbounded_channel();
            for number in 0..TASKS {
                runtime.spawn(call_on(inside.clone(), number, told.clone()));
            }
            // At another moment in every round.
            for _ in 0..=round {
                heard.blocking_recv();
            }
            drop(runtime);
        })
        .await;
        everything_works(&client).await;
    }
}

/// A store that was opened on a runtime that has ended works from the next one, and from the one after that.
pub async fn a_store_outlives_its_runtime<F: PairFixture>(fixture: F) {
    let (fixture, client) = on_a_thread(move || {
        let runtime = single();
        let client = runtime.block_on(async {
            let client = fixture.client().await;
            everything_works(&client).await;
            client
        });
        drop(runtime);
        (fixture, client)
    })
    .await;
    everything_works(&client).await;
    let client = on_a_thread(move || {
        single().block_on(everything_works(&client));
        client
    })
    .await;
    everything_works(&client).await;
    drop(fixture);
}

/// A runtime for every call is slow, and works.
pub async fn every_call_may_have_a_runtime_of_its_own<F: PairFixture>(fixture: F) {
    fn run<T>(call: impl IntoFuture<Output = T>) -> T {
        single().block_on(call.into_future())
    }
    on_a_thread(move || {
        let client = run(fixture.client());
        let started = run(client.start(greet("Ada"))).expect("it starts");
        let found = run(client.get_chain_record(&started)).expect("it can be read");
        assert_eq!(found.expect("it exists").status, JobStatus::Pending);
        run(client.cancel(&started)).expect("it can be cancelled");
        run(everything_works(&client));
        drop(fixture);
    })
    .await;
}
