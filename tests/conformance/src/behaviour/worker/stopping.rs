//! Stopping: prompt, graceful, and at no cost to the jobs (I14).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queuert::__task::Lock;
use queuert::{AbortReason, AttemptOutcome, Event, Health, JobStatus, LeaseSettings};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::types::Work;
use super::world::{Gate, Job, Log, World, drain_events, eager, ms, soon, start};
use crate::behaviour::PairFixture;
use crate::faulty::{Fault, Verb};

/// An idle worker stops at once, whatever its poll interval, and asks the store for nothing afterwards.
pub async fn an_idle_worker_stops_at_once<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let worker = world.client.worker().poll_interval(ms(60_000));
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 1).await;
    assert_eq!(workers.health(), Health::Running);
    let begun = Instant::now();
    workers.stop().await;
    // Long before the next poll.
    assert!(begun.elapsed() < ms(15_000), "{:?}", begun.elapsed());
    assert_eq!(workers.health(), Health::Stopped);
    let calls = world.faults.total();
    world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.elapse(ms(50)).await;
    assert_eq!(world.faults.total(), calls + 1, "only the start was a call");
    let worker = workers.id().clone();
    let told: Vec<_> = drain_events(&mut events)
        .into_iter()
        .filter(|event| {
            matches!(
                event,
                Event::WorkerStarted { .. } | Event::WorkerStopping { .. } | Event::WorkerStopped { .. }
            )
        })
        .collect();
    let expected = [
        Event::WorkerStarted {
            worker: worker.clone(),
            concurrency: 1,
        },
        Event::WorkerStopping { worker: worker.clone() },
        Event::WorkerStopped { worker },
    ];
    assert_eq!(told, expected);
}

/// Nothing is claimed after stop was asked for, however much waits (H10).
pub async fn nothing_is_claimed_after_stop<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    world
        .client
        .start_many((0..500).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let (ran, gate) = (Log::new(), Gate::closed());
    let (log, held) = (ran.clone(), gate.clone());
    let workers = start(world.worker().concurrency(3).process(move |job: Job<F, Work>| {
        log.add(job.n);
        // The first ones end by themselves, so that there is a flow; the others do not before stop was asked for.
        let held = (log.len() > 5).then(|| held.clone());
        async move {
            if let Some(gate) = held {
                gate.pass().await;
            }
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let mut stop = std::pin::pin!(workers.stop());
    assert!(futures_util::poll!(stop.as_mut()).is_pending(), "attempts are running");
    let claims = world.faults.calls(Verb::ClaimJobs);
    gate.open();
    soon("the worker stops", stop).await;
    let more = world.faults.calls(Verb::ClaimJobs) - claims;
    assert!(more <= 1, "one claim may have been on its way, {more} were made");
    let at_stop = ran.len();
    assert!(at_stop < 500, "the backlog is not drained");
    let claims = world.faults.calls(Verb::ClaimJobs);
    world.elapse(ms(60)).await;
    assert_eq!((ran.len(), world.faults.calls(Verb::ClaimJobs)), (at_stop, claims));
    let running = world
        .client
        .list_jobs()
        .statuses([JobStatus::Running])
        .await
        .expect("jobs can be listed");
    assert_eq!(running.items.len(), 0, "nothing is left behind running");
}

/// What a claim took that was on its way when stop was asked for is given back unspent, and never runs (H10).
pub async fn a_claim_on_its_way_is_given_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::Slow(ms(150)));
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimJobs, 1).await;
    soon("the worker stops", workers.stop()).await;
    let job = world.latest(&chain).await;
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 0, 1));
    assert!(job.lease.is_none() && job.last_error.is_none());
    let started = drain_events(&mut events)
        .into_iter()
        .filter(|event| matches!(event, Event::AttemptStarted(_)));
    assert_eq!(started.count(), 0);
}

/// So is what a claim took whose answer was lost (H10).
pub async fn a_claim_whose_answer_is_lost_is_given_back<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.faults.fail_next(Verb::ClaimJobs, 1, Fault::After);
    // It asks again and again, in pauses that grow.
    world.faults.fail_next(Verb::ClaimedJobs, 4, Fault::Before);
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.faults.called(Verb::ClaimedJobs, 4).await;
    soon("the worker stops", workers.stop()).await;
    let job = world.latest(&chain).await;
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 0, 1));
    assert!(job.lease.is_none() && job.last_error.is_none());
}

