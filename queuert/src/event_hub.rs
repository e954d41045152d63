//! Hands events to the observability adapter and to whoever listens to the stream.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::adapter::ObservabilityAdapter;
use crate::event::Event;

/// Events that a slow listener may be behind before it misses some.
const BACKLOG: usize = 4_096;

#[derive(Clone)]
pub(crate) struct EventHub {
    adapter: Option<Arc<dyn ObservabilityAdapter>>,
    stream: broadcast::Sender<Event>,
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHub").finish_non_exhaustive()
    }
}

impl EventHub {
    pub(crate) fn new(adapter: Option<Arc<dyn ObservabilityAdapter>>) -> Self {
        Self {
            adapter,
            stream: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Whether anybody listens: if not, events need not even be made.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.adapter.is_some() || self.stream.receiver_count() > 0
    }

    pub(crate) fn emit(&self, event: Event) {
        // The write that the event tells of is committed: a sink that panics must not undo the caller's success.
        self.observe(|adapter| adapter.event(&event));
        let _ = self.stream.send(event);
    }

    /// Makes and emits an event, if anybody listens.
    pub(crate) fn emit_with(&self, event: impl FnOnce() -> Event) {
        if self.is_listened_to() {
            self.emit(event());
        }
    }

    /// Asks the adapter, containing its panics.
    pub(crate) fn observe<T>(&self, ask: impl FnOnce(&dyn ObservabilityAdapter) -> T) -> Option<T> {
        let adapter = self.adapter.as_deref()?;
        catch_unwind(AssertUnwindSafe(|| ask(adapter))).ok()
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        EventStream {
            events: self.stream.subscribe(),
            missed: 0,
        }
    }
}

/// The events of a client and its workers, from the moment of subscription.
#[derive(Debug)]
pub struct EventStream {
    events: broadcast::Receiver<Event>,
    missed: u64,
}

impl EventStream {
    /// The next event; `None` when the client and all its workers have gone. A reader that is far behind misses the
    /// oldest ones, see [`missed`](Self::missed).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.events.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed += missed,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        loop {
            match self.events.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(_) => return None,
            }
        }
    }

    /// How many events were missed because this reader was too slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}
