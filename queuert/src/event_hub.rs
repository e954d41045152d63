//! Passes events to the observability adapter, to the `tracing` subscriber and to the readers of the stream.
//!
//! The writes that events report are committed, so nothing here may fail, block or panic into the caller.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{broadcast, mpsc};

use crate::adapter::{AttemptSpan, Commit, CommitSpan, Delivery, ObservabilityAdapter};
use crate::event::{AttemptOutcome, Event};
use crate::event_log;
use crate::log_limit::LogLimit;

/// Events that a slow listener may be behind before it misses some.
const BACKLOG: usize = 4_096;

/// Events that an adapter may be behind before it misses some: one large batch of starts must fit.
const QUEUE: usize = 65_536;

#[derive(Clone)]
pub(crate) struct EventHub {
    adapter: Option<Arc<dyn ObservabilityAdapter>>,
    queue: Option<Queue>,
    stream: broadcast::Sender<Event>,
    /// The number of readers of the stream. The channel knows it too, behind a lock, but every job asks for it.
    readers: Arc<AtomicUsize>,
    /// Which lines of `tracing` are written.
    limit: Arc<LogLimit>,
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHub").finish_non_exhaustive()
    }
}

impl EventHub {
    pub(crate) fn new(adapter: Option<Arc<dyn ObservabilityAdapter>>) -> Self {
        let queue = adapter.as_ref().and_then(|adapter| {
            let delivery = contained(|| adapter.delivery()).unwrap_or(Delivery::Queued);
            (delivery == Delivery::Queued).then(|| Queue::new(Arc::clone(adapter), QUEUE))
        });
        Self {
            adapter,
            queue,
            stream: broadcast::Sender::new(BACKLOG),
            readers: Arc::default(),
            limit: Arc::default(),
        }
    }

    /// Whether rare events have a receiver: if not, they need not even be made.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.has_listener() || event_log::is_on()
    }

    /// Whether frequent events have a receiver.
    pub(crate) fn is_followed(&self) -> bool {
        self.has_listener() || event_log::is_detailed()
    }

    pub(crate) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    fn has_listener(&self) -> bool {
        self.has_adapter() || self.has_reader()
    }

    fn has_reader(&self) -> bool {
        self.readers.load(Ordering::Acquire) > 0
    }

    pub(crate) fn emit(&self, event: Event) {
        // A subscriber is code of somebody else's too.
        let _ = contained(|| event_log::log(&event, &self.limit));
        match (&self.queue, &self.adapter) {
            (Some(queue), _) => queue.push(event.clone()),
            (None, Some(adapter)) => {
                let _ = contained(|| adapter.event(&event));
            }
            (None, None) => {}
        }
        if self.has_reader() {
            let _ = self.stream.send(event);
        }
    }

    /// Makes and emits a rare event, if it has a receiver.
    pub(crate) fn emit_with(&self, event: impl FnOnce() -> Event) {
        if self.is_listened_to() {
            self.emit(event());
        }
    }

    /// Makes and emits a frequent event, if it has a receiver.
    pub(crate) fn emit_often(&self, event: impl FnOnce() -> Event) {
        if self.is_followed() {
            self.emit(event());
        }
    }

    /// Asks the adapter, containing its panics.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&dyn ObservabilityAdapter) -> Option<T>) -> Option<T> {
        let adapter = self.adapter.as_deref()?;
        contained(|| ask(adapter)).flatten()
    }

    /// A span that is held until a commit, if the adapter wants one.
    pub(crate) fn hold(
        &self,
        ask: impl FnOnce(&dyn ObservabilityAdapter) -> Option<Box<dyn CommitSpan>>,
    ) -> Option<HeldSpan> {
        self.ask(ask).map(|span| HeldSpan(Some(span)))
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        self.readers.fetch_add(1, Ordering::AcqRel);
        EventStream {
            events: self.stream.subscribe(),
            missed: 0,
            readers: Arc::clone(&self.readers),
        }
    }
}

/// Runs code of an adapter; `None` if it panics.
fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// The way to an adapter that may block: a bounded queue, and a thread that empties it.
#[derive(Clone)]
struct Queue {
    events: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

impl Queue {
    fn new(adapter: Arc<dyn ObservabilityAdapter>, size: usize) -> Self {
        let (events, mut queue) = mpsc::channel::<Event>(size);
        let missed = Arc::new(AtomicU64::new(0));
        let uncounted = Arc::clone(&missed);
        // A thread and no task: an adapter that blocks may block it for good. It ends when the last client has gone.
        let deliver = move || {
            while let Some(event) = queue.blocking_recv() {
                let count = uncounted.swap(0, Ordering::Relaxed);
                if count > 0 {
                    let _ = contained(|| adapter.event(&Event::EventsMissed { count }));
                }
                let _ = contained(|| adapter.event(&event));
            }
        };
        // Without a thread the queue is closed, and everything counts as missed.
        let _ = std::thread::Builder::new().name("queuert-events".into()).spawn(deliver);
        Self { events, missed }
    }

