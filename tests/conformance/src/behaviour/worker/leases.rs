//! Leases and fences: kept while an attempt runs, and useless once they are lost.

use std::future::Future;

use queuert::adapter::StateAdapter;
use queuert::{AbortReason, AttemptOutcome, Client, Error, Event, JobStatus, LeaseSettings, WorkerBuilder};

use super::types::{FromHere, Shared, Work};
use super::world::{Gate, Job, JobResult, Log, World, drain_events, eager, events_until, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// A worker with a short lease that looks for expired ones all the time. For leases that are to be lost, or that nobody
/// else looks for.
fn impatient<S: StateAdapter>(client: &Client<S>) -> WorkerBuilder<S> {
    vigilant(client).lease(LeaseSettings::new(ms(90)))
}

/// A worker that looks for expired leases all the time, and whose own do not expire.
fn vigilant<S: StateAdapter>(client: &Client<S>) -> WorkerBuilder<S> {
    eager(client).reap_interval(ms(20))
}

/// A lease that is renewed so often, and lasts so long after that, that no pause of a busy machine ends it. Short enough
/// to wait for its end.
const RENEWED: LeaseSettings = LeaseSettings::new(ms(1_500)).renew_every(ms(100));

/// A lease is renewed while its attempt runs, so that nobody takes the job, however long it runs (LG6, I10).
pub async fn a_lease_is_renewed_while_its_attempt_runs<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let worker = eager(&world.client).lease(RENEWED);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let thief = start(vigilant(&other).process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    world.elapse(RENEWED.duration + ms(300)).await;
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    thief.stop().await;
    workers.stop().await;
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.claims), (1, 1));
    let until: Vec<_> = drain_events(&mut events)
        .into_iter()
        .filter_map(|event| match event {
            Event::LeaseRenewed { until, .. } => Some(until),
            _ => None,
        })
        .collect();
    assert!(until.len() >= 4, "{until:?}");
    assert!(until.is_sorted(), "{until:?}");
}

/// The leases of all attempts of a process are renewed in one call.
pub async fn all_leases_are_renewed_in_one_call<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..10).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(
        impatient(&world.client)
            .concurrency(10)
            .process(move |job: Job<F, Work>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    job.finish(1)
                }
            }),
    )
    .await;
    gate.arrived(10).await;
    let before = world.faults.calls(Verb::RenewLeases);
    world.faults.called(Verb::RenewLeases, before + 4).await;
    let batches = world.faults.batches(Verb::RenewLeases).split_off(before);
    assert!(batches.iter().all(|batch| *batch == 10), "{batches:?}");
    gate.open();
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
}

/// An attempt that needs no renewal costs none.
pub async fn short_attempts_are_not_renewed<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    // The lease check after subscribing is over when a job has run.
    for n in 0..20 {
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        world.output(&chain).await;
    }
    workers.stop().await;
    assert!(world.faults.calls(Verb::RenewLeases) <= 1);
}

/// An expired lease that nobody took does not keep its attempt from completing (R1, LG7).
pub async fn an_expired_lease_that_nobody_took_completes<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(impatient(&world.client).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let until = world.latest(&chain).await.lease.expect("it has a lease").until;
    world.elapse(ms(200)).await;
    let lease = world.latest(&chain).await.lease.expect("nobody took it");
    assert_eq!(lease.until, until, "it was not renewed");
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 1);
}

/// A worker never takes a lease of its own, even one that expired (R4, I10).
pub async fn a_worker_never_reaps_its_own<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    let chains = world
        .client
        .start_many((0..2).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    // Longer than a claim takes to be answered: what no process knows to be its own is not protected.
    let worker = impatient(&world.client)
        .lease(LeaseSettings::new(ms(300)))
        .concurrency(4);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(2).await;
    world.elapse(ms(400)).await;
    let sweeps = world.faults.calls(Verb::ReapLeases);
    world.faults.called(Verb::ReapLeases, sweeps + 4).await;
    gate.open();
    for chain in &chains {
        world.output(chain).await;
        let job = world.latest(chain).await;
        assert_eq!((job.attempt, job.claims), (1, 1));
    }
    workers.stop().await;
}

