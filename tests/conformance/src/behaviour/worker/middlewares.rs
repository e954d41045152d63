//! Middlewares: an onion around attempts that sees how they end and cannot strand them.

use queuert::adapter::StateAdapter;
use queuert::{
    AttemptContext, AttemptOutcome, CompletionKind, Event, JobError, JobStatus, Middleware, Next, RetryPolicy,
};

use super::types::{FromHere, Shared, Work};
use super::world::{Job, Log, World, drain_events, ms, start};
use crate::behaviour::PairFixture;

/// Writes down when it is entered and left.
struct Layer {
    name: &'static str,
    log: Log<String>,
}

impl<S: StateAdapter> Middleware<S> for Layer {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
        self.log.add(format!("{} in", self.name));
        let result = next.run(job).await;
        self.log.add(format!("{} out", self.name));
        result
    }
}

/// The first middleware is the outermost (W5, H14).
pub async fn middlewares_wrap_in_the_order_given<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let log = Log::new();
    let inside = log.clone();
    let layer = |name| Layer { name, log: log.clone() };
    let worker = world.worker().middleware(layer("a")).middleware(layer("b"));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        inside.add("processor".to_owned());
        async move { job.finish(1) }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(log.all(), ["a in", "b in", "processor", "b out", "a out"]);
}

/// A middleware may snooze: the processor does not run, and the attempt is not spent (W5).
pub async fn a_middleware_may_snooze<F: PairFixture>(fixture: F) {
    struct NotTheFirstTime(Log<u32>);
    impl<S: StateAdapter> Middleware<S> for NotTheFirstTime {
        async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
            self.0.add(job.info().attempt);
            if self.0.len() == 1 {
                return job.snooze(ms(1));
            }
            next.run(job).await
        }
    }

    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 7 }).await.expect("the chain starts");
    let (log, ran) = (Log::new(), Log::new());
    let inside = ran.clone();
    let worker = world.worker().middleware(NotTheFirstTime(log.clone()));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        inside.add(job.n);
        async move { job.finish(job.n) }
    }))
    .await;
    assert_eq!(world.output(&chain).await, 7);
    workers.stop().await;
    assert_eq!(log.all(), [1, 1], "a snooze spends no attempt");
    assert_eq!(ran.len(), 1);
}

/// Values that a middleware adds reach the layers inside it and the processor, over what the worker provides (W5).
pub async fn inserted_values_reach_the_inside<F: PairFixture>(fixture: F) {
    struct Outer;
    struct Inner(Log<u32>);
    impl<S: StateAdapter> Middleware<S> for Outer {
        async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
            job.insert(*job.get::<u32>()? + 1);
            next.run(job).await
        }
    }
    impl<S: StateAdapter> Middleware<S> for Inner {
        async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
            self.0.add(*job.get::<u32>()?);
            assert_eq!(job.info().job.type_name, job.job().type_name);
            assert!(!job.signal().is_aborted());
            job.insert(format!("job {}", job.info().attempt));
            next.run(job).await
        }
    }

    let world = World::new(fixture).await;
    let log = Log::new();
    let worker = world
        .worker()
        .provide(10_u32)
        .middleware(Outer)
        .middleware(Inner(log.clone()));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let number = *job.get::<u32>()?;
        assert_eq!(*job.get::<String>()?, "job 1");
        job.finish(number)
    }))
    .await;
    for n in 0..2 {
        let chain = world.client.start(Work { n }).await.expect("the chain starts");
        assert_eq!(
            world.output(&chain).await,
            11,
            "attempts do not see each other's values"
        );
    }
    workers.stop().await;
    assert_eq!(log.all(), [11, 11]);
}

/// Writes down how attempts end.
struct Witness(Log<String>);

impl<S: StateAdapter> Middleware<S> for Witness {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
        let result = next.run(job).await;
        self.0.add(match &result {
            Ok(completion) => match completion.kind() {
                CompletionKind::Finish => "finished".to_owned(),
                CompletionKind::Continue { next_type, .. } => format!("continued with {next_type}"),
                other => format!("{other:?}"),
            },
            Err(error) if error.is_fatal() => format!("fatal: {error}"),
            Err(error) => match error.lease_lost() {
                Some(reason) => format!("aborted: {reason}"),
                None => format!("failed: {error}"),
            },
        });
        result
    }
}

