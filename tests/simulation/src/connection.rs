//! The connections of the simulation: transactions that hold what was done in them, and fail as those of a database do.

use std::ops::{Deref, DerefMut};

use queuert::memory::MemoryTransaction;
use queuert::{StateError, StateErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::Fact;
use crate::run::Breakage;
use crate::world::World;

/// A connection of the simulation: what was done in its transaction is held until the commit.
#[derive(Debug)]
pub struct SimulatedConnection {
    world: World,
    pub(crate) inner: MemoryTransaction,
    pub(crate) facts: Vec<Fact>,
    /// Their depths, and how much had been done when they were set.
    pub(crate) savepoints: Vec<(u32, usize)>,
    /// How many savepoints there were when a statement failed: rolling back to one of them mends it.
    pub(crate) failed: Option<usize>,
}

/// A transaction of the simulation.
#[derive(Debug)]
pub struct SimulatedTransaction(pub(crate) SimulatedConnection);

impl SimulatedTransaction {
    pub(crate) fn new(world: World, inner: MemoryTransaction) -> Self {
        Self(SimulatedConnection {
            world,
            inner,
            facts: Vec::new(),
            savepoints: Vec::new(),
            failed: None,
        })
    }
}

impl Deref for SimulatedTransaction {
    type Target = SimulatedConnection;

    fn deref(&self) -> &SimulatedConnection {
        &self.0
    }
}

impl DerefMut for SimulatedTransaction {
    fn deref_mut(&mut self) -> &mut SimulatedConnection {
        &mut self.0
    }
}

impl SimulatedConnection {
    /// Reads an entry for update.
    ///
    /// # Errors
    ///
    /// As the weather says, or a deadlock.
    pub async fn get<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, StateError> {
        self.statement("get", async |connection| connection.inner.get(key).await)
            .await
    }

    /// Writes an entry.
    ///
    /// # Errors
    ///
    /// As the weather says, or a deadlock.
    pub async fn put(&mut self, key: &str, value: impl Serialize) -> Result<(), StateError> {
        let lost = self.world.is_broken(Breakage::LosesWrites) && self.world.draw(|rng| rng.u8(..10) == 0);
        self.statement("put", async |connection| match lost {
            true => Ok(()),
            false => connection.inner.put(key, value).await,
        })
        .await
    }

    /// A statement in this transaction. Once one has failed, the others fail too, as in a database.
    pub(crate) async fn statement<T>(
        &mut self,
        verb: &'static str,
        run: impl AsyncFnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        if self.failed.is_some() {
            return Err(aborted());
        }
        // Until the answer is here, the statement counts as failed: a future that is dropped leaves it at that.
        self.failed = Some(self.savepoints.len());
        let world = self.world.clone();
        world.before(verb).await?;
        let value = run(self).await?;
        world.after(verb).await?;
        self.failed = None;
        Ok(value)
    }

    pub(crate) fn did(&mut self, fact: Fact) {
        let text = fact.describe(&mut self.world.lock().history);
        self.world.log(format_args!("in transaction: {text}"));
        self.facts.push(fact);
    }
}

pub(crate) fn aborted() -> StateError {
    StateError::new(
        StateErrorKind::Transient,
        "the transaction is aborted: a statement failed",
    )
}
