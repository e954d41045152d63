//! Claiming for workers whose last job is still being written down, and for those that will be free soon.

use queuert::{Event, JobStatus, JobType as _, LeaseSettings, Started, Workers};

use super::types::{Note, Pair, Work};
use super::world::{Gate, Job, Log, State, World, eager, events_until, ms, soon, start};
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
    // A third of it passes until the worker is told that it has lost a job, where nothing else tells it.
    let lease = LeaseSettings::new(ms(2_000));
    let workers = start(worker.concurrency(1).lease(lease)).await;
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

/// While the end of its last job waits for the lock of another transaction, one worker does not keep its next job from an
/// idle process.
pub async fn one_worker_whose_end_waits_for_a_lock_leaves_its_next_job_to_others<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let first = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let worker = world.worker().process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    });
    let held_up = start(worker.concurrency(1)).await;
    gate.arrived(1).await;
    let (other, _) = world.other_process();
    // Where a transaction would lock the whole store, nobody could be idle: there the lock of one job is pretended.
    let lock = if world.fixture.capabilities().concurrent_writers {
        let mut tx = other.begin().await.expect("a transaction opens");
        let open = other.open::<Work>(&first).within(&mut tx).await;
        drop(open.expect("a running chain can be locked"));
        Some(tx)
    } else {
        world.faults.lock_job(first.id().first_job());
        None
    };
    gate.open();
    let second = world.client.start(Work { n: 2 }).await.expect("the chain starts");
    world.until(&second, JobStatus::Running).await;
    let idle = start(eager(&other).process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    assert_eq!(world.output(&second).await, 2, "the idle process has run it");
    assert_eq!(world.latest(&second).await.attempt, 1, "going back has cost no attempt");
    assert_eq!(world.latest(&first).await.status, JobStatus::Running);
    if let Some(tx) = lock {
        tx.rollback().await.expect("it rolls back");
    }
    world.faults.heal();
    assert_eq!(world.output(&first).await, 1);
    held_up.stop().await;
    idle.stop().await;
}

/// The same of the outputs that jobs have waited for, from the first claim on, when nobody knows how large they are.
pub async fn large_outputs_of_blockers_are_claimed_by_their_bytes<F: PairFixture>(fixture: F) {
    const WORKERS: usize = 2;
    const LARGE: usize = 250_000;
    const BYTES_AHEAD: usize = 4 << 20;
    let world = World::new(fixture).await;
    let work = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let blocker = world.client.start(Note { text: String::new() }).await;
    let blocker = blocker.expect("the chain starts");
    let light = (0..1_000).map(|_| Note { text: String::new() });
    let gate = Gate::closed();
    let held = gate.clone();
    let first = blocker.id().first_job();
    let worker = world.worker().concurrency(WORKERS);
    let worker = worker
        .process(|job: Job<F, Work>| async move { job.finish(0) })
        .process(move |job: Job<F, Note>| {
            let bytes = if job.id() == first { LARGE } else { 0 };
            async move { job.finish("x".repeat(bytes)) }
        })
        .process(move |job: Job<F, Pair>| {
            let held = held.clone();
            async move {
                held.pass().await;
                job.finish(String::new())
            }
        });
    let workers = start(worker).await;
    world.output(&work).await;
    world.output(&blocker).await;
    world.client.start_many(light).await.expect("the chains start");
    let heavy = (0..30).map(|n| Pair { n }.blocked_by((&work, &blocker)));
    let heavy = world.client.start_many(heavy).await.expect("the chains start");
    gate.arrived(WORKERS).await;
    // The workers hold large jobs. What else the store says that runs was claimed ahead.
    let running = world.client.list_jobs().statuses([JobStatus::Running]).limit(100);
    let running = running.await.expect("jobs can be listed").items;
    let waited = running.iter().filter(|job| job.type_name.as_str() == Pair::NAME);
    let bytes = waited.count() * LARGE;
    assert!(
        bytes <= BYTES_AHEAD + WORKERS * LARGE,
        "jobs with {bytes} bytes of outputs are claimed"
    );
    gate.open();
    for chain in &heavy {
        world.output(chain).await;
    }
    workers.stop().await;
}

/// However fast the jobs before them were, no more large inputs are in the process than fit into four megabytes, and one for
/// each worker.
pub async fn large_inputs_are_claimed_by_their_bytes<F: PairFixture>(fixture: F) {
    const WORKERS: usize = 2;
    const LARGE: usize = 250_000;
    const BYTES_AHEAD: usize = 4 << 20;
    let world = World::new(fixture).await;
    let light = (0..1_000).map(|_| Note { text: String::new() });
    let heavy = (0..30).map(|_| Note {
        text: "x".repeat(LARGE),
    });
    world.client.start_many(light).await.expect("the chains start");
    let heavy = world.client.start_many(heavy).await.expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().concurrency(WORKERS).process(move |job: Job<F, Note>| {
        let held = held.clone();
        async move {
            if !job.text.is_empty() {
                held.pass().await;
            }
            job.finish(String::new())
        }
    }))
    .await;
    gate.arrived(WORKERS).await;
    // The workers hold large jobs. What else the store says that runs was claimed ahead.
    let running = world.client.list_jobs().statuses([JobStatus::Running]).limit(100);
    let running = running.await.expect("jobs can be listed").items;
    let bytes: usize = running.iter().map(|job| job.input.as_str().len()).sum();
    assert!(
        bytes <= BYTES_AHEAD + WORKERS * (LARGE + 100),
        "{} jobs with {bytes} bytes are claimed",
        running.len()
    );
    gate.open();
    for chain in &heavy {
        world.output(chain).await;
        assert_eq!(world.latest(chain).await.attempt, 1);
    }
    workers.stop().await;
}
