//! What middlewares do in the transactions of an attempt.

use queuert::adapter::StateAdapter;
use queuert::{AttemptInfo, Error, JobError, JobStatus, Middleware, Transaction};

use super::types::{Note, Work};
use super::world::{Job, Log, World, start};
use crate::behaviour::PairFixture;

/// Writes down when transactions open and close, and fails where it is told to, on the first attempt.
struct Hooks {
    name: &'static str,
    log: Log<String>,
    fail: Option<(&'static str, bool)>,
}

impl Hooks {
    fn step(&self, attempt: &AttemptInfo, step: &'static str) -> Result<(), JobError> {
        self.log.add(format!("{} {step}", self.name));
        match self.fail {
            Some((at, panics)) if at == step && attempt.attempt == 1 => {
                assert!(!panics, "the hook panics");
                Err("the hook fails".into())
            }
            _ => Ok(()),
        }
    }
}

impl<S: StateAdapter> Middleware<S> for Hooks {
    async fn transaction_opened(&self, attempt: &AttemptInfo, _: &mut Transaction<S>) -> Result<(), JobError> {
        self.step(attempt, "opened")
    }

    async fn transaction_closing(&self, attempt: &AttemptInfo, _: &mut Transaction<S>) -> Result<(), JobError> {
        self.step(attempt, "closing")
    }
}

/// Hooks wrap the transactions of `prepare` and of completion: the first given opens first and closes last (W6, W7).
pub async fn hooks_wrap_every_transaction_of_the_attempt<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let log = Log::new();
    let hooks = |name| Hooks {
        name,
        log: log.clone(),
        fail: None,
    };
    let inside = log.clone();
    let worker = world.worker().middleware(hooks("a")).middleware(hooks("b"));
    let workers = start(worker.process(move |job: Job<F, Work>| {
        let inside = inside.clone();
        async move {
            job.prepare(async |_| {
                inside.add("prepare".to_owned());
                Ok::<_, Error>(())
            })
            .await?;
            let tx = job.begin().await?;
            inside.add("complete".to_owned());
            tx.finish(1).await
        }
    }))
    .await;
    world.output(&chain).await;
    workers.stop().await;
    let expected = [
        "a opened",
        "b opened",
        "prepare",
        "b closing",
        "a closing",
        "a opened",
        "b opened",
        "complete",
        "b closing",
        "a closing",
    ];
    assert_eq!(log.all(), expected);
}

/// A completion without a transaction calls no hooks.
pub async fn a_plain_completion_calls_no_hooks<F: PairFixture>(fixture: F) {
    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let log = Log::new();
    let hooks = Hooks {
        name: "a",
        log: log.clone(),
        fail: None,
    };
    let worker = world.worker().middleware(hooks);
    let workers = start(worker.process(|job: Job<F, Work>| async move { job.finish(1) })).await;
    world.output(&chain).await;
    workers.stop().await;
    assert_eq!(log.len(), 0);
}

/// What a hook writes commits with the attempt's transaction, or not at all (I1).
pub async fn what_a_hook_writes_commits_with_the_transaction<F: PairFixture>(fixture: F) {
    struct Record<S: StateAdapter>(queuert::Client<S>);
    impl<S: StateAdapter> Middleware<S> for Record<S> {
        async fn transaction_closing(&self, attempt: &AttemptInfo, tx: &mut Transaction<S>) -> Result<(), JobError> {
            let text = format!("attempt {}", attempt.attempt);
            self.0.start(Note { text }).within(tx).await?;
            Ok(())
        }
    }

    let world = World::new(fixture).await;
    let chain = world.client.start(Work { n: 0 }).await.expect("the chain starts");
    let failing = Hooks {
        name: "outer",
        log: Log::new(),
        fail: Some(("closing", false)),
    };
    let worker = world
        .worker()
        .middleware(failing)
        .middleware(Record(world.client.clone()));
    let workers = start(worker.process(|job: Job<F, Work>| async move {
        let number = job.number();
        job.begin().await?.finish(number).await
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2);
    workers.stop().await;
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    let inputs: Vec<Note> = notes
        .items
        .iter()
        .map(|job| job.input.decode().expect("it is a note"))
        .collect();
    assert_eq!(
        inputs,
        [Note {
            text: "attempt 2".into()
        }]
    );
}

async fn failing_hook<F: PairFixture>(fixture: F, at: &'static str, panics: bool, staged: bool) {
    let world = World::new(fixture).await;
    let chain = world
        .client
        .start(Work { n: 0 })
        .max_attempts(2)
        .await
        .expect("the chain starts");
    let hooks = Hooks {
        name: "a",
        log: Log::new(),
        fail: Some((at, panics)),
    };
    let worker = world.worker().middleware(hooks);
    let workers = start(worker.process(move |job: Job<F, Work>| async move {
        let client = job.client().clone();
        let number = job.number();
        if let Some(error) = job.last_error() {
            let expected = if panics { "the hook panics" } else { "the hook fails" };
            assert!(error.message.contains(expected), "{}", error.message);
        }
        if staged {
            job.prepare(async |tx| client.start(Note { text: "staged".into() }).within(tx).await)
                .await?;
            return job.finish(number);
        }
        let mut tx = job.begin().await?;
        client.start(Note { text: "written".into() }).within(&mut tx).await?;
        tx.finish(number).await
    }))
    .await;
    assert_eq!(world.output(&chain).await, 2, "the attempt counted, once");
    workers.stop().await;
    let notes = world
        .client
        .list_jobs()
        .of_type::<Note>()
        .await
        .expect("jobs can be listed");
    assert_eq!(notes.items.len(), 1, "what was done under the failing hook is undone");
    assert_eq!(world.latest(&chain).await.status, JobStatus::Completed);
}

/// A hook that fails when the completing transaction opens fails the attempt.
pub async fn a_hook_that_fails_at_the_opening_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "opened", false, false).await;
}

/// A hook that fails when the completing transaction closes fails the attempt and rolls the completion back.
pub async fn a_hook_that_fails_at_the_closing_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "closing", false, false).await;
}

/// A hook that panics when the completing transaction opens fails the attempt.
pub async fn a_hook_that_panics_at_the_opening_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "opened", true, false).await;
}

/// A hook that panics when the completing transaction closes fails the attempt and rolls the completion back.
pub async fn a_hook_that_panics_at_the_closing_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "closing", true, false).await;
}

/// A hook that fails in `prepare` rolls back what was prepared.
pub async fn a_hook_that_fails_in_prepare_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "closing", false, true).await;
}

/// A hook that panics in `prepare` rolls back what was prepared.
pub async fn a_hook_that_panics_in_prepare_is_a_failure<F: PairFixture>(fixture: F) {
    failing_hook(fixture, "opened", true, true).await;
}
