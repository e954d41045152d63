//! What an observability adapter sees of workers, and that it cannot hurt them.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::{
    AttemptSpan, AttemptStart, Commit, CommitSpan, Creation, Delivery, ObservabilityAdapter, QueueSample, StateAdapter,
};
use queuert::{AbortReason, AttemptOutcome, Client, Event, JobStatus};

use super::types::{FromHere, Shared, Work};
use super::world::{Gate, Job, Log, State, World, drain_events, eager, events_until, ms, start};
use crate::behaviour::PairFixture;
use crate::faulty::Fault;

fn outcomes(events: &[Event]) -> Vec<AttemptOutcome> {
    let ended = events.iter().filter_map(|event| match event {
        Event::AttemptEnded { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    ended.collect()
}

/// A timeout is told of when it strikes, before the attempt that it ends.
pub async fn a_timeout_is_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let worker = world.worker().timeout(ms(30));
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(1)
        .await
        .expect("the chain starts");
    let workers = start(worker.process(|_: Job<F, Work>| std::future::pending())).await;
    world.until(&chain, JobStatus::Dead).await;
    workers.stop().await;
    let told = drain_events(&mut events);
    let struck = told.iter().position(|event| {
        matches!(event, Event::AttemptTimedOut { attempt, timeout }
            if attempt.job.chain_id == chain.id() && *timeout == ms(30))
    });
    let ended = told
        .iter()
        .position(|event| matches!(event, Event::AttemptEnded { .. }));
    assert!(struck.is_some() && struck < ended, "{told:#?}");
    assert!(matches!(&outcomes(&told)[..], [AttemptOutcome::Died { error }] if error.contains("timed out")));
}

/// A snoozed attempt, and one that is given back because its worker stops, are told of as such.
pub async fn a_snooze_and_a_stop_are_told_of<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let (ran, gate) = (Log::new(), Gate::closed());
    let (log, held) = (ran.clone(), gate.clone());
    let workers = start(world.worker().process(move |job: Job<F, Work>| {
        log.add(job.number());
        let (first, held) = (log.len() == 1, held.clone());
        async move {
            if first {
                return job.snooze(ms(1));
            }
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    gate.arrived(1).await;
    workers.stop().await;
    let expected = [AttemptOutcome::Snoozed, AttemptOutcome::Aborted(AbortReason::Shutdown)];
    assert_eq!(outcomes(&drain_events(&mut events)), expected);
}

/// Events of ends say how long job and chain took, by the store's clock.
pub async fn durations_are_told<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    world.elapse(ms(40)).await;
    let workers = start(
        world
            .worker()
            .process(|job: Job<F, FromHere>| async move {
                tokio::time::sleep(ms(30)).await;
                job.continue_with(Shared { n: 1 })
            })
            .process(|job: Job<F, Shared>| async move { job.begin().await?.finish(String::new()).await }),
    )
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let cancelled = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    world.elapse(ms(40)).await;
    world.client.cancel(&cancelled).await.expect("it can be cancelled");
    let (mut jobs, mut chains) = (Vec::new(), Vec::new());
    for event in drain_events(&mut events) {
        match event {
            Event::JobCompleted { duration, .. } => jobs.push(duration.expect("it is known")),
            Event::ChainCompleted { duration, .. } | Event::ChainCancelled { duration, .. } => chains.push(duration),
            _ => {}
        }
    }
    assert_eq!(jobs.len(), 2);
    assert!(jobs[0] >= ms(70) && jobs[1] < jobs[0], "{jobs:?}");
    // The chain's beginning is read from its id: by the process's clock, to the millisecond.
    assert_eq!(chains.len(), 2);
    assert!(
        chains[0].is_some() && chains[1].is_some_and(|duration| duration >= ms(40)),
        "{chains:?}"
    );
}

/// Says that it was called, and blocks its thread until it is let go.
struct Stuck {
    called: Lock<Sender<()>>,
    go_on: Lock<Receiver<()>>,
}

impl ObservabilityAdapter for Stuck {
    fn event(&self, _: &Event) {
        let lock = |mutex: &Lock<Sender<()>>| mutex.lock().send(());
        let _ = lock(&self.called);
        let _ = self.go_on.lock().recv();
    }
}

/// An observer that blocks keeps neither starts nor attempts nor the stop of a worker waiting.
pub async fn an_observer_that_blocks_disturbs_nobody<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (called, calls) = channel();
    let (go_on, blocked) = channel();
    let stuck = Stuck {
        called: Lock::new(called),
        go_on: Lock::new(blocked),
    };
    let client = Client::builder(world.state.twin())
        .notify(world.notify.clone())
        .observability(stuck)
        .build();
    let mut events = client.events();
    let chains = client
        .start_many((0..20).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let worker = eager(&client).concurrency(4);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    for chain in &chains {
        world.output(chain).await;
    }
    workers.stop().await;
    assert_eq!(outcomes(&drain_events(&mut events)).len(), 20);
    assert!(calls.try_recv().is_ok(), "the observer was called");
    assert!(calls.try_recv().is_err(), "and has not come back");
    drop(go_on);
}

/// Makes spans that write down what becomes of them.
#[derive(Clone)]
struct Spans {
    log: Log<String>,
    samples: Log<Vec<QueueSample>>,
    sample_every: Option<Duration>,
}

thread_local! {
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

impl ObservabilityAdapter for Spans {
    fn event(&self, event: &Event) {
        if let Event::QueuesSampled { samples, .. } = event {
            self.samples.add(samples.clone());
        }
    }

    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn creation_span(&self, creation: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        let name = format!("{} in {:?}", creation.job.type_name, CURRENT.get());
        creation.continues?;
        Some(Box::new(Written {
            log: self.log.clone(),
            name,
        }))
    }

    fn attempt_span(&self, start: &AttemptStart<'_>) -> Option<Box<dyn AttemptSpan>> {
        Some(Box::new(Running {
            log: self.log.clone(),
            attempt: start.attempt.attempt,
        }))
    }

    fn sample_queues_every(&self) -> Option<Duration> {
        self.sample_every
    }
}

struct Written {
    log: Log<String>,
    name: String,
}

impl CommitSpan for Written {
    fn committed(&mut self, commit: Commit) {
        self.log.add(format!("{} {commit:?}", self.name));
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.log.add(format!("{} gone", self.name));
    }
}

struct Running {
    log: Log<String>,
    attempt: u32,
}

impl AttemptSpan for Running {
    fn scope(&mut self, poll: &mut dyn FnMut()) {
        let before = CURRENT.replace(Some(self.attempt));
        poll();
        CURRENT.set(before);
    }

    fn end(&mut self, outcome: &AttemptOutcome) {
        let how = match outcome {
            AttemptOutcome::Finished => "finished",
            AttemptOutcome::Continued { .. } => "continued",
            _ => "something else",
        };
        self.log.add(format!("attempt {} {how}", self.attempt));
    }
}

fn observed<F: PairFixture>(world: &World<F>, sample_every: Option<Duration>) -> (Spans, Client<State<F>>) {
    let spans = Spans {
        log: Log::new(),
        samples: Log::new(),
        sample_every,
    };
    let client = Client::builder(world.state.clone())
        .notify(world.notify.clone())
        .observability(spans.clone())
        .build();
    (spans, client)
}

async fn shared<S: StateAdapter>(job: queuert::Attempt<Shared, S>) -> queuert::JobResult<S> {
    job.finish(String::new())
}

/// The span of a continuation is begun inside that of the attempt, and ends with the commit, in both forms.
pub async fn a_continuation_ends_its_span_with_the_commit<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (spans, client) = observed(&world, None);
    for transactional in [false, true] {
        let chain = client.start(FromHere { n: 0 }).await.expect("the chain starts");
        let worker = eager(&client)
            .process(shared)
            .process(move |job: Job<F, FromHere>| async move {
                tokio::task::yield_now().await;
                if transactional {
                    return job.begin().await?.continue_with(Shared { n: 1 }).await;
                }
                job.continue_with(Shared { n: 1 })
            });
        let workers = start(worker).await;
        world.output(&chain).await;
        workers.stop().await;
    }
    let once = [
        "shared in Some(1) Created",
        "shared in Some(1) gone",
        "attempt 1 continued",
        "attempt 1 finished",
    ];
    assert_eq!(spans.log.all(), [once, once].concat());
}

/// An attempt that fails after it has continued has created nothing.
pub async fn a_failed_attempt_drops_the_span_of_its_continuation<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (spans, client) = observed(&world, None);
    let chain = client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let worker = eager(&client)
        .process(shared)
        .process(|job: Job<F, FromHere>| async move {
            let number = job.number();
            let completion = match number {
                1 => job.continue_with(Shared { n: 1 })?,
                _ => job.begin().await?.continue_with(Shared { n: 1 }).await?,
            };
            if number < 3 {
                return Err("after it has continued".into());
            }
            Ok(completion)
        });
    let workers = start(worker).await;
    world.output(&chain).await;
    workers.stop().await;
    let expected = [
        "shared in Some(1) gone",
        "attempt 1 something else",
        "shared in Some(2) gone",
        "attempt 2 something else",
        "shared in Some(3) Created",
        "shared in Some(3) gone",
        "attempt 3 continued",
        "attempt 1 finished",
    ];
    assert_eq!(spans.log.all(), expected);
}

/// Every poll of a processor is inside its span, and nothing else is.
pub async fn processors_are_polled_inside_their_span<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (_, client) = observed(&world, None);
    let seen = Log::new();
    let log = seen.clone();
    let chain = client.start(Work { n: 0 }).await.expect("the chain starts");
    let worker = eager(&client).process(move |job: Job<F, Work>| {
        let log = log.clone();
        async move {
            for _ in 0..3 {
                log.add(CURRENT.get());
                let elsewhere = tokio::spawn(async { CURRENT.get() }).await;
                log.add(elsewhere.unwrap_or(Some(0)));
                tokio::time::sleep(ms(1)).await;
            }
            job.finish(1)
        }
    });
    let workers = start(worker).await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(seen.all(), [Some(1), None, Some(1), None, Some(1), None]);
}

/// Workers look at how much waits as often as the adapter wants, and a store that fails meanwhile makes them no worse.
pub async fn queues_are_sampled_if_somebody_asks<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (spans, client) = observed(&world, Some(ms(10)));
    let mut events = client.events();
    world.faults.fail_next(crate::Verb::SampleQueues, 1, Fault::Before);
    let gate = Gate::closed();
    let held = gate.clone();
    let chains = client
        .start_many((0..4).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let workers = start(eager(&client).process(move |job: Job<F, Work>| {
        let held = held.clone();
        async move {
            held.pass().await;
            job.finish(1)
        }
    }))
    .await;
    events_until(&mut events, |event| {
        matches!(
            event,
            Event::StateFailed {
                operation: "sample",
                ..
            }
        )
    })
    .await;
    gate.arrived(1).await;
    let seen = super::world::eventually("three wait", async || {
        let samples = spans.samples.all().pop()?;
        (samples.len() == 1 && samples[0].ready == 3).then_some(samples)
    })
    .await;
    assert_eq!(seen[0].type_name.as_str(), "work");
    assert!(seen[0].oldest.is_some());
    assert_eq!(workers.health(), queuert::Health::Running);
    gate.open();
    for chain in &chains {
        world.output(chain).await;
    }
    super::world::eventually("nothing waits", async || {
        spans
            .samples
            .all()
            .pop()
            .filter(|samples| samples[0].ready == 0 && samples[0].oldest.is_none())
    })
    .await;
    workers.stop().await;
}

/// Without an adapter that asks, workers do not look.
pub async fn nobody_looks_unasked<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let (_, client) = observed(&world, None);
    let chain = client.start(Work { n: 0 }).await.expect("the chain starts");
    let workers = start(eager(&client).process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    world.elapse(ms(50)).await;
    workers.stop().await;
    assert_eq!(world.faults.calls(crate::Verb::SampleQueues), 0);
}
