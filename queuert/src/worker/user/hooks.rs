//! The hooks of middlewares in the transactions of an attempt. They are apart from the middlewares, so that an attempt does not
//! depend on the middlewares that wrap it.

use std::sync::Arc;

use crate::adapter::{BoxFuture, StateAdapter};
use crate::client::Transaction;
use crate::error::JobError;
use crate::event::AttemptInfo;

/// The transaction hooks of one middleware, object-safe.
pub(crate) trait ErasedHooks<S: StateAdapter>: Send + Sync + 'static {
    fn transaction_opened<'a>(
        &'a self,
        attempt: &'a AttemptInfo,
        transaction: &'a mut Transaction<S>,
    ) -> BoxFuture<'a, Result<(), JobError>>;

    fn transaction_closing<'a>(
        &'a self,
        attempt: &'a AttemptInfo,
        transaction: &'a mut Transaction<S>,
    ) -> BoxFuture<'a, Result<(), JobError>>;
}

/// The transaction hooks of all middlewares of a set of workers, the outermost first.
pub(crate) struct TransactionHooks<S: StateAdapter>(Vec<Arc<dyn ErasedHooks<S>>>);

impl<S: StateAdapter> TransactionHooks<S> {
    pub(crate) fn new(hooks: Vec<Arc<dyn ErasedHooks<S>>>) -> Self {
        Self(hooks)
    }

    /// Runs the hooks of a transaction that has just begun.
    pub(crate) async fn opened(&self, attempt: &AttemptInfo, transaction: &mut Transaction<S>) -> Result<(), JobError> {
        for hook in &self.0 {
            hook.transaction_opened(attempt, transaction).await?;
        }
        Ok(())
    }

    /// Runs the hooks of a transaction that is about to commit, the innermost first.
    pub(crate) async fn closing(
        &self,
        attempt: &AttemptInfo,
        transaction: &mut Transaction<S>,
    ) -> Result<(), JobError> {
        for hook in self.0.iter().rev() {
            hook.transaction_closing(attempt, transaction).await?;
        }
        Ok(())
    }
}
