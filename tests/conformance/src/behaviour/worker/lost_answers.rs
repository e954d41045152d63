//! Answers that are lost after the store has written: what was committed is told all the same, once, and exactly as if the
//! answer had come (I2).

use std::collections::BTreeMap;

use queuert::adapter::Notice;
use queuert::{ChainId, JobStatus, JobType, StateErrorKind, Step, WorkerBuilder};

use super::events::briefs;
use super::types::{Assemble, Gather, Plan, Work};
use super::world::{Gate, Job, SOON, State, World, drain_events, ms, skip, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Faults, Verb};

/// What was told of something: the events, and how often which wake-up was announced.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    events: Vec<String>,
    notices: BTreeMap<String, usize>,
}

fn counted(notices: &[Notice]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for notice in notices {
        let (what, count) = match notice {
            Notice::JobsAvailable { type_name, count } => (format!("jobs of {type_name}"), *count),
            Notice::ChainEnded(_) => ("chain ended".to_owned(), 1),
            other => (format!("{other:?}"), 1),
        };
        *counts.entry(what).or_default() += count;
    }
    counts
}

/// Starts a chain of each kind that the scenarios need, lets one worker process them while `disturb` has its way with the
/// store, and returns what was told. `Gather` waits for `Work`; `Assemble`, which follows `Plan`, waits for `Work` too.
async fn told<F: PairFixture>(
    world: &World<F>,
    processors: impl FnOnce(WorkerBuilder<State<F>>, ChainId) -> WorkerBuilder<State<F>>,
    disturb: impl FnOnce(&Faults),
    ended: JobStatus,
) -> Told {
    let mut events = world.client.events();
    let announced = world.notify.announced().len();
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gather = Gather { n: 0 }.blocked_by([&blocker]);
    let gather = world.client.start(gather).await.expect("the chain starts");
    disturb(&world.faults);
    let worker = processors(world.worker().poll_interval(ms(60_000)), blocker.id());
    let workers = start(worker).await;
    match ended {
        JobStatus::Completed => drop(world.output(&gather).await),
        status => drop(world.until(&blocker, status).await),
    }
    workers.stop().await;
    world.faults.heal();
    let mut events = briefs(&drain_events(&mut events));
    // Which of two things that happen at the same time is told first is open.
    events.sort();
    let notices = counted(&world.notify.announced()[announced..]);
    Told { events, notices }
}

/// Compares what is told when answers are lost with what is told when none is.
async fn tells_the_same<F: PairFixture>(
    fixture: F,
    processors: impl Fn(WorkerBuilder<State<F>>, ChainId) -> WorkerBuilder<State<F>>,
    disturb: impl Fn(&Faults),
    ended: JobStatus,
) {
    let world = World::new(fixture).await;
    let ordinary = told(&world, &processors, |_| (), ended).await;
    let lost = told(&world, &processors, disturb, ended).await;
    assert_eq!(lost, ordinary);
}

/// The first answers of the store to ends of attempts are lost.
fn lose_answers(faults: &Faults) {
    faults.fail_next(Verb::SettleJobs, 3, Fault::After);
}

/// The first answer of the store to a commit is lost.
fn lose_the_commit(faults: &Faults) {
    faults.fail_next(Verb::Commit, 1, Fault::After);
}

fn gathering<F: PairFixture>(worker: WorkerBuilder<State<F>>) -> WorkerBuilder<State<F>> {
    worker.process(|job: Job<F, Gather>| async move { job.finish(Vec::new()) })
}

/// The plain end of a blocker.
pub async fn a_lost_finish_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker).process(|job: Job<F, Work>| async move { job.finish(1) })
    };
    tells_the_same(fixture, processors, lose_answers, JobStatus::Completed).await;
}

/// The end of a blocker in the processor's own transaction.
pub async fn a_lost_finish_in_a_transaction_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker).process(|job: Job<F, Work>| async move { job.begin().await?.finish(1).await })
    };
    tells_the_same(fixture, processors, lose_the_commit, JobStatus::Completed).await;
}