/// A middleware sees whether the attempt finished, continued, snoozed, failed with what, or was aborted (H14).
pub async fn a_middleware_sees_the_outcome<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let log = Log::new();
    let chain = world.client.start(FromHere { n: 0 }).await.expect("the chain starts");
    let worker = world.worker().middleware(Witness(log.clone()));
    let runs = log.clone();
    let workers = start(
        worker
            .process(move |job: Job<F, FromHere>| {
                let run = runs.len();
                async move {
                    match run {
                        0 => job.snooze(ms(1)),
                        1 => Err("not yet".into()),
                        _ => job.continue_with(Shared { n: 1 }),
                    }
                }
            })
            .process(|job: Job<F, Shared>| async move { job.finish(String::new()) })
            .process(|job: Job<F, Work>| async move {
                if job.n == 1 {
                    return Err(JobError::fatal("hopeless"));
                }
                let own = queuert::ChainRef::<Work>::new(job.chain_id());
                job.client().cancel(own).await?;
                job.begin().await?.finish(1).await
            }),
    )
    .await;
    world.output(&chain).await;
    let fatal = world.client.start(Work { n: 1 }).await.expect("the chain starts");
    world.until(&fatal, JobStatus::Dead).await;
    let cancelled = world.client.start(Work { n: 2 }).await.expect("the chain starts");
    world.until(&cancelled, JobStatus::Cancelled).await;
    let seen = log.until_len(6).await;
    workers.stop().await;
    let expected = [
        "Snooze",
        "failed: not yet",
        "continued with shared",
        "finished",
        "fatal: hopeless",
        "aborted: cancelled",
    ];
    assert_eq!(seen, expected);
}

/// What a bad middleware does on the first attempt.
#[derive(Clone, Copy, PartialEq)]
enum Mischief {
    FailBefore,
    FailAfter,
    PanicBefore,
    PanicAfter,
    NeverCallNext,
}

struct Bad(Mischief);

impl<S: StateAdapter> Middleware<S> for Bad {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> queuert::JobResult<S> {
        if job.info().attempt > 1 {
            return next.run(job).await;
        }
        match self.0 {
            Mischief::FailBefore => Err("before".into()),
            Mischief::PanicBefore => panic!("before"),
            Mischief::NeverCallNext => {
                drop(next);
                Err("the layers inside were never called".into())
            }
            Mischief::FailAfter => {
                let _completion = next.run(job).await?;
                Err("after".into())
            }
            Mischief::PanicAfter => {
                let _completion = next.run(job).await?;
                panic!("after")
            }
        }
    }
}

async fn mischief<F: PairFixture>(fixture: F, mischief: Mischief, error: &str) {
    let world = World::new(fixture).await;
    let mut events = world.client.events();
    let policy = RetryPolicy::new().initial(ms(60)).jitter(0.0);
    let chains = world
        .client
        .start_many((0..2).map(|n| Work { n }))
        .await
        .expect("the chains start");
    let worker = world.worker().concurrency(2).retry(policy).middleware(Bad(mischief));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let (n, number) = (job.n, job.number());
        if n == 0 {
            return job.finish(number);
        }
        job.begin().await?.finish(number).await
    }))
    .await;
    for chain in &chains {
        assert_eq!(world.output(chain).await, 2, "the attempt counted, once");
        let job = world.latest(chain).await;
        let waited = job
            .started_at
            .expect("it was started")
            .saturating_duration_since(job.created_at);
        assert!(waited >= ms(60), "it backs off: {waited:?}");
    }
    workers.stop().await;
    let failures: Vec<_> = drain_events(&mut events)
        .into_iter()
        .filter_map(|event| match event {
            Event::AttemptEnded {
                outcome: AttemptOutcome::Failed { error, .. },
                ..
            } => Some(error),
            _ => None,
        })
        .collect();
    assert_eq!(failures, [error, error]);
}

/// A middleware that fails before the inner layers gives a counted failure with backoff (H12, H14, I8).
pub async fn a_middleware_that_fails_before_is_a_failure<F: PairFixture>(fixture: F) {
    mischief(fixture, Mischief::FailBefore, "before").await;
}

/// A middleware that fails after the inner layers undoes their completion (H14, I8).
pub async fn a_middleware_that_fails_after_is_a_failure<F: PairFixture>(fixture: F) {
    mischief(fixture, Mischief::FailAfter, "after").await;
}

/// A middleware that panics before the inner layers gives a counted failure with backoff (H14, I8).
pub async fn a_middleware_that_panics_before_is_a_failure<F: PairFixture>(fixture: F) {
    mischief(fixture, Mischief::PanicBefore, "panicked: before").await;
}

/// A middleware that panics after the inner layers undoes their completion (H14, I8).
pub async fn a_middleware_that_panics_after_is_a_failure<F: PairFixture>(fixture: F) {
    mischief(fixture, Mischief::PanicAfter, "panicked: after").await;
}

/// A middleware that never calls the inner layers has no completion to return: a counted failure (H13, H14, I9).
pub async fn a_middleware_that_never_calls_next_is_a_failure<F: PairFixture>(fixture: F) {
    mischief(fixture, Mischief::NeverCallNext, "the layers inside were never called").await;
}