/// A stalled attempt is taken by another worker and told so; the other's result stands, and nothing is counted against
/// the one that lost (R2, NT6, LG8).
pub async fn a_stalled_attempt_is_taken_and_told<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let mut events = world.client.events();
    let mut others = other.events();
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let told = Log::new();
    let (log, gate) = (told.clone(), Gate::closed());
    let stalled = start(impatient(&world.client).process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            log.add(job.signal().aborted().await);
            job.finish(1)
        }
    }))
    .await;
    world.until(&chain, JobStatus::Running).await;
    let held = gate.clone();
    let healthy = start(vigilant(&other).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(2)
        }
    }))
    .await;
    gate.arrived(1).await;
    world.faults.heal();
    assert_eq!(told.until_len(1).await, [AbortReason::TakenByAnotherWorker]);
    // The stalled attempt ends while the other one still runs: afterwards it would be told that the job is completed.
    stalled.stop().await;
    gate.open();
    assert_eq!(world.output(&chain).await, 2);
    healthy.stop().await;
    let events = drain_events(&mut events);
    let lost = Event::LeaseLost {
        attempt: events
            .iter()
            .find_map(|event| match event {
                Event::AttemptStarted(attempt) => Some(attempt.clone()),
                _ => None,
            })
            .expect("the attempt is told of"),
        reason: AbortReason::TakenByAnotherWorker,
    };
    assert_eq!(events.iter().filter(|event| **event == lost).count(), 1);
    let outcomes: Vec<_> = events.iter().filter_map(outcome).collect();
    assert_eq!(outcomes, [&AttemptOutcome::Aborted(AbortReason::TakenByAnotherWorker)]);
    let reaped: Vec<_> = drain_events(&mut others)
        .into_iter()
        .filter_map(|event| match event {
            Event::JobReaped { owner, worker, .. } => Some((owner, worker)),
            _ => None,
        })
        .collect();
    assert_eq!(reaped, [(stalled.id().clone(), healthy.id().clone())]);
}

fn outcome(event: &Event) -> Option<&AttemptOutcome> {
    match event {
        Event::AttemptEnded { outcome, .. } => Some(outcome),
        _ => None,
    }
}

/// Lets another worker take the job of an attempt, and the attempt act afterwards; `completed` says whether the other
/// is done by then. The attempt must be refused with the reason, and leave no trace.
async fn zombie<F, Act, Fut>(fixture: F, completed: bool, act: Act)
where
    F: PairFixture,
    Act: Fn(Job<F, FromHere>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = JobResult<F>> + Send + 'static,
{
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let mut events = world.client.events();
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let (stall, hold) = (Gate::closed(), Gate::closed());
    let held = stall.clone();
    let stalled = start(impatient(&world.client).process(move |job: Job<F, FromHere>| {
        let (held, act) = (held.clone(), act.clone());
        async move {
            held.pass().await;
            act(job).await
        }
    }))
    .await;
    stall.arrived(1).await;
    let held = hold.clone();
    let healthy = start(
        vigilant(&other)
            .process(move |job: Job<F, FromHere>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    job.continue_with(Shared { n: 2 })
                }
            })
            .process(|job: Job<F, Shared>| async move {
                let n = job.n.to_string();
                job.finish(n)
            }),
    )
    .await;
    hold.arrived(1).await;
    let expected = if completed {
        hold.open();
        world.output(&chain).await;
        AbortReason::AlreadyCompleted
    } else {
        AbortReason::TakenByAnotherWorker
    };
    stall.open();
    let seen = events_until(&mut events, |event| outcome(event).is_some()).await;
    let ended: Vec<_> = seen.iter().filter_map(outcome).collect();
    assert_eq!(ended, [&AttemptOutcome::Aborted(expected)]);
    let lost = seen
        .iter()
        .filter(|event| matches!(event, Event::LeaseLost { .. }))
        .count();
    assert_eq!(lost, 1, "the loss is told once");
    hold.open();
    assert_eq!(world.output(&chain).await, "2");
    stalled.stop().await;
    healthy.stop().await;
    let jobs = world.jobs(&chain).await;
    assert_eq!(jobs.len(), 2, "one successor");
    assert_eq!(jobs[0].attempt, 2);
    let notes = world
        .client
        .list_jobs()
        .of_type::<Work>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 0, "nothing of the lost attempt was committed");
}

/// The plain completion of an attempt whose job was taken is refused (R3, I4).
pub async fn a_lost_attempt_cannot_complete<F: PairFixture>(fixture: F) {
    zombie(fixture, false, |job: Job<F, FromHere>| async move {
        job.continue_with(Shared { n: 1 })
    })
    .await;
}

/// The plain completion of an attempt whose job was taken and completed is refused (R3, I4, I5).
pub async fn a_lost_attempt_cannot_complete_twice<F: PairFixture>(fixture: F) {
    zombie(fixture, true, |job: Job<F, FromHere>| async move {
        job.continue_with(Shared { n: 1 })
    })
    .await;
}

/// The transaction of an attempt whose job was taken cannot complete it, nor commit (R3, I4).
pub async fn a_lost_attempt_cannot_complete_in_its_transaction<F: PairFixture>(fixture: F) {
    zombie(fixture, false, transactional::<F>).await;
}

/// The transaction of an attempt whose job was taken and completed cannot complete it, nor commit (R3, I4, I5).
pub async fn a_lost_attempt_cannot_complete_twice_in_its_transaction<F: PairFixture>(fixture: F) {
    zombie(fixture, true, transactional::<F>).await;
}

async fn transactional<F: PairFixture>(job: Job<F, FromHere>) -> JobResult<F> {
    let client = job.client().clone();
    let mut tx = job.begin().await?;
    client.start(Work { n: 1 }).within(&mut tx).await?;
    let refused = tx.continue_with(Shared { n: 1 }).await;
    let error = refused.expect_err("the completion is refused");
    assert!(error.lease_lost().is_some(), "the error is typed: {error}");
    assert!(job.signal().is_aborted(), "the signal has fired");
    Err(error)
}

