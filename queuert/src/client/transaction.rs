//! Transactions that hold back wake-ups and events until they commit.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Client;
use super::lost_answer::has_happened;
use super::standing::{Scope, Standing};
use crate::adapter::{Notice, StateAdapter};
use crate::effects::Effects;
use crate::error::{Error, StateError, StateErrorKind, TransactionFault};

impl<S: StateAdapter> Client<S> {
    /// Opens a transaction. It dereferences to the store's connection, for the caller's own statements.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the store does not open one.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves no open transaction behind.
    pub async fn begin(&self) -> Result<Transaction<S>, Error> {
        let inner = self.state().begin().await?;
        Ok(Transaction {
            client: self.clone(),
            inner,
            effects: Effects::new(self.hub()),
            standing: Standing::default(),
            behind: false,
        })
    }

    /// Runs `work` in a transaction: committed if it returns `Ok`, rolled back if it returns an error.
    ///
    /// ```
    /// # use queuert::{Client, Error, memory::MemoryState};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = Client::new(MemoryState::new());
    /// client
    ///     .transaction(async |tx| {
    ///         tx.put("user:7", "Ada").await?;
    ///         Ok::<_, Error>(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, or [`Error::State`] if the store fails.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before the commit rolls back. If it is dropped during the commit, the commit may or may
    /// not happen, and is not announced.
    pub async fn transaction<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Transaction<S>) -> Result<T, E>,
        E: From<Error>,
    {
        let mut transaction = self.begin().await?;
        match work(&mut transaction).await {
            Ok(value) => {
                transaction.commit().await?;
                Ok(value)
            }
            Err(error) => {
                // The caller's error matters more than one of the rollback, which happens on drop anyway.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// Lets requests run inside a transaction that the caller opened and will commit without this library, such as one
    /// of another framework. The result holds the wake-ups and events: publish them after the commit.
    ///
    /// The library cannot refuse such a commit, so each request that writes runs in a savepoint of its own: a request
    /// that fails, or whose future is dropped, is undone. The transaction must be open, and the driver must know that
    /// it is: begin it with the driver's own `begin`, not with a statement.
    ///
    /// ```
    /// # use queuert::{Client, Error, memory::MemoryState, adapter::StateAdapter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = Client::new(MemoryState::new());
    /// let mut own = client.state().begin().await?; // stands for a transaction of your own
    /// let foreign = client.adopt(&mut own);
    /// // client.start(..).within(&mut foreign).await?
    /// let held = foreign.into_effects();
    /// client.state().commit(own).await?;
    /// held.publish().await; // or drop it, and leave it to the workers' poll
    /// # Ok(()) }
    /// ```
    pub fn adopt<'t>(&self, connection: &'t mut S::Connection) -> ForeignTransaction<'t, S> {
        ForeignTransaction {
            client: self.clone(),
            connection,
            effects: Effects::new(self.hub()),
            standing: Standing::default(),
        }
    }
}

/// An open transaction of the store, with the wake-ups and events that its commit will publish.
///
/// Dereferences to the store's connection. If it is dropped without [`commit`](Self::commit), it rolls back, and
/// nothing of it is published.
///
/// After a request whose future was dropped before it was complete, after a failure of the store in the middle of a
/// request, and once the store (or a statement of the caller's) has ended the transaction, everything but a rollback is
/// refused with [`Error::TransactionUnusable`].
pub struct Transaction<S: StateAdapter> {
    client: Client<S>,
    inner: S::Transaction,
    effects: Effects,
    standing: Standing,
    /// Whether the caller has had the connection since the library last asked what has become of the transaction.
    behind: bool,
}

impl<S: StateAdapter> Transaction<S> {
    /// Commits, then publishes the wake-ups and events. If the answer of the store is lost and the transaction has
    /// started or continued a chain, the library asks the store whether that job exists: if it does, the transaction
    /// has committed.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionUnusable`] if the transaction can only be rolled back, which has then been done;
    /// [`Error::State`] if the store fails, and the commit may or may not have happened.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the store commits, the commit may or may not happen. Wake-ups and events may be
    /// missing, which costs latency only.
    pub async fn commit(self) -> Result<(), Error> {
        let client = self.client.clone();
        let (inner, effects, usable) = self.into_parts().await;
        if let Err(unusable) = usable {
            // Why it cannot be committed matters more than an error of the rollback, which happens on drop anyway.
            let _ = client.state().rollback(inner).await;
            return Err(unusable);
        }
        if let Err(error) = client.state().commit(inner).await {
            // Of one that has ended it is certain that this did not commit it; of others the answer may be lost.
            let ended = error.kind() == StateErrorKind::TransactionEnded;
            if ended || !has_happened(&client, effects.witness()).await {
                return Err(commit_error(error));
            }
        }
        client.flush(effects).await;
        Ok(())
    }

