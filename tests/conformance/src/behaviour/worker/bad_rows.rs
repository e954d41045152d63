//! Rows that nobody can read: dead with a message that names them, and no harm to others (I17).

use queuert::adapter::{NewChain, NewJob, StateAdapter};
use queuert::{ChainId, ChainRef, Event, JobId, JobStatus, JobType, Payload};
use uuid::Uuid;

use super::types::{First, Gather, Note, Pair, Second, Third, Work};
use super::world::{Job, World, events_until, eventually, ms, skip, start};
use crate::behaviour::PairFixture;

/// Stores a chain as another build of the application might have.
async fn store<F: PairFixture>(world: &World<F>, number: u128, name: &'static str, input: &'static str) -> ChainId {
    let id = JobId::from_uuid(Uuid::from_u128(number));
    store_blocked(world, NewJob::new(id, name, Payload::from_text(input))).await
}

async fn store_blocked<F: PairFixture>(world: &World<F>, job: NewJob) -> ChainId {
    let chains = [NewChain::new(job)];
    let created = world.state.inner().create_chains(None, &chains).await;
    created.expect("the store answers").expect("the chain is created")[0].id
}

/// An input that cannot be decoded makes its job dead at once, with a message that names the row; others go on.
pub async fn an_undecodable_input_is_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let bad = store(&world, 1, "work", r#"{"m": "not a number"}"#).await;
    let good = world.client.start(Work { n: 3 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(job.n) }),
    )
    .await;
    let dead = world.until(bad, JobStatus::Dead).await;
    assert_eq!(dead.attempt, 1);
    let error = dead.last_error.expect("the error is stored").message;
    assert!(
        error.contains(&bad.to_string()) && error.contains("input") && error.contains("work"),
        "{error}"
    );
    assert_eq!(world.output(&good).await, 3);
    workers.stop().await;
}

/// The same for a processor of a whole enum, and for a type that implements `Processor`.
pub async fn an_undecodable_input_is_dead_for_every_kind_of_processor<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let bad = store(&world, 1, "ask", r#""garbage""#).await;
    let worse = store(&world, 2, "note", "[]").await;
    let workers = start(
        world
            .worker()
            .process_all::<super::processors::Dialogue, _, _>(|job| async move {
                match job {
                    super::processors::DialogueAttempt::Ask(job) => job.finish(0),
                    super::processors::DialogueAttempt::Answer(job) => job.finish(0),
                }
            })
            .processor::<Note>(super::processors::Shout),
    )
    .await;
    for chain in [bad, worse] {
        let dead = world.until(chain, JobStatus::Dead).await;
        let error = dead.last_error.expect("the error is stored").message;
        assert!(error.contains(&chain.to_string()), "{error}");
    }
    workers.stop().await;
}

/// A continuation whose input cannot be decoded kills its chain, and the jobs before it stay as they were.
pub async fn an_undecodable_continuation_is_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(First { n: 1 }).await.expect("the chain starts");
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, First>| async move { job.continue_with(Second { n: 1 }) })
            .process(|job: Job<F, Second>| async move { job.continue_with(Third { n: 1 }) }),
    )
    .await;
    // Nobody runs the third yet; somebody else writes a row that looks like it.
    eventually("the third is there", async || {
        (world.chain(&chain).await.length == 3).then_some(())
    })
    .await;
    workers.stop().await;
    let lone = store(&world, 3, "third", "null").await;
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Third>| async move { job.finish(5) }),
    )
    .await;
    world.until(lone, JobStatus::Dead).await;
    assert_eq!(world.output(&chain).await, 5);
    workers.stop().await;
}

/// A blocker's output that cannot be decoded makes the dependant dead, with a message that names the blocker's row.
pub async fn an_undecodable_blocker_output_is_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let dependant = world
        .client
        .start(Gather { n: 0 }.blocked_by([&blocker]))
        .await
        .expect("the chain starts");
    let good = world
        .client
        .start(Gather { n: 0 }.blocked_by(Vec::<ChainRef<Work>>::new()))
        .await;
    let good = good.expect("the chain starts");
    // The application of yesterday finished with another type of output.
    let claimed = world.claim_and_die("work", ms(60_000)).await;
    let fence = claimed.lease.expect("it was claimed").fence;
    let settlement = queuert::adapter::Settlement {
        job: claimed.id,
        authority: queuert::adapter::Authority::Fence {
            fence,
            worker: queuert::WorkerId::new("yesterday"),
        },
        outcome: queuert::adapter::Outcome::Finish {
            output: Payload::from_text(r#"{"sum": 1}"#),
        },
    };
    world
        .state
        .inner()
        .settle_jobs(None, &[settlement])
        .await
        .expect("the store answers");
    let workers = start(world.worker().process(|job: Job<F, Gather>| async move {
        let outputs = job.blockers().clone();
        job.finish(outputs)
    }))
    .await;
    let dead = world.until(&dependant, JobStatus::Dead).await;
    let error = dead.last_error.expect("the error is stored").message;
    assert!(
        error.contains(&blocker.id().to_string()) && error.contains("output"),
        "{error}"
    );
    assert_eq!(world.output(&good).await, Vec::<u32>::new());
    workers.stop().await;
}

