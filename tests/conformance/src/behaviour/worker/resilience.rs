//! A store that fails: workers do not die of it, and every job ends exactly once (I13).

use queuert::{Error, Health, JobStatus, LeaseSettings, StateErrorKind};

use super::types::{FromHere, Note, Shared, Work};
use super::world::{Gate, Job, JobResult, Log, SOON, World, eager, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Faults, Verb};

/// A chain of two jobs in one of three ways, that leaves exactly one note when its first job completes.
async fn first<F: PairFixture>(job: Job<F, FromHere>) -> JobResult<F> {
    let client = job.client().clone();
    let (n, text) = (job.n, job.n.to_string());
    if n.is_multiple_of(2) {
        job.prepare(async |_| Ok::<_, Error>(())).await?;
    }
    if n.is_multiple_of(5) {
        // Long enough for its lease to need renewal.
        tokio::time::sleep(ms(120)).await;
    }
    let mut tx = job.begin().await?;
    client.start(Note { text }).within(&mut tx).await?;
    tx.continue_with(Shared { n }).await
}

async fn second<F: PairFixture>(job: Job<F, Shared>) -> JobResult<F> {
    let text = job.n.to_string();
    if job.n.is_multiple_of(3) {
        return job.begin().await?.finish(text).await;
    }
    job.finish(text)
}

async fn note<F: PairFixture>(job: Job<F, Note>) -> JobResult<F> {
    job.finish(String::new())
}

/// Runs chains while `disturb` has its way with the faults of each process, and checks that each ends exactly once.
async fn survives<F: PairFixture>(
    world: &World<F>,
    chains: u32,
    concurrency: usize,
    processes: usize,
    disturb: impl Fn(&Faults),
) {
    let notes_before = notes(world).await;
    let mut clients = vec![(world.client.clone(), world.faults.clone())];
    clients.extend((1..processes).map(|_| world.other_process()));
    // The starts are not under test; whoever starts reads what became of it.
    let (starter, _) = world.other_process();
    let started = starter
        .start_many((0..chains).map(|n| FromHere { n }))
        .await
        .expect("the chains start");
    let mut sets = Vec::new();
    for (client, faults) in &clients {
        disturb(faults);
        let worker = eager(client)
            .concurrency(concurrency)
            // On a busy machine leases expire too, and the attempts of one job are not what this counts.
            .retry(SOON.max_attempts(1_000))
            .lease(LeaseSettings::new(ms(100)))
            .reap_interval(ms(40))
            .process(first::<F>)
            .process(second::<F>)
            .process(note::<F>);
        sets.push(start(worker).await);
    }
    for (n, chain) in started.iter().enumerate() {
        let wait = starter.wait(chain).poll_interval(ms(10)).timeout(ms(40_000));
        assert_eq!(wait.await.expect("the chain completes"), n.to_string());
    }
    for (_, faults) in &clients {
        faults.heal();
    }
    for workers in sets {
        workers.wait_for_health(|health| *health == Health::Running).await;
        workers.stop().await;
    }
    for chain in &started {
        assert_eq!(world.jobs(chain).await.len(), 2, "one successor");
    }
    assert_eq!(
        notes(world).await,
        notes_before + chains as usize,
        "each completion was committed once"
    );
}

async fn notes<F: PairFixture>(world: &World<F>) -> usize {
    let notes = world.client.list_jobs().of_type::<Note>().limit(500).await;
    notes.expect("jobs can be listed").items.len()
}

/// Every verb failing before its effect, one after the other: all jobs end, exactly once.
pub async fn every_verb_may_fail_before_its_effect<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for verb in Verb::OF_WORKERS {
        survives(&world, 6, 3, 1, |faults| faults.fail_next(verb, 2, Fault::Before)).await;
    }
}

/// Every verb failing after its effect, one after the other: all jobs end, exactly once.
pub async fn every_verb_may_fail_after_its_effect<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for verb in Verb::OF_WORKERS {
        survives(&world, 6, 3, 1, |faults| faults.fail_next(verb, 2, Fault::After)).await;
    }
}

