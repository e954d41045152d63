//! What the suites share: counting processors' calls, and looking whether everything was really done.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use queuert::adapter::StateAdapter;
use queuert::{ChainId, JobStatus};
use tokio::sync::Notify;

use crate::measure::BoxError;

/// Counts the processors' calls and tells when all have been made.
#[derive(Clone)]
pub(crate) struct Countdown(Arc<(AtomicUsize, Notify)>);

impl Countdown {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new((AtomicUsize::new(count), Notify::new())))
    }

    pub(crate) fn one(&self) {
        if self.0.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.1.notify_one();
        }
    }

    pub(crate) async fn done(&self) {
        self.0.1.notified().await;
    }
}

/// Every chain has really completed, by the store's own word.
pub(crate) async fn check_completed<S: StateAdapter>(state: &S, chains: &[ChainId]) -> Result<(), BoxError> {
    let mut completed = 0;
    for ids in chains.chunks(1_000) {
        let records = state.get_chains(None, ids).await?;
        let done = |status| status == JobStatus::Completed;
        completed += records
            .iter()
            .filter(|chain| done(chain.status) && chain.output.is_some())
            .count();
    }
    if completed == chains.len() {
        return Ok(());
    }
    Err(format!("{completed} of {} chains completed", chains.len()).into())
}

/// The numbers from zero to `total`, in runs of `batch`.
pub(crate) fn batches(total: usize, batch: usize) -> impl Iterator<Item = Range<u64>> {
    let ends = move |from: usize| from as u64..(from + batch).min(total) as u64;
    (0..total).step_by(batch).map(ends)
}
