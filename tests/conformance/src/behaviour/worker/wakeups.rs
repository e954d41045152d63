//! Wake-ups: hints that save the poll interval, and nothing else (I11).

use queuert::adapter::Notice;
use queuert::{JobType, Workers};

use super::types::{FromHere, Gather, Shared, Work};
use super::world::{Gate, Job, State, World, eventually, ms, skip, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Faults, Verb};
use crate::faulty_notify::NotifyFault;

/// Longer than any case may take: what happens before was not found by polling.
const RARELY: std::time::Duration = ms(60_000);

/// Waits until a worker that was just started sleeps: it has looked at the start and after its subscription.
async fn asleep(faults: &Faults) {
    faults.called(Verb::ClaimJobs, 2).await;
}

/// A job is run promptly although the poll interval is a minute (NT1).
pub async fn a_job_starts_promptly<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let (starter, _) = world.other_process();
    let worker = world.worker().poll_interval(RARELY);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    asleep(&world.faults).await;
    for n in 0..5 {
        let chain = starter.start(Work { n }).await.expect("the chain starts");
        world.output(&chain).await;
    }
    workers.stop().await;
}

/// Jobs that are started in a transaction are announced when it commits, and never if it rolls back (I2).
pub async fn a_transaction_announces_after_its_commit<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let worker = world.worker().poll_interval(RARELY);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    asleep(&world.faults).await;
    let mut undone = world.client.begin().await.expect("a transaction opens");
    world
        .client
        .start(Work { n: 0 })
        .within(&mut undone)
        .await
        .expect("the chain starts");
    undone.rollback().await.expect("it rolls back");
    assert!(world.notify.announced().is_empty());
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let chain = world
        .client
        .start(Work { n: 1 })
        .within(&mut tx)
        .await
        .expect("the chain starts");
    assert!(
        world.notify.announced().is_empty(),
        "nothing is announced before the commit"
    );
    tx.commit().await.expect("it commits");
    world.output(&chain).await;
    workers.stop().await;
}

/// Five one-job workers in five processes share five jobs: each takes one at once (NT2).
pub async fn five_processes_share_five_jobs<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let gate = Gate::closed();
    let mut sets: Vec<Workers<State<F>>> = Vec::new();
    for _ in 0..5 {
        let (client, faults) = world.other_process();
        let held = gate.clone();
        let worker = client.worker().poll_interval(RARELY).process(move |job: Job<F, Work>| {
            let held = held.clone();
            async move {
                held.pass().await;
                job.finish(1)
            }
        });
        sets.push(start(worker).await);
        asleep(&faults).await;
    }
    let chains = world
        .client
        .start_many((0..5).map(|n| Work { n }))
        .await
        .expect("the chains start");
    gate.arrived(5).await;
    gate.open();
    for chain in &chains {
        world.output(chain).await;
    }
    for workers in sets {
        workers.stop().await;
    }
}

/// A dependant on another process starts promptly when its blocker completes (NT3).
pub async fn a_dependant_elsewhere_starts_promptly<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let (other, faults) = world.other_process();
    let worker = world.worker().poll_interval(RARELY);
    let here = start(worker.process(|job: Job<F, Work>| async move { job.finish(3) })).await;
    let worker = other.worker().poll_interval(RARELY);
    let there = start(worker.process(|job: Job<F, Gather>| async move {
        let outputs = job.blockers().clone();
        job.finish(outputs)
    }))
    .await;
    asleep(&world.faults).await;
    asleep(&faults).await;
    let blocker = world
        .client
        .start(Work { n: 0 })
        .delay(ms(30))
        .await
        .expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    assert_eq!(world.output(&dependant).await, [3]);
    here.stop().await;
    there.stop().await;
}

/// The next step of a chain on another process starts promptly (NT4).
pub async fn the_next_step_elsewhere_starts_promptly<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let (other, faults) = world.other_process();
    let worker = world.worker().poll_interval(RARELY);
    let here = start(worker.process(|job: Job<F, FromHere>| async move {
        let n = job.n;
        if n == 0 {
            return job.continue_with(Shared { n });
        }
        job.begin().await?.continue_with(Shared { n }).await
    }))
    .await;
    let worker = other.worker().poll_interval(RARELY);
    let there = start(worker.process(|job: Job<F, Shared>| async move { job.finish(String::new()) })).await;
    asleep(&world.faults).await;
    asleep(&faults).await;
    for n in 0..2 {
        let chain = world.client.start(FromHere { n }).await.expect("the chain starts");
        world.output(&chain).await;
    }
    here.stop().await;
    there.stop().await;
}

/// A chain goes on at once on the worker that continued it, even if nothing carries notices.
pub async fn a_chain_goes_on_at_once_without_notices<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.notify.set(Some(NotifyFault::Lose));
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .client
            .worker()
            .poll_interval(RARELY)
            .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 0 }) })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
}

/// When all wake-ups are lost the poll finds the job (I11).
pub async fn the_poll_finds_what_was_not_announced<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.notify.set(Some(NotifyFault::Lose));
    let worker = world.client.worker().poll_interval(ms(50));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    asleep(&world.faults).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&chain).await;
    workers.stop().await;
}

/// A worker that could not subscribe tries again, and looks again when it has: what came meanwhile is found (H22).
pub async fn a_worker_listens_again_and_looks_again<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.notify.set(Some(NotifyFault::Fail));
    let worker = world.client.worker().poll_interval(RARELY);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 1).await;
    let missed = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.notify.set(None);
    world.output(&missed).await;
    workers.stop().await;
}

/// One new job wakes one worker, not all of them.
pub async fn one_job_wakes_one_worker<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let mut sets = Vec::new();
    let mut all = Vec::new();
    for _ in 0..4 {
        let (client, faults) = world.other_process();
        let worker = client.worker().poll_interval(RARELY);
        sets.push(start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await);
        asleep(&faults).await;
        all.push(faults);
    }
    let looks = || all.iter().map(|faults| faults.calls(Verb::ClaimJobs)).sum::<usize>();
    let before = looks();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.output(&chain).await;
    world.elapse(ms(50)).await;
    // The one that took it looks again when it is idle. An adapter without hints may wake all four.
    assert!(looks() - before <= 8, "{} looks for one job", looks() - before);
    for workers in sets {
        workers.stop().await;
    }
}

/// What is announced says how many jobs of which type became available.
pub async fn announcements_count_jobs_by_type<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world
        .client
        .start_many((0..3).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let workers = start(
        world
            .worker()
            .concurrency(3)
            .process(|job: Job<F, Work>| async move { job.finish(1) }),
    )
    .await;
    let ended = |notice: &Notice| matches!(notice, Notice::ChainEnded(_));
    eventually("all ends are announced", async || {
        let announced = world.notify.announced();
        (announced.iter().filter(|notice| ended(notice)).count() == 3).then_some(())
    })
    .await;
    soon("the worker stops", workers.stop()).await;
    let first = Notice::JobsAvailable {
        type_name: Work::NAME.into(),
        count: 3,
    };
    assert_eq!(world.notify.announced()[0], first);
}
