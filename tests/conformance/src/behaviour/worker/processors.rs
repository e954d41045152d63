//! The forms that processors take, what they are given, and whose settings hold.

use std::sync::Arc;

use queuert::adapter::StateAdapter;
use queuert::{Attempt, Error, JobSettings, JobStatus, JobTypes, LeaseSettings, Processor, RetryPolicy};
use serde::{Deserialize, Serialize};

use super::types::{Note, Tuned, Work};
use super::world::{Gate, Job, World, ms, start};
use crate::behaviour::PairFixture;

#[derive(Serialize, Deserialize)]
pub(super) struct Ask {
    n: u32,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    n: u32,
}

/// An enum that one closure processes.
#[derive(JobTypes)]
pub(super) enum Dialogue {
    #[job(entry, continues = [Answer], output = u32)]
    Ask(Ask),
    #[job(output = u32)]
    Answer(Answer),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Impostor {
    flag: bool,
}

/// Another type under the name of one that exists.
#[derive(JobTypes)]
pub(super) enum Impostors {
    #[job(entry, output = u32, name = "work")]
    Impostor(Impostor),
}

/// A processor that is a type.
pub(super) struct Shout;

impl<S: StateAdapter> Processor<Note, S> for Shout {
    async fn process(&self, job: Attempt<Note, S>) -> queuert::JobResult<S> {
        let text = job.text.to_uppercase();
        job.finish(text)
    }
}

async fn double<S: StateAdapter>(job: Attempt<Work, S>) -> queuert::JobResult<S> {
    let n = job.n;
    job.finish(n * 2)
}

async fn add<S: StateAdapter>(job: Attempt<Tuned, S>, offset: Arc<u32>) -> queuert::JobResult<S> {
    let n = job.n;
    job.finish(n + *offset)
}

/// Closures, async functions, functions with shared state and types that implement `Processor` all process.
pub async fn processors_take_every_form<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let work = world.client.start(Work { n: 4 }).await.expect("the chain starts");
    let note = world
        .client
        .start(Note { text: "hey".into() })
        .await
        .expect("the chain starts");
    let tuned = world.client.start(Tuned { n: 1 }).await.expect("the chain starts");
    let worker = world
        .worker()
        .process(double)
        .processor::<Note>(Shout)
        .process_with(Arc::new(10), add);
    let workers = start(worker).await;
    assert_eq!(world.output(&work).await, 8);
    assert_eq!(world.output(&note).await, "HEY");
    assert_eq!(world.output(&tuned).await, 11);
    workers.stop().await;
}

/// One closure can process all types of an enum.
pub async fn one_closure_processes_a_whole_enum<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Ask { n: 1 }).await.expect("the chain starts");
    let workers = start(world.worker().process_all::<Dialogue, _, _>(|job| async move {
        match job {
            DialogueAttempt::Ask(job) => {
                let n = job.n;
                job.continue_with(Answer { n: n + 1 })
            }
            DialogueAttempt::Answer(job) => {
                let n = job.n;
                job.finish(n * 100)
            }
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 200);
    workers.stop().await;
    assert_eq!(Dialogue::NAMES, ["ask", "answer"]);
}

/// What the worker provides reaches every processor; the last value of a type counts.
pub async fn provided_values_reach_processors<F: PairFixture>(fixture: F) {
    struct Tariff(u32);
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 4 }).await.expect("the chain starts");
    let worker = world.worker().provide(Tariff(1)).provide(Tariff(5)).provide("text");
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let tariff = job.get::<Tariff>()?;
        assert_eq!(*job.get::<&'static str>()?, "text");
        let n = job.n;
        job.finish(n * tariff.0)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 20);
    workers.stop().await;
}

/// A value that nobody provided is a failed attempt whose error names the type.
pub async fn a_missing_value_is_a_failure_that_names_it<F: PairFixture>(fixture: F) {
    struct Forgotten;
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 4 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let missing = job.get::<Forgotten>();
        assert!(matches!(&missing, Err(Error::MissingValue { wanted, .. }) if wanted.ends_with("Forgotten")));
        missing?;
        job.finish(0)
    }))
    .await;
    let dead = world.until(&chain, JobStatus::Dead).await;
    let error = dead.last_error.expect("the error is stored").message;
    assert!(error.contains("Forgotten") && error.contains("provide"), "{error}");
    workers.stop().await;
}

/// The retry policy of a type holds; the worker's overrides it, and the one for the type on this worker overrides both.
pub async fn retry_settings_are_overridden_from_outside_in<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let of_type = JobSettings::new().retry(RetryPolicy::new().max_attempts(4).initial(ms(1)));
    let of_worker = RetryPolicy::new().max_attempts(3).initial(ms(1));
    let fail = |_: Job<F, Tuned>| async move { Err("no".into()) };
    let base = || world.client.worker().poll_interval(ms(20)).process(fail);
    let builders = [
        (base(), 2),
        (base().retry(of_worker), 3),
        (base().retry(of_worker).settings::<Tuned>(of_type), 4),
        (base().settings::<Tuned>(of_type), 4),
    ];
    for (builder, attempts) in builders {
        let chain = world.client.start(Tuned { n: 0 }).await.expect("the chain starts");
        let workers = start(builder).await;
        assert_eq!(world.until(&chain, JobStatus::Dead).await.attempt, attempts);
        workers.stop().await;
    }
}

/// The lease of a type holds; the worker's overrides it, and the one for the type on this worker overrides both.
pub async fn lease_settings_are_overridden_from_outside_in<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let of_type = JobSettings::new().lease(LeaseSettings::new(ms(3_000)));
    let of_worker = LeaseSettings::new(ms(5_000));
    for (worker_wide, for_type, expected) in [
        (None, None, 10_000),
        (Some(of_worker), None, 5_000),
        (Some(of_worker), Some(of_type), 3_000),
    ] {
        let gate = Gate::closed();
        let held = gate.clone();
        let chain = world.client.start(Tuned { n: 0 }).await.expect("the chain starts");
        let mut worker = world.worker().timeout(ms(60_000)).process(move |job: Job<F, Tuned>| {
            let held = held.clone();
            async move {
                held.pass().await;
                job.finish(0)
            }
        });
        if let Some(lease) = worker_wide {
            worker = worker.lease(lease);
        }
        if let Some(settings) = for_type {
            worker = worker.settings::<Tuned>(settings);
        }
        let workers = start(worker).await;
        gate.arrived(1).await;
        let job = world.latest(&chain).await;
        let lease = job.lease.expect("a running job has a lease");
        assert_eq!(&lease.owner, workers.id());
        let lasts = lease
            .until
            .saturating_duration_since(job.started_at.expect("it was started"));
        // It may have been renewed already.
        assert!(lasts >= ms(expected) && lasts < ms(expected + 1_500), "{lasts:?}");
        gate.open();
        world.output(&chain).await;
        workers.stop().await;
    }
}
