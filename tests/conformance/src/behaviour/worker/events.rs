//! Events: what is told of a job's life, in order, and only what was committed (I2).

use queuert::adapter::Notice;
use queuert::{AttemptOutcome, Event, JobStatus, JobType};

use super::types::{FromHere, Gather, Note, Shared, Work};
use super::world::{Job, World, drain_events, ms, start};
use crate::behaviour::PairFixture;

/// An event in a word or two.
fn brief(event: &Event) -> Option<String> {
    Some(match event {
        Event::ChainCreated { type_name, .. } => format!("chain created {type_name}"),
        Event::ChainCompleted { type_name, .. } => format!("chain completed {type_name}"),
        Event::ChainDead { type_name, .. } => format!("chain dead {type_name}"),
        Event::ChainDeleted { type_name, .. } => format!("chain deleted {type_name}"),
        Event::JobCreated(job) => format!("job created {}", job.type_name),
        Event::JobBlocked(job) => format!("job blocked {}", job.type_name),
        Event::JobTriggered(job) => format!("job triggered {}", job.type_name),
        Event::JobUnblocked { type_name, .. } => format!("job unblocked {type_name}"),
        Event::JobCompleted { job, continued, .. } => format!("job completed {} {continued}", job.type_name),
        Event::JobDead { job, .. } => format!("job dead {}", job.type_name),
        Event::AttemptStarted(attempt) => format!("attempt {} started {}", attempt.attempt, attempt.job.type_name),
        Event::AttemptEnded { attempt, outcome, .. } => {
            let how = match outcome {
                AttemptOutcome::Finished => "finished".to_owned(),
                AttemptOutcome::Continued { next_type, .. } => format!("continued {next_type}"),
                AttemptOutcome::Failed { error, .. } => format!("failed {error}"),
                AttemptOutcome::Died { error } => format!("died {error}"),
                AttemptOutcome::Snoozed => "snoozed".to_owned(),
                AttemptOutcome::Aborted(reason) => format!("aborted {reason}"),
                other => format!("{other:?}"),
            };
            format!("attempt {} {how}", attempt.attempt)
        }
        _ => return None,
    })
}

pub(super) fn briefs(events: &[Event]) -> Vec<String> {
    events.iter().filter_map(brief).collect()
}

/// The life of a chain of one job: created, attempt started, completed, ended, with its data (LG1, H27).
pub async fn the_life_of_one_job<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().name("teller").process(|job: Job<F, Work>| async move {
        tokio::time::sleep(ms(10)).await;
        job.finish(1)
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let seen = drain_events(&mut events);
    let expected = [
        "chain created work",
        "job created work",
        "attempt 1 started work",
        "job completed work false",
        "chain completed work",
        "attempt 1 finished",
    ];
    assert_eq!(briefs(&seen), expected);
    let job = world.latest(&chain).await;
    for event in &seen {
        match event {
            Event::AttemptStarted(attempt) => {
                assert_eq!(&attempt.worker, workers.id());
                assert_eq!((attempt.job.id, attempt.job.chain_id), (job.id, chain.id()));
                assert_eq!(Some(attempt.started_at), job.started_at);
                assert_eq!(attempt.created_at, job.created_at);
            }
            Event::JobCompleted { worker, .. } => assert_eq!(worker.as_ref(), Some(workers.id())),
            Event::AttemptEnded { duration, .. } => assert!(*duration >= ms(10)),
            _ => {}
        }
    }
}

/// A transactional completion tells the same (LG1, I2).
pub async fn a_transactional_completion_tells_the_same<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.begin().await?.finish(1).await }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let expected = [
        "chain created work",
        "job created work",
        "attempt 1 started work",
        "job completed work false",
        "chain completed work",
        "attempt 1 finished",
    ];
    assert_eq!(briefs(&drain_events(&mut events)), expected);
}

/// A retried job tells of each failure and each attempt, and of one completion (LG2, LG14).
pub async fn a_retry_is_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let number = job.number();
        let completion = job.begin().await?.finish(number).await?;
        if number < 3 {
            return Err(format!("no {number}").into());
        }
        Ok(completion)
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let expected = [
        "chain created work",
        "job created work",
        "attempt 1 started work",
        "attempt 1 failed no 1",
        "attempt 2 started work",
        "attempt 2 failed no 2",
        "attempt 3 started work",
        "job completed work false",
        "chain completed work",
        "attempt 3 finished",
    ];
    assert_eq!(briefs(&drain_events(&mut events)), expected);
}

