//! Processors and workers that are wired up wrongly.

use std::sync::Arc;
use std::time::Duration;

use queuert::memory::Attempt;
use queuert::{Event, EventStream, JobTypes, LeaseSettings};
use serde::{Deserialize, Serialize};

use super::client;
use super::document::assert_quoted;

#[derive(Serialize, Deserialize)]
struct Charge;

#[derive(JobTypes)]
enum Orders {
    #[job(entry, output = ())]
    Charge(Charge),
}

fn advice(events: &mut EventStream) -> Vec<Arc<str>> {
    let mut heard = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Advice { advice } = event {
            heard.push(advice);
        }
    }
    heard
}

#[tokio::test]
async fn the_job_is_finished_and_its_transaction_dropped() {
    let client = client();
    let mut events = client.events();
    client.start_many([Charge, Charge]).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Charge>| async move {
        let mut tx = job.begin().await?;
        tx.put("charged", true).await?;
        job.finish(()) // should be `tx.finish(()).await`
    });
    worker.drain().await.unwrap();
    assert_eq!(client.state().get::<bool>("charged").unwrap(), None);
    let advice = advice(&mut events);
    assert_eq!(advice.len(), 1, "it is told once: {advice:?}");
    assert_quoted("the_job_is_finished_and_its_transaction_dropped", &advice[0]);
}

#[tokio::test]
async fn the_completion_of_the_transaction_is_dropped() {
    let client = client();
    let mut events = client.events();
    client.start(Charge).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Charge>| async move {
        let mut tx = job.begin().await?;
        tx.put("charged", true).await?;
        drop(tx.finish(()).await?); // should be returned
        job.finish(())
    });
    worker.drain().await.unwrap();
    assert_eq!(client.state().get::<bool>("charged").unwrap(), None);
    let advice = advice(&mut events);
    assert_eq!(advice.len(), 1, "it is told once: {advice:?}");
    assert_quoted("the_job_is_finished_and_its_transaction_dropped", &advice[0]);
}

#[tokio::test]
async fn a_completion_that_is_dropped_for_an_error_is_no_mistake() {
    let client = client();
    let mut events = client.events();
    client.start(Charge).max_attempts(1).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Charge>| async move {
        let tx = job.begin().await?;
        drop(tx.finish(()).await?);
        Err("it failed after all".into())
    });
    worker.drain().await.unwrap();
    assert!(advice(&mut events).is_empty());
}

#[tokio::test]
async fn a_transaction_may_be_rolled_back_knowingly_or_before_a_snooze() {
    let client = client();
    let mut events = client.events();
    let chain = client.start(Charge).await.unwrap();
    let worker = || {
        client.worker().process(|job: Attempt<Charge>| async move {
            let mut tx = job.begin().await?;
            tx.put("charged", true).await?;
            if job.client().state().get::<bool>("snoozed")?.is_none() {
                job.client()
                    .transaction(async |tx| tx.put("snoozed", true).await.map_err(queuert::Error::State))
                    .await?;
                return job.snooze(Duration::from_millis(1));
            }
            tx.rollback().await?;
            job.finish(())
        })
    };
    let mut outcomes = Vec::new();
    while outcomes.len() < 2 {
        outcomes.extend(worker().drain().await.unwrap().attempts);
    }
    assert!(outcomes[0].outcome == queuert::AttemptOutcome::Snoozed);
    client.wait(&chain).await.unwrap();
    assert_eq!(client.state().get::<bool>("charged").unwrap(), None);
    assert!(advice(&mut events).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_processor_blocks_its_thread() {
    let client = client();
    let mut events = client.events();
    client.start_many([Charge, Charge]).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Charge>| async move {
        std::thread::sleep(Duration::from_millis(1_050)); // should be `tokio::time::sleep(..).await`
        job.finish(())
    });
    worker.drain().await.unwrap();
    let advice = advice(&mut events);
    assert_eq!(advice.len(), 1, "it is told once: {advice:?}");
    assert_quoted("the_processor_blocks_its_thread", &advice[0]);
}

struct Mailer;

#[tokio::test]
async fn the_value_is_provided_as_another_type() {
    let client = client();
    client.start(Charge).await.unwrap();
    let worker = client
        .worker()
        .provide(Arc::new(Mailer)) // should be `Mailer`: `get` gives an `Arc` of it
        .process(|job: Attempt<Charge>| async move {
            job.get::<Mailer>()?;
            job.finish(())
        });
    let ran = worker.drain().await.unwrap();
    assert_quoted("the_value_is_provided_as_another_type", ran.failures()[0].1);
}

#[tokio::test]
async fn the_worker_has_no_processor() {
    let error = client().worker().concurrency(8).start().await.unwrap_err();
    assert_quoted("the_worker_has_no_processor", &format!("Error: {error:?}"));
}

#[tokio::test]
async fn two_processors_for_one_type() {
    let process = |job: Attempt<Charge>| async move { job.finish(()) };
    let error = client()
        .worker()
        .process(process)
        .process(process)
        .start()
        .await
        .unwrap_err();
    assert_quoted("two_processors_for_one_type", &error.to_string());
}

#[tokio::test]
async fn the_lease_ends_before_it_is_renewed() {
    let process = |job: Attempt<Charge>| async move { job.finish(()) };
    let lease = LeaseSettings::new(Duration::from_secs(5)).renew_every(Duration::from_secs(10));
    let error = client()
        .worker()
        .process(process)
        .lease(lease)
        .start()
        .await
        .unwrap_err();
    assert_quoted("the_lease_ends_before_it_is_renewed", &error.to_string());
}

#[test]
fn there_is_no_tokio_runtime() {
    let process = |job: Attempt<Charge>| async move { job.finish(()) };
    let error = futures_executor::block_on(client().worker().process(process).start()).unwrap_err();
    assert_quoted("there_is_no_tokio_runtime", &error.to_string());
}

#[test]
fn the_runtime_has_no_timers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let process = |job: Attempt<Charge>| async move { job.finish(()) };
    let error = runtime
        .block_on(client().worker().process(process).start())
        .unwrap_err();
    assert_quoted("the_runtime_has_no_timers", &error.to_string());
}

#[tokio::test]
async fn an_attempt_opens_a_second_transaction() {
    let client = client();
    client.start(Charge).await.unwrap();
    let worker = client.worker().process(|job: Attempt<Charge>| async move {
        let completion = job.begin().await?.finish(()).await?;
        let refused = job.begin().await.expect_err("the first one is open");
        assert_quoted("an_attempt_opens_a_second_transaction", &refused.to_string());
        Ok(completion)
    });
    assert_eq!(worker.drain().await.unwrap().len(), 1);
}
