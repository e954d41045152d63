//! Draining: runs what is due, one job after the other, for tests.

use queuert::{AttemptOutcome, Error, JobError, JobStatus, JobType};

use super::types::{FromHere, Gather, Shared, Work};
use super::world::{Job, World, ms};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// Everything that is due runs, also what becomes due through it, in order; what is due later stays.
pub async fn drain_runs_what_is_due<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let later = world
        .client
        .start(Work { n: 9 })
        .delay(ms(600_000))
        .await
        .expect("the chain starts");
    let chain = world.client.start(FromHere { n: 1 }).await.expect("the chain starts");
    let blocker = world.client.start(Work { n: 2 }).await.expect("the chain starts");
    let gather = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let drained = world
        .worker()
        .process(|job: Job<F, FromHere>| async move { job.begin().await?.continue_with(Shared { n: 1 }).await })
        .process(|job: Job<F, Shared>| async move { job.finish("end".to_owned()) })
        .process(|job: Job<F, Work>| async move { job.finish(job.n) })
        .process(|job: Job<F, Gather>| async move {
            let outputs = job.blockers().clone();
            job.finish(outputs)
        })
        .drain()
        .await
        .expect("the store answers");
    assert_eq!(drained.len(), 4);
    let mut types = drained.types();
    assert_eq!(types[0], "from-here");
    types.sort_unstable();
    assert_eq!(types, ["from-here", "gather", "shared", "work"]);
    assert_eq!(drained.of::<Shared>()[0].outcome, AttemptOutcome::Finished);
    assert!(drained.failures().is_empty());
    assert_eq!(world.output(&chain).await, "end");
    assert_eq!(world.output(&gather).await, [2]);
    assert_eq!(world.chain(&later).await.status, JobStatus::Pending);
}

/// Failures are returned with their errors, and retries that are not due stay.
pub async fn drain_returns_failures<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..3).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let drained = world
        .client
        .worker()
        .process(|job: Job<F, Work>| async move {
            match job.n {
                0 => Err("later".into()),
                1 => Err(JobError::fatal("never")),
                _ => panic!("at once"),
            }
        })
        .drain()
        .await
        .expect("the store answers");
    let failures: Vec<_> = drained.failures().into_iter().map(|(_, error)| error).collect();
    assert_eq!(failures, ["later", "never", "panicked: at once"]);
    assert_eq!(world.chain(&chains[0]).await.status, JobStatus::Pending);
    assert_eq!(world.chain(&chains[1]).await.status, JobStatus::Dead);
}

/// Nothing due is nothing run, and leases that have expired are taken back first.
pub async fn drain_takes_back_expired_leases<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let processor = |job: Job<F, Work>| async move {
        let number = job.number();
        job.finish(number)
    };
    let nothing = world
        .worker()
        .process(processor)
        .drain()
        .await
        .expect("the store answers");
    assert!(nothing.is_empty());
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.claim_and_die("work", ms(20)).await;
    world.elapse(ms(30)).await;
    let drained = world
        .worker()
        .process(processor)
        .drain()
        .await
        .expect("the store answers");
    assert_eq!(drained.len(), 1);
    assert_eq!(world.output(&chain).await, 2);
}

/// A store that fails is an error, as are builders that cannot work.
pub async fn drain_reports_errors<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    assert!(matches!(world.worker().drain().await, Err(Error::NoProcessor)));
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::Before);
    let worker = world.worker().process(|job: Job<F, Work>| async move { job.finish(1) });
    assert!(matches!(worker.drain().await, Err(Error::State(_))));
}
