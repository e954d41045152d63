//! Sees what is announced, and when.

use std::sync::{Arc, Mutex, PoisonError};

use queuert::adapter::{BoxFuture, Delivery, Notice, NotifyAdapter, ObservabilityAdapter, Subscription, Topic};
use queuert::{ChainId, Client, Event, JobId, NotifyError};

use crate::behaviour::PairFixture;

/// Records every notice on its way to the notify adapter, and every event.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    notices: Vec<Notice>,
    events: Vec<Event>,
}

impl Recorder {
    /// A client on a new store whose notices and events are recorded.
    pub(crate) async fn client<F: PairFixture>(fixture: &F) -> (Self, Client<F::State>) {
        let recorder = Self::default();
        let client = Client::builder(fixture.state().await)
            .notify(Wiretap {
                recorder: recorder.clone(),
                inner: fixture.notify().await,
            })
            .observability(recorder.clone())
            .build();
        (recorder, client)
    }

    /// The notices since the last look.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.log().notices)
    }

    /// The events since the last look.
    pub(crate) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.log().events)
    }

    /// The events since the last look, by name and by the chain or job that they are about.
    pub(crate) fn named_events(&self) -> Vec<(&'static str, ChainId)> {
        self.events().iter().map(named).collect()
    }

    /// Forgets what was recorded.
    pub(crate) fn forget(&self) {
        *self.log() = Log::default();
    }

    /// Fails unless nothing was recorded since the last look.
    #[track_caller]
    pub(crate) fn assert_silent(&self, when: &str) {
        let log = self.log();
        assert!(log.notices.is_empty(), "announced {when}: {:?}", log.notices);
        assert!(log.events.is_empty(), "emitted {when}: {:?}", log.events);
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservabilityAdapter for Recorder {
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn event(&self, event: &Event) {
        self.log().events.push(event.clone());
    }
}

/// Stands between the client and its notify adapter.
struct Wiretap {
    recorder: Recorder,
    inner: Arc<dyn NotifyAdapter>,
}

impl NotifyAdapter for Wiretap {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        self.recorder.log().notices.extend(notices.iter().cloned());
        self.inner.announce(notices)
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        self.inner.subscribe(topic)
    }
}

pub(crate) fn available(type_name: &'static str, count: usize) -> Notice {
    Notice::JobsAvailable {
        type_name: type_name.into(),
        count,
    }
}

/// The event's name, and the chain that it is about: for events about jobs the chain of the job.
pub(crate) fn named(event: &Event) -> (&'static str, ChainId) {
    match event {
        Event::ChainCreated { chain, .. } => ("chain created", *chain),
        Event::ChainDeduplicated { chain, .. } => ("chain deduplicated", *chain),
        Event::ChainCompleted { chain, .. } => ("chain completed", *chain),
        Event::ChainDead { chain, .. } => ("chain dead", *chain),
        Event::ChainCancelled { chain, .. } => ("chain cancelled", *chain),
        Event::ChainRetried { chain, .. } => ("chain retried", *chain),
        Event::ChainDeleted { chain, .. } => ("chain deleted", *chain),
        Event::JobCreated(job) => ("job created", job.chain_id),
        Event::JobBlocked(job) => ("job blocked", job.chain_id),
        Event::JobUnblocked { chain, .. } => ("job unblocked", *chain),
        Event::JobTriggered(job) => ("job triggered", job.chain_id),
        Event::JobCompleted { job, .. } => ("job completed", job.chain_id),
        Event::JobDead { job, .. } => ("job dead", job.chain_id),
        Event::JobCancelled(job) => ("job cancelled", job.chain_id),
        Event::AttemptStarted(attempt) => ("attempt started", attempt.job.chain_id),
        Event::AttemptEnded { attempt, .. } => ("attempt ended", attempt.job.chain_id),
        _ => ("something else", NOBODY.as_chain()),
    }
}

const NOBODY: JobId = JobId::from_uuid(uuid::Uuid::nil());