/// An attempt that ends within the grace period is committed; nobody aborts it.
pub async fn an_attempt_may_end_within_the_grace_period<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let lease = LeaseSettings::new(ms(1_000)).renew_every(ms(50));
    let worker = world.worker().grace(ms(20_000)).lease(lease);
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            assert_eq!(job.signal().reason(), None);
            job.begin().await?.finish(1).await
        }
    }))
    .await;
    gate.arrived(1).await;
    let (stop, open) = (workers.stop(), async {
        workers.wait_for_health(|health| *health == Health::Stopping).await;
        // Longer than the lease, which is renewed meanwhile.
        world.elapse(lease.duration + ms(200)).await;
        assert_eq!(world.latest(&chain).await.status, JobStatus::Running);
        gate.open();
    });
    tokio::join!(stop, open);
    assert_eq!(world.output(&chain).await, 1);
    assert_eq!(world.latest(&chain).await.attempt, 1);
}

/// After the grace period attempts are told `Shutdown`; one that stops then has not failed, and its job goes back
/// unspent and runs elsewhere as the same attempt.
pub async fn an_attempt_told_to_shut_down_has_not_failed<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let (begun, reasons) = (Log::new(), Log::new());
    let (beginnings, log) = (begun.clone(), reasons.clone());
    let workers = start(world.worker().grace(ms(30)).process(move |job: Job<F, Work>| {
        beginnings.add(job.n);
        let log = log.clone();
        async move {
            let reason = job.signal().aborted().await;
            log.add(reason);
            Err(format!("stopped: {reason}").into())
        }
    }))
    .await;
    begun.until_len(1).await;
    soon("the worker stops", workers.stop()).await;
    assert_eq!(reasons.all(), [AbortReason::Shutdown]);
    let job = world.latest(&chain).await;
    assert_eq!((job.status, job.attempt), (JobStatus::Pending, 0));
    assert!(job.lease.is_none() && job.last_error.is_none());
    let told = drain_events(&mut events).into_iter().any(|event| match event {
        Event::AttemptEnded { outcome, .. } => outcome == AttemptOutcome::Aborted(AbortReason::Shutdown),
        _ => false,
    });
    assert!(told);
    let next = start(world.worker().process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.finish(number)
    }))
    .await;
    assert_eq!(world.output(&chain).await, 1);
    next.stop().await;
}

/// An attempt that was told `Shutdown` may still complete: it holds its lease.
pub async fn an_attempt_told_to_shut_down_may_complete<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let begun = Log::new();
    let log = begun.clone();
    let workers = start(world.worker().grace(ms(30)).process(move |job: Job<F, Work>| {
        log.add(job.n);
        async move {
            job.signal().aborted().await;
            job.begin().await?.finish(1).await
        }
    }))
    .await;
    // A job that is claimed and has not begun would go back.
    begun.until_len(1).await;
    soon("the worker stops", workers.stop()).await;
    assert_eq!(world.output(&chain).await, 1);
}

/// A processor that ignores the signal is dropped, and its job goes back unspent.
pub async fn an_attempt_that_ignores_the_signal_is_dropped<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    // Each holds a transaction open, which a store with one writer at a time gives to one of them only.
    let count = match world.fixture.capabilities().concurrent_writers {
        true => 2,
        false => 1,
    };
    let chains = world
        .client
        .start_many((0..count).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(
        world
            .worker()
            .concurrency(2)
            .grace(ms(10))
            .process(move |job: Job<F, Work>| {
                let held = held.clone();
                async move {
                    let _open = job.begin().await?;
                    held.pass().await;
                    job.finish(1)
                }
            }),
    )
    .await;
    gate.arrived(chains.len()).await;
    let begun = Instant::now();
    soon("the worker stops", workers.stop()).await;
    assert!(begun.elapsed() < ms(15_000), "{:?}", begun.elapsed());
    for chain in &chains {
        let job = world.latest(chain).await;
        assert_eq!((job.status, job.attempt), (JobStatus::Pending, 0));
    }
}

