//! The transactions of attempts: longer than a lease, one at a time, cut short, and ended behind the library's back.

use std::sync::Arc;

use queuert::adapter::{ReapLeases, ReapType, StateAdapter};
use queuert::{
    AttemptInfo, Client, Error, JobError, JobStatus, JobType as _, LeaseSettings, Middleware, Transaction,
    TransactionFault,
};

use super::types::{Note, Work};
use super::world::{Gate, Job, Log, SOON, State, World, eager, ms, skip, soon, start};
use crate::behaviour::PairFixture;
use crate::cut::{MANY, cut};
use crate::faulty::{Fault, Verb};

/// Short, renewed often.
const LEASE: LeaseSettings = LeaseSettings::new(ms(300)).renew_every(ms(50));

/// Whether an attempt's error is this one.
fn is_unusable(error: &JobError, fault: TransactionFault) -> bool {
    matches!(error.source().downcast_ref(), Some(Error::TransactionUnusable(what)) if *what == fault)
}

/// A transaction may last longer than the lease of its job, also where it keeps all other writers waiting, the renewal of
/// that very lease among them: nobody else can take the job meanwhile, and the attempt is not told to stop.
pub async fn a_transaction_may_outlive_its_lease<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let (held, told) = (gate.clone(), Log::new());
    let log = told.clone();
    let worker = eager(&world.client).lease(LEASE).drop_on_abort();
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let (held, log) = (held.clone(), log.clone());
        async move {
            let mut tx = job.begin().await?;
            let client = job.client().clone();
            client.start(Note { text: String::new() }).within(&mut tx).await?;
            held.pass().await;
            log.add(job.signal().reason());
            tx.finish(1).await
        }
    }))
    .await;
    gate.arrived(1).await;
    let thief = eager(&other).lease(LEASE).reap_interval(ms(20));
    let thief = start(thief.process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    world.elapse(LEASE.duration * 4).await;
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    assert_eq!(told.all(), [None]);
    workers.stop().await;
    thief.stop().await;
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.claims), (1, 1));
}

/// The transaction of `prepare` may last longer than the lease too, and keep its renewals from the store: the lease is valid
/// again as soon as the transaction has committed, so that a sweep right after it takes nothing.
pub async fn prepare_may_outlive_its_lease<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (rival, _) = world.other_process();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let (held, swept) = (gate.clone(), Log::new());
    let log = swept.clone();
    // No renewal of the worker reaches the store, neither during the transaction nor after it.
    world.faults.fail_always(Verb::RenewLeases, Fault::Before);
    let worker = world.worker().lease(LeaseSettings::new(ms(1_000)));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let (held, log, rival) = (held.clone(), log.clone(), rival.clone());
        async move {
            let client = job.client().clone();
            job.prepare(async |tx| {
                client.start(Note { text: String::new() }).within(tx).await?;
                held.pass().await;
                Ok::<_, Error>(())
            })
            .await?;
            log.add(sweep(&rival).await);
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    world.elapse(ms(2_000)).await;
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    assert_eq!(swept.all(), [0]);
    let job = world.latest(&chain).await;
    assert_eq!((job.attempt, job.claims), (1, 1));
    assert_eq!(world.faults.calls(Verb::RenewLeasesWithin), 1);
}

/// A `prepare` that is over before the next renewal is due does not extend the lease.
pub async fn a_short_prepare_costs_no_renewal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        job.prepare(async |_| Ok::<_, Error>(())).await?;
        job.finish(1)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    assert_eq!(world.faults.calls(Verb::RenewLeasesWithin), 0);
}

/// How many expired leases of `Work` another process takes.
async fn sweep<S: StateAdapter>(rival: &Client<S>) -> usize {
    let types = vec![ReapType::new(Work::NAME, SOON, ms(1_000))];
    let reaped = rival.state().reap_leases(&ReapLeases::new(types, 10, Vec::new())).await;
    reaped.expect("leases can be reaped").len()
}

