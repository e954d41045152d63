//! The state that the claimer and the pool share.

use std::sync::Arc;

use crate::__task::Lock;
use crate::adapter::{BlockerOutputs, StateAdapter};
use crate::worker::attempt::attempts::Attempts;
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::attempt::dispatcher::Dispatcher;
use crate::worker::context::Context;
use crate::worker::dispatch::local_queue::{LocalQueue, PayloadSize};
use crate::worker::dispatch::prefetch::BYTES_AHEAD;

/// The claimed jobs of one set of workers: those that wait, and those that run.
pub(crate) struct Dispatch<S: StateAdapter> {
    pub(crate) attempts: Arc<Attempts<S>>,
    pub(crate) queue: Arc<LocalQueue<ClaimedAttempt<S>>>,
    /// How large the outputs were that jobs of each type had waited for. Written and read by the claimer.
    pub(crate) outputs: Lock<BlockerOutputs>,
}

impl<S: StateAdapter> Dispatch<S> {
    pub(crate) fn new(context: Context<S>) -> Self {
        let queue = Arc::new(LocalQueue::new(context.settings.concurrency));
        let dispatcher = Arc::clone(&queue) as Arc<dyn Dispatcher<S>>;
        Self {
            attempts: Arc::new(Attempts::new(Arc::new(context), dispatcher)),
            queue,
            // More than may wait: until the first jobs of a type show how large they are, workers get one each.
            outputs: Lock::new(BlockerOutputs::unknown(BYTES_AHEAD)),
        }
    }
}

impl<S: StateAdapter> PayloadSize for ClaimedAttempt<S> {
    fn payload_bytes(&self) -> usize {
        self.payload_bytes()
    }
}

impl<S: StateAdapter> Dispatcher<S> for LocalQueue<ClaimedAttempt<S>> {
    fn push(&self, claimed: Vec<ClaimedAttempt<S>>, store_is_down: bool) -> Vec<ClaimedAttempt<S>> {
        self.push(claimed, store_is_down)
    }

    fn drop_aborted(&self) {
        drop(self.take_if(ClaimedAttempt::is_aborted));
    }

    fn has_single_worker(&self) -> bool {
        self.has_single_worker()
    }

    fn end_posted(&self) {
        self.end_posted();
    }

    fn end_written(&self) {
        self.end_written();
    }
}
