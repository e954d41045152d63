//! Errors: wherever a processor fails, everything is undone, the attempt counts, and the error is kept.

use std::fmt;
use std::future::Future;

use queuert::{Error, Event, JobError, JobStatus, JobType};

use super::types::{FromHere, Gather, Note, Shared, Work};
use super::world::{Job, JobResult, World, drain_events, eventually, ms, skip, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// Runs a job whose first attempt goes through `fail`, and checks that the second sees its error and succeeds.
async fn fails_then_succeeds<F, Fail, Fut>(fixture: F, error: &str, fail: Fail)
where
    F: PairFixture,
    Fail: Fn(Job<F, Work>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = JobResult<F>> + Send + 'static,
{
    let world = World::new(fixture).await;
    let expected = error.to_owned();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let (expected, fail) = (expected.clone(), fail.clone());
        async move {
            if job.number() == 1 {
                assert!(job.last_error().is_none());
                return fail(job).await;
            }
            let last = job.last_error().expect("the retry sees the error").clone();
            assert_eq!((last.attempt, last.message), (1, expected));
            job.finish(2)
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    let job = world.latest(&chain).await;
    assert_eq!(job.attempt, 2);
    assert!(job.last_error.is_none(), "success wipes the error");
    assert_eq!(world.chain(&chain).await.length, 1);
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 0, "what was done in failed transactions is undone");
}

/// An error before anything was done is a counted failure (PE3).
pub async fn an_error_before_any_transaction_counts<F: PairFixture>(fixture: F) {
    fails_then_succeeds(
        fixture,
        "at once",
        |_: Job<F, Work>| async move { Err("at once".into()) },
    )
    .await;
}

/// An error in `prepare` rolls it back and is a counted failure (PE1, PE2).
pub async fn an_error_in_prepare_rolls_back<F: PairFixture>(fixture: F) {
    fails_then_succeeds(fixture, "in prepare", |job: Job<F, Work>| async move {
        let client = job.client().clone();
        job.prepare(async |tx| {
            client.start(Note { text: "undone".into() }).within(tx).await?;
            Err::<(), JobError>("in prepare".into())
        })
        .await?;
        job.finish(1)
    })
    .await;
}

/// An error between `prepare` and `begin` is a counted failure (PE4).
pub async fn an_error_between_the_stages_counts<F: PairFixture>(fixture: F) {
    fails_then_succeeds(fixture, "between", |job: Job<F, Work>| async move {
        job.prepare(async |_| Ok::<_, Error>(())).await?;
        Err("between".into())
    })
    .await;
}

/// An error inside the completing transaction, before its completion, rolls it back (PE5, PE6).
pub async fn an_error_in_the_transaction_rolls_back<F: PairFixture>(fixture: F) {
    fails_then_succeeds(fixture, "in the transaction", |job: Job<F, Work>| async move {
        let client = job.client().clone();
        let mut tx = job.begin().await?;
        client.start(Note { text: "undone".into() }).within(&mut tx).await?;
        Err("in the transaction".into())
    })
    .await;
}

/// An error after `finish` rolls the completion back, without and with a transaction (PE7, PE8).
pub async fn an_error_after_finish_rolls_back<F: PairFixture>(fixture: F) {
    fails_then_succeeds(fixture, "after finish", |job: Job<F, Work>| async move {
        let client = job.client().clone();
        let mut tx = job.begin().await?;
        client.start(Note { text: "undone".into() }).within(&mut tx).await?;
        let _completion = tx.finish(1).await?;
        Err("after finish".into())
    })
    .await;
}

/// An error after a plain `finish` completes nothing (PE7).
pub async fn an_error_after_a_plain_finish_completes_nothing<F: PairFixture>(fixture: F) {
    fails_then_succeeds(fixture, "after all", |job: Job<F, Work>| async move {
        let _completion = job.finish(1)?;
        Err("after all".into())
    })
    .await;
}

/// A statement of the user's that breaks the transaction in `prepare` is a failed attempt like any other (PE9, PE10).
pub async fn a_transaction_poisoned_in_prepare_is_a_failure<F: PairFixture>(fixture: F) {
    poisoned(fixture, true).await;
}

/// A statement of the user's that breaks the completing transaction is a failed attempt like any other (PE11, PE12).
pub async fn a_transaction_poisoned_before_completion_is_a_failure<F: PairFixture>(fixture: F) {
    poisoned(fixture, false).await;
}

async fn poisoned<F: PairFixture>(fixture: F, in_prepare: bool) {
    if !fixture.capabilities().poison {
        return skip("the fixture cannot poison a transaction");
    }
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let fixture = world.fixture.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let fixture = fixture.clone();
        async move {
            if job.number() > 1 {
                return job.begin().await?.finish(1).await;
            }
            if in_prepare {
                job.prepare(async |tx| {
                    fixture.poison(tx).await;
                    Ok::<_, Error>(())
                })
                .await?;
            }
            let mut tx = job.begin().await?;
            fixture.poison(&mut tx).await;
            tx.finish(1).await
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.attempt, 2);
}

/// A store that refuses a statement inside the attempt's transaction makes the attempt fail and roll back.
pub async fn a_store_error_in_the_transaction_is_a_failure<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::SettleJobs, 1, Fault::After);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.begin().await?.finish(number).await
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
}