/// A continuation is told of before the end of the attempt that made it (LG3).
pub async fn a_continuation_is_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, FromHere>| async move { job.continue_with(Shared { n: 1 }) })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let seen = briefs(&drain_events(&mut events));
    let expected = [
        "chain created from-here",
        "job created from-here",
        "attempt 1 started from-here",
        "job completed from-here true",
        "job created shared",
        "attempt 1 continued shared",
        "attempt 1 started shared",
        "job completed shared false",
        "chain completed from-here",
        "attempt 1 finished",
    ];
    assert_eq!(seen, expected);
}

/// Blocking and unblocking are told of, the unblocking after the end of the blocker (LG4).
pub async fn blocking_and_unblocking_are_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(1) })
            .process(|job: Job<F, Gather>| async move { job.finish(Vec::new()) }),
    )
    .await;
    world.output(&dependant).await;
    workers.stop().await;
    let seen = briefs(&drain_events(&mut events));
    let place = |wanted: &str| {
        let found = seen.iter().position(|event| event == wanted);
        found.unwrap_or_else(|| panic!("`{wanted}` is told of: {seen:?}"))
    };
    assert!(place("job created gather") < place("job blocked gather"));
    assert!(place("chain completed work") < place("job unblocked gather"));
    assert!(place("job unblocked gather") < place("attempt 1 started gather"));
    assert_eq!(seen.iter().filter(|event| *event == "job unblocked gather").count(), 1);
}

/// A job that dies is told of with its chain.
pub async fn a_death_is_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|_: Job<F, Work>| async move { Err("no".into()) }),
    )
    .await;
    world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    let expected = [
        "chain created work",
        "job created work",
        "attempt 1 started work",
        "job dead work",
        "chain dead work",
        "attempt 1 died no",
    ];
    assert_eq!(briefs(&drain_events(&mut events)), expected);
}

/// Completion from outside is told of without a worker, and only if it commits (LG5, LG13).
pub async fn completion_from_outside_is_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let mut events = world.client.events();
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let job = world
        .client
        .open::<Work>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    job.finish(1).await.expect("it can be finished");
    tx.rollback().await.expect("it rolls back");
    assert_eq!(drain_events(&mut events), []);
    let done = world.client.transaction(async |tx| {
        let job = world.client.open::<Work>(&chain).within(tx).await?;
        job.finish(1).await
    });
    done.await.expect("it can be finished");
    let seen = drain_events(&mut events);
    assert_eq!(briefs(&seen), ["job completed work false", "chain completed work"]);
    assert!(matches!(&seen[0], Event::JobCompleted { worker: None, .. }));
}

/// What a rolled-back attempt did is not told of, nor announced (LG11, LG12, LG16, I2).
pub async fn rolled_back_work_is_not_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let mut events = world.client.events();
    let announced = world.notify.announced().len();
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let client = job.client().clone();
        let failed = job
            .prepare(async |tx| {
                client.start(Note { text: "a".into() }).within(tx).await?;
                Err::<(), queuert::JobError>("no".into())
            })
            .await;
        assert!(failed.is_err());
        let mut tx = job.begin().await?;
        let note = client.start(Note { text: "b".into() }).within(&mut tx).await?;
        let step = Gather { n: 0 }.blocked_by(Vec::<queuert::ChainRef<Work>>::new());
        client.start(step).within(&mut tx).await?;
        client.cancel(&note).within(&mut tx).await?;
        let _completion = tx.finish(1).await?;
        Err("no".into())
    }))
    .await;
    world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    let expected = [
        "attempt 1 started work",
        "job dead work",
        "chain dead work",
        "attempt 1 died no",
    ];
    assert_eq!(briefs(&drain_events(&mut events)), expected);
    let mut after = world.notify.announced().split_off(announced);
    // A worker set that stops makes others look for jobs of its types: `work`, and no other.
    after.retain(
        |notice| !matches!(notice, Notice::JobsAvailable { type_name, .. } if type_name.as_str() == Work::NAME),
    );
    assert_eq!(after, [Notice::ChainEnded(chain.id())]);
}

/// An observer that panics disturbs neither the attempt nor the worker (H28).
pub async fn an_observer_that_panics_disturbs_nobody<F: PairFixture>(fixture: F) {
    struct Hysteric;
    impl queuert::adapter::ObservabilityAdapter for Hysteric {
        fn event(&self, _: &Event) {
            panic!("look at that");
        }
    }
    let world = World::new(fixture).await;
    let client = queuert::Client::builder(world.state.twin())
        .notify(world.notify.clone())
        .observability(Hysteric)
        .build();
    let chain = client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = super::world::eager(&client);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 1);
}
