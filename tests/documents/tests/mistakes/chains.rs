//! Chains that do not end, or are not there.

use std::time::Duration;

use queuert::memory::{Attempt, MemoryState};
use queuert::{ChainRef, Error, Event, JobType, JobTypes};
use serde::{Deserialize, Serialize};

use super::document::assert_quoted;
use super::{Client, Fetch, Store, client, fetch};

const SHORT: Duration = Duration::from_millis(20);

#[tokio::test]
async fn no_worker_runs() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let error = client.wait(&chain).timeout(SHORT).await.unwrap_err();
    assert_quoted("no_worker_runs", &format!("Error: {error:?}"));
}

#[tokio::test(start_paused = true)]
async fn no_worker_runs_and_the_wait_has_no_timeout() {
    let client = client();
    let mut events = client.events();
    let chain = client.start(fetch()).await.unwrap();
    let waiting = client.clone();
    let wait = tokio::spawn(async move { waiting.wait(&chain).await });
    let advice = loop {
        if let Some(Event::Advice { advice }) = events.next().await {
            break advice;
        }
    };
    assert_quoted("no_worker_runs_and_the_wait_has_no_timeout", &advice);
    wait.abort();
}

#[tokio::test(start_paused = true)]
async fn nobody_is_advised_while_a_job_is_not_due_or_is_being_retried() {
    let client = client();
    let mut events = client.events();
    let later = client.start(fetch()).delay(Duration::from_secs(3600)).await.unwrap();
    let failing = client.start(fetch()).await.unwrap();
    let worker = client.worker().process(|_: Attempt<Fetch>| async { Err("no".into()) });
    assert_eq!(worker.drain().await.unwrap().len(), 1);
    for chain in [&later, &failing] {
        let wait = client.wait(chain).timeout(Duration::from_secs(60)).await;
        assert!(matches!(wait, Err(Error::WaitTimeout { .. })));
    }
    while let Some(event) = events.try_next() {
        assert!(!matches!(event, Event::Advice { .. }), "{event:?}");
    }
}

#[tokio::test]
async fn no_processor_for_the_next_type() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let ran = client
        .worker()
        .process(|job: Attempt<Fetch>| async move { job.continue_with(Store { body: "it".into() }) })
        .drain()
        .await
        .unwrap();
    assert_eq!(ran.types(), ["fetch"]);
    let error = client.wait(&chain).timeout(SHORT).await.unwrap_err();
    assert_quoted("no_processor_for_the_next_type", &error.to_string());
}

#[tokio::test]
async fn the_processor_fails_again_and_again() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let worker = client.worker().process(|_: Attempt<Fetch>| async {
        std::fs::read("/no/such/file")?;
        Err("not reached".into())
    });
    worker.drain().await.unwrap();
    let error = client.wait(&chain).timeout(SHORT).await.unwrap_err();
    assert_quoted("the_processor_fails_again_and_again", &error.to_string());
}

#[tokio::test]
async fn the_transaction_is_not_committed() {
    let client = client();
    let mut tx = client.begin().await.unwrap();
    let chain = client.start(fetch()).within(&mut tx).await.unwrap();
    drop(tx);
    let error = client.wait(&chain).await.unwrap_err();
    assert_quoted("the_transaction_is_not_committed", &error.to_string());
}

#[derive(Serialize, Deserialize)]
struct Summarise;

#[derive(JobTypes)]
enum Summaries {
    #[job(entry, output = (), blockers = [Fetch])]
    Summarise(Summarise),
}

#[tokio::test]
async fn the_blocker_is_not_committed() {
    let client = client();
    let mut tx = client.begin().await.unwrap();
    let blocker = client.start(fetch()).within(&mut tx).await.unwrap();
    drop(tx);
    let error = client.start(Summarise.blocked_by([&blocker])).await.unwrap_err();
    assert_quoted("the_blocker_is_not_committed", &error.to_string());
}

#[tokio::test]
async fn the_chain_is_of_another_type() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let wrong: ChainRef<Summarise> = ChainRef::new(chain.id());
    let error = client.wait(wrong).await.unwrap_err();
    assert_quoted("the_chain_is_of_another_type", &error.to_string());
}

#[derive(Serialize, Deserialize)]
struct Measure {
    value: f64,
}

#[derive(JobTypes)]
enum Measures {
    #[job(entry, output = ())]
    Measure(Measure),
}

#[tokio::test]
async fn a_float_is_no_number() {
    let error = client().start(Measure { value: f64::NAN }).await.unwrap_err();
    assert_quoted("a_float_is_no_number", &error.to_string());
}

#[tokio::test]
async fn the_key_is_empty() {
    let error = client().start(fetch()).deduplicate("").await.unwrap_err();
    assert_quoted("the_key_is_empty", &error.to_string());
}

#[tokio::test]
async fn an_open_chain_is_retried() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let error = client.retry(&chain).await.unwrap_err();
    assert_quoted("an_open_chain_is_retried", &error.to_string());
}

/// The same type name with another input, as after a deploy.
mod after_the_deploy {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub(super) struct Fetch {
        pub(super) url: String,
        pub(super) depth: u32,
    }

    #[derive(JobTypes)]
    enum Import {
        #[job(entry, output = u32)]
        Fetch(Fetch),
    }

    pub(super) async fn run(client: &Client) -> queuert::Drained {
        let process = |job: queuert::Attempt<Fetch, MemoryState>| async move { job.finish(job.depth) };
        client.worker().process(process).drain().await.unwrap()
    }
}

#[tokio::test]
async fn the_input_has_a_new_field() {
    let client = client();
    let chain = client.start(fetch()).await.unwrap();
    let ran = after_the_deploy::run(&client).await;
    let failures = ran.failures();
    assert_quoted("the_input_has_a_new_field", failures[0].1);
    let error = client.wait(&chain).await.unwrap_err();
    assert!(matches!(error, Error::ChainDead { .. }), "no retry would help");
}