    /// Rolls back and waits until the store has done so.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the store fails; the transaction is lost either way.
    ///
    /// # Cancel safety
    ///
    /// A dropped future rolls back all the same.
    pub async fn rollback(self) -> Result<(), Error> {
        Ok(self.client.state().rollback(self.inner).await?)
    }

    /// Runs `work` in a savepoint. If it returns `Ok`, its writes are kept. If it returns an error, its writes are
    /// undone, together with the wake-ups and events that they would have caused. The transaction goes on in both
    /// cases. Savepoints nest.
    ///
    /// # Errors
    ///
    /// The error of `work`; [`Error::TransactionUnusable`] if it returned `Ok` although a request in it is unfinished
    /// or has failed, and the savepoint was undone; [`Error::State`] if the store fails.
    ///
    /// # Cancel safety
    ///
    /// After a dropped future the transaction can only be rolled back, as a whole or to an enclosing savepoint.
    pub async fn savepoint<T, E, F>(&mut self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Self) -> Result<T, E>,
        E: From<Error>,
    {
        self.check().await?;
        let depth = self.standing.depth() + 1;
        let client = self.client.clone();
        let state = client.state();
        self.standing.begin_change();
        let set = state.savepoint(&mut self.inner, depth).await.map_err(Error::State);
        self.standing.end_change(set)?;
        self.standing.savepoint_set();
        let mark = self.effects.mark();
        let mut savepoint = OpenSavepoint {
            transaction: self,
            depth,
            left: false,
        };
        let result = work(savepoint.transaction).await;
        // If it fails, so does the end of the savepoint.
        let _ = savepoint.transaction.caught_up().await;
        savepoint.left = true;
        drop(savepoint);
        // Ended by the store: there is no savepoint to go back to.
        if state.has_ended(&self.inner) {
            let ended = self.standing.ended();
            self.standing.savepoint_left(depth);
            return match result {
                Ok(_) => Err(ended.into()),
                Err(error) => Err(error),
            };
        }
        let result = match (result, self.standing.check()) {
            (Ok(_), Err(unusable)) => Err(unusable.into()),
            (result, _) => result,
        };
        match result {
            Ok(value) => {
                self.standing.begin_change();
                let released = state.release_savepoint(&mut self.inner, depth).await;
                self.standing.savepoint_left(depth);
                self.standing.end_change(released.map_err(Error::State))?;
                Ok(value)
            }
            Err(error) => {
                self.effects.roll_back_to(mark);
                self.standing.begin_change();
                let undone = state.rollback_to_savepoint(&mut self.inner, depth).await;
                match undone.map_err(Error::State) {
                    Ok(()) => self.standing.rolled_back_to(depth),
                    Err(failed) => {
                        self.standing.savepoint_left(depth);
                        return Err(self
                            .standing
                            .end_change::<()>(Err(failed))
                            .map_or_else(E::from, |()| error));
                    }
                }
                Err(error)
            }
        }
    }
}

/// A savepoint whose work runs. Dropped meanwhile, it leaves half of the work in the transaction.
struct OpenSavepoint<'t, S: StateAdapter> {
    transaction: &'t mut Transaction<S>,
    depth: u32,
    left: bool,
}

impl<S: StateAdapter> Drop for OpenSavepoint<'_, S> {
    fn drop(&mut self) {
        if !self.left {
            let standing = &mut self.transaction.standing;
            standing.savepoint_left(self.depth);
            standing.begin_change();
        }
    }
}

/// What a commit failed with.
fn commit_error(error: StateError) -> Error {
    match error.kind() {
        StateErrorKind::TransactionEnded => Error::TransactionUnusable(TransactionFault::Ended),
        _ => Error::State(error),
    }
}

impl<S: StateAdapter> Transaction<S> {
    /// Refuses to go on with a transaction that can only be rolled back, also if a statement of the caller's that is still on
    /// its way ends it.
    pub(crate) async fn check(&mut self) -> Result<(), Error> {
        self.caught_up().await?;
        self.usable()
    }

    /// Waits for what the caller has sent on the connection.
    async fn caught_up(&mut self) -> Result<(), Error> {
        if self.behind {
            self.client.state().catch_up(&mut self.inner).await?;
            self.behind = false;
        }
        Ok(())
    }

