//! The abort signal: each reason, and each way to heed it.

use queuert::{AbortReason, AttemptOutcome, Event, JobStatus, LeaseSettings};

use super::types::Work;
use super::world::{Gate, Job, Log, World, events_until, ms, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// A lease that is looked after all the time, and that no pause of a busy machine ends.
const HELD: LeaseSettings = LeaseSettings::new(ms(20_000)).renew_every(ms(30));

/// Runs an attempt that waits for its signal, does `disturb` to it, and returns the reason it was given and its end.
async fn aborted<F: PairFixture>(
    world: &World<F>,
    lease: LeaseSettings,
    disturb: impl AsyncFnOnce(&World<F>, &queuert::Started<Work>),
) -> (AbortReason, AttemptOutcome) {
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let reasons = Log::new();
    let log = reasons.clone();
    let worker = world.worker().lease(lease).reap_interval(ms(60_000));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            let reason = job.signal().aborted().await;
            assert_eq!(job.signal().reason(), Some(reason));
            log.add(reason);
            // Whatever it does now, it cannot be committed, if the store says so.
            job.begin().await?.finish(1).await
        }
    }))
    .await;
    world.until(&chain, JobStatus::Running).await;
    disturb(world, &chain).await;
    let reason = reasons.until_len(1).await[0];
    let seen = events_until(&mut events, |event| matches!(event, Event::AttemptEnded { .. })).await;
    workers.stop().await;
    match seen.into_iter().next_back() {
        Some(Event::AttemptEnded { outcome, .. }) => (reason, outcome),
        other => panic!("the last event is the end, not {other:?}"),
    }
}

/// Completion from outside aborts the running attempt with `AlreadyCompleted`, and stands (NT5).
pub async fn completion_from_outside_aborts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = std::sync::Mutex::new(None);
    let ended = aborted(&world, HELD, async |world, started| {
        let done = world.client.transaction(async |tx| {
            let job = world.client.open::<Work>(started).within(tx).await?;
            job.finish(77).await
        });
        done.await.expect("an open chain can be completed from outside");
        *chain.lock().expect("nobody panics with it") = Some(started.chain());
    })
    .await;
    let reason = AbortReason::AlreadyCompleted;
    assert_eq!(ended, (reason, AttemptOutcome::Aborted(reason)));
    let chain = chain
        .lock()
        .expect("nobody panics with it")
        .take()
        .expect("it was started");
    assert_eq!(world.output(chain).await, 77);
    assert_eq!(world.latest(chain).await.completed_by, None);
}

/// Deletion aborts the running attempt with `NotFound`.
pub async fn deletion_aborts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ended = aborted(&world, HELD, async |world, chain| {
        world
            .client
            .delete(chain)
            .await
            .expect("a running chain can be deleted");
    })
    .await;
    assert_eq!(
        ended,
        (AbortReason::NotFound, AttemptOutcome::Aborted(AbortReason::NotFound))
    );
}

/// Cancellation aborts the running attempt with `Cancelled`.
pub async fn cancellation_aborts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ended = aborted(&world, HELD, async |world, chain| {
        world
            .client
            .cancel(chain)
            .await
            .expect("a running chain can be cancelled");
    })
    .await;
    assert_eq!(
        ended,
        (AbortReason::Cancelled, AttemptOutcome::Aborted(AbortReason::Cancelled))
    );
}

/// A lease that expires and is taken aborts the attempt with `TakenByAnotherWorker`.
pub async fn a_taken_lease_aborts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    // Its end is waited for. What comes after it, the answer that it is lost, must not take as long.
    let lease = LeaseSettings::new(ms(1_000)).renew_every(ms(30));
    let ended = aborted(&world, lease, async |world, _| {
        world.reap_one("work").await;
        // Somebody else has it now.
        world.claim_and_die("work", ms(60_000)).await;
        world.faults.heal();
    })
    .await;
    let reason = AbortReason::TakenByAnotherWorker;
    assert_eq!(ended, (reason, AttemptOutcome::Aborted(reason)));
}

