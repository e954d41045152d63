//! The health of a set of workers: whether the store answers their calls, and whether they stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::__task::Lock;
use crate::client::report;
use crate::error::StateError;
use crate::event::Event;
use crate::event_hub::EventHub;
use crate::id::WorkerId;

/// How a set of workers is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The store answers.
    Running,
    /// The store fails; calls are retried with backoff until it answers.
    Degraded {
        /// The latest error.
        error: Arc<str>,
    },
    /// Stop was asked for; running attempts have their grace period.
    Stopping,
    /// Nothing runs any more.
    Stopped,
}

/// Collects the successes and failures of the calls that the services make to the store.
pub(crate) struct HealthMonitor {
    worker: WorkerId,
    hub: EventHub,
    sender: watch::Sender<Health>,
    /// The operations whose last call failed, each with its error.
    failing: Lock<BTreeMap<&'static str, Arc<str>>>,
}

impl HealthMonitor {
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

    /// Whether the last call of any operation failed.
    pub(crate) fn is_degraded(&self) -> bool {
        matches!(*self.sender.borrow(), Health::Degraded { .. })
    }

    /// Records the result of a call to the store.
    pub(crate) fn record<T>(&self, operation: &'static str, result: &Result<T, StateError>) {
        match result {
            Ok(_) => self.succeeded(operation),
            Err(error) => self.failed(operation, error),
        }
    }

    pub(crate) fn failed(&self, operation: &'static str, error: &StateError) {
        let text = report(error);
        let first = {
            let mut failing = self.failing.lock();
            let first = failing.is_empty();
            failing.insert(operation, Arc::clone(&text));
            // Under the lock, so that two services that fail at the same time report in the order of the map's changes.
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

    /// Changes between running and degraded; stopping and stopped outrank both.
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
        let monitor = HealthMonitor::new(WorkerId::new("w"), EventHub::new(None));
        let health = monitor.subscribe();
        let error = StateError::new(StateErrorKind::Transient, "down");
        monitor.failed("claim", &error);
        monitor.failed("renew", &error);
        monitor.succeeded("claim");
        assert!(matches!(&*health.borrow(), Health::Degraded { error } if &**error == "down"));
        monitor.succeeded("renew");
        assert_eq!(*health.borrow(), Health::Running);
        monitor.set(Health::Stopping);
        monitor.failed("claim", &error);
        assert_eq!(*health.borrow(), Health::Stopping);
    }
}