/// A stored job with fewer or other blockers than its type declares is dead, with a message that says what is wrong.
pub async fn wrong_blockers_are_dead<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let work = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let mut few = NewJob::new(
        JobId::from_uuid(Uuid::from_u128(7)),
        Pair::NAME,
        Payload::from_text(r#"{"n":0}"#),
    );
    few.blockers = vec![work.id()];
    let few = store_blocked(&world, few).await;
    let mut other = NewJob::new(
        JobId::from_uuid(Uuid::from_u128(8)),
        Pair::NAME,
        Payload::from_text(r#"{"n":0}"#),
    );
    other.blockers = vec![work.id(), work.id()];
    let other = store_blocked(&world, other).await;
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(1) })
            .process(|job: Job<F, Pair>| async move { job.finish(String::new()) }),
    )
    .await;
    let missing = world
        .until(few, JobStatus::Dead)
        .await
        .last_error
        .expect("the error is stored")
        .message;
    assert!(
        missing.contains("blocker number 1") && missing.contains("note"),
        "{missing}"
    );
    let wrong = world
        .until(other, JobStatus::Dead)
        .await
        .last_error
        .expect("the error is stored")
        .message;
    assert!(wrong.contains("`work`, not `note`"), "{wrong}");
    workers.stop().await;
}

/// A dead row can be retried by a build that can read it.
pub async fn a_dead_row_can_be_retried_by_another_build<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = store(&world, 1, "work", r#"{"n": 5}"#).await;
    // The build of today reads it as another type of the same name.
    let workers = start(
        world
            .worker()
            .process_all::<super::processors::Impostors, _, _>(|job| async move {
                let super::processors::ImpostorsAttempt::Impostor(job) = job;
                job.finish(0)
            }),
    )
    .await;
    world.until(chain, JobStatus::Dead).await;
    workers.stop().await;
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, Work>| async move { job.finish(job.n) }),
    )
    .await;
    world.client.retry(chain).await.expect("a dead chain can be retried");
    assert_eq!(world.output(ChainRef::<Work>::new(chain)).await, 5);
    workers.stop().await;
}

/// A job whose row is damaged is dead at once, with an error and an event that name it, and no processor sees it. The jobs
/// that were claimed with it run.
pub async fn a_damaged_row_is_dead_and_the_others_run<F: PairFixture>(fixture: F) {
    let damages = fixture.damages();
    if damages.is_empty() {
        return skip("the fixture cannot damage a row");
    }
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    for how in damages {
        let inputs = (0..20).map(|n| Work { n });
        let chains = world.client.start_many(inputs).await.expect("the chains start");
        let damaged = chains[7].id();
        world
            .fixture
            .damage(world.state.inner(), damaged.first_job(), how)
            .await;
        let workers = start(world.worker().process(|job: Job<F, Work>| async move {
            assert_ne!(job.n, 7, "the damaged job is run");
            job.finish(job.n)
        }))
        .await;
        let dead = world.until(damaged, JobStatus::Dead).await;
        let error = dead.last_error.expect("the error is stored").message;
        assert!(
            error.contains(&damaged.to_string()) && error.contains("cannot be read"),
            "{how}: {error}"
        );
        for (n, chain) in (0..).zip(&chains).filter(|(n, _)| *n != 7) {
            assert_eq!(world.output(chain).await, n, "{how}");
        }
        workers.stop().await;
        let seen = events_until(&mut events, |event| matches!(event, Event::JobDead { .. })).await;
        let Some(Event::JobDead { job, error, .. }) = seen.last() else {
            panic!("no job died");
        };
        assert!(
            job.id == damaged.first_job() && error.contains("cannot be read"),
            "{how}: {error}"
        );
    }
}
