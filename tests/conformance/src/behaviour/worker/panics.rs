//! Panics and timeouts: contained, counted, and without harm to others.

use queuert::{AbortReason, AttemptOutcome, Event, JobSettings, JobStatus, RetryPolicy};

use super::types::{Note, Tuned, Work};
use super::world::{Gate, Job, Log, World, drain_events, ms, soon, start};
use crate::behaviour::PairFixture;

/// A processor that panics has failed: counted, with the message stored, and the worker goes on (I8, I13).
pub async fn a_panic_is_a_counted_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let seen = Log::new();
    let log = seen.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        log.add(job.last_error().map(|error| error.message.clone()));
        async move {
            match job.number() {
                1 => panic!("at the {}", "disco"),
                2 => panic!("a plain text"),
                3 => std::panic::panic_any(7_u32),
                number => job.finish(number),
            }
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 4);
    workers.stop().await;
    let seen = seen.all();
    assert_eq!(seen[1].as_deref(), Some("panicked: at the disco"));
    assert_eq!(seen[2].as_deref(), Some("panicked: a plain text"));
    assert!(seen[3].is_some());
}

/// A panic in the function itself, before its future exists, is a counted failure as well (I8).
pub async fn a_panic_before_the_first_await_is_a_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        assert!(job.number() > 1, "not on the first attempt");
        async move { job.finish(2) }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 2);
}

/// A panic inside the attempt's transaction rolls it back (I1, I8).
pub async fn a_panic_in_the_transaction_rolls_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let client = job.client().clone();
        let mut tx = job.begin().await?;
        client.start(Note { text: "undone".into() }).within(&mut tx).await?;
        let _completion = tx.finish(1).await?;
        panic!("after all");
    }))
    .await;
    world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 0);
}

/// An attempt that runs longer than its timeout is dropped at once, its signal says so, and it counts (I8).
pub async fn a_timeout_drops_the_attempt_and_counts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(2)
        .await
        .expect("the chain starts");
    let signals = Log::new();
    let log = signals.clone();
    let workers = start(world.worker().timeout(ms(40)).process(move |job: Job<F, Work>| {
        log.add(job.signal());
        async move {
            assert_eq!(job.number() == 1, job.last_error().is_none());
            let _dropped_with_the_attempt = job.begin().await?;
            std::future::pending::<()>().await;
            job.finish(1)
        }
    }))
    .await;
    let dead = world.until(&chain, JobStatus::Dead).await;
    assert_eq!(dead.attempt, 2);
    let error = dead.last_error.expect("the error is stored").message;
    assert!(error.contains("timed out after 40ms"), "{error}");
    for signal in signals.all() {
        assert_eq!(signal.reason(), Some(AbortReason::TimedOut));
        assert_eq!(soon("the signal fires", signal.aborted()).await, AbortReason::TimedOut);
    }
    workers.stop().await;
    let ended = drain_events(&mut events).into_iter().find_map(|event| match event {
        Event::AttemptEnded { outcome, duration, .. } => Some((outcome, duration)),
        _ => None,
    });
    let (outcome, duration) = ended.expect("the end is told");
    assert!(matches!(outcome, AttemptOutcome::Failed { .. }));
    assert!(duration >= ms(40), "{duration:?}");
}

/// A timed-out attempt makes room for others, and a processor that is quick enough is left alone.
pub async fn a_timeout_frees_the_worker<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let policy = RetryPolicy::new().initial(ms(100_000));
    let stuck = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let next = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let worker = world.worker().retry(policy).timeout(ms(50));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        if job.n == 0 {
            std::future::pending::<()>().await;
        }
        job.finish(1)
    }))
    .await;
    world.output(&next).await;
    workers.stop().await;
    let stuck = world.latest(&stuck).await;
    assert_eq!((stuck.status, stuck.attempt), (JobStatus::Pending, 1));
}

/// The timeout of a type holds; the worker's overrides it, and the one for the type on this worker overrides both.
pub async fn timeouts_are_overridden_from_outside_in<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    // The type says 90 ms and two attempts.
    let own = world.client.start(Tuned { n: 0 }).await.expect("the chain starts");
    let hang = |job: Job<F, Tuned>| async move {
        std::future::pending::<()>().await;
        job.finish(1)
    };
    let workers = start(world.client.worker().poll_interval(ms(20)).process(hang)).await;
    let dead = world.until(&own, JobStatus::Dead).await;
    assert_eq!(dead.attempt, 2);
    assert!(dead.last_error.expect("the error is stored").message.contains("90ms"));
    workers.stop().await;

    let wide = world.client.start(Tuned { n: 0 }).await.expect("the chain starts");
    let worker = world.client.worker().poll_interval(ms(20)).timeout(ms(30));
    let workers = start(worker.process(hang)).await;
    let dead = world.until(&wide, JobStatus::Dead).await;
    assert!(dead.last_error.expect("the error is stored").message.contains("30ms"));
    workers.stop().await;

    let special = world.client.start(Tuned { n: 0 }).await.expect("the chain starts");
    let settings = JobSettings::new()
        .timeout(ms(20))
        .retry(RetryPolicy::new().max_attempts(1));
    let worker = world.client.worker().poll_interval(ms(20)).timeout(ms(30));
    let workers = start(worker.process(hang).settings::<Tuned>(settings)).await;
    let dead = world.until(&special, JobStatus::Dead).await;
    assert_eq!(dead.attempt, 1);
    assert!(dead.last_error.expect("the error is stored").message.contains("20ms"));
    workers.stop().await;
}

/// A panic of one attempt does not disturb those that run beside it (I13).
pub async fn a_panic_disturbs_nobody<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let gate = Gate::closed();
    let beside = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let held = gate.clone();
    let workers = start(world.worker().concurrency(2).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            if job.n == 0 {
                panic!("on its own");
            }
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let panics = world
        .client
        .start(Work { n: 0 })
        .max_attempts(3)
        .await
        .expect("the chain starts");
    world.until(&panics, JobStatus::Dead).await;
    gate.open();
    world.output(&beside).await;
    workers.stop().await;
    assert_eq!(world.latest(&beside).await.attempt, 1);
}