    fn usable(&mut self) -> Result<(), Error> {
        if self.client.state().has_ended(&self.inner) {
            return Err(self.standing.ended());
        }
        self.standing.check()
    }

    /// Notes what came of a change that was made through [`opened`](Self::opened).
    pub(crate) fn end_change<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        let result = self.standing.end_change(result)?;
        // A change that ends the transaction should have failed.
        if self.client.state().has_ended(&self.inner) {
            return Err(self.standing.ended());
        }
        Ok(result)
    }

    /// What the commit will cause.
    pub(crate) fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// What the store has opened.
    pub(crate) fn opened(&mut self) -> &mut S::Transaction {
        &mut self.inner
    }

    /// What is to be committed, or rolled back for the given reason, and its effects, which the worker must know even if the
    /// answer to its commit is lost.
    pub(crate) async fn into_parts(mut self) -> (S::Transaction, Effects, Result<(), Error>) {
        let usable = self.check().await;
        (self.inner, self.effects, usable)
    }
}

impl<S: StateAdapter> Deref for Transaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.inner
    }
}

impl<S: StateAdapter> DerefMut for Transaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        self.behind = true;
        &mut self.inner
    }
}

impl<S: StateAdapter> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("held", &self.effects)
            .finish_non_exhaustive()
    }
}

/// A transaction that the caller commits without this library; see [`Client::adopt`].
pub struct ForeignTransaction<'t, S: StateAdapter> {
    client: Client<S>,
    connection: &'t mut S::Connection,
    effects: Effects,
    standing: Standing,
}

impl<S: StateAdapter> ForeignTransaction<'_, S> {
    /// The wake-ups and events to publish after the commit.
    pub fn into_effects(self) -> HeldEffects<S> {
        HeldEffects {
            client: self.client,
            effects: self.effects,
        }
    }
}

impl<S: StateAdapter> fmt::Debug for ForeignTransaction<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignTransaction")
            .field("held", &self.effects)
            .finish_non_exhaustive()
    }
}

/// The wake-ups and events of a [`ForeignTransaction`], to be published once it is committed. If they are dropped,
/// workers find the jobs by polling.
#[must_use = "publish the effects after the commit, or drop them knowingly"]
pub struct HeldEffects<S: StateAdapter> {
    client: Client<S>,
    effects: Effects,
}

impl<S: StateAdapter> HeldEffects<S> {
    /// Takes the wake-ups out, for a caller that announces them in another way, such as inside the transaction itself.
    /// [`publish`](Self::publish) then publishes only the events.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.effects.take_notices()
    }

    /// Publishes the wake-ups and events. Call it after the commit, and not after a rollback.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have published some of them; polling covers the rest.
    pub async fn publish(self) {
        self.client.flush(self.effects).await;
    }
}

impl<S: StateAdapter> fmt::Debug for HeldEffects<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldEffects")
            .field("held", &self.effects)
            .finish_non_exhaustive()
    }
}

/// A transaction that requests can run in: [`Transaction`], the transaction of an attempt, or a
/// [`ForeignTransaction`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction in which this client can work",
    label = "not a transaction of `client.begin()`, `client.transaction(..)` or `job.begin()`",
    note = "pass `&mut tx` of one of these",
    note = "one that you opened without this library: `let mut adopted = client.adopt(&mut tx)`, and pass `&mut adopted`; see `Client::adopt`"
)]
pub trait TransactionScope<S: StateAdapter>: Send {
    #[doc(hidden)]
    fn catch_up(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    #[doc(hidden)]
    fn scope(&mut self) -> Result<Scope<'_, S>, Error>;
}

impl<S: StateAdapter> TransactionScope<S> for Transaction<S> {
    async fn catch_up(&mut self) -> Result<(), Error> {
        self.caught_up().await
    }

    fn scope(&mut self) -> Result<Scope<'_, S>, Error> {
        self.usable()?;
        Ok(Scope {
            connection: &mut self.inner,
            effects: &mut self.effects,
            standing: &mut self.standing,
            foreign: false,
        })
    }
}

impl<S: StateAdapter> TransactionScope<S> for ForeignTransaction<'_, S> {
    /// Its requests begin with a statement that finds out.
    async fn catch_up(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn scope(&mut self) -> Result<Scope<'_, S>, Error> {
        self.standing.check()?;
        Ok(Scope {
            connection: self.connection,
            effects: &mut self.effects,
            standing: &mut self.standing,
            foreign: true,
        })
    }
}
