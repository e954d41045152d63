//! Chains that go on with the worker that they have, and the limits of that.

use std::time::Duration;

use queuert::{JobStatus, LeaseSettings, Step};

use super::types::{Countdown, First, Second, Third, Work};
use super::world::{Job, JobResult, Log, World, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// Long enough for a slow machine to renew it in time.
const LEASE: Duration = ms(2_000);

async fn first<F: PairFixture>(job: Job<F, First>) -> JobResult<F> {
    let next = Second { n: job.n + 1 };
    job.continue_with(next)
}

async fn second<F: PairFixture>(job: Job<F, Second>) -> JobResult<F> {
    let next = Third { n: job.n + 1 };
    job.continue_with(next)
}

async fn third<F: PairFixture>(job: Job<F, Third>) -> JobResult<F> {
    let output = job.n + 1;
    job.finish(output)
}

/// A chain whose steps are all this worker's needs one claim.
pub async fn a_chain_goes_on_without_another_claim<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let faults = world.faults.clone();
    let worker = world.worker().process(move |job: Job<F, First>| {
        faults.fail_always(Verb::ClaimJobs, Fault::Before);
        first::<F>(job)
    });
    let workers = start(worker.process(second::<F>).process(third::<F>)).await;
    assert_eq!(world.output(&chain).await, 3);
    for job in world.jobs(&chain).await {
        assert_eq!((job.attempt, job.claims), (1, 1));
    }
    world.faults.heal();
    workers.stop().await;
}

/// A step that this worker has no processor for is left to others.
pub async fn a_step_of_somebody_else_is_left_to_them<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(first::<F>).process(third::<F>)).await;
    let others = start(super::world::eager(&other).process(second::<F>)).await;
    assert_eq!(world.output(&chain).await, 3);
    workers.stop().await;
    others.stop().await;
    let jobs = world.jobs(&chain).await;
    assert_eq!(jobs[0].completed_by, jobs[2].completed_by);
    assert_ne!(jobs[0].completed_by, jobs[1].completed_by);
}

/// After eight steps in a row a chain gets in line again.
pub async fn a_turn_has_an_end<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Countdown { left: 10, total: 0 })
        .await
        .expect("the chain starts");
    let ran = Log::new();
    let (log, faults) = (ran.clone(), world.faults.clone());
    let workers = start(world.worker().process(move |job: Job<F, Countdown>| {
        faults.fail_always(Verb::ClaimJobs, Fault::Before);
        let (left, total) = (job.left, job.total);
        log.add(left);
        async move {
            match left {
                0 => job.finish(total),
                left => job.continue_with(Countdown {
                    left: left - 1,
                    total: total + 1,
                }),
            }
        }
    }))
    .await;
    ran.until_len(8).await;
    let calls = world.faults.calls(Verb::ClaimJobs);
    world.faults.called(Verb::ClaimJobs, calls + 3).await;
    assert_eq!(ran.all(), [10, 9, 8, 7, 6, 5, 4, 3], "its turn is over");
    assert_eq!(world.latest(&chain).await.status, JobStatus::Pending);
    world.faults.heal();
    // The next turn begins with a claim, and makes claims fail again; two more steps fit into it.
    assert_eq!(soon("the chain ends", world.output(&chain)).await, 10);
    world.faults.heal();
    workers.stop().await;
}

/// A step that is less urgent than the one before gets in line at once.
pub async fn a_less_urgent_step_gets_in_line<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let faults = world.faults.clone();
    let worker = world.worker().process(move |job: Job<F, First>| {
        faults.fail_always(Verb::ClaimJobs, Fault::Before);
        async move { job.continue_with(Step::new(Second { n: 1 }).priority(-1)) }
    });
    let workers = start(worker.process(second::<F>).process(third::<F>)).await;
    world.faults.called(Verb::SettleJobs, 1).await;
    let calls = world.faults.calls(Verb::ClaimJobs);
    world.faults.called(Verb::ClaimJobs, calls + 3).await;
    let latest = world.latest(&chain).await;
    assert_eq!((latest.chain_index, latest.status), (1, JobStatus::Pending));
    world.faults.heal();
    assert_eq!(world.output(&chain).await, 3);
    workers.stop().await;
}

