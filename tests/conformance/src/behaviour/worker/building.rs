//! Putting workers together: what cannot work is refused with an error that says what to do.

use std::time::Duration;

use queuert::{Error, JobSettings, JobStatus, LeaseSettings, RetryPolicy, WorkerBuilder};

use super::types::{Note, Work};
use super::world::{Job, State, World, ms, start};
use crate::behaviour::PairFixture;

async fn refused<F: PairFixture>(worker: WorkerBuilder<State<F>>) -> Error {
    worker.start().await.map(|_| ()).expect_err("the worker does not start")
}

async fn invalid<F: PairFixture>(worker: WorkerBuilder<State<F>>, wanted: &str) -> String {
    match refused::<F>(worker).await {
        Error::Invalid { what, problem } => {
            assert_eq!(what, wanted, "{problem}");
            problem
        }
        other => panic!("`{wanted}` should be refused, not {other}"),
    }
}

fn working<F: PairFixture>(world: &World<F>) -> WorkerBuilder<State<F>> {
    world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })
}

/// Two processors for one type are refused, also when one is part of an enum.
pub async fn a_duplicate_processor_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let twice = working(&world).process(|job: Job<F, Work>| async move { job.finish(2) });
    let error = refused::<F>(twice).await;
    assert!(
        matches!(&error, Error::DuplicateProcessor(name) if name.as_str() == "work"),
        "{error}"
    );
    let both = working(&world).process_all::<super::processors::Impostors, _, _>(|job| async move {
        let super::processors::ImpostorsAttempt::Impostor(job) = job;
        job.finish(0)
    });
    assert!(matches!(refused::<F>(both).await, Error::DuplicateProcessor(_)));
}

/// A worker without processors is refused.
pub async fn a_worker_without_processors_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    assert!(matches!(refused::<F>(world.worker()).await, Error::NoProcessor));
}

/// A concurrency of zero or an absurd one is refused.
pub async fn an_absurd_concurrency_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for concurrency in [0, 100_001, usize::MAX] {
        let problem = invalid::<F>(working(&world).concurrency(concurrency), "concurrency").await;
        assert!(problem.contains(&concurrency.to_string()), "{problem}");
    }
}

/// Worker names are letters, digits, dots, underscores and dashes.
pub async fn bad_names_are_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for name in ["", " ", "two words", "new\nline", "naïve", "a/b", &"x".repeat(101)] {
        invalid::<F>(working(&world).name(name), "worker name").await;
    }
    for name in ["a", "mail-worker_2.eu", &"x".repeat(100)] {
        let workers = start(working(&world).name(name)).await;
        assert!(workers.id().as_str().starts_with(name));
        workers.stop().await;
    }
}

/// A lease that ends before its renewal, or is absurdly short or long, is refused, wherever it was set.
pub async fn bad_leases_are_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let bad = [
        LeaseSettings::new(ms(100)).renew_every(ms(100)),
        LeaseSettings::new(ms(100)).renew_every(ms(200)),
        LeaseSettings::new(ms(100)).renew_every(Duration::ZERO),
        LeaseSettings::new(Duration::ZERO),
        LeaseSettings::new(ms(1)),
        LeaseSettings::new(Duration::MAX).renew_every(ms(100)),
    ];
    for lease in bad {
        let problem = invalid::<F>(working(&world).lease(lease), "lease").await;
        assert!(problem.contains("work"), "it names the type: {problem}");
        let settings = JobSettings::new().lease(lease);
        invalid::<F>(working(&world).settings::<Work>(settings), "lease").await;
    }
}

/// Retry policies that cannot work are refused.
pub async fn bad_retry_policies_are_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let policy = RetryPolicy::new();
    let bad = [
        policy.max_attempts(0),
        policy.multiplier(0.5),
        policy.multiplier(f64::NAN),
        policy.jitter(1.0),
        policy.jitter(-0.1),
        policy.initial(ms(2_000)).maximum(ms(1_000)),
    ];
    for policy in bad {
        invalid::<F>(working(&world).retry(policy), "retry policy").await;
    }
}

/// Intervals and timeouts of zero are refused.
pub async fn intervals_of_zero_are_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    invalid::<F>(working(&world).poll_interval(Duration::ZERO), "poll interval").await;
    invalid::<F>(working(&world).reap_interval(Duration::ZERO), "reap interval").await;
    invalid::<F>(working(&world).timeout(Duration::ZERO), "timeout").await;
}

/// Settings for a type without processor are refused.
pub async fn settings_without_processor_are_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let worker = working(&world).settings::<Note>(JobSettings::new());
    let problem = invalid::<F>(worker, "settings").await;
    assert!(problem.contains("note"), "{problem}");
}

/// A worker cannot set the priority of a type: its jobs have theirs before the worker meets them.
pub async fn a_priority_of_a_worker_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let worker = working(&world).settings::<Work>(JobSettings::new().priority(3));
    let problem = invalid::<F>(worker, "settings").await;
    assert!(
        problem.contains("work") && problem.contains("#[job(priority = ..)]"),
        "{problem}"
    );
}

/// Extreme intervals and delays do not kill the worker: it runs, fails and retries as ever (I13).
pub async fn extreme_durations_kill_nobody<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let policy = RetryPolicy::new()
        .initial(Duration::MAX)
        .maximum(Duration::MAX)
        .jitter(0.5);
    let far = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = world
        .client
        .worker()
        .poll_interval(Duration::MAX)
        .reap_interval(Duration::MAX);
    let worker = worker.grace(Duration::MAX).retry(policy).timeout(Duration::MAX);
    let workers = start(worker.process(|_: Job<F, Work>| async move { Err("not in this life".into()) })).await;
    let retried = super::world::eventually("the failure is stored", async || {
        let job = world.latest(&far).await;
        (job.status == JobStatus::Pending && job.last_error.is_some()).then_some(job)
    })
    .await;
    assert_eq!(retried.attempt, 1);
    workers.stop().await;

    // Shorter than the clock can tell.
    let near = world
        .client
        .start(Note { text: String::new() })
        .delay(ms(30))
        .await
        .expect("the chain starts");
    let worker = world.client.worker().poll_interval(Duration::from_nanos(1));
    let worker = worker.reap_interval(ms(5));
    let workers = start(worker.process(|job: Job<F, Note>| async move { job.finish(String::new()) })).await;
    world.output(&near).await;
    workers.stop().await;
}

/// The id of a worker is new at every start, so that two sets of one name can be told apart.
pub async fn every_start_has_an_id_of_its_own<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let one = start(working(&world).name("same")).await;
    let two = start(working(&world).name("same")).await;
    assert_ne!(one.id(), two.id());
    one.stop().await;
    two.stop().await;
}