/// Starts a `Plan` whose next job waits for the blocker, and holds the blocker back until that is told.
async fn continues_the_same<F: PairFixture>(fixture: F, in_transaction: bool) {
    let world = World::new(fixture).await;
    let mut both = Vec::new();
    for lose in [false, true] {
        let mut events = world.client.events();
        let announced = world.notify.announced().len();
        let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
        let plan = world
            .client
            .start(Plan { n: 0 })
            .priority(1)
            .await
            .expect("the chain starts");
        match (lose, in_transaction) {
            (true, true) => lose_the_commit(&world.faults),
            (true, false) => lose_answers(&world.faults),
            (false, _) => {}
        }
        let (gate, id) = (Gate::closed(), blocker.chain());
        let held = gate.clone();
        let worker = world
            .worker()
            .concurrency(2)
            .poll_interval(ms(60_000))
            .process(move |job: Job<F, Plan>| async move {
                let next = Assemble { n: 0 }.blocked_by([&id]);
                match in_transaction {
                    true => job.begin().await?.continue_with(next).await,
                    false => job.continue_with(next),
                }
            })
            .process(|job: Job<F, Assemble>| async move { job.finish(Vec::new()) })
            .process(move |job: Job<F, Work>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    job.finish(1)
                }
            });
        let workers = start(worker).await;
        let blocked = |event: &queuert::Event| matches!(event, queuert::Event::JobBlocked(_));
        let mut seen = super::world::events_until(&mut events, blocked).await;
        gate.open();
        world.output(&plan).await;
        workers.stop().await;
        world.faults.heal();
        seen.extend(drain_events(&mut events));
        let mut events = briefs(&seen);
        events.sort();
        let notices = counted(&world.notify.announced()[announced..]);
        both.push(Told { events, notices });
    }
    assert_eq!(both[1], both[0]);
}

/// A continuation that waits for others.
pub async fn a_lost_continuation_tells_the_same<F: PairFixture>(fixture: F) {
    continues_the_same(fixture, false).await;
}

/// The same in the processor's own transaction.
pub async fn a_lost_continuation_in_a_transaction_tells_the_same<F: PairFixture>(fixture: F) {
    continues_the_same(fixture, true).await;
}

/// The failure of an attempt that is tried again.
pub async fn a_lost_failure_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker).process(|job: Job<F, Work>| async move {
            match job.number() {
                1 => Err("no".into()),
                _ => job.finish(1),
            }
        })
    };
    tells_the_same(fixture, processors, lose_answers, JobStatus::Completed).await;
}

/// The death of a job.
pub async fn a_lost_death_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker)
            .retry(SOON.max_attempts(1))
            .process(|_: Job<F, Work>| async move { Err("no".into()) })
    };
    tells_the_same(fixture, processors, lose_answers, JobStatus::Dead).await;
}

/// A snooze.
pub async fn a_lost_snooze_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker).process(|job: Job<F, Work>| async move {
            match job.record().claims {
                1 => job.snooze(ms(1)),
                _ => job.finish(1),
            }
        })
    };
    tells_the_same(fixture, processors, lose_answers, JobStatus::Completed).await;
}

/// A job that goes back because its worker stops.
pub async fn a_lost_release_tells_the_same<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut both = Vec::new();
    for lose in [false, true] {
        let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
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
        gate.arrived(1).await;
        let announced = world.notify.announced().len();
        if lose {
            lose_answers(&world.faults);
        }
        workers.stop().await;
        world.faults.heal();
        assert_eq!(world.latest(&chain).await.attempt, 0);
        both.push(counted(&world.notify.announced()[announced..]));
        world.client.cancel(&chain).await.expect("it is open");
    }
    assert_eq!(both[1], both[0]);
}