/// `prepare` of an attempt whose job was taken cannot commit (I4).
pub async fn a_lost_attempt_cannot_prepare<F: PairFixture>(fixture: F) {
    zombie(fixture, false, preparing::<F>).await;
}

/// `prepare` of an attempt whose job was taken and completed cannot commit (I4).
pub async fn a_lost_attempt_cannot_prepare_after_completion<F: PairFixture>(fixture: F) {
    zombie(fixture, true, preparing::<F>).await;
}

async fn preparing<F: PairFixture>(job: Job<F, FromHere>) -> JobResult<F> {
    let client = job.client().clone();
    job.prepare(async |tx| client.start(Work { n: 1 }).within(tx).await)
        .await?;
    job.continue_with(Shared { n: 1 })
}

/// The failure of an attempt whose job was taken writes nothing: the other attempt is not disturbed (I4).
pub async fn a_lost_attempt_cannot_fail_its_successor<F: PairFixture>(fixture: F) {
    zombie(
        fixture,
        false,
        |_: Job<F, FromHere>| async move { Err("too late".into()) },
    )
    .await;
}

/// A snooze of an attempt whose job was taken is refused (I4).
pub async fn a_lost_attempt_cannot_snooze<F: PairFixture>(fixture: F) {
    zombie(fixture, false, |job: Job<F, FromHere>| async move { job.snooze(ms(1)) }).await;
}

/// The same worker may have the job again: its old attempt is told, refused, and does not disturb the lease of the new
/// one (H7, I4).
pub async fn an_old_attempt_of_the_same_worker_is_refused<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let mut events = world.client.events();
    world.faults.fail_always(Verb::RenewLeases, Fault::Pretend);
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (old, new) = (Gate::closed(), Gate::closed());
    let signals = Log::new();
    let (hold_old, hold_new, log) = (old.clone(), new.clone(), signals.clone());
    let worker = eager(&world.client).lease(RENEWED).concurrency(2);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        log.add(job.signal());
        let (hold_old, hold_new) = (hold_old.clone(), hold_new.clone());
        async move {
            let number = job.number();
            match number {
                1 => hold_old.pass().await,
                _ => hold_new.pass().await,
            }
            if number == 1 {
                // An early look must not be what refuses it: the fence is.
                return job.finish(number);
            }
            job.begin().await?.finish(number).await
        }
    }))
    .await;
    old.arrived(1).await;
    world.reap_one("work").await;
    new.arrived(1).await;
    world.faults.heal();
    let signals = signals.until_len(2).await;
    let told = soon("the old attempt is told", signals[0].aborted()).await;
    assert_eq!(told, AbortReason::TakenByAnotherWorker);
    old.open();
    let seen = events_until(&mut events, |event| outcome(event).is_some()).await;
    let ended: Vec<_> = seen.iter().filter_map(outcome).collect();
    assert_eq!(ended, [&AttemptOutcome::Aborted(AbortReason::TakenByAnotherWorker)]);
    // The new attempt keeps its lease, also against another process that wants it.
    let thief = start(vigilant(&other).process(|job: Job<F, Work>| async move { job.finish(99) })).await;
    world.elapse(RENEWED.duration + ms(300)).await;
    assert!(!signals[1].is_aborted());
    new.open();
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    thief.stop().await;
    assert_eq!(world.latest(&chain).await.claims, 2);
}

/// A transaction that has completed the job and waits to be committed does not lose its lease meanwhile, and the
/// renewal does not wait for it.
pub async fn a_long_transaction_keeps_its_job<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().concurrent_writers {
        return super::world::skip("the store has one writer at a time");
    }
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(impatient(&world.client).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            let completion = job.begin().await?.finish(1).await?;
            held.pass().await;
            Ok(completion)
        }
    }))
    .await;
    gate.arrived(1).await;
    let thief = start(impatient(&other).process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    world.elapse(ms(300)).await;
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    thief.stop().await;
    assert_eq!(world.latest(&chain).await.claims, 1);
}

/// An attempt that has lost its job fails early: `begin` and `prepare` do not even ask the store (I4).
pub async fn a_lost_attempt_fails_early<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let errors = Log::new();
    let log = errors.clone();
    // A lease that ends by the process's clock only would leave it to the store.
    let worker = vigilant(&world.client).lease(RENEWED);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            job.signal().aborted().await;
            let refused = job.begin().await.expect_err("begin is refused");
            log.add(refused.lease_lost());
            let refused = job
                .prepare(async |_| Ok::<_, Error>(()))
                .await
                .expect_err("prepare is refused");
            log.add(refused.lease_lost());
            Err(refused)
        }
    }))
    .await;
    world.until(&chain, JobStatus::Running).await;
    world
        .client
        .cancel(&chain)
        .await
        .expect("a running chain can be cancelled");
    assert_eq!(errors.until_len(2).await, [Some(AbortReason::Cancelled); 2]);
    workers.stop().await;
    assert_eq!(world.faults.calls(Verb::Begin), 0);
    assert_eq!(world.latest(&chain).await.status, JobStatus::Cancelled);
}
