//! Retries: what counts, how long they wait, and when a job is dead.

use queuert::{AttemptOutcome, Error, Event, JobError, JobStatus, RetryPolicy};

use super::types::Work;
use super::world::{Gate, Job, Log, World, drain_events, ms, skip, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::Verb;

/// Attempts are numbered from one, and each retry sees how the attempt before failed (PR2, PR4).
pub async fn each_retry_sees_the_error_before<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let seen = Log::new();
    let log = seen.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let last = job.last_error().map(|error| (error.attempt, error.message.clone()));
        log.add((job.number(), last));
        async move {
            let number = job.number();
            if number < 4 {
                return Err(format!("failure {number}").into());
            }
            job.finish(number)
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 4);
    workers.stop().await;
    let expected: Vec<_> = (1..=4)
        .map(|number| {
            (
                number,
                (number > 1).then(|| (number - 1, format!("failure {}", number - 1))),
            )
        })
        .collect();
    assert_eq!(seen.all(), expected);
}

/// Success wipes the error of the attempts before (PR3).
pub async fn success_wipes_the_error<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        match job.number() {
            1 => Err("once".into()),
            number => job.finish(number),
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert!(world.latest(&chain).await.last_error.is_none());
    assert!(world.chain(&chain).await.last_error.is_none());
}

/// The pauses between retries grow as the policy says, up to its maximum, and events report them (PR4, LG2).
pub async fn the_backoff_grows_to_its_maximum<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let policy = RetryPolicy::new().initial(ms(10)).maximum(ms(40)).jitter(0.0);
    let workers = start(world.worker().retry(policy).process(|job: Job<F, Work>| async move {
        match job.number() {
            1..=4 => Err("again".into()),
            number => job.finish(number),
        }
    }))
    .await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&chain).await;
    workers.stop().await;
    let pauses: Vec<_> = drain_events(&mut events)
        .into_iter()
        .filter_map(|event| match event {
            Event::AttemptEnded {
                outcome: AttemptOutcome::Failed { retry_in, .. },
                ..
            } => retry_in,
            _ => None,
        })
        .collect();
    assert_eq!(pauses, [ms(10), ms(20), ms(40), ms(40)]);
}

/// The pause is measured from the failure, by the store's clock, not from the beginning of the attempt (I8, I12, H15).
pub async fn the_backoff_is_measured_from_the_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let policy = RetryPolicy::new().initial(ms(50)).jitter(0.0);
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let starts = Log::new();
    let log = starts.clone();
    let workers = start(world.worker().retry(policy).process(move |job: Job<F, Work>| {
        log.add((
            job.record().started_at.expect("it was started"),
            job.last_error().map(|error| error.at),
        ));
        async move {
            if job.number() > 1 {
                return job.finish(1);
            }
            let _open = job.begin().await?;
            // Longer than the pause: one that is measured from the beginning would be over.
            tokio::time::sleep(ms(80)).await;
            Err("slowly".into())
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let starts = starts.all();
    let (first, second) = (starts[0].0, starts[1].0);
    let failed = starts[1].1.expect("the failure has a time");
    assert!(failed.saturating_duration_since(first) >= ms(80));
    assert!(second.saturating_duration_since(failed) >= ms(50));
}

/// A job whose attempts are exhausted is dead, and so is its chain; the starter's number wins over the worker's (I8).
pub async fn exhausted_attempts_make_a_job_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let policy = RetryPolicy::new().initial(ms(1)).max_attempts(3);
    let mut events = world.client.events();
    let default = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let own = world
        .client
        .start(Work { n: 0 })
        .max_attempts(5)
        .await
        .expect("the chain starts");
    let workers = start(world.worker().retry(policy).process(|job: Job<F, Work>| async move {
        let last = if job.is_last_attempt() { ", the last" } else { "" };
        Err(format!("failure {}{last}", job.number()).into())
    }))
    .await;
    for (chain, attempts) in [(&default, 3), (&own, 5)] {
        let dead = world.until(chain, JobStatus::Dead).await;
        assert_eq!(dead.attempt, attempts);
        assert!(dead.ended_at.is_some() && dead.lease.is_none());
        let message = format!("failure {attempts}, the last");
        assert_eq!(dead.last_error.expect("the error is stored").message, message);
        let waited = world.client.wait(chain).await;
        assert!(matches!(waited, Err(Error::ChainDead { last_error: Some(error), .. }) if error.message == message));
    }
    workers.stop().await;
    let events = drain_events(&mut events);
    let deaths = events
        .iter()
        .filter(|event| matches!(event, Event::ChainDead { .. }))
        .count();
    assert_eq!(deaths, 2);
    let died = events.iter().filter(|event| match event {
        Event::AttemptEnded { outcome, .. } => matches!(outcome, AttemptOutcome::Died { .. }),
        _ => false,
    });
    assert_eq!(died.count(), 2);
}

/// A fatal error makes the job dead at once.
pub async fn a_fatal_error_is_not_retried<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|_: Job<F, Work>| async move { Err(JobError::fatal("no such user")) }),
    )
    .await;
    let dead = world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    assert_eq!(dead.attempt, 1);
    assert_eq!(dead.last_error.expect("the error is stored").message, "no such user");
}