    fn push(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A span that waits for a commit. Its panics are contained, also those of its drop.
pub(crate) struct HeldSpan(Option<Box<dyn CommitSpan>>);

impl HeldSpan {
    pub(crate) fn trace_context(&self) -> Option<String> {
        let span = self.0.as_deref()?;
        let context = contained(|| span.trace_context()).flatten();
        // What no store could keep is no reason not to start the chain.
        context.filter(|context| !context.contains('\0'))
    }

    pub(crate) fn committed(mut self, commit: Commit) {
        if let Some(span) = &mut self.0 {
            let _ = contained(|| span.committed(commit));
        }
    }
}

impl Drop for HeldSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        let _ = contained(|| drop(span));
    }
}

/// The span of a running attempt. Its panics are contained, also those of its drop.
pub(crate) struct RunningSpan(Option<Box<dyn AttemptSpan>>);

impl RunningSpan {
    pub(crate) fn new(span: Option<Box<dyn AttemptSpan>>) -> Self {
        Self(span)
    }

    /// Calls `poll` once, inside the span if there is one.
    pub(crate) fn scope<T>(&mut self, mut poll: impl FnMut() -> T) -> T {
        let Some(span) = &mut self.0 else {
            return poll();
        };
        let mut polled = None;
        let mut once = || {
            if polled.is_none() {
                polled = Some(poll());
            }
        };
        let _ = contained(|| span.scope(&mut once));
        // A span that fails to poll must not keep the processor from running.
        polled.unwrap_or_else(poll)
    }

    pub(crate) fn end(&mut self, outcome: &AttemptOutcome) {
        if let Some(span) = &mut self.0 {
            let _ = contained(|| span.end(outcome));
        }
    }
}

impl Drop for RunningSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        let _ = contained(|| drop(span));
    }
}

/// The events of a client and its workers, from the moment of subscription.
#[derive(Debug)]
pub struct EventStream {
    events: broadcast::Receiver<Event>,
    missed: u64,
    readers: Arc<AtomicUsize>,
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EventStream {
    /// The next event; `None` when the client and all its workers are gone. A reader that is far behind misses the
    /// oldest events, see [`missed`](Self::missed); it never delays the client or its workers.
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

    /// The next event, if one is available now.
    pub fn try_next(&mut self) -> Option<Event> {
        loop {
            match self.events.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(_) => return None,
            }
        }
    }

    /// The number of events that this reader missed because it was too slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::id::WorkerId;

    /// Says that it was called, and waits until it may go on.
    struct Slow {
        called: Mutex<Sender<Event>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl ObservabilityAdapter for Slow {
        fn event(&self, event: &Event) {
            let _ = self.called.lock().unwrap().send(event.clone());
            let _ = self.go_on.lock().unwrap().recv();
        }
    }

    fn told(worker: &str) -> Event {
        Event::WorkerStopped {
            worker: WorkerId::new(worker),
        }
    }

    #[test]
    fn an_adapter_that_blocks_keeps_nobody_waiting_and_is_told_what_it_missed() {
        let (called, calls) = channel();
        let (go_on, blocked) = channel();
        let slow = Slow {
            called: Mutex::new(called),
            go_on: Mutex::new(blocked),
        };
        let queue = Queue::new(Arc::new(slow), 2);
        queue.push(told("first"));
        assert_eq!(calls.recv().unwrap(), told("first"));
        // It is busy with the first: two fit into the queue, three do not.
        for name in ["second", "third", "a", "b", "c"] {
            queue.push(told(name));
        }
        drop(go_on);
        let rest: Vec<_> = [(); 3].map(|()| calls.recv().unwrap()).into();
        assert_eq!(rest, [Event::EventsMissed { count: 3 }, told("second"), told("third")]);
        drop(queue);
        assert!(calls.recv().is_err(), "the thread ends with the last client");
    }

    /// No test of this crate installs a subscriber.
    #[test]
    fn what_nobody_hears_is_not_even_made() {
        let hub = EventHub::new(None);
        hub.emit_often(|| panic!("nobody follows"));
        hub.emit_with(|| panic!("nobody listens"));
        let mut stream = hub.subscribe();
        hub.emit_often(|| told("heard"));
        assert_eq!(stream.try_next(), Some(told("heard")));
        let another = hub.subscribe();
        drop(stream);
        hub.clone().emit_often(|| told("heard by the other"));
        drop(another);
        hub.emit_often(|| panic!("nobody follows any more"));
    }

    struct Clumsy;

    impl AttemptSpan for Clumsy {
        fn scope(&mut self, poll: &mut dyn FnMut()) {
            poll();
            poll();
            panic!("after the second time");
        }

        fn end(&mut self, _: &AttemptOutcome) {
            panic!("at the end");
        }
    }

    impl Drop for Clumsy {
        fn drop(&mut self) {
            panic!("in the drop");
        }
    }

    #[test]
    fn a_clumsy_span_polls_once_and_its_panics_are_contained() {
        let mut polls = 0;
        let mut span = RunningSpan::new(Some(Box::new(Clumsy)));
        let polled = span.scope(|| {
            polls += 1;
            polls
        });
        assert_eq!(polled, 1);
        span.end(&AttemptOutcome::Finished);
        drop(span);
    }

    struct Lazy;

    impl AttemptSpan for Lazy {
        fn scope(&mut self, _: &mut dyn FnMut()) {}
    }

    #[test]
    fn a_span_that_does_not_poll_is_passed_over() {
        assert_eq!(RunningSpan::new(Some(Box::new(Lazy))).scope(|| 7), 7);
    }
}