/// A store that fails until the lease has run out aborts the attempt with `Error`. Whether the job is lost is for the store
/// to say, and it has not given it to anybody.
pub async fn a_failing_store_aborts_when_the_lease_is_over<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ended = aborted(&world, LeaseSettings::new(ms(90)), async |world, _| {
        world.faults.fail_always(Verb::RenewLeases, Fault::Before);
    })
    .await;
    assert_eq!(ended, (AbortReason::Error, AttemptOutcome::Finished));
}

/// A store that does not answer until the lease has run out aborts the attempt with `Error`.
pub async fn a_silent_store_aborts_when_the_lease_is_over<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ended = aborted(&world, LeaseSettings::new(ms(90)), async |world, _| {
        world.faults.fail_always(Verb::RenewLeases, Fault::Hang);
    })
    .await;
    assert_eq!(ended.0, AbortReason::Error);
}

/// A job whose attempt was aborted with `Error` is not lost: its lease expires, it is taken back and runs again.
pub async fn a_job_lost_to_a_failing_store_comes_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_always(Verb::RenewLeases, Fault::Before);
    let faults = world.faults.clone();
    let worker = world.worker().lease(LeaseSettings::new(ms(60))).reap_interval(ms(30));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let faults = faults.clone();
        async move {
            let number = job.number();
            if number == 1 {
                let reason = job.signal().aborted().await;
                faults.heal();
                // It heeds the signal in the usual way.
                return Err(reason.into());
            }
            job.finish(number)
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
}

/// The signal can be polled by a processor that works in steps.
pub async fn the_signal_can_be_polled<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (begun, reasons) = (Log::new(), Log::new());
    let logs = (begun.clone(), reasons.clone());
    let worker = world.worker().lease(HELD);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let (begun, log) = logs.clone();
        async move {
            assert!(!job.signal().is_aborted());
            begun.add(());
            while !job.signal().is_aborted() {
                tokio::time::sleep(ms(2)).await;
            }
            log.add(job.signal().reason());
            job.finish(1)
        }
    }))
    .await;
    begun.until_len(1).await;
    world
        .client
        .cancel(&chain)
        .await
        .expect("a running chain can be cancelled");
    assert_eq!(reasons.until_len(1).await, [Some(AbortReason::Cancelled)]);
    workers.stop().await;
    assert_eq!(world.chain(&chain).await.status, JobStatus::Cancelled);
}

/// A worker that was told to drops the attempt as soon as its signal fires, without the processor's help.
pub async fn an_attempt_can_be_dropped_on_abort<F: PairFixture>(fixture: F) {
    struct OnDrop(Log<&'static str>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.add("dropped");
        }
    }

    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let drops = Log::new();
    let log = drops.clone();
    let worker = world.worker().lease(HELD).drop_on_abort();
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let guard = OnDrop(log.clone());
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
            job.finish(1)
        }
    }))
    .await;
    world.until(&chain, JobStatus::Running).await;
    world
        .client
        .cancel(&chain)
        .await
        .expect("a running chain can be cancelled");
    drops.until_len(1).await;
    let seen = events_until(&mut events, |event| matches!(event, Event::AttemptEnded { .. })).await;
    let aborted = AttemptOutcome::Aborted(AbortReason::Cancelled);
    assert!(matches!(seen.last(), Some(Event::AttemptEnded { outcome, .. }) if *outcome == aborted));
    // The worker is free again.
    let next = world
        .client
        .start(Work { n: 1 })
        .delay(ms(1))
        .await
        .expect("the chain starts");
    world.until(&next, JobStatus::Running).await;
    workers.stop().await;
}

/// The first reason counts, and a signal that never fires leaves the attempt alone.
pub async fn a_signal_that_does_not_fire_is_silent<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (gate, signals) = (Gate::closed(), Log::new());
    let (held, log) = (gate.clone(), signals.clone());
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        log.add(job.signal());
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    // Another chain's fate is none of its business.
    let other = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world
        .client
        .cancel(&other)
        .await
        .expect("an open chain can be cancelled");
    gate.open();
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(signals.all()[0].reason(), None);
}
