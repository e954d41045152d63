//! Tells of what is likely a mistake in a processor: as an event, once per job type.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Event;
use crate::event_hub::EventHub;
use crate::job::TypeName;

/// How long a processor may keep its thread in one go before it is taken to block it.
const BLOCKED: Duration = Duration::from_secs(1);

/// What the processors of a job type were told.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    blocking: AtomicBool,
    dropped_transaction: AtomicBool,
}

impl Advice {
    /// Polls a processor, and notices if it does not come back for long.
    pub(crate) fn watch<T>(&self, hub: &EventHub, type_name: &TypeName, poll: impl FnOnce() -> T) -> T {
        // Nobody would hear of it, so nobody pays for two looks at the clock.
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

    /// A processor opened a transaction and completed the job without it: it most likely called `job.finish(..)` where it
    /// meant `tx.finish(..)`, and has lost what it wrote.
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