/// A processor that blocks its thread can neither be told nor dropped. Stop does not wait for it: the job goes back unspent
/// while the thread is still blocked, and what the processor finishes with afterwards comes too late.
pub async fn a_processor_that_blocks_its_thread_does_not_hold_up_stop<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    // The case is woken by the processor itself. It must not wait for a timer here: the thread that is about to block may be
    // the one that looks after the timers of the runtime, until the stop wakes the other thread.
    let (begin, mut begun) = mpsc::unbounded_channel();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Lock::new(blocked);
    let was_unblocked = Arc::new(AtomicBool::new(false));
    let goes_on = Arc::clone(&was_unblocked);
    let workers = start(world.worker().grace(ms(30)).process(move |job: Job<F, Work>| {
        let _ = begin.send(());
        // Until the case lets it go, or fails.
        let _ = blocked.lock().recv();
        goes_on.store(true, Ordering::SeqCst);
        async move { job.finish(1) }
    }))
    .await;
    begun.recv().await.expect("the processor begins");
    // Only the grace period and the half second that attempts have to end are waited for. The limit counts steps of this
    // runtime, so that a machine that stands still for a while costs a step and not the limit.
    let too_long = async {
        for _ in 0..300 {
            tokio::time::sleep(ms(10)).await;
        }
    };
    tokio::select! {
        biased;
        () = workers.stop() => {}
        () = too_long => panic!("stop waits for a thread that is blocked"),
    }
    assert!(!was_unblocked.load(Ordering::SeqCst), "the thread is still blocked");
    assert_eq!(workers.health(), Health::Stopped);
    let job = world.latest(&chain).await;
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Pending, 0, 1));
    assert!(job.lease.is_none() && job.last_error.is_none());
    unblock.send(()).expect("the thread waits for it");
    let next = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    assert_eq!(world.output(&chain).await, 2);
    let job = world.latest(&chain).await;
    assert_eq!(
        (job.attempt, job.claims, job.completed_by.as_ref()),
        (1, 2, Some(next.id()))
    );
    next.stop().await;
}

/// With `drop_on_abort` attempts are dropped when the grace period is over, and their jobs go back unspent.
pub async fn drop_on_abort_holds_for_shutdown_too<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = world.worker().grace(ms(10)).drop_on_abort();
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        std::future::pending::<()>().await;
        job.finish(1)
    }))
    .await;
    world.until(&chain, JobStatus::Running).await;
    soon("the worker stops", workers.stop()).await;
    let job = world.latest(&chain).await;
    assert_eq!((job.status, job.attempt), (JobStatus::Pending, 0));
}

/// Stopping twice, at the same time or later, is harmless.
pub async fn stopping_twice_is_harmless<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let workers = start(world.worker().process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    tokio::join!(workers.stop(), workers.stop());
    soon("the worker stops", workers.stop()).await;
    let stopped = drain_events(&mut events)
        .into_iter()
        .filter(|event| matches!(event, Event::WorkerStopped { .. }));
    assert_eq!(stopped.count(), 1);
}

/// A future of `stop` that is dropped has asked the workers to stop.
pub async fn a_dropped_stop_still_stops<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let workers = start(world.worker().grace(ms(20_000)).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    let given_up = tokio::time::timeout(ms(20), workers.stop()).await;
    assert!(given_up.is_err(), "an attempt is still running");
    gate.open();
    soon(
        "it stops by itself",
        workers.wait_for_health(|health| *health == Health::Stopped),
    )
    .await;
    world.output(&chain).await;
}

/// A worker stops although its store fails, with an attempt that wants to commit; the job comes back by its lease.
pub async fn a_worker_stops_while_its_store_is_down<F: PairFixture>(fixture: F) {
    stops_without_store(fixture, Fault::Before).await;
}

/// A worker stops although its store does not answer any more.
pub async fn a_worker_stops_while_its_store_is_silent<F: PairFixture>(fixture: F) {
    stops_without_store(fixture, Fault::Hang).await;
}

