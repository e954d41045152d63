//! The seam to whatever records what happens.

use std::time::Duration;

use crate::adapter::NewJob;
use crate::chain::ChainRecord;
use crate::event::{AttemptInfo, AttemptOutcome, Event, JobInfo};
use crate::id::ChainId;
use crate::job::JobRecord;

/// Is told what happened.
///
/// Every method has a default. One that panics is contained and never hurts committed work. Events that claim a write
/// come after its commit, and not at all after a rollback; spans about a write are held until then.
///
/// Events are handed over on a thread of their own, so that [`event`](Self::event) may block; see [`Delivery`]. The
/// other methods are called where the work is done, because their answers are needed there: they must not block.
pub trait ObservabilityAdapter: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event) {
        let _ = event;
    }

    /// How events are handed over. Asked once.
    fn delivery(&self) -> Delivery {
        Delivery::Queued
    }

    /// A job is about to be created, by a start or a continuation. What the span gives as trace context is stored with
    /// the job.
    fn creation_span(&self, creation: &Creation<'_>) -> Option<Box<dyn CommitSpan>> {
        let _ = creation;
        None
    }

    /// A job is about to be completed from outside.
    fn completion_span(&self, completion: &OutsideCompletion<'_>) -> Option<Box<dyn CommitSpan>> {
        let _ = completion;
        None
    }

    /// An attempt begins; its processor is polled inside the span, which is ended with the outcome.
    fn attempt_span(&self, attempt: &AttemptStart<'_>) -> Option<Box<dyn AttemptSpan>> {
        let _ = attempt;
        None
    }

    /// How often workers are to look at how much waits, for [`Event::QueuesSampled`]. Asked once per set of workers.
    fn sample_queues_every(&self) -> Option<Duration> {
        None
    }
}

/// Records nothing.
impl ObservabilityAdapter for () {}

/// How events reach an [`ObservabilityAdapter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// Through a bounded queue, on a thread of their own, in order. An adapter that blocks holds up no work; if it
    /// is too slow for long, it misses events and is told how many ([`Event::EventsMissed`]).
    Queued,
    /// At once, on the thread that does the work: for adapters that never block.
    Inline,
}

/// A job that is about to be created.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Creation<'a> {
    /// The job.
    pub job: &'a NewJob,
    /// What it continues; `None` if it starts a chain.
    pub continues: Option<Continued<'a>>,
}

impl<'a> Creation<'a> {
    pub(crate) fn new(job: &'a NewJob, continues: Option<Continued<'a>>) -> Self {
        Self { job, continues }
    }

    /// The chain of the job. If a chain with its deduplication key exists, it will turn out to be another one.
    pub fn chain(&self) -> ChainId {
        match &self.continues {
            Some(before) => before.job.chain_id,
            None => self.job.id.as_chain(),
        }
    }
}

/// The job before, in a chain that goes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Continued<'a> {
    /// The job.
    pub job: &'a JobInfo,
    /// The trace context that was stored with it.
    pub trace_context: Option<&'a str>,
}

impl<'a> Continued<'a> {
    pub(crate) fn new(job: &'a JobInfo, trace_context: Option<&'a str>) -> Self {
        Self { job, trace_context }
    }
}

/// A job that is about to be completed from outside.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OutsideCompletion<'a> {
    /// The job, as it was when it was opened.
    pub job: &'a JobRecord,
    /// Whether its chain goes on.
    pub continued: bool,
}

impl<'a> OutsideCompletion<'a> {
    pub(crate) fn new(job: &'a JobRecord, continued: bool) -> Self {
        Self { job, continued }
    }
}

/// What was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Commit {
    /// The job was created.
    Created,
    /// Nothing was created, because this chain had the deduplication key.
    Deduplicated(ChainId),
    /// The job was completed from outside.
    Completed,
}

/// A span about a write, which is held until that is committed. Dropped without `committed`, it was rolled back, or
/// refused: then the adapter must not report it.
pub trait CommitSpan: Send + Sync {
    /// The W3C trace context to store with the job.
    fn trace_context(&self) -> Option<String> {
        None
    }

    /// The write was committed.
    fn committed(&mut self, commit: Commit) {
        let _ = commit;
    }
}

/// An attempt that begins.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttemptStart<'a> {
    /// The attempt.
    pub attempt: &'a AttemptInfo,
    /// Its job.
    pub job: &'a JobRecord,
    /// The chains that the job waited for, with the trace context of the caller that started each.
    pub blockers: &'a [ChainRecord],
}

impl<'a> AttemptStart<'a> {
    pub(crate) fn new(attempt: &'a AttemptInfo, job: &'a JobRecord, blockers: &'a [ChainRecord]) -> Self {
        Self { attempt, job, blockers }
    }
}

/// The span of one attempt. Dropped without `end`, the attempt was abandoned.
pub trait AttemptSpan: Send {
    /// Makes the span current, calls `poll`, which polls the processor once, and makes what was current before current
    /// again.
    fn scope(&mut self, poll: &mut dyn FnMut()) {
        poll();
    }

    /// The attempt ended.
    fn end(&mut self, outcome: &AttemptOutcome) {
        let _ = outcome;
    }
}
