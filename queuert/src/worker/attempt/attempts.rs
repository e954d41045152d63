//! The attempts of one set of workers, and where their ends go.

use std::sync::Arc;

use tokio::time::Instant;

use crate::adapter::{ClaimedJob, StateAdapter};
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::dispatcher::Dispatcher;
use crate::worker::attempt::in_flight::InFlight;
use crate::worker::attempt::settle_queue::SettleQueue;
use crate::worker::context::Context;

/// The state that the executor, the settler and the services for attempts share.
pub(crate) struct Attempts<S: StateAdapter> {
    pub(crate) context: Arc<Context<S>>,
    pub(crate) in_flight: Arc<InFlight<S>>,
    /// Ends on their way to the settler. They are not the settler's own, so that a settler that starts again after a panic
    /// finds the ends that were posted before.
    pub(crate) ends: SettleQueue<S>,
    pub(crate) dispatcher: Arc<dyn Dispatcher<S>>,
}

impl<S: StateAdapter> Attempts<S> {
    pub(crate) fn new(context: Arc<Context<S>>, dispatcher: Arc<dyn Dispatcher<S>>) -> Self {
        Self {
            context,
            in_flight: Arc::new(InFlight::new()),
            ends: SettleQueue::new(),
            dispatcher,
        }
    }

    /// Takes charge of claimed jobs; see [`ClaimedAttempt::take_charge`].
    pub(crate) fn take_charge(&self, jobs: Vec<ClaimedJob>, claimed_at: Instant, steps: u32) -> Vec<ClaimedAttempt<S>> {
        ClaimedAttempt::take_charge(&self.context, &self.in_flight, jobs, claimed_at, steps)
    }
}