/// A chain whose hand-over is not answered goes on all the same: nobody waits for a lease, and no attempt is charged.
pub async fn a_hand_over_whose_answer_is_lost_goes_on<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let faults = world.faults.clone();
    let worker = world.worker().process(move |job: Job<F, First>| {
        faults.fail_always(Verb::ClaimJobs, Fault::Before);
        faults.fail_next(Verb::SettleJobs, 1, Fault::After);
        faults.fail_next(Verb::ClaimedJobs, 1, Fault::Before);
        first::<F>(job)
    });
    let workers = start(worker.process(second::<F>).process(third::<F>)).await;
    assert_eq!(world.output(&chain).await, 3);
    for job in world.jobs(&chain).await {
        assert_eq!((job.attempt, job.claims), (1, 1));
    }
    world.faults.heal();
    workers.stop().await;
}

/// What is handed over to a worker that is stopping goes back unspent (I14).
pub async fn what_is_handed_over_while_stopping_goes_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    world.faults.fail_always(Verb::SettleJobs, Fault::Before);
    let worker = world.worker().grace(ms(10_000)).process(first::<F>);
    let workers = start(worker.process(second::<F>).process(third::<F>)).await;
    world.faults.called(Verb::SettleJobs, 1).await;
    let heal = async { world.faults.heal() };
    soon("the worker stops", async { tokio::join!(workers.stop(), heal) }).await;
    let jobs = world.jobs(&chain).await;
    assert_eq!(jobs[0].status, JobStatus::Completed);
    assert_eq!((jobs[1].status, jobs[1].attempt), (JobStatus::Pending, 0));
    assert_eq!(jobs.len(), 2);
}

/// A single worker that is about to be handed its next job claims no other beside it, which would have to wait for the
/// whole turn of the chain while others could run it.
pub async fn a_single_worker_claims_nothing_beside_what_it_is_handed<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let other = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    // The end of the first step stays on its way for a while.
    world.faults.fail_next(Verb::SettleJobs, 3, Fault::Before);
    let claims = Log::new();
    let (log, faults) = (claims.clone(), world.faults.clone());
    let worker = world.worker().process(first::<F>).process(move |job: Job<F, Second>| {
        log.add(faults.calls(Verb::ClaimJobs));
        second::<F>(job)
    });
    let worker = worker.process(third::<F>);
    let worker = worker.process(async |job: Job<F, Work>| job.finish(0));
    let workers = start(worker.concurrency(1)).await;
    assert_eq!(world.output(&chain).await, 3);
    world.output(&other).await;
    workers.stop().await;
    assert_eq!(claims.all(), [1], "nothing was claimed until the second step began");
}

/// The lease of a job that is handed over begins when the store has it, however long that was out of reach before.
pub async fn what_is_handed_over_after_an_outage_has_its_whole_lease<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
    let faults = world.faults.clone();
    let worker = world.worker().process(move |job: Job<F, First>| {
        faults.fail_always(Verb::SettleJobs, Fault::Before);
        first::<F>(job)
    });
    let lost = Log::new();
    let log = lost.clone();
    let faults = world.faults.clone();
    let worker = worker.process(move |job: Job<F, Second>| {
        // Nobody may say that it still has its job: it goes by its own clock.
        faults.fail_always(Verb::RenewLeases, Fault::Before);
        let log = log.clone();
        async move {
            tokio::time::sleep(LEASE / 4).await;
            log.add(job.signal().reason());
            second::<F>(job).await
        }
    });
    let worker = worker.lease(LeaseSettings::new(LEASE)).process(third::<F>);
    let workers = start(worker).await;
    world.faults.called(Verb::SettleJobs, 1).await;
    tokio::time::sleep(LEASE + LEASE / 2).await;
    world.faults.heal();
    assert_eq!(world.output(&chain).await, 3);
    world.faults.heal();
    workers.stop().await;
    assert_eq!(lost.all(), [None]);
    for job in world.jobs(&chain).await {
        assert_eq!((job.attempt, job.claims), (1, 1));
    }
}
