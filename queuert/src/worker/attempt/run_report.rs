//! The events and spans of an attempt that a worker runs.

use std::sync::Arc;

use tokio::time::Instant;

use crate::adapter::StateAdapter;
use crate::event::{AttemptOutcome, Event};
use crate::event_hub::RunningSpan;
use crate::event_log::LogSpan;
use crate::worker::user::shared::SharedAttempt;

/// Reports the start of an attempt when it is made, and its end with [`end`](Self::end).
pub(crate) struct RunReport {
    /// The observability adapter's span.
    pub(crate) span: RunningSpan,
    /// The span of `tracing`: the lines that the processor logs, and the line about its end, carry its fields.
    pub(crate) log: LogSpan,
    started: Instant,
}

impl RunReport {
    pub(crate) fn start<S: StateAdapter>(attempt: &SharedAttempt<S>, started: Instant) -> Self {
        let hub = attempt.client().hub();
        hub.emit_often(|| Event::AttemptStarted(Arc::clone(&attempt.info)));
        let mut span = RunningSpan::new(hub.ask(|adapter| adapter.attempt_span(&attempt.start())));
        // Made inside the adapter's span: a layer that exports spans finds its parent there, in the trace of the chain.
        let log = span.scope(|| LogSpan::new(&attempt.info));
        Self { span, log, started }
    }

    pub(crate) fn end<S: StateAdapter>(&mut self, attempt: &SharedAttempt<S>, outcome: &AttemptOutcome) {
        let Self { span, log, started } = self;
        let ended = || Event::AttemptEnded {
            attempt: Arc::clone(&attempt.info),
            outcome: outcome.clone(),
            duration: started.elapsed(),
        };
        let hub = attempt.client().hub();
        // It ends before the adapter's span, in which it was made.
        log.end(outcome, || match outcome {
            AttemptOutcome::Finished | AttemptOutcome::Continued { .. } | AttemptOutcome::Snoozed => {
                hub.emit_often(ended);
            }
            _ => hub.emit_with(ended),
        });
        span.end(outcome);
    }
}
