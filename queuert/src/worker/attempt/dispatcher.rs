//! The interface of the dispatch room that attempts use: a place for claimed jobs, and a count of the ends that are not written
//! yet. The local queue implements it, so that attempts do not know the queue they come from.

use std::sync::Arc;

use crate::adapter::StateAdapter;
use crate::worker::attempt::claimed::ClaimedAttempt;

/// Hands claimed jobs to workers.
pub(crate) trait Dispatcher<S: StateAdapter>: Send + Sync {
    /// Queues claimed jobs in their order, and returns those that no worker will take because the set is stopping.
    /// `store_is_down` is whether calls to the store fail, so that the workers are held up.
    fn push(&self, claimed: Vec<ClaimedAttempt<S>>, store_is_down: bool) -> Vec<ClaimedAttempt<S>>;

    /// Drops queued jobs whose abort signal has fired: another process has them, or will have.
    fn drop_aborted(&self);

    /// Whether there is one worker, which waits for the write of each end before it takes the next job.
    fn has_single_worker(&self) -> bool;

    /// Counts an end that is on its way to the store.
    fn end_posted(&self);

    /// Counts an end whose write is over.
    fn end_written(&self);
}

/// Counts an end as not written until it is dropped.
pub(crate) struct UnwrittenEnd<S: StateAdapter>(Arc<dyn Dispatcher<S>>);

impl<S: StateAdapter> UnwrittenEnd<S> {
    pub(crate) fn new(dispatcher: &Arc<dyn Dispatcher<S>>) -> Self {
        dispatcher.end_posted();
        Self(Arc::clone(dispatcher))
    }
}

impl<S: StateAdapter> Drop for UnwrittenEnd<S> {
    fn drop(&mut self) {
        self.0.end_written();
    }
}
