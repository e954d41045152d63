//! The seam to whatever records what happens.

use crate::event::{AttemptInfo, AttemptOutcome, Event};

/// Is told what happened.
///
/// Every method has a default, must not block, and must not panic; one that panics is contained and never hurts
/// committed work. Events that claim a write come after its commit, and not at all after a rollback.
pub trait ObservabilityAdapter: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event) {
        let _ = event;
    }

    /// The W3C trace context to store with a job that is created now.
    fn trace_context(&self) -> Option<String> {
        None
    }

    /// An attempt begins; the span is entered around each poll of its processor and ended with its outcome.
    fn attempt_span(&self, attempt: &AttemptInfo) -> Option<Box<dyn AttemptSpan>> {
        let _ = attempt;
        None
    }
}

/// Records nothing.
impl ObservabilityAdapter for () {}

/// The span of one attempt. Dropped without `end`, the attempt was abandoned.
pub trait AttemptSpan: Send {
    /// The processor is about to be polled on this thread.
    fn enter(&mut self) {}

    /// The processor has been polled.
    fn exit(&mut self) {}

    /// The attempt ended.
    fn end(&mut self, outcome: &AttemptOutcome) {
        let _ = outcome;
    }
}
