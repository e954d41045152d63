//! The reaper: expired leases are found, whatever else goes on, and what is taken back is told.

use queuert::adapter::ReapCause;
use queuert::{Event, JobStatus, LeaseSettings, RetryPolicy};

use super::types::{Note, Work};
use super::world::{Gate, Job, World, drain_events, events_until, ms, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

fn reaped(event: &Event) -> bool {
    matches!(event, Event::JobReaped { .. })
}

/// The job of a dead process is taken back when its lease expires, with the expiry as its error, and runs again; one
/// event tells who had it (LG8, H27, I8).
pub async fn the_job_of_a_dead_process_runs_again<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let lost = world.claim_and_die("work", ms(60)).await.lease.expect("it was claimed");
    let worker = world.worker().reap_interval(ms(20));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let number = job.number();
        let error = job.last_error().expect("the expiry is recorded");
        assert_eq!(error.attempt, 1);
        assert!(
            error.message.contains("the-dead"),
            "the error names the owner: {}",
            error.message
        );
        job.finish(number)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    let worker = workers.id().clone();
    workers.stop().await;
    let told: Vec<_> = drain_events(&mut events).into_iter().filter(reaped).collect();
    assert_eq!(told.len(), 1);
    let Event::JobReaped {
        job,
        owner,
        expired_at,
        cause,
        worker: taker,
    } = &told[0]
    else {
        unreachable!("only those were kept");
    };
    assert_eq!(
        (job.chain_id, owner, expired_at, taker),
        (chain.id(), &lost.owner, &lost.until, &worker)
    );
    assert_eq!(*cause, ReapCause::LeaseExpired);
}

/// An attempt that was taken back has failed and backs off: the job runs again when that is over, and not before. The worker
/// that took it back knows when that is, and does not wait for its next poll (I8).
pub async fn a_crashed_job_runs_again_when_its_backoff_is_over<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let lost = world.claim_and_die("work", ms(10)).await.lease.expect("it was claimed");
    let (lease, backoff) = (ms(200), ms(600));
    let worker = world
        .worker()
        .lease(LeaseSettings::new(lease))
        .retry(RetryPolicy::new().initial(backoff).jitter(0.0))
        .reap_interval(ms(20))
        .poll_interval(ms(600_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    workers.stop().await;
    let job = world.latest(&chain).await;
    assert_eq!(job.attempt, 2);
    let due = lost.until.saturating_sub(lease).saturating_add(backoff);
    assert!(
        job.scheduled_at >= due,
        "it was due at {}, not at {due}",
        job.scheduled_at
    );
    assert!(job.started_at.expect("it ran") >= job.scheduled_at);
}

/// Expired leases are found while every worker is busy and jobs wait (H8, I10).
pub async fn the_reaper_is_not_starved<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let lost = world
        .client
        .start(Note { text: "lost".into() })
        .await
        .expect("the chain starts");
    world.claim_and_die("note", ms(60)).await;
    let chains = world
        .client
        .start_many((0..20).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(
        world
            .worker()
            .reap_interval(ms(20))
            .process(move |job: Job<F, Work>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    job.finish(1)
                }
            })
            .process(|job: Job<F, Note>| async move { job.finish(String::new()) }),
    )
    .await;
    gate.arrived(1).await;
    events_until(&mut events, reaped).await;
    assert_eq!(gate.arrivals(), 1, "the only worker is still busy");
    assert_eq!(world.latest(&lost).await.status, JobStatus::Pending);
    gate.open();
    world.output(&lost).await;
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
}

/// An expired lease whose job has no attempt left makes it dead, and the end of the chain is told (I8).
pub async fn an_expired_last_attempt_is_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let own = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    world.claim_and_die("work", ms(40)).await;
    let of_worker = world
        .client
        .start(Note { text: String::new() })
        .await
        .expect("the chain starts");
    world.claim_and_die("note", ms(40)).await;
    let workers = start(
        world
            .worker()
            .retry(RetryPolicy::new().max_attempts(1))
            .reap_interval(ms(20))
            .process(|job: Job<F, Work>| async move { job.finish(1) })
            .process(|job: Job<F, Note>| async move { job.finish(String::new()) }),
    )
    .await;
    for chain in [own.id(), of_worker.id()] {
        let dead = world.until(chain, JobStatus::Dead).await;
        assert!(
            dead.last_error
                .expect("the expiry is recorded")
                .message
                .contains("the-dead")
        );
    }
    workers.stop().await;
    let dead = drain_events(&mut events)
        .into_iter()
        .filter(|event| matches!(event, Event::ChainDead { .. }));
    assert_eq!(dead.count(), 2);
}

/// A crashed fleet is back soon: one look takes all expired leases, however many, although the next look is far (I10).
pub async fn all_expired_leases_are_taken_at_once<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..250).map(|n| Work { n }))
        .await
        .expect("the chains start");
    for _ in 0..250 {
        world.claim_and_die("work", ms(10)).await;
    }
    world.elapse(ms(20)).await;
    let worker = world.worker().concurrency(10).reap_interval(ms(600_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
    assert!(world.faults.calls(Verb::ReapLeases) <= 4);
}

/// A worker takes back jobs of its own types only.
pub async fn jobs_of_other_types_are_left_alone<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let foreign = world
        .client
        .start(Note { text: String::new() })
        .await
        .expect("the chain starts");
    world.claim_and_die("note", ms(10)).await;
    let own = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.claim_and_die("work", ms(30)).await;
    let worker = world.worker().reap_interval(ms(10));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&own).await;
    workers.stop().await;
    assert_eq!(drain_events(&mut events).into_iter().filter(reaped).count(), 1);
    assert_eq!(world.latest(&foreign).await.status, JobStatus::Running);
}

/// A sweep that fails is repeated soon, not after the whole interval (I13).
pub async fn a_failed_sweep_is_repeated_soon<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.claim_and_die("work", ms(10)).await;
    world.elapse(ms(20)).await;
    world.faults.fail_next(Verb::ReapLeases, 2, Fault::Before);
    let worker = world.worker().reap_interval(ms(600_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    assert_eq!(workers.health(), queuert::Health::Running);
    workers.stop().await;
}

/// A sweep whose answer is lost leaves no job behind: what it took back is found by polling.
pub async fn a_sweep_whose_answer_is_lost_loses_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.claim_and_die("work", ms(10)).await;
    world.elapse(ms(20)).await;
    world.faults.fail_next(Verb::ReapLeases, 1, Fault::After);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 2);
}

/// A killed set of workers says nothing to the store; another one takes its jobs when their leases expire.
pub async fn a_killed_worker_leaves_its_jobs_to_the_reaper<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let lease = LeaseSettings::new(ms(120));
    let killed = start(world.worker().lease(lease).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    killed.abort();
    let (other, _) = world.other_process();
    let heir = super::world::eager(&other).reap_interval(ms(20));
    let heir = start(heir.process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    assert_eq!(world.output(&chain).await, 2);
    // Not before: an abort takes effect when the runtime gets to it, which may be late on a busy machine.
    gate.open();
    heir.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 2);
}
