//! What an outage looks like from outside: health, events, commits whose answer is lost, and hints that fail.

use queuert::{AttemptOutcome, Event, Health, JobStatus, LeaseSettings, RetryPolicy};

use super::types::{FromHere, Shared, Work};
use super::world::{Gate, Job, World, drain_events, eager, events_until, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};
use crate::faulty_notify::NotifyFault;

fn outcomes(events: &[Event]) -> Vec<&AttemptOutcome> {
    events.iter().filter_map(outcome).collect()
}

fn outcome(event: &Event) -> Option<&AttemptOutcome> {
    match event {
        Event::AttemptEnded { outcome, .. } => Some(outcome),
        _ => None,
    }
}

/// Health goes from running to degraded with what the store said, and back; events tell of both, once (LG9).
pub async fn health_shows_the_outage<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let worker = world.worker().reap_interval(ms(20));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 1).await;
    assert_eq!(workers.health(), Health::Running);
    world.faults.take_down(Fault::Before);
    let degraded = workers
        .wait_for_health(|health| matches!(health, Health::Degraded { .. }))
        .await;
    assert!(matches!(degraded, Health::Degraded { error } if error.contains("made to fail")));
    world.faults.called(Verb::ClaimedJobs, 3).await;
    world.faults.heal();
    soon(
        "the worker recovers",
        workers.wait_for_health(|health| *health == Health::Running),
    )
    .await;
    workers.stop().await;
    let events = drain_events(&mut events);
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::WorkerDegraded { worker, error } => Some((worker, error.contains("made to fail"))),
            Event::WorkerRecovered { worker } => Some((worker, false)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(workers.id(), true), (workers.id(), false)]);
    let failed = |wanted: &str| {
        let is = |event: &&Event| matches!(event, Event::StateFailed { operation, .. } if *operation == wanted);
        events.iter().filter(is).count()
    };
    assert!(failed("claim") >= 2 && failed("reap") >= 1);
}

/// A worker whose renewal failed is healthy again when nothing is left to renew.
pub async fn health_recovers_when_nothing_is_left_to_renew<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let lease = LeaseSettings::new(ms(20_000)).renew_every(ms(60));
    let worker = world.worker().lease(lease);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    world.faults.fail_always(Verb::RenewLeases, Fault::Before);
    workers
        .wait_for_health(|health| matches!(health, Health::Degraded { .. }))
        .await;
    gate.open();
    world.output(&chain).await;
    soon(
        "the worker recovers",
        workers.wait_for_health(|health| *health == Health::Running),
    )
    .await;
    workers.stop().await;
}

/// A commit that fails is a counted failure with backoff, once; nothing was committed (H12, I8, LG14).
pub async fn a_failed_commit_counts_once_and_backs_off<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::Commit, 1, Fault::Before);
    let policy = RetryPolicy::new().initial(ms(80)).jitter(0.0);
    let workers = start(world.worker().retry(policy).process(|job: Job<F, Work>| async move {
        let number = job.number();
        if let Some(error) = job.last_error() {
            assert!(error.message.contains("made to fail: Commit"), "{}", error.message);
            let began = job.record().started_at.expect("it was started");
            assert!(began.saturating_duration_since(error.at) >= ms(80), "it backs off");
        }
        job.begin().await?.finish(number).await
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    let events = drain_events(&mut events);
    let ended = outcomes(&events);
    assert!(
        matches!(ended[..], [AttemptOutcome::Failed { .. }, AttemptOutcome::Finished]),
        "{ended:?}"
    );
    let completed = events
        .iter()
        .filter(|event| matches!(event, Event::JobCompleted { .. }));
    assert_eq!(completed.count(), 1, "what was rolled back is not told of");
}

/// A commit whose answer is lost has happened: the attempt has succeeded, its effects are told, and it runs once.
pub async fn a_commit_whose_answer_is_lost_has_happened<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::Commit, 1, Fault::After);
    let workers = start(
        world
            .worker()
            .poll_interval(ms(60_000))
            .process(|job: Job<F, FromHere>| async move { job.begin().await?.continue_with(Shared { n: 1 }).await })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let jobs = world.jobs(&chain).await;
    assert!(jobs.iter().all(|job| job.attempt == 1) && jobs.len() == 2);
    let events = drain_events(&mut events);
    let ended = outcomes(&events);
    assert!(
        matches!(ended[..], [AttemptOutcome::Continued { .. }, AttemptOutcome::Finished]),
        "{ended:?}"
    );
    let completed = events
        .iter()
        .filter(|event| matches!(event, Event::JobCompleted { .. }));
    assert_eq!(completed.count(), 2);
}

/// A grouped completion whose answer is lost has happened as well: told once, and the chain goes on at once.
pub async fn a_settlement_whose_answer_is_lost_has_happened<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::SettleJobs, 1, Fault::After);
    let workers = start(
        world
            .worker()
            .poll_interval(ms(60_000))
            .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 1 }) })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert!(world.jobs(&chain).await.iter().all(|job| job.attempt == 1));
    let events = drain_events(&mut events);
    let told = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(told(|event| matches!(event, Event::JobCompleted { .. })), 2);
    assert_eq!(told(|event| matches!(event, Event::JobCreated(_))), 2);
    assert_eq!(told(|event| matches!(event, Event::ChainCompleted { .. })), 1);
}

