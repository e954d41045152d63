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
        if !self.operation.writes() {
            let context = RequestContext::new(self.client, Some(scope.connection), scope.effects);
            return self.operation.run(context).await;
        }
        let mut change = scope.change(self.client.state()).await?;
        let (connection, effects) = change.parts();
        let context = RequestContext::new(self.client, Some(connection), effects);
        let result = self.operation.run(context).await;
        change.end(result).await
    }
}

impl<'c, S: StateAdapter, O: Operation<S> + 'c> IntoFuture for Request<'c, S, O> {
    type Output = Result<O::Output, Error>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut effects = Effects::new(self.client.hub());
            let context = RequestContext::new(self.client, None, &mut effects);
            let output = self.operation.run(context).await?;
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
    fn writes(&self) -> bool;

    #[doc(hidden)]
    fn run(self, context: RequestContext<'_, S>) -> impl Future<Output = Result<Self::Output, Error>> + Send;
}

/// Where a request runs: on a connection of its own, or on that of a transaction.
#[expect(missing_debug_implementations, reason = "nobody outside this crate can name it")]
pub struct RequestContext<'a, S: StateAdapter> {
    pub(crate) client: &'a Client<S>,
    pub(crate) within: Option<&'a mut S::Connection>,
    /// What the commit of the request will announce.
    pub(crate) effects: &'a mut Effects,
}

impl<'a, S: StateAdapter> RequestContext<'a, S> {
    fn new(client: &'a Client<S>, within: Option<&'a mut S::Connection>, effects: &'a mut Effects) -> Self {
        Self {
            client,
            within,
            effects,
        }
    }

    /// The store, and the connection on which to call it.
    pub(crate) fn store(&mut self) -> (&'a S, Option<&mut S::Connection>) {
        (self.client.state(), self.within.as_deref_mut())
    }
}

/// A call without options, which returns a `T`.
pub struct Call<S: StateAdapter, T> {
    name: &'static str,
    writes: bool,
    run: Run<S, T>,
}

/// A request without options, which returns a `T`.
pub type CallRequest<'c, S, T> = Request<'c, S, Call<S, T>>;

type Run<S, T> = Box<dyn for<'a> FnOnce(RequestContext<'a, S>) -> BoxFuture<'a, Result<T, Error>> + Send>;

impl<'c, S: StateAdapter, T> Request<'c, S, Call<S, T>> {
    /// A call that only reads.
    pub(crate) fn read<F>(client: &'c Client<S>, name: &'static str, run: F) -> Self
    where
        F: for<'a> FnOnce(RequestContext<'a, S>) -> BoxFuture<'a, Result<T, Error>> + Send + 'static,
    {
        let (writes, run) = (false, Box::new(run));
        Self::new(client, Call { name, writes, run })
    }

    /// A call that writes.
    pub(crate) fn write<F>(client: &'c Client<S>, name: &'static str, run: F) -> Self
    where
        F: for<'a> FnOnce(RequestContext<'a, S>) -> BoxFuture<'a, Result<T, Error>> + Send + 'static,
    {
        let (writes, run) = (true, Box::new(run));
        Self::new(client, Call { name, writes, run })
    }
}

impl<S: StateAdapter, T> Sealed for Call<S, T> {}

impl<S: StateAdapter, T: Send> Operation<S> for Call<S, T> {
    type Output = T;

    fn writes(&self) -> bool {
        self.writes
    }

    async fn run(self, context: RequestContext<'_, S>) -> Result<T, Error> {
        (self.run)(context).await
    }
}

impl<S: StateAdapter, T> fmt::Debug for Call<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.name).finish()
    }
}

/// Keeps [`Operation`] closed.
pub trait Sealed {}
