//! A store that refuses for a while, such as one to which the role may not log in: what is about the store is waited out,
//! and only what is about a row itself ends an attempt (I13, I17).

use queuert::{AttemptOutcome, Event, Health, JobStatus, StateErrorKind};

use super::types::{FromHere, Shared, Work};
use super::world::{Gate, Job, SOON, World, drain_events, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// Every kind of failure that is not that of one row.
const OF_THE_STORE: [StateErrorKind; 3] = [
    StateErrorKind::Transient,
    StateErrorKind::Conflict,
    StateErrorKind::Misconfigured,
];

/// The result of a processor that succeeded is stored when the store takes it again, however it refused meanwhile. No
/// attempt is charged, and health says so meanwhile.
pub async fn only_its_own_row_ends_a_completion<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for kind in OF_THE_STORE {
        let mut events = world.client.events();
        let started = world.client.start_many((0..5).map(|n| Work { n }));
        let chains = started.await.expect("the chains start");
        let gate = Gate::closed();
        let held = gate.clone();
        let worker = world.worker().concurrency(5).retry(SOON.max_attempts(1));
        let workers = start(worker.process(move |job: Job<F, Work>| {
            let held = held.clone();
            async move {
                held.pass().await;
                let number = job.number();
                job.finish(number)
            }
        }))
        .await;
        gate.arrived(5).await;
        world.faults.fail_next_with(Verb::SettleJobs, 8, Fault::Before, kind);
        gate.open();
        let degraded = workers.wait_for_health(|health| matches!(health, Health::Degraded { .. }));
        let degraded = soon("health shows the refusal", degraded).await;
        assert!(matches!(degraded, Health::Degraded { error } if error.contains("made to fail: SettleJobs")));
        for chain in &chains {
            assert_eq!(world.output(chain).await, 1, "after {kind:?}");
            assert_eq!(world.latest(chain).await.claims, 1, "after {kind:?}");
        }
        let recovered = workers.wait_for_health(|health| *health == Health::Running);
        soon("the worker recovers", recovered).await;
        workers.stop().await;
        let events = drain_events(&mut events);
        let failed = |event: &&Event| {
            matches!(
                event,
                Event::StateFailed {
                    operation: "settle",
                    ..
                }
            )
        };
        assert_eq!(events.iter().filter(failed).count(), 8, "after {kind:?}");
        let finished = |event: &&Event| {
            matches!(
                event,
                Event::AttemptEnded {
                    outcome: AttemptOutcome::Finished,
                    ..
                }
            )
        };
        assert_eq!(events.iter().filter(finished).count(), 5, "after {kind:?}");
    }
}

/// So is the failure of an attempt, with its own error, and once.
pub async fn only_its_own_row_ends_a_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for kind in OF_THE_STORE {
        let started = world.client.start(Work { n: 0 }).max_attempts(1);
        let chain = started.await.expect("the chain starts");
        world.faults.fail_next_with(Verb::SettleJobs, 3, Fault::Before, kind);
        let workers = start(
            world
                .worker()
                .process(|_: Job<F, Work>| async move { Err("its own error".into()) }),
        )
        .await;
        let dead = world.until(&chain, JobStatus::Dead).await;
        assert_eq!(dead.claims, 1, "after {kind:?}");
        let error = dead.last_error.expect("the error is stored");
        assert_eq!(error.message, "its own error", "after {kind:?}");
        workers.stop().await;
    }
}

/// A claim that was made before the store refused is run: the worker asks what it has taken, whatever the error was.
pub async fn a_refused_claim_that_was_made_costs_no_attempt<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for kind in OF_THE_STORE {
        let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
        world.faults.fail_next_with(Verb::ClaimJobs, 1, Fault::After, kind);
        world.faults.fail_next_with(Verb::ClaimedJobs, 2, Fault::Before, kind);
        let workers = start(world.worker().process(|job: Job<F, Work>| async move {
            let number = job.number();
            job.finish(number)
        }))
        .await;
        assert_eq!(world.output(&chain).await, 1, "after {kind:?}");
        assert_eq!(world.latest(&chain).await.claims, 1, "after {kind:?}");
        workers.stop().await;
    }
}

/// The next job of a chain that was handed over before the store refused goes on with it.
pub async fn a_hand_over_outlasts_a_refusal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for kind in OF_THE_STORE {
        let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
        world.faults.fail_next_with(Verb::SettleJobs, 1, Fault::After, kind);
        world.faults.fail_next_with(Verb::ClaimedJobs, 2, Fault::Before, kind);
        let worker = world.worker().poll_interval(ms(60_000));
        let workers = start(
            worker
                .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 1 }) })
                .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
        )
        .await;
        world.output(&chain).await;
        assert_eq!(world.latest(&chain).await.claims, 1, "after {kind:?}");
        workers.stop().await;
    }
}

/// While the store refuses everything, a worker with many ends asks it for a few of them by themselves and not for each:
/// the store must not suffer for what is not the fault of a row.
pub async fn a_refusing_store_is_not_asked_row_by_row<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let started = world.client.start_many((0..20).map(|n| Work { n }));
    let chains = started.await.expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().concurrency(20).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(20).await;
    let kind = StateErrorKind::Misconfigured;
    world.faults.fail_next_with(Verb::SettleJobs, 12, Fault::Before, kind);
    gate.open();
    for chain in &chains {
        assert_eq!(world.output(chain).await, 1);
    }
    workers.stop().await;
    let refused = world.faults.batches(Verb::SettleJobs).into_iter().take(12);
    let batches = refused.filter(|items| *items > 1).count();
    assert!(batches >= 4, "{batches} of 12 calls were for several ends");
}