/// A lease that is over by the clock of the process only is not lost: the store decides, by the fence, whether the attempt
/// may complete in its transaction, and whether it may prepare.
pub async fn the_store_decides_whether_an_expired_lease_is_lost<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_always(Verb::RenewLeases, Fault::Before);
    let worker = world.worker().lease(LeaseSettings::new(ms(60)));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.signal().aborted().await;
        job.prepare(async |_| Ok::<_, Error>(())).await?;
        job.begin().await?.finish(number).await
    }))
    .await;
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.claims, 1);
}

/// An attempt has one transaction at a time: a second one, which would wait for the locks of the first for ever, is refused
/// at once, and the error says what to do.
pub async fn a_second_transaction_is_refused_at_once<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let refusals = Log::new();
    let log = refusals.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            let refused = |error: JobError| match error.source().downcast_ref() {
                Some(Error::TransactionOpen { written, .. }) => log.add(*written),
                _ => panic!("{error}"),
            };
            let tx = job.begin().await?;
            refused(job.begin().await.expect_err("one is open"));
            refused(
                job.prepare(async |_| Ok::<_, Error>(()))
                    .await
                    .expect_err("one is open"),
            );
            tx.rollback().await?;
            job.prepare(async |_| {
                refused(job.begin().await.expect_err("that of prepare is open"));
                Ok::<_, Error>(())
            })
            .await?;
            let completion = job.begin().await?.finish(1).await?;
            refused(job.begin().await.expect_err("the completion is written"));
            refused(
                job.prepare(async |_| Ok::<_, Error>(()))
                    .await
                    .expect_err("it is written"),
            );
            drop(completion);
            drop(job.begin().await?);
            job.begin().await?.finish(2).await
        }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    assert_eq!(refusals.all(), [false, false, false, true, true]);
}

/// A `finish` whose future is dropped rolls its transaction back, and the attempt may go on.
pub async fn a_dropped_finish_rolls_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let done = Log::new();
    let log = done.clone();
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            let polls = job.n as usize;
            let client = job.client().clone();
            let mut tx = job.begin().await?;
            client.start(Note { text: "kept".into() }).within(&mut tx).await?;
            if let Some(completion) = cut(tx.finish(1), polls).await {
                log.add(());
                return completion;
            }
            job.begin().await?.finish(0).await
        }
    }))
    .await;
    for polls in 1..MANY {
        let n = u32::try_from(polls).expect("it is small");
        let before = notes(&world).await;
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        let finished = world.output(&chain).await;
        assert_eq!(world.latest(&chain).await.attempt, 1);
        assert_eq!(notes(&world).await, before + finished as usize, "after {polls} polls");
        if done.len() > 0 {
            break;
        }
    }
    workers.stop().await;
}

/// How many chains the processors have started in their transactions.
async fn notes<F: PairFixture>(world: &World<F>) -> usize {
    let started = queuert::testing::started::<Note, _>(&world.client).await;
    started.expect("they can be read").chains.len()
}

/// An attempt cannot complete in a transaction in which one of its requests is unfinished, nor prepare.
pub async fn an_attempt_cannot_commit_a_dropped_request<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let blocker = world
        .client
        .start(Work { n: 1_000_000 })
        .await
        .expect("it starts")
        .chain();
    let (complete, refusals) = (Log::new(), Log::new());
    let (log, refused) = (complete.clone(), refusals.clone());
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let (log, refused) = (log.clone(), refused.clone());
        async move {
            if job.n >= 1_000_000 {
                return job.snooze(ms(3_600_000));
            }
            let (polls, first) = ((job.n / 2) as usize, job.number() == 1);
            let client = job.client().clone();
            let waiting = || client.start(super::types::Gather { n: 0 }.blocked_by([blocker]));
            if !first {
                return job.finish(0);
            }
            let error = if job.n.is_multiple_of(2) {
                let mut tx = job.begin().await?;
                if let Some(started) = cut(waiting().within(&mut tx), polls).await {
                    started.map(|_| log.add(()))?;
                }
                match tx.finish(1).await {
                    Ok(completion) => return Ok(completion),
                    Err(error) => error,
                }
            } else {
                let prepared = job.prepare(async |tx| match cut(waiting().within(tx), polls).await {
                    Some(started) => started.map(|_| log.add(())),
                    None => Ok(()),
                });
                match prepared.await {
                    Ok(()) => return job.finish(1),
                    Err(error) => error,
                }
            };
            refused.add(is_unusable(&error, TransactionFault::Interrupted));
            Err(error)
        }
    }))
    .await;
    for n in 2..MANY {
        let before = gathers(&world).await;
        let n = u32::try_from(n).expect("it is small");
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        let finished = world.output(&chain).await;
        assert_eq!(gathers(&world).await, before + finished as usize, "in round {n}");
        if complete.len() >= 2 {
            break;
        }
    }
    workers.stop().await;
    assert!(refusals.all().iter().all(|refused| *refused));
}