/// A failure that could not be written at first is written later, and told once it is (LG15).
pub async fn a_failure_is_told_when_it_is_written<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    world.faults.fail_next(Verb::SettleJobs, 2, Fault::After);
    let workers = start(
        world
            .worker()
            .process(|_: Job<F, Work>| async move { Err("no".into()) }),
    )
    .await;
    let dead = world.until(&chain, JobStatus::Dead).await;
    assert_eq!(dead.attempt, 1);
    events_until(&mut events, |event| matches!(event, Event::ChainDead { .. })).await;
    workers.stop().await;
    let told = drain_events(&mut events);
    assert!(
        !told.iter().any(|event| matches!(event, Event::ChainDead { .. })),
        "told once"
    );
}

/// Runs jobs of a chain of two while hints go wrong, from before the workers start.
async fn survives_hints<F: PairFixture>(fixture: F, fault: NotifyFault) -> Vec<Event> {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let mut events = world.client.events();
    world.notify.set(Some(fault));
    let mut sets = Vec::new();
    for client in [&world.client, &other] {
        let worker = eager(client)
            .concurrency(2)
            .process(|job: Job<F, FromHere>| async move {
                let n = job.n;
                if n.is_multiple_of(2) {
                    return job.continue_with(Shared { n });
                }
                job.begin().await?.continue_with(Shared { n }).await
            })
            .process(|job: Job<F, Shared>| async move {
                let text = job.n.to_string();
                job.finish(text)
            });
        sets.push(start(worker).await);
    }
    let chains = world
        .client
        .start_many((0..4).map(|n| FromHere { n }))
        .await
        .expect("the chains start");
    let outputs = futures_util::future::join_all(chains.iter().map(|chain| world.output(chain))).await;
    assert_eq!(outputs, ["0", "1", "2", "3"]);
    world.notify.set(None);
    for workers in sets {
        soon("the worker stops", workers.stop()).await;
    }
    drain_events(&mut events)
}

/// A notify adapter that fails costs latency, never work, and events name the operation (NT7, LG10, I11).
pub async fn failing_hints_cost_no_work<F: PairFixture>(fixture: F) {
    let events = survives_hints(fixture, NotifyFault::Fail).await;
    for wanted in ["announce", "subscribe"] {
        let told = events.iter().any(
            |event| matches!(event, Event::NotifyFailed { operation, error } if *operation == wanted && error.contains("made to fail")),
        );
        assert!(told, "the failure of `{wanted}` is told");
    }
}

/// A notify adapter that loses everything costs latency, never work (I11).
pub async fn lost_hints_cost_no_work<F: PairFixture>(fixture: F) {
    survives_hints(fixture, NotifyFault::Lose).await;
}

/// A notify adapter that panics costs latency, never work (I11, I13).
pub async fn panicking_hints_cost_no_work<F: PairFixture>(fixture: F) {
    let events = survives_hints(fixture, NotifyFault::Panic).await;
    assert!(events.iter().any(|event| matches!(event, Event::NotifyFailed { .. })));
}

/// A notify adapter that does not answer costs latency, never work (I11, I13).
pub async fn silent_hints_cost_no_work<F: PairFixture>(fixture: F) {
    survives_hints(fixture, NotifyFault::Hang).await;
}

/// Upkeep that fails is told, tried again, and nobody's health: jobs run on.
pub async fn failing_upkeep_is_tried_again<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    world.faults.fail_next(Verb::Maintain, 1, Fault::Before);
    world.faults.fail_next(Verb::Maintain, 1, Fault::Panic);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    let told = |event: &Event| {
        matches!(
            event,
            Event::StateFailed {
                operation: "maintain",
                ..
            }
        )
    };
    for _ in 0..2 {
        events_until(&mut events, told).await;
        assert_eq!(workers.health(), Health::Running);
    }
    soon("it is tried again", world.faults.called(Verb::Maintain, 3)).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
}
