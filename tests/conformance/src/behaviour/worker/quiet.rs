//! How little the store is asked: batches when busy, silence when idle or saturated (I15).

use std::sync::Arc;

use tokio::sync::Barrier;

use super::types::Work;
use super::world::{Gate, Job, World, ms, skip, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// An idle worker with notices asks no more than its poll interval allows.
pub async fn an_idle_worker_is_quiet<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let worker = world.client.worker().poll_interval(ms(60_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    // One look at the start, one when it has subscribed.
    world.faults.called(Verb::ClaimJobs, 2).await;
    world.faults.called(Verb::ReapLeases, 1).await;
    world.elapse(ms(300)).await;
    assert_eq!(world.faults.calls(Verb::ClaimJobs), 2);
    assert_eq!(world.faults.total(), 3, "two looks for jobs, one for expired leases");
    workers.stop().await;
}

/// An idle worker polls as often as it was told, not more.
pub async fn polling_keeps_its_interval<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let worker = world.client.worker().poll_interval(ms(100));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 2).await;
    let before = world.faults.calls(Verb::ClaimJobs);
    let begun = tokio::time::Instant::now();
    world.faults.called(Verb::ClaimJobs, before + 5).await;
    // Five polls with at most a tenth of jitter each; one may have been under way.
    assert!(begun.elapsed() >= ms(360), "{:?}", begun.elapsed());
    workers.stop().await;
}

/// A job that is due much later does not make an idle worker look more often.
pub async fn a_job_due_later_makes_no_noise<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world
        .client
        .start(Work { n: 0 })
        .delay(ms(30_000))
        .await
        .expect("the chain starts");
    let worker = world.client.worker().poll_interval(ms(60_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 2).await;
    world.elapse(ms(300)).await;
    assert_eq!(world.faults.calls(Verb::ClaimJobs), 2);
    workers.stop().await;
}

/// A saturated worker does not look for work that it cannot take, whatever is announced.
pub async fn a_saturated_worker_asks_for_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let chains = world
        .client
        .start_many((0..6).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let worker = world.client.worker().poll_interval(ms(10)).concurrency(2);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(2).await;
    let claims = world.faults.calls(Verb::ClaimJobs);
    for n in 0..5 {
        world.client.start(Work { n }).await.expect("the chain starts");
    }
    world.elapse(ms(150)).await;
    assert_eq!(world.faults.calls(Verb::ClaimJobs), claims);
    gate.open();
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
}

/// Jobs are claimed in batches for all idle workers, and completions that come together are committed together.
pub async fn busy_workers_ask_in_batches<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..100).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let barrier = Arc::new(Barrier::new(10));
    // As those of a database do, its calls take a moment.
    world.faults.fail_always(Verb::ClaimJobs, Fault::Slow(ms(5)));
    world.faults.fail_always(Verb::SettleJobs, Fault::Slow(ms(5)));
    let workers = start(world.worker().concurrency(10).process(move |job: Job<F, Work>| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            job.finish(1)
        }
    }))
    .await;
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
    assert_eq!(
        world.faults.batches(Verb::ClaimJobs)[0],
        10,
        "it asks for as many as are idle"
    );
    let (claims, settlements) = (
        world.faults.calls(Verb::ClaimJobs),
        world.faults.batches(Verb::SettleJobs),
    );
    assert!(claims < 60, "{claims} claims for 100 jobs");
    assert!(settlements.len() < 60, "{} commits for 100 jobs", settlements.len());
    assert_eq!(settlements.iter().sum::<usize>(), 100);
}

/// The first completion goes at once, and those that arrive meanwhile form the next batch.
pub async fn completions_are_committed_in_groups<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..20).map(|n| Work { n }))
        .await
        .expect("the chains start");
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
    world.faults.fail_next(Verb::SettleJobs, 1, Fault::Slow(ms(40)));
    gate.open();
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
    let batches = world.faults.batches(Verb::SettleJobs);
    assert_eq!(batches.iter().sum::<usize>(), 20);
    assert!(batches.len() <= 3, "{batches:?}");
}

/// A chain that somebody holds locked keeps the completion of its own job waiting, not those of others.
pub async fn a_locked_chain_holds_up_nobody_else<F: PairFixture>(fixture: F) {
    if !fixture.capabilities().concurrent_writers {
        return skip("the store has one writer at a time");
    }
    let world = World::new(fixture).await;
    let locked = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().concurrency(4).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            if job.n == 0 {
                held.pass().await;
            }
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let open = world
        .client
        .open::<Work>(&locked)
        .within(&mut tx)
        .await
        .expect("it can be locked");
    gate.open();
    world.faults.called(Verb::SettleJobs, 1).await;
    for n in 1..4 {
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        soon("others go on", world.output(&chain)).await;
    }
    drop(open);
    tx.rollback().await.expect("the transaction rolls back");
    world.output(&locked).await;
    workers.stop().await;
}
