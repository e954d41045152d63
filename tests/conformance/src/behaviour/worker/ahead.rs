//! Claiming for workers whose last job is still being written down.

use queuert::{Event, JobStatus, Started, Workers};

use super::types::Work;
use super::world::{Job, Log, State, World, events_until, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// One worker, the end of whose first job the store does not take, and which has claimed the second one meanwhile.
struct Ahead<F: PairFixture> {
    world: World<F>,
    log: Log<u32>,
    chains: [Started<Work>; 2],
    workers: Workers<State<F>>,
}

async fn ahead<F: PairFixture>(fixture: F) -> Ahead<F> {
    let world = World::new(fixture).await;
    let first = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let second = world.client.start(Work { n: 2 }).await.expect("the chain starts");
    world.faults.fail_always(Verb::SettleJobs, Fault::Before);
    let log = Log::new();
    let ran = log.clone();
    let worker = world.worker().process(move |job: Job<F, Work>| {
        ran.add(job.n);
        async move { job.finish(0) }
    });
    let workers = start(worker.concurrency(1)).await;
    world.until(&second, JobStatus::Running).await;
    Ahead {
        world,
        log,
        chains: [first, second],
        workers,
    }
}

/// The next job is claimed while the end of the last one is on its way, and starts when that has been written.
pub async fn one_worker_never_has_two_jobs<F: PairFixture>(fixture: F) {
    let Ahead {
        world,
        log,
        chains,
        workers,
    } = ahead(fixture).await;
    world.faults.called(Verb::SettleJobs, 3).await;
    assert_eq!(log.all(), [1], "its only worker still has the first job");
    world.faults.heal();
    for chain in &chains {
        world.output(chain).await;
    }
    assert_eq!(log.all(), [1, 2]);
    workers.stop().await;
}

/// A job that was claimed ahead when the worker is stopped goes back as it was (I14).
pub async fn a_job_that_was_claimed_ahead_goes_back_unspent<F: PairFixture>(fixture: F) {
    let Ahead {
        world,
        log,
        chains: [first, second],
        workers,
    } = ahead(fixture).await;
    // In this order: whoever is free after the stop takes nothing more.
    let heal = async { world.faults.heal() };
    soon("the worker stops", async { tokio::join!(workers.stop(), heal) }).await;
    assert_eq!(world.latest(&first).await.status, JobStatus::Completed);
    let back = world.latest(&second).await;
    assert_eq!((back.status, back.attempt), (JobStatus::Pending, 0));
    assert_eq!(log.all(), [1]);
}

/// A job that was claimed ahead and lost before a worker was free never runs.
pub async fn a_job_that_was_claimed_ahead_and_lost_does_not_run<F: PairFixture>(fixture: F) {
    let Ahead {
        world,
        log,
        chains: [first, second],
        workers,
    } = ahead(fixture).await;
    let mut events = world.client.events();
    world
        .client
        .cancel(&second)
        .await
        .expect("a running chain is cancelled");
    events_until(&mut events, |event| matches!(event, Event::LeaseLost { .. })).await;
    world.faults.heal();
    world.output(&first).await;
    let third = world.client.start(Work { n: 3 }).await.expect("the chain starts");
    world.output(&third).await;
    assert_eq!(log.all(), [1, 3]);
    workers.stop().await;
}