/// How many chains wait for others.
async fn gathers<F: PairFixture>(world: &World<F>) -> usize {
    let started = queuert::testing::started::<super::types::Gather, _>(&world.client).await;
    started.expect("they can be read").chains.len()
}

/// An attempt whose transaction has ended behind its back does not complete: it fails, and runs again. Also if the statement
/// that ends it was abandoned and has not run yet.
pub async fn an_attempt_cannot_complete_in_a_transaction_that_has_ended<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ways = world.fixture.capabilities().ends;
    if ways == 0 {
        return skip("the transactions of this store do not end by themselves");
    }
    let errors = Log::new();
    let (log, fixture) = (errors.clone(), Arc::clone(&world.fixture));
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        let (log, fixture) = (log.clone(), Arc::clone(&fixture));
        async move {
            let (way, number) = ((job.n / 4) as usize, job.number());
            if number > 1 {
                return job.finish(number);
            }
            let failed = match job.n % 4 {
                0 => {
                    let mut tx = job.begin().await?;
                    fixture.end_transaction(&mut tx, way).await;
                    tx.finish(number).await.map(drop)
                }
                1 => {
                    let mut tx = job.begin().await?;
                    fixture.abandon_end(&mut tx, way).await;
                    tx.finish(number).await.map(drop)
                }
                how => {
                    job.prepare(async |tx| {
                        match how {
                            2 => fixture.end_transaction(tx, way).await,
                            _ => fixture.abandon_end(tx, way).await,
                        }
                        Ok::<_, Error>(())
                    })
                    .await
                }
            };
            let error = failed.expect_err("the transaction has ended");
            log.add(is_unusable(&error, TransactionFault::Ended));
            Err(error)
        }
    }))
    .await;
    for n in 0..u32::try_from(ways * 4).expect("there are few") {
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        assert_eq!(world.output(&chain).await, 2, "way {n}");
    }
    workers.stop().await;
    assert!(errors.all().iter().all(|ended| *ended), "{:?}", errors.all());
    assert_eq!(errors.len(), ways * 4);
}

/// Ends the transaction of the first attempt when it is about to be committed.
struct Saboteur<F>(Arc<F>, usize);

impl<F: PairFixture> Middleware<State<F>> for Saboteur<F> {
    async fn transaction_closing(&self, info: &AttemptInfo, tx: &mut Transaction<State<F>>) -> Result<(), JobError> {
        if info.attempt == 1 {
            self.0.end_transaction(tx, self.1).await;
        }
        Ok(())
    }
}

/// A transaction that ends after the completion was written is not committed, and its commit is not taken for one whose
/// answer was lost: the attempt fails, and runs again. (Where a statement of the user's committed it, it has completed.)
pub async fn a_completion_whose_transaction_has_ended_is_no_completion<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let ways = world.fixture.capabilities().ends;
    if ways == 0 {
        return skip("the transactions of this store do not end by themselves");
    }
    for way in 0..ways {
        let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
        let worker = world.worker().middleware(Saboteur(Arc::clone(&world.fixture), way));
        let workers = start(worker.process(|job: Job<F, Work>| async move {
            let number = job.number();
            job.begin().await?.finish(number).await
        }))
        .await;
        let output = soon("the chain ends", world.output(&chain)).await;
        workers.stop().await;
        let job = world.until(&chain, JobStatus::Completed).await;
        assert_eq!(job.attempt, output, "the attempt that committed it, way {way}");
    }
}