/// A continuation is undone by an error after it: the chain ends with exactly two jobs (PE13, PE14, LG16).
pub async fn a_continuation_is_rolled_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, FromHere>| async move {
                let number = job.number();
                let completion = job.begin().await?.continue_with(Shared { n: number }).await?;
                if number == 1 {
                    Err("changed its mind".into())
                } else {
                    Ok(completion)
                }
            })
            .process(|job: Job<F, Shared>| async move {
                let n = job.n.to_string();
                job.finish(n)
            }),
    )
    .await;
    assert_eq!(world.output(&chain).await, "2");
    workers.stop().await;
    assert_eq!(world.jobs(&chain).await.len(), 2);
    let created = drain_events(&mut events).into_iter().filter(|event| match event {
        Event::JobCreated(job) => job.type_name.as_str() == "shared",
        _ => false,
    });
    assert_eq!(created.count(), 1, "the continuation that was undone is not told of");
}

/// The dependants of a chain whose completion is rolled back stay blocked until it really completes (PE15, PE16).
pub async fn dependants_stay_blocked_when_the_completion_rolls_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move {
                let number = job.number();
                let completion = job.begin().await?.finish(number).await?;
                match number {
                    1 => Err(JobError::retry_after(ms(60), "changed its mind")),
                    _ => Ok(completion),
                }
            })
            .process(|job: Job<F, Gather>| async move {
                let outputs = job.blockers().clone();
                job.finish(outputs)
            }),
    )
    .await;
    eventually("the first attempt fails", async || {
        world.latest(&blocker).await.last_error
    })
    .await;
    assert_eq!(world.latest(&dependant).await.status, JobStatus::Blocked);
    assert_eq!(world.output(&dependant).await, [2]);
    workers.stop().await;
}

/// Any kind of error is stored readably: text, an owned text, an error with its sources (PE17).
pub async fn errors_are_stored_with_their_sources<F: PairFixture>(fixture: F) {
    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the report cannot be written")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..4).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let policy = queuert::RetryPolicy::new().max_attempts(1);
    let workers = start(world.worker().retry(policy).process(|job: Job<F, Work>| async move {
        match job.n {
            0 => Err("a text".into()),
            1 => Err(format!("text number {}", job.n).into()),
            2 => Err(Outer(std::io::Error::other("disk full")).into()),
            _ => Err("ü".repeat(50_000).into()),
        }
    }))
    .await;
    let mut stored = Vec::new();
    for chain in &chains {
        let dead = world.until(chain, JobStatus::Dead).await;
        stored.push(dead.last_error.expect("the error is stored").message);
    }
    workers.stop().await;
    assert_eq!(
        stored[..3],
        ["a text", "text number 1", "the report cannot be written: disk full"]
    );
    assert!(stored[3].len() < 25_000, "an endless error is cut");
}