/// An operator's retry of a dead job starts its attempts anew and keeps the history.
pub async fn a_retried_job_starts_its_attempts_anew<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(2)
        .await
        .expect("the chain starts");
    let seen = Log::new();
    let log = seen.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        log.add(job.number());
        let claims = job.record().claims;
        let last = job.last_error().cloned();
        async move {
            if claims < 4 {
                return Err("not yet".into());
            }
            assert!(last.is_some(), "the history is kept");
            job.finish(claims)
        }
    }))
    .await;
    world.until(&chain, JobStatus::Dead).await;
    world.client.retry(&chain).await.expect("a dead chain can be retried");
    assert_eq!(world.output(&chain).await, 4);
    workers.stop().await;
    assert_eq!(seen.all(), [1, 2, 1, 2]);
}

/// Snoozing costs no attempt, however often, and waits as long as it says.
pub async fn snoozing_costs_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let begun = Log::new();
    let log = begun.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let began = job.record().started_at.expect("it was started");
        log.add((job.number(), began));
        let runs = log.len();
        async move {
            match runs {
                1 => job.snooze(ms(120)),
                2 => job.snooze_until(began.saturating_add(ms(120))),
                3 => job.snooze_until(queuert::Timestamp::from_micros(5)),
                _ => job.finish(1),
            }
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let begun = begun.all();
    assert!(begun.iter().all(|(number, _)| *number == 1), "every run is attempt one");
    for pair in begun[..3].windows(2) {
        let waited = pair[1].1.saturating_duration_since(pair[0].1);
        assert!(waited >= ms(120), "{waited:?}");
    }
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.claims, job.last_error), (1, 4, None));
    let snoozed = drain_events(&mut events).into_iter().filter(|event| match event {
        Event::AttemptEnded { outcome, .. } => *outcome == AttemptOutcome::Snoozed,
        _ => false,
    });
    assert_eq!(snoozed.count(), 3);
}

/// A processor that always snoozes for no time, or until a time that has passed or is just ahead, does not run without a
/// pause.
pub async fn the_shortest_snooze_is_a_pause<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let begun = Log::new();
    let log = begun.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let began = job.record().started_at.expect("it was started");
        log.add(began);
        let runs = log.len();
        async move {
            match runs {
                1 => job.snooze(ms(0)),
                2 => job.snooze_until(began),
                3 => job.snooze_until(queuert::Timestamp::from_micros(5)),
                4 => job.snooze_until(began.saturating_add(ms(5))),
                5 => job.snooze_until(began.saturating_add(ms(60))),
                _ => job.finish(1),
            }
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    for pair in begun.all().windows(2) {
        let waited = pair[1].saturating_duration_since(pair[0]);
        assert!(waited >= ms(100), "{waited:?}");
    }
}

/// A retry is found by another idle worker that sleeps long, once its time has come (H23).
pub async fn a_retry_is_found_by_other_workers<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("without notices the other worker finds the retry at its next poll");
    }
    let world = World::new(fixture).await;
    let (other, faults) = world.other_process();
    let gate = Gate::closed();
    let held = gate.clone();
    let failing = start(world.worker().process(move |_: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            Err(JobError::retry_after(ms(100), "elsewhere"))
        }
    }))
    .await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    gate.arrived(1).await;
    let idle = other.worker().poll_interval(ms(60_000));
    let idle = start(idle.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    // One look at the start and one when it has subscribed: now it sleeps.
    faults.called(Verb::ClaimJobs, 2).await;
    let stop = failing.stop();
    gate.open();
    stop.await;
    world.output(&chain).await;
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.completed_by.as_ref()), (2, Some(idle.id())));
    idle.stop().await;
}

/// A worker set that stops passes on what it alone knows: when a retry is due.
pub async fn a_retry_outlives_the_worker_set_that_knows_of_it<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("without notices the other worker finds the retry at its next poll");
    }
    let world = World::new(fixture).await;
    let (other, faults) = world.other_process();
    let gate = Gate::closed();
    let held = gate.clone();
    // With an idle worker beside the one that fails: that is the one to hear of the retry.
    let failing = start(world.worker().concurrency(2).process(move |_: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            Err(JobError::retry_after(ms(1_500), "elsewhere"))
        }
    }))
    .await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    gate.arrived(1).await;
    let idle = other.worker().poll_interval(ms(60_000));
    let idle = start(idle.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    // One look at the start and one when it has subscribed: now it sleeps.
    faults.called(Verb::ClaimJobs, 2).await;
    let mut events = world.client.events();
    gate.open();
    let ended = async { while !matches!(events.next().await, Some(Event::AttemptEnded { .. })) {} };
    soon("the attempt fails", ended).await;
    failing.stop().await;
    world.output(&chain).await;
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.completed_by.as_ref()), (2, Some(idle.id())));
    idle.stop().await;
}