/// Every verb panicking, one after the other: all jobs end, exactly once, and the worker goes on.
pub async fn every_verb_may_panic<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    for verb in Verb::OF_WORKERS {
        survives(&world, 6, 3, 1, |faults| faults.fail_next(verb, 2, Fault::Panic)).await;
    }
}

/// A store that fails in bursts, with one worker (NT8, NT11).
pub async fn one_worker_survives_bursts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    survives(&world, 20, 1, 1, |faults| {
        faults.fail_in_bursts(&Verb::OF_WORKERS, 3, 1)
    })
    .await;
}

/// A store that fails in bursts, with five workers (NT9, NT12).
pub async fn five_workers_survive_bursts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    survives(&world, 20, 5, 1, |faults| {
        faults.fail_in_bursts(&Verb::OF_WORKERS, 4, 2)
    })
    .await;
}

/// A store that fails in bursts, with two processes of five workers (NT10, NT13).
pub async fn two_processes_survive_bursts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    survives(&world, 20, 5, 2, |faults| {
        faults.fail_in_bursts(&Verb::OF_WORKERS, 4, 3)
    })
    .await;
}

/// A claim whose answer is lost costs its job nothing: the worker asks for it again, however often that takes, and runs
/// what it took. Nobody waits for a lease.
pub async fn a_claim_whose_answer_is_lost_costs_no_attempt<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chains = world.client.start_many((0..3).map(|n| Work { n })).await;
    let chains = chains.expect("the chains start");
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::After);
    world.faults.fail_next(Verb::ClaimedJobs, 1, Fault::Before);
    world.faults.fail_next(Verb::ClaimedJobs, 1, Fault::After);
    world.faults.fail_next(Verb::RenewLeases, 1, Fault::Before);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.finish(number)
    }))
    .await;
    for chain in &chains {
        assert_eq!(world.output(chain).await, 1);
        assert_eq!(world.latest(chain).await.claims, 1);
    }
    workers.stop().await;
}

/// What a lost claim took and somebody has taken back meanwhile is not run under it: it costs one lease and one attempt,
/// not more.
pub async fn a_claim_that_is_answered_too_late_is_not_run<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::After);
    world.faults.fail_always(Verb::ClaimedJobs, Fault::Before);
    let lease = LeaseSettings::new(ms(80));
    let finish = |job: Job<F, Work>| async move {
        let number = job.number();
        job.finish(number)
    };
    let workers = start(world.worker().lease(lease).process(finish)).await;
    world.faults.called(Verb::ClaimedJobs, 1).await;
    let others = start(eager(&other).lease(lease).reap_interval(ms(20)).process(finish)).await;
    assert_eq!(world.output(&chain).await, 2);
    world.faults.heal();
    workers.wait_for_health(|health| *health == Health::Running).await;
    assert_eq!(world.latest(&chain).await.claims, 2);
    workers.stop().await;
    others.stop().await;
}

/// A claim that took what cannot be read does not hold up its worker: the job comes back when its lease expires.
pub async fn a_lost_claim_that_cannot_be_read_comes_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::After);
    let kind = StateErrorKind::Corrupt;
    world.faults.fail_next_with(Verb::ClaimedJobs, 1, Fault::Before, kind);
    let worker = world.worker().lease(LeaseSettings::new(ms(80))).reap_interval(ms(20));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.finish(number)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
}