async fn stops_without_store<F: PairFixture>(fixture: F, fault: Fault) {
    let world = World::new(fixture).await;
    let chains = world
        .client
        .start_many((0..2).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let gate = Gate::closed();
    let held = gate.clone();
    let lease = LeaseSettings::new(ms(400));
    let workers = start(
        world
            .worker()
            .concurrency(2)
            .lease(lease)
            .process(move |job: Job<F, Work>| {
                let held = held.clone();
                async move {
                    held.pass().await;
                    if job.n == 1 {
                        std::future::pending::<()>().await;
                    }
                    job.finish(1)
                }
            }),
    )
    .await;
    gate.arrived(2).await;
    world.faults.take_down(fault);
    gate.open();
    world.faults.called(Verb::SettleJobs, 1).await;
    let begun = Instant::now();
    soon("the worker stops", workers.stop()).await;
    assert!(begun.elapsed() < ms(15_000), "{:?}", begun.elapsed());
    world.faults.heal();
    let (other, _) = world.other_process();
    let heir = eager(&other).concurrency(2).reap_interval(ms(30));
    let heir = start(heir.process(|job: Job<F, Work>| async move { job.finish(2) })).await;
    for chain in &chains {
        assert_eq!(world.output(chain).await, 2, "nothing is lost");
    }
    heir.stop().await;
}

/// `run_until` runs until its signal is ready, and returns when everything has stopped.
pub async fn run_until_stops_at_its_signal<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (signal, stopped) = oneshot::channel();
    let worker = world.worker().process(|job: Job<F, Work>| async move { job.finish(1) });
    let service = tokio::spawn(worker.run_until(stopped));
    world.output(&chain).await;
    assert!(!service.is_finished());
    signal.send("deploy").expect("the service listens");
    let ended = soon("the service ends", service).await;
    let value = ended.expect("the service does not panic").expect("it ends well");
    assert_eq!(value, Ok("deploy"), "what the signal said");
    let late = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world.elapse(ms(60)).await;
    assert_eq!(world.latest(&late).await.claims, 0);
}

/// A dropped `run_until` stops its workers in the background, gracefully.
pub async fn a_dropped_run_until_stops_its_workers<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let gate = Gate::closed();
    let held = gate.clone();
    let worker = world.worker().grace(ms(20_000)).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    });
    let service = tokio::spawn(worker.run_until(std::future::pending::<()>()));
    gate.arrived(1).await;
    service.abort();
    super::world::events_until(&mut events, |event| matches!(event, Event::WorkerStopping { .. })).await;
    gate.open();
    super::world::events_until(&mut events, |event| matches!(event, Event::WorkerStopped { .. })).await;
    assert_eq!(world.output(&chain).await, 1);
}

/// `run_until` polls its signal before it starts workers: a handler of SIGTERM is installed before the first job runs.
pub async fn a_signal_is_listened_for_before_the_first_worker_starts<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let mut events = world.client.events();
    let (finished, has_finished) = oneshot::channel::<()>();
    let mut has_finished = std::pin::pin!(has_finished);
    let mut first = true;
    let signal = std::future::poll_fn(|context| {
        if std::mem::take(&mut first) {
            let told = drain_events(&mut events);
            let started = |event: &Event| matches!(event, Event::WorkerStarted { .. });
            assert!(!told.iter().any(started), "{told:?}");
        }
        has_finished.as_mut().poll(context)
    });
    let worker = eager(&world.client).process(|job: Job<F, Work>| async move { job.finish(1) });
    let ended = async {
        world.output(&chain).await;
        let _ = finished.send(());
    };
    let (ran, ()) = tokio::join!(worker.run_until(signal), ended);
    let told = ran.expect("the workers ran");
    assert_eq!(told, Ok(()));
}

/// A signal that is ready when `run_until` is called runs nothing.
pub async fn a_signal_that_has_come_already_starts_no_worker<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = eager(&world.client).process(|job: Job<F, Work>| async move { job.finish(1) });
    assert_eq!(worker.run_until(std::future::ready(7)).await.expect("it stops"), 7);
    assert_eq!(world.latest(&chain).await.claims, 0);
}
