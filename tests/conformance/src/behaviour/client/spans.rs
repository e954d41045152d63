//! Spans about writes: ended with the commit, dropped with a rollback.

use std::sync::{Arc, Mutex, PoisonError};

use queuert::adapter::{Commit, CommitSpan, Creation, ObservabilityAdapter, OutsideCompletion};
use queuert::{Client, Error, JobType, Step};

use super::jobs::{First, Greet, Second, greet};
use crate::behaviour::PairFixture;

/// Writes down what becomes of spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl Spans {
    async fn client<F: PairFixture>(fixture: &F) -> (Self, Client<F::State>) {
        let spans = Self::default();
        let client = Client::builder(fixture.state().await)
            .notify(fixture.notify().await)
            .observability(spans.clone())
            .build();
        (spans, client)
    }

    fn add(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin(&self, name: String) -> Option<Box<dyn CommitSpan>> {
        Some(Box::new(Span {
            spans: self.clone(),
            name,
            ended: false,
        }))
    }
}

impl ObservabilityAdapter for Spans {
    fn creation_span(&self, creation: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        let before = creation
            .continues
            .map(|before| before.trace_context.unwrap_or("nothing").to_owned());
        let after = before.map(|before| format!(" after {before}")).unwrap_or_default();
        self.begin(format!("create {}{after}", creation.job.type_name))
    }

    fn completion_span(&self, completion: &OutsideCompletion<'_>) -> Option<Box<dyn CommitSpan>> {
        self.begin(format!(
            "complete {}, continued: {}",
            completion.job.type_name, completion.continued
        ))
    }
}

struct Span {
    spans: Spans,
    name: String,
    ended: bool,
}

impl CommitSpan for Span {
    fn trace_context(&self) -> Option<String> {
        Some(format!("context of {}", self.name))
    }

    fn committed(&mut self, commit: Commit) {
        self.ended = true;
        let how = match commit {
            Commit::Created => "created".to_owned(),
            Commit::Deduplicated(chain) => format!("deduplicated by {chain}"),
            other => format!("{other:?}"),
        };
        self.spans.add(format!("{}: {how}", self.name));
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if !self.ended {
            self.spans.add(format!("{}: dropped", self.name));
        }
    }
}

/// A span is held until the commit, by itself and in a transaction, and its context is stored.
pub async fn a_span_ends_with_the_commit<F: PairFixture>(fixture: F) {
    let (spans, client) = Spans::client(&fixture).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    assert_eq!(spans.take(), ["create greet: created"]);
    let job = client
        .get_job_record(started.id().first_job())
        .await
        .expect("it can be read");
    let context = job.and_then(|job| job.trace_context);
    assert_eq!(context.as_deref(), Some("context of create greet"));
    let mut tx = client.begin().await.expect("a transaction opens");
    client
        .start_many([greet("a"), greet("b")])
        .within(&mut tx)
        .await
        .expect("they start");
    assert_eq!(spans.take(), Vec::<String>::new(), "nothing is told before the commit");
    tx.commit().await.expect("it commits");
    assert_eq!(spans.take(), ["create greet: created", "create greet: created"]);
}

/// A rollback drops the spans, a rolled-back savepoint those that were begun in it.
pub async fn a_rolled_back_span_is_dropped<F: PairFixture>(fixture: F) {
    let (spans, client) = Spans::client(&fixture).await;
    let mut tx = client.begin().await.expect("a transaction opens");
    client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    tx.rollback().await.expect("it rolls back");
    assert_eq!(spans.take(), ["create greet: dropped"]);
    let mut tx = client.begin().await.expect("a transaction opens");
    client.start(greet("Ada")).within(&mut tx).await.expect("it starts");
    let undone = tx.savepoint(async |tx| {
        client.start(First { number: 1 }).within(tx).await?;
        Err::<(), Error>(Error::NoProcessor)
    });
    undone.await.expect_err("the savepoint is rolled back");
    assert_eq!(spans.take(), [format!("create {}: dropped", First::NAME)]);
    tx.commit().await.expect("it commits");
    assert_eq!(spans.take(), ["create greet: created"]);
}

/// A start that is refused has created nothing.
pub async fn a_refused_start_drops_its_span<F: PairFixture>(fixture: F) {
    let (spans, client) = Spans::client(&fixture).await;
    let started = client.start(greet("Ada")).await.expect("it starts");
    spans.take();
    let again = client.start(greet("Ada")).id(started.id().first_job()).await;
    assert!(matches!(again, Err(Error::IdTaken(_))), "{again:?}");
    assert_eq!(spans.take(), ["create greet: dropped"]);
}

/// A start that finds its key taken says by which chain.
pub async fn a_deduplicated_start_says_so<F: PairFixture>(fixture: F) {
    let (spans, client) = Spans::client(&fixture).await;
    let steps = [(); 2].map(|()| Step::new(greet("Ada")).deduplicate("key"));
    let started = client.start_many(steps).await.expect("they start");
    let second = format!("create {}: deduplicated by {}", Greet::NAME, started[0].id());
    assert_eq!(spans.take(), ["create greet: created".to_owned(), second]);
}

/// Who completes a job from outside has a span too, and the next job carries on from the one before.
pub async fn completion_from_outside_has_a_span<F: PairFixture>(fixture: F) {
    let (spans, client) = Spans::client(&fixture).await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    spans.take();
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Second { number: 2 }).await.expect("it continues");
    assert_eq!(spans.take(), Vec::<String>::new(), "nothing is told before the commit");
    tx.commit().await.expect("it commits");
    let (first, second) = (First::NAME, Second::NAME);
    let expected = [
        format!("complete {first}, continued: true: Completed"),
        format!("create {second} after context of create {first}: created"),
    ];
    assert_eq!(spans.take(), expected);
}
