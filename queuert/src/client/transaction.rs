//! Transactions that hold back wake-ups and events until they commit.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Client;
use crate::adapter::{Notice, StateAdapter};
use crate::effects::Effects;
use crate::error::Error;

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
            depth: 0,
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
    /// What `work` returned, or [`Error::State`] if the store fails.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before the commit rolls back; one that is dropped during the commit leaves it to the
    /// store whether it happened, and does not announce it.
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
    /// of another framework. Wake-ups and events are held in the result: publish them after the commit.
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
        }
    }
}

/// An open transaction of the store, with the wake-ups and events that its commit will cause.
///
/// Dereferences to the store's connection. Dropped without [`commit`](Self::commit), it rolls back, and nobody ever
/// hears of what was done in it.
pub struct Transaction<S: StateAdapter> {
    client: Client<S>,
    inner: S::Transaction,
    effects: Effects,
    depth: u32,
}

impl<S: StateAdapter> Transaction<S> {
    /// Commits, then wakes whoever should know.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the store fails; the commit may or may not have happened then.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the store commits, it is left to the store whether that happened; wake-ups and events may be
    /// missing, which costs latency only.
    pub async fn commit(self) -> Result<(), Error> {
        self.client.state().commit(self.inner).await?;
        self.client.flush(self.effects).await;
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

    /// Runs `work` in a savepoint: kept if it returns `Ok`; undone, with the wake-ups and events that it would have
    /// caused, if it returns an error. The transaction goes on in both cases. Savepoints nest.
    ///
    /// # Errors
    ///
    /// What `work` returned, or [`Error::State`] if the store fails.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves what was done so far in the transaction; roll it back.
    pub async fn savepoint<T, E, F>(&mut self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Self) -> Result<T, E>,
        E: From<Error>,
    {
        let depth = self.depth + 1;
        let client = self.client.clone();
        let state = client.state();
        state.savepoint(&mut self.inner, depth).await.map_err(Error::State)?;
        let mark = self.effects.mark();
        self.depth = depth;
        let result = work(self).await;
        self.depth = depth - 1;
        match result {
            Ok(value) => {
                state
                    .release_savepoint(&mut self.inner, depth)
                    .await
                    .map_err(Error::State)?;
                Ok(value)
            }
            Err(error) => {
                self.effects.roll_back_to(mark);
                state
                    .rollback_to_savepoint(&mut self.inner, depth)
                    .await
                    .map_err(Error::State)?;
                Err(error)
            }
        }
    }
}

impl<S: StateAdapter> Transaction<S> {
    /// What the commit will cause.
    pub(crate) fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// What the store has opened.
    pub(crate) fn opened(&mut self) -> &mut S::Transaction {
        &mut self.inner
    }

    /// For the worker, which must know the effects even if the answer to its commit is lost.
    pub(crate) fn into_parts(self) -> (S::Transaction, Effects) {
        (self.inner, self.effects)
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

/// What a [`ForeignTransaction`] caused, to be published once it is committed. Dropped, it is left to the polls.
#[must_use = "publish the effects after the commit, or drop them knowingly"]
pub struct HeldEffects<S: StateAdapter> {
    client: Client<S>,
    effects: Effects,
}

impl<S: StateAdapter> HeldEffects<S> {
    /// Takes the wake-ups out, for a caller who has another way to announce them, such as inside the transaction
    /// itself. [`publish`](Self::publish) is left with the events.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.effects.take_notices()
    }

    /// Wakes whoever should know. Call it after the commit, and not after a rollback.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have told some; polling covers the rest.
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
    #[expect(private_interfaces, reason = "sealed: only this crate can name the result")]
    fn scope(&mut self) -> Scope<'_, S>;
}

/// The two halves of a transaction that a request needs.
pub(crate) struct Scope<'t, S: StateAdapter> {
    pub(crate) connection: &'t mut S::Connection,
    pub(crate) effects: &'t mut Effects,
}

impl<S: StateAdapter> TransactionScope<S> for Transaction<S> {
    #[expect(private_interfaces, reason = "sealed: only this crate can name the result")]
    fn scope(&mut self) -> Scope<'_, S> {
        Scope {
            connection: &mut self.inner,
            effects: &mut self.effects,
        }
    }
}

impl<S: StateAdapter> TransactionScope<S> for ForeignTransaction<'_, S> {
    #[expect(private_interfaces, reason = "sealed: only this crate can name the result")]
    fn scope(&mut self) -> Scope<'_, S> {
        Scope {
            connection: self.connection,
            effects: &mut self.effects,
        }
    }
}