/// The pauses between calls to a failing store grow, and are short again after a success (H9).
pub async fn the_recovery_backoff_resets<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world.faults.fail_next(Verb::ClaimJobs, 5, Fault::Before);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 4).await;
    world.faults.called(Verb::ClaimJobs, 5).await;
    let pauses = world.faults.pauses(Verb::ClaimJobs);
    // A busy machine only makes them longer.
    assert!(pauses[3] >= ms(300), "the fourth pause is a long one: {pauses:?}");
    workers.wait_for_health(|health| *health == Health::Running).await;
    // One that is short is enough: without a reset each would be longer than the one before. Any one of them may be made
    // longer by a busy machine.
    let short = async {
        loop {
            let calls = world.faults.calls(Verb::ClaimJobs);
            world.faults.fail_next(Verb::ClaimJobs, 1, Fault::Before);
            world.faults.called(Verb::ClaimJobs, calls + 2).await;
            if world.faults.pauses(Verb::ClaimJobs)[calls] < ms(300) {
                return;
            }
        }
    };
    soon("the first pause after a success is a short one", short).await;
    workers.stop().await;
}

/// Transient errors in renewals do not abort the attempt as long as its lease lasts (H11).
pub async fn a_transient_renewal_error_aborts_nothing<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (other, _) = world.other_process();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (gate, signals) = (Gate::closed(), Log::new());
    let (held, log) = (gate.clone(), signals.clone());
    // What is left of the lease after two failures is longer than any pause of a busy machine.
    let lease = LeaseSettings::new(ms(1_500)).renew_every(ms(60));
    let worker = world.worker().lease(lease);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        log.add(job.signal());
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let calls = world.faults.calls(Verb::RenewLeases);
    world.faults.fail_next(Verb::RenewLeases, 2, Fault::Before);
    let thief = eager(&other).reap_interval(ms(20));
    let thief = start(thief.process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    world.faults.called(Verb::RenewLeases, calls + 4).await;
    world.elapse(lease.duration).await;
    assert_eq!(signals.all()[0].reason(), None);
    gate.open();
    assert_eq!(world.output(&chain).await, 1);
    workers.stop().await;
    thief.stop().await;
}

/// A row that the store refuses to write spoils neither the batch that it is in nor the worker; it comes back when its
/// lease expires (I10, I17).
pub async fn a_refused_row_spoils_no_batch<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let attempts = attempts_of_a_bad_row(&world, StateErrorKind::Corrupt).await;
    assert!(attempts >= 2);
}

/// A row that fails again and again, in a way that may pass, waits for itself: the others are settled meanwhile (I10).
pub async fn a_row_that_keeps_failing_holds_up_nobody<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let attempts = attempts_of_a_bad_row(&world, StateErrorKind::Transient).await;
    assert_eq!(attempts, 1, "its completion was kept and its lease renewed");
}

/// Runs ten jobs of which one cannot be settled until all others and a later one have ended, and returns how many
/// attempts that one took.
async fn attempts_of_a_bad_row<F: PairFixture>(world: &World<F>, kind: StateErrorKind) -> u32 {
    let chains = world
        .client
        .start_many((0..10).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let worker = world
        .worker()
        .concurrency(10)
        .lease(LeaseSettings::new(ms(100)))
        .reap_interval(ms(30));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(10).await;
    world.faults.refuse_to_settle(chains[4].id().first_job(), kind);
    gate.open();
    for chain in chains.iter().filter(|chain| chain.id() != chains[4].id()) {
        world.output(chain).await;
        assert_eq!(world.latest(chain).await.attempt, 1);
    }
    let after = world.client.start(Work { n: 10 }).await.expect("the chain starts");
    world.output(&after).await;
    assert_eq!(world.latest(&chains[4]).await.output, None);
    world.faults.heal();
    world.output(&chains[4]).await;
    workers.stop().await;
    world.latest(&chains[4]).await.attempt
}

/// A store that is misconfigured for a while does not end the worker either.
pub async fn a_misconfigured_store_is_waited_out<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let kind = StateErrorKind::Misconfigured;
    world.faults.fail_next_with(Verb::ClaimJobs, 2, Fault::Before, kind);
    world.faults.fail_next_with(Verb::ReapLeases, 1, Fault::Before, kind);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(world.latest(&chain).await.status, JobStatus::Completed);
}