/// A completion that the store has taken although it said that the row cannot be written, to the batch and to the row by
/// itself: the failure that is written then finds it.
pub async fn a_completion_that_seemed_refused_tells_the_same<F: PairFixture>(fixture: F) {
    let processors = |worker: WorkerBuilder<State<F>>, _| {
        gathering::<F>(worker).process(|job: Job<F, Work>| async move { job.finish(1) })
    };
    let disturb = |faults: &Faults| {
        faults.fail_next_with(Verb::SettleJobs, 2, Fault::After, StateErrorKind::Corrupt);
    };
    tells_the_same(fixture, processors, disturb, JobStatus::Completed).await;
}

/// A job that waits on another process starts although the answer to the end of its blocker was lost here.
pub async fn a_lost_finish_wakes_another_process<F: PairFixture>(fixture: F) {
    if !fixture.notifies() {
        return skip("nobody is notified");
    }
    let world = World::new(fixture).await;
    let (other, faults) = world.other_process();
    let rarely = ms(60_000);
    let there = start(gathering::<F>(other.worker().poll_interval(rarely))).await;
    faults.called(Verb::ClaimJobs, 1).await;
    let blocker = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gather = Gather { n: 0 }.blocked_by([&blocker]);
    let gather = world.client.start(gather).await.expect("the chain starts");
    lose_answers(&world.faults);
    let worker = world.worker().poll_interval(rarely);
    let here = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&gather).await;
    here.stop().await;
    there.stop().await;
}

/// A start whose answer is lost is a start, and told: the chain exists, and only this call can have made it.
pub async fn a_start_whose_answer_is_lost_has_happened<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut both = Vec::new();
    for fault in [None, Some(Fault::After)] {
        let mut events = world.client.events();
        let announced = world.notify.announced().len();
        let lose = || {
            if let Some(fault) = fault {
                world.faults.fail_next(Verb::CreateChains, 1, fault);
            }
        };
        lose();
        let one = world.client.start(Work { n: 0 }).await.expect("it has started");
        assert!(!one.deduplicated());
        lose();
        let many = world.client.start_many((0..3).map(|n| Work { n })).await;
        assert_eq!(many.expect("they have started").len(), 3);
        lose();
        let each = (Gather { n: 0 }.blocked_by([&one]), Work { n: 1 });
        let (waiting, _) = world.client.start_each(each).await.expect("they have started");
        assert_eq!(world.latest(&waiting).await.status, JobStatus::Blocked);
        let notices = counted(&world.notify.announced()[announced..]);
        let events = briefs(&drain_events(&mut events));
        both.push(Told { events, notices });
    }
    assert_eq!(both[1], both[0]);
}

/// The same of starts with a key: under the ids that the library has made, only these calls can have started chains.
pub async fn a_keyed_start_whose_answer_is_lost_has_happened<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut both = Vec::new();
    for lost in [false, true] {
        let mut events = world.client.events();
        let announced = world.notify.announced().len();
        let key = |name: &str| format!("{name} {lost}");
        let lose = |verb| {
            if lost {
                world.faults.fail_next(verb, 1, Fault::After);
            }
        };
        lose(Verb::CreateChains);
        let one = world.client.start(Work { n: 0 }).deduplicate(key("one")).await;
        let one = one.expect("it has started");
        assert!(!one.deduplicated());
        lose(Verb::CreateChains);
        let steps = ["two", "three"].map(|name| Step::new(Work { n: 0 }).deduplicate(key(name)));
        let many = world.client.start_many(steps).await;
        assert_eq!(many.expect("they have started").len(), 2);
        lose(Verb::Commit);
        let mut tx = world.client.begin().await.expect("a transaction opens");
        let steps = ["one", "four"].map(|name| Step::new(Work { n: 0 }).deduplicate(key(name)));
        let within = world.client.start_many(steps).within(&mut tx).await;
        let within = within.expect("one is found, and the other started");
        assert_eq!(within[0].id(), one.id());
        tx.commit().await.expect("it has committed");
        let notices = counted(&world.notify.announced()[announced..]);
        let events = briefs(&drain_events(&mut events));
        both.push(Told { events, notices });
    }
    assert_eq!(both[0].notices["jobs of work"], 4);
    assert_eq!(both[1], both[0]);
}

