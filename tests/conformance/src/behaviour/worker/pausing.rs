//! Job types that are paused: which jobs begin, and how soon workers know.

use queuert::{Client, JobRecord, JobStatus};

use super::types::{First, Note, Second, Third, Work};
use super::world::{Gate, Job, World, eager, ms, skip, start};
use crate::behaviour::PairFixture;
use crate::faulty::Verb;

fn note() -> Note {
    Note { text: "n".into() }
}

/// A job that no worker has begun: its attempts are unspent.
fn assert_untouched(job: &JobRecord) {
    assert_eq!((job.status, job.attempt), (JobStatus::Pending, 0), "{job:?}");
}

/// No job of a paused type is begun, whether it was created before or after; other types go on. A resumed type runs.
pub async fn a_paused_type_is_not_begun<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for concurrency in [1, 4] {
        let before = world.client.start(Work { n: 0 }).await.expect("the chain starts");
        world.client.pause::<Work>().await.expect("it pauses");
        let worker = world.worker().concurrency(concurrency);
        let worker = worker
            .process(|job: Job<F, Work>| async move { job.finish(1) })
            .process(|job: Job<F, Note>| async move { job.finish(String::new()) });
        let workers = start(worker).await;
        let after = world.client.start(Work { n: 1 }).await.expect("the chain starts");
        for _ in 0..3 {
            let other = world.client.start(note()).await.expect("the chain starts");
            world.output(&other).await;
        }
        for chain in [&before, &after] {
            assert_untouched(&world.until(chain, JobStatus::Pending).await);
        }
        world.client.resume::<Work>().await.expect("it resumes");
        world.output(&before).await;
        world.output(&after).await;
        workers.stop().await;
    }
}

/// A worker that runs hears of a pause that another process makes, and of its end, without a poll.
pub async fn a_pause_reaches_workers_by_notice<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let worker = world.client.worker().poll_interval(ms(60_000)).concurrency(4);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    // It has run a job, so it has asked which types are paused, and would believe the answer for a while.
    world
        .output(&world.client.start(Work { n: 0 }).await.expect("the chain starts"))
        .await;
    let asked = world.faults.calls(Verb::ListPauses);
    assert!(asked > 0, "it asked when it had jobs");
    other.pause::<Work>().await.expect("it pauses");
    world.faults.called(Verb::ListPauses, asked + 1).await;
    let chain = other.start(Work { n: 1 }).await.expect("the chain starts");
    world.elapse(ms(100)).await;
    assert_untouched(&world.latest(&chain).await);
    other.resume::<Work>().await.expect("it resumes");
    world.output(&chain).await;
    workers.stop().await;
}

/// A worker that hears nothing finds out within its poll interval, when a claim brings jobs. They go back unspent.
pub async fn a_pause_is_found_by_polling<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    // Without a notify adapter, the notices of the other client do not reach it.
    let deaf = Client::new(world.state.clone());
    let workers = start(eager(&deaf).process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world
        .output(&world.client.start(Work { n: 0 }).await.expect("the chain starts"))
        .await;
    world.client.pause::<Work>().await.expect("it pauses");
    // Longer than it believes what it knows.
    world.elapse(ms(300)).await;
    let asked = world.faults.calls(Verb::ListPauses);
    let chain = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world.faults.called(Verb::ListPauses, asked + 2).await;
    assert_untouched(&world.until(&chain, JobStatus::Pending).await);
    world.client.resume::<Work>().await.expect("it resumes");
    world.output(&chain).await;
    workers.stop().await;
}

/// An attempt that runs when its type is paused ends as usual.
pub async fn a_running_job_ends_during_a_pause<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    gate.arrived(1).await;
    world.client.pause::<Work>().await.expect("it pauses");
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
}

/// A chain whose next step is of a paused type is not handed over: the step waits in the store.
pub async fn a_paused_step_is_not_handed_over<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.client.pause::<Second>().await.expect("it pauses");
    for concurrency in [1, 3] {
        let worker = world.worker().concurrency(concurrency);
        let worker = worker
            .process(|job: Job<F, First>| async move {
                let next = Second { n: job.n + 1 };
                job.continue_with(next)
            })
            .process(|job: Job<F, Second>| async move {
                let next = Third { n: job.n + 1 };
                job.continue_with(next)
            })
            .process(|job: Job<F, Third>| async move {
                let output = job.n;
                job.finish(output)
            });
        let workers = start(worker).await;
        let chain = world.client.start(First { n: 0 }).await.expect("the chain starts");
        let latest = super::world::eventually("the chain has come to the paused step", async || {
            let latest = world.latest(&chain).await;
            (latest.chain_index == 1).then_some(latest)
        })
        .await;
        assert_eq!(latest.claims, 0, "it was not handed over");
        assert_untouched(&latest);
        world.client.resume::<Second>().await.expect("it resumes");
        assert_eq!(world.output(&chain).await, 2);
        world.client.pause::<Second>().await.expect("it pauses");
        workers.stop().await;
    }
}

/// A pause with an end is over by itself, and the worker looks for jobs at that moment.
pub async fn a_pause_ends_by_itself<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.client.pause::<Work>().lasting(ms(300)).await.expect("it pauses");
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = world.client.worker().poll_interval(ms(600_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.elapse(ms(300)).await;
    assert_eq!(world.output(&chain).await, 1);
    assert_eq!(world.client.paused().await.expect("pauses can be read"), []);
    workers.stop().await;
}

/// A store that cannot say which types are paused keeps no job from running.
pub async fn a_worker_that_cannot_read_the_pauses_goes_on<F: PairFixture>(fixture: F) {
    use crate::faulty::Fault;
    let world = World::new(fixture).await;
    for fault in [Fault::Before, Fault::Panic, Fault::Hang] {
        world.faults.fail_next(Verb::ListPauses, 1, fault);
        let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
        let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
        world.output(&chain).await;
        workers.stop().await;
    }
}
