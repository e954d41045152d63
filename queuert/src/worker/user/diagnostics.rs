//! Finds likely mistakes in processors, and reports each as an event, once per job type.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Event;
use crate::event_hub::EventHub;
use crate::job::TypeName;

/// A processor that keeps its thread for longer than this in one poll is taken to block it.
const BLOCKED: Duration = Duration::from_secs(1);

/// The mistakes that were reported for a job type.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    blocking: AtomicBool,
    dropped_transaction: AtomicBool,
}

impl Diagnostics {
    /// Polls a processor, and reports it if the poll takes long.
    pub(crate) fn watch<T>(&self, hub: &EventHub, type_name: &TypeName, poll: impl FnOnce() -> T) -> T {
        // The event would reach no listener, so save two looks at the clock.
        if !hub.is_listened_to() {
            return poll();
        }
        let begun = Instant::now();
        let polled = poll();
        let kept = begun.elapsed();
        if kept >= BLOCKED && !self.blocking.swap(true, Ordering::Relaxed) {
            let advice = format!(
                "the processor of `{type_name}` kept its thread for {kept:.1?}: nothing else ran there meanwhile, not even the \
                 renewal of leases; use async calls, or move the work to `tokio::task::spawn_blocking`"
            );
            hub.emit(Event::Advice { advice: advice.into() });
        }
        polled
    }

    /// Reports a processor that opened a transaction and completed the job without it: it most likely called
    /// `job.finish(..)` where it meant `tx.finish(..)`, and has lost its writes.
    pub(crate) fn dropped_transaction(&self, hub: &EventHub, type_name: &TypeName) {
        if self.dropped_transaction.swap(true, Ordering::Relaxed) {
            return;
        }
        let advice = format!(
            "the processor of `{type_name}` completed its job and dropped the transaction of `job.begin()`, so what it wrote \
             there is rolled back: end the attempt with `tx.finish(..)` or `tx.continue_with(..)` instead of `job`'s, or call \
             `tx.rollback()` if that is what you want"
        );
        hub.emit_with(|| Event::Advice { advice: advice.into() });
    }
}