/// A start that did not happen is an error, and so is one of which nothing tells whether it has: its id is the caller's,
/// or its key has found another chain. Nothing is told then.
pub async fn a_start_that_nothing_tells_of_is_an_error<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let holder = world.client.start(Work { n: 0 }).deduplicate("key").await;
    holder.expect("it starts");
    let mut events = world.client.events();
    let announced = world.notify.announced().len();
    world.faults.fail_next(Verb::CreateChains, 1, Fault::Before);
    let error = world.client.start(Work { n: 0 }).await.expect_err("it has not started");
    assert!(error.is_transient(), "{error:?}");
    let id = queuert::JobId::from_uuid(uuid::Uuid::from_u128(7));
    world.faults.fail_next(Verb::CreateChains, 2, Fault::After);
    let own = world.client.start(Work { n: 0 }).id(id);
    assert!(own.await.expect_err("nobody knows").is_transient());
    let keyed = world.client.start(Work { n: 0 }).deduplicate("key");
    assert!(keyed.await.expect_err("nobody knows").is_transient());
    world.faults.fail_next(Verb::CreateChains, 1, Fault::After);
    let both = world
        .client
        .start_many([Step::new(Work { n: 0 }), Step::new(Work { n: 0 }).deduplicate("key")]);
    assert!(
        both.await
            .expect_err("nobody knows which chain was found")
            .is_transient()
    );
    assert_eq!(briefs(&drain_events(&mut events)), [""; 0]);
    assert_eq!(world.notify.announced()[announced..], []);
}

/// A transaction that has started a chain has committed if that exists, whatever became of the answer.
pub async fn a_transaction_whose_commit_is_not_answered_has_happened<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    world.faults.fail_next(Verb::Commit, 1, Fault::After);
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let chain = world
        .client
        .start(Work { n: 0 })
        .within(&mut tx)
        .await
        .expect("it starts");
    tx.commit().await.expect("it has committed");
    assert_eq!(world.latest(&chain).await.status, JobStatus::Pending);
    let told = briefs(&drain_events(&mut events));
    assert_eq!(told, ["chain created work", "job created work"]);
    assert_eq!(counted(&world.notify.announced())["jobs of work"], 1);
}

/// A transaction that did not commit is an error, and so is one that has left nothing that tells: what was undone with a
/// savepoint does not. Nothing is told then.
pub async fn a_transaction_that_nothing_tells_of_is_an_error<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let other = world
        .client
        .start(Work { n: 0 })
        .delay(ms(60_000))
        .await
        .expect("it starts");
    let mut events = world.client.events();
    let announced = world.notify.announced().len();
    world.faults.fail_next(Verb::Commit, 1, Fault::Before);
    let mut tx = world.client.begin().await.expect("a transaction opens");
    world
        .client
        .start(Work { n: 0 })
        .within(&mut tx)
        .await
        .expect("it starts");
    assert!(tx.commit().await.expect_err("it has not committed").is_transient());

    world.faults.fail_next(Verb::Commit, 1, Fault::After);
    let mut tx = world.client.begin().await.expect("a transaction opens");
    let undone: Result<(), queuert::Error> = tx
        .savepoint(async |tx| {
            world.client.start(Work { n: 0 }).within(tx).await?;
            Err(queuert::Error::NoProcessor)
        })
        .await;
    undone.expect_err("it is undone");
    world
        .client
        .trigger(other.id().first_job())
        .within(&mut tx)
        .await
        .expect("it is pending");
    assert!(tx.commit().await.expect_err("nobody knows").is_transient());
    assert_eq!(briefs(&drain_events(&mut events)), [""; 0]);
    assert_eq!(world.notify.announced()[announced..], []);
}
