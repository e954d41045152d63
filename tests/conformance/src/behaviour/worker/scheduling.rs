//! When jobs run, and in what order.

use queuert::{Deduplication, JobError, JobStatus, Step, Timestamp};

use super::types::{FromHere, Note, Shared, Tuned, Work};
use super::world::{Job, Log, World, ms, start};
use crate::behaviour::PairFixture;

/// A delayed chain runs when its time has come, not before, although the worker polls rarely (SD1, H16).
pub async fn a_delayed_chain_runs_when_it_is_due<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    // Weeks ahead: a worker that computes the time until then must not stumble over it.
    let far = world
        .client
        .start(Work { n: 9 })
        .delay(ms(40 * 86_400_000))
        .await
        .expect("the chain starts");
    let chain = world
        .client
        .start(Work { n: 0 })
        .delay(ms(120))
        .await
        .expect("the chain starts");
    let due = world.latest(&chain).await.scheduled_at;
    let workers = start(
        world
            .worker()
            .poll_interval(ms(60_000))
            .process(|job: Job<F, Work>| async move { job.finish(1) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let job = world.latest(&chain).await;
    assert!(job.started_at.expect("it was started") >= due);
    assert_eq!(world.chain(&far).await.status, JobStatus::Pending);
}

/// A chain with an absolute time runs then; one whose time has passed runs at once (SD2, SD8).
pub async fn an_absolute_time_is_kept<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let past = Timestamp::from_micros(1_000_000);
    let old = world
        .client
        .start(Work { n: 0 })
        .at(past)
        .await
        .expect("the chain starts");
    let stored = world.latest(&old).await;
    assert!(
        stored.scheduled_at >= stored.created_at,
        "a time in the past is raised to now"
    );
    let later = stored.created_at.saturating_add(ms(150));
    let new = world
        .client
        .start(Work { n: 0 })
        .at(later)
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&old).await;
    world.output(&new).await;
    workers.stop().await;
    assert!(world.latest(&new).await.started_at.expect("it was started") >= later);
}

/// A continuation runs after its delay, at its time, or at once if that has passed (SD3, SD4, SD9).
pub async fn a_continuation_keeps_its_schedule<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..3).map(|n| FromHere { n }))
        .await
        .expect("the chains start");
    let workers = start(
        world
            .worker()
            .poll_interval(ms(60_000))
            .process(|job: Job<F, FromHere>| async move {
                let created = job.record().created_at;
                let next = Step::new(Shared { n: job.n });
                match job.n {
                    0 => job.continue_with(next.delay(ms(100))),
                    1 => job.continue_with(next.at(created.saturating_add(ms(100)))),
                    _ => job.continue_with(next.at(Timestamp::from_micros(5))),
                }
            })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
    for (n, chain) in chains.iter().enumerate() {
        let jobs = world.jobs(chain).await;
        assert!(jobs[1].started_at.expect("it was started") >= jobs[1].scheduled_at);
        let waited = jobs[1].scheduled_at.saturating_duration_since(jobs[0].created_at);
        match n {
            0 | 1 => assert!(waited >= ms(100), "{waited:?}"),
            _ => assert!(jobs[1].scheduled_at >= jobs[1].created_at),
        }
    }
}

/// A failure may choose the delay or the time of its retry; the attempt is spent (SD5, SD7, SD10).
pub async fn a_failure_may_choose_its_retry<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..3).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let workers = start(
        world
            .worker()
            // The policy would wait for longer than the case may take.
            .retry(queuert::RetryPolicy::new().initial(ms(200_000)))
            .process(|job: Job<F, Work>| async move {
                if job.number() > 1 {
                    return job.finish(1);
                }
                let began = job.record().started_at.expect("it was started");
                Err(match job.n {
                    0 => JobError::retry_after(ms(80), "later"),
                    1 => JobError::retry_at(began.saturating_add(ms(80)), "then"),
                    _ => JobError::retry_at(Timestamp::from_micros(5), "long ago"),
                })
            }),
    )
    .await;
    let mut events = world.client.events();
    drop(events.try_next());
    for chain in &chains {
        world.output(chain).await;
        let job = world.latest(chain).await;
        assert_eq!(job.attempt, 2, "the attempt was spent");
    }
    for chain in &chains[..2] {
        let job = world.latest(chain).await;
        let waited = job
            .started_at
            .expect("it was started")
            .saturating_duration_since(job.created_at);
        assert!(waited >= ms(80), "{waited:?}");
    }
    workers.stop().await;
}

/// A job that starts its own successor with a key, leaving itself out, runs as often as it says (SD6).
pub async fn a_recurring_job_runs_as_often_as_it_says<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ran = Log::new();
    let log = ran.clone();
    let first = Step::new(Work { n: 1 }).deduplicate(Deduplication::while_open("tick"));
    world.client.start(first).await.expect("the chain starts");
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            let n = job.n;
            log.add(n);
            if n < 3 {
                let own = queuert::ChainRef::<Work>::new(job.chain_id());
                let key = Deduplication::while_open("tick").except(own);
                let next = Step::new(Work { n: n + 1 }).delay(ms(10)).deduplicate(key);
                let started = job.client().start(next).await?;
                assert!(!started.deduplicated());
            }
            job.finish(n)
        }
    }))
    .await;
    assert_eq!(ran.until_len(3).await, [1, 2, 3]);
    workers.stop().await;
    let chains = world.client.list_chains().await.expect("chains can be listed");
    assert_eq!(chains.items.len(), 3);
}

/// Jobs of the same priority run in the order in which they were started (W4).
pub async fn jobs_run_in_the_order_of_their_start<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for n in 0..5 {
        world.client.start(Work { n }).await.expect("the chain starts");
    }
    let ran = Log::new();
    let log = ran.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        log.add(job.n);
        async move { job.finish(0) }
    }))
    .await;
    assert_eq!(ran.until_len(5).await, [0, 1, 2, 3, 4]);
    workers.stop().await;
}

/// A higher priority goes first, across job types, and the priority of a type counts unless the starter chose one.
pub async fn a_higher_priority_goes_first<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let client = &world.client;
    client.start(Work { n: 0 }).await.expect("the chain starts");
    client.start(Work { n: 1 }).priority(5).await.expect("the chain starts");
    client.start(Tuned { n: 2 }).await.expect("the chain starts");
    client
        .start(Tuned { n: 3 })
        .priority(-5)
        .await
        .expect("the chain starts");
    client
        .start(Note { text: "4".into() })
        .priority(4)
        .await
        .expect("the chain starts");
    let ran = Log::new();
    let (work, tuned, note) = (ran.clone(), ran.clone(), ran.clone());
    let workers = start(
        world
            .worker()
            .process(move |job: Job<F, Work>| {
                work.add(job.n);
                async move { job.finish(0) }
            })
            .process(move |job: Job<F, Tuned>| {
                tuned.add(job.n);
                async move { job.finish(0) }
            })
            .process(move |job: Job<F, Note>| {
                note.add(4);
                async move { job.finish(String::new()) }
            }),
    )
    .await;
    assert_eq!(ran.until_len(5).await, [1, 4, 2, 0, 3]);
    workers.stop().await;
}

/// A triggered job runs at once, although its time has not come and the worker polls rarely.
pub async fn a_triggered_job_runs_at_once<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .delay(ms(600_000))
        .await
        .expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world
        .client
        .trigger(chain.id().first_job())
        .await
        .expect("a pending job can be triggered");
    world.output(&chain).await;
    workers.stop().await;
}
