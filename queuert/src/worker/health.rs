//! The health of a worker, and the backoff that keeps it alive while the store is down.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::__task::Lock;
pub(super) use crate::adapter::Backoff;
use crate::client::report;
use crate::error::StateError;
use crate::event::Event;
use crate::event_hub::EventHub;
use crate::id::WorkerId;

/// How a set of workers is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// All is well.
    Running,
    /// The store fails; calls are retried with backoff until it answers.
    Degraded {
        /// What it said last.
        error: Arc<str>,
    },
    /// Stop was asked for; running attempts have their grace period.
    Stopping,
    /// Nothing runs any more.
    Stopped,
}

/// Collects what the loops of a worker see of the store.
pub(crate) struct HealthKeeper {
    worker: WorkerId,
    hub: EventHub,
    sender: watch::Sender<Health>,
    /// The operations that failed last time, with what the store said.
    failing: Lock<BTreeMap<&'static str, Arc<str>>>,
}

impl HealthKeeper {
    pub(crate) fn new(worker: WorkerId, hub: EventHub) -> Self {
        Self {
            worker,
            hub,
            sender: watch::Sender::new(Health::Running),
            failing: Lock::default(),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.sender.subscribe()
    }

    /// Whether the store failed the last time that it was asked for something.
    pub(crate) fn is_degraded(&self) -> bool {
        matches!(*self.sender.borrow(), Health::Degraded { .. })
    }

    pub(crate) fn failed(&self, operation: &'static str, error: &StateError) {
        let text = report(error);
        let first = {
            let mut failing = self.failing.lock();
            let first = failing.is_empty();
            failing.insert(operation, Arc::clone(&text));
            // Under the lock, so that what two loops find at the same time is told in the order in which it is found.
            self.degrade(Some(&text));
            first
        };
        self.hub.emit_with(|| Event::StateFailed {
            operation,
            error: Arc::clone(&text),
        });
        if first {
            self.hub.emit_with(|| Event::WorkerDegraded {
                worker: self.worker.clone(),
                error: text,
            });
        }
    }

    pub(crate) fn succeeded(&self, operation: &'static str) {
        let left = {
            let mut failing = self.failing.lock();
            if failing.remove(operation).is_none() {
                return;
            }
            let left = failing.values().next().cloned();
            self.degrade(left.as_ref());
            left
        };
        if left.is_none() {
            self.hub.emit_with(|| Event::WorkerRecovered {
                worker: self.worker.clone(),
            });
        }
    }

    pub(crate) fn set(&self, health: Health) {
        self.sender.send_replace(health);
    }

    /// Stopping and stopped outrank the state of the store.
    fn degrade(&self, error: Option<&Arc<str>>) {
        self.sender.send_if_modified(|health| {
            if !matches!(health, Health::Running | Health::Degraded { .. }) {
                return false;
            }
            let next = match error {
                Some(error) => Health::Degraded {
                    error: Arc::clone(error),
                },
                None => Health::Running,
            };
            let changed = *health != next;
            *health = next;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StateErrorKind;

    #[test]
    fn a_worker_is_degraded_until_every_failing_operation_succeeded() {
        let keeper = HealthKeeper::new(WorkerId::new("w"), EventHub::new(None));
        let health = keeper.subscribe();
        let error = StateError::new(StateErrorKind::Transient, "down");
        keeper.failed("claim", &error);
        keeper.failed("renew", &error);
        keeper.succeeded("claim");
        assert!(matches!(&*health.borrow(), Health::Degraded { error } if &**error == "down"));
        keeper.succeeded("renew");
        assert_eq!(*health.borrow(), Health::Running);
        keeper.set(Health::Stopping);
        keeper.failed("claim", &error);
        assert_eq!(*health.borrow(), Health::Stopping);
    }
}
