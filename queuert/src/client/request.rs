//! Requests: values that are awaited on a connection of their own, or run inside the caller's transaction.

use std::fmt;
use std::future::{Future, IntoFuture};

use super::Client;
use super::transaction::TransactionScope;
use crate::adapter::{BoxFuture, StateAdapter};
use crate::effects::Effects;
use crate::error::Error;

/// A call to a client that has not run yet.
///
/// Await it to run it on a connection of its own; it is committed when it returns. Or pass a transaction to
/// [`within`](Self::within) to make it part of that transaction.
#[must_use = "a request does nothing until it is awaited, or run with `.within(&mut tx).await`"]
pub struct Request<'c, S: StateAdapter, O> {
    pub(crate) client: &'c Client<S>,
    pub(crate) operation: O,
}

impl<'c, S: StateAdapter, O> Request<'c, S, O> {
    pub(crate) fn new(client: &'c Client<S>, operation: O) -> Self {
        Self { client, operation }
    }
}

impl<S: StateAdapter, O: Operation<S>> Request<'_, S, O> {
    /// Runs the request inside a transaction: its effect exists if and only if the transaction commits, and is not
    /// announced before.
    ///
    /// # Errors
    ///
    /// Those of the request, and [`Error::TransactionUnusable`] if the transaction can only be rolled back. That is
    /// also the case after a request that writes has returned [`State`](Error::State).
    ///
    /// # Cancel safety
    ///
    /// After a dropped future of a request that writes, the transaction refuses everything but a rollback, or a
    /// rollback to a savepoint that was set before the request: it never commits half of a request. In a
    /// [`ForeignTransaction`], whose commit this library cannot refuse, the dropped request is undone, and the
    /// transaction can go on; if the future is dropped while its last statement is on the way, the server may end the
    /// transaction, and the next statement returns an error. A dropped request that only reads leaves nothing behind.
    ///
    /// [`ForeignTransaction`]: super::ForeignTransaction
    pub async fn within(self, transaction: &mut impl TransactionScope<S>) -> Result<O::Output, Error> {
        transaction.catch_up().await?;
        let mut scope = transaction.scope()?;
        if !O::WRITES {
            let (connection, effects) = (scope.connection, scope.effects);
            return self.operation.run(self.client, Some(connection), effects).await;
        }
        let mut change = scope.change(self.client.state()).await?;
        let (connection, effects) = change.parts();
        let result = self.operation.run(self.client, Some(connection), effects).await;
        change.end(result).await
    }
}

impl<'c, S: StateAdapter, O: Operation<S> + 'c> IntoFuture for Request<'c, S, O> {
    type Output = Result<O::Output, Error>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut effects = Effects::new(self.client.hub());
            let output = self.operation.run(self.client, None, &mut effects).await?;
            self.client.flush(effects).await;
            Ok(output)
        })
    }
}

impl<S: StateAdapter, O: fmt::Debug> fmt::Debug for Request<'_, S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.operation).finish()
    }
}

/// What a [`Request`] does. Implemented by this crate only.
pub trait Operation<S: StateAdapter>: Sealed + Send + Sized {
    /// The result of the request.
    type Output: Send;

    /// Whether the request writes.
    #[doc(hidden)]
    const WRITES: bool;

    #[doc(hidden)]
    #[expect(private_interfaces, reason = "sealed: only this crate calls it")]
    fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> impl Future<Output = Result<Self::Output, Error>> + Send;
}

/// Keeps [`Operation`] closed.
pub trait Sealed {}
