//! The contract on a store with one writer at a time and a clock that nobody can move, as SQLite is: it shows that the
//! cases ask for nothing that such a store cannot give, and that an adapter of a third party can run them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::*;
use queuert::memory::{MemoryConnection, MemoryState, MemoryTransaction};
use queuert::{ChainId, JobId, JobRecord, StateError};
use queuert_conformance::{Capabilities, StateFixture, state_conformance};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

/// A memory store whose writers queue up.
struct OneWriter {
    store: MemoryState,
    writer: Arc<Mutex<()>>,
}

impl OneWriter {
    /// The right to write by itself; a transaction has it already.
    async fn turn<C>(&self, within: Option<&C>) -> Option<MutexGuard<'_, ()>> {
        match within {
            Some(_) => None,
            None => Some(self.writer.lock().await),
        }
    }
}

/// Fields are dropped in order: the store lets go of its locks before the next writer comes.
struct Turn {
    transaction: MemoryTransaction,
    _turn: OwnedMutexGuard<()>,
}

impl Deref for Turn {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        &self.transaction
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        &mut self.transaction
    }
}

type Within<'a> = Option<&'a mut MemoryConnection>;
type Answer<T> = Result<T, StateError>;
type Verdict<T> = Answer<Result<T, Refusal>>;

impl StateAdapter for OneWriter {
    type Connection = MemoryConnection;
    type Transaction = Turn;

    queuert::forward_state! {
        self => self.store;
        except begin, commit, rollback, has_ended, catch_up, settle_in, create_chains, claim_jobs, renew_leases, settle_jobs,
            reap_leases, trigger_jobs, cancel_chains, retry_chains, delete_chains
    }

    async fn begin(&self) -> Answer<Turn> {
        let turn = Arc::clone(&self.writer).lock_owned().await;
        let transaction = self.store.begin().await?;
        Ok(Turn {
            transaction,
            _turn: turn,
        })
    }

    async fn commit(&self, transaction: Turn) -> Answer<()> {
        self.store.commit(transaction.transaction).await
    }

    async fn rollback(&self, transaction: Turn) -> Answer<()> {
        self.store.rollback(transaction.transaction).await
    }

    async fn create_chains(&self, within: Within<'_>, chains: &[NewChain]) -> Verdict<Vec<CreatedChain>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.create_chains(within, chains).await
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Answer<Claimed> {
        let _turn = self.writer.lock().await;
        self.store.claim_jobs(claim).await
    }

    async fn renew_leases(&self, within: Within<'_>, renewals: &[RenewLease]) -> Answer<Vec<Renewal>> {
        if within.is_some() {
            return self.store.renew_leases(within, renewals).await;
        }
        match self.writer.try_lock() {
            Ok(_turn) => self.store.renew_leases(None, renewals).await,
            // Nobody can take a job meanwhile.
            Err(_) => Ok(vec![Renewal::Busy; renewals.len()]),
        }
    }

    async fn settle_jobs(&self, within: Within<'_>, settlements: &[Settlement]) -> Answer<Vec<Settled>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.settle_jobs(within, settlements).await
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Answer<Vec<ReapedJob>> {
        let _turn = self.writer.lock().await;
        self.store.reap_leases(reap).await
    }

    async fn trigger_jobs(&self, within: Within<'_>, jobs: &[JobId]) -> Verdict<Vec<JobRecord>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.trigger_jobs(within, jobs).await
    }

    async fn cancel_chains(&self, within: Within<'_>, chains: &[ChainId]) -> Verdict<Vec<StoppedChain>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.cancel_chains(within, chains).await
    }

    async fn retry_chains(&self, within: Within<'_>, chains: &[ChainId]) -> Verdict<Vec<JobRecord>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.retry_chains(within, chains).await
    }

    async fn delete_chains(&self, within: Within<'_>, delete: &DeleteChains) -> Verdict<Vec<StoppedChain>> {
        let _turn = self.turn(within.as_ref()).await;
        self.store.delete_chains(within, delete).await
    }
}

struct Queueing;

const AGEING_STEP: Duration = Duration::from_millis(200);

impl StateFixture for Queueing {
    type State = OneWriter;

    async fn state(&self) -> OneWriter {
        OneWriter {
            store: MemoryState::new().ageing_step(AGEING_STEP),
            writer: Arc::default(),
        }
    }

    async fn elapse(&self, _: &OneWriter, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }

    fn ageing_step(&self) -> Duration {
        AGEING_STEP
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(20)
    }
}

state_conformance!(Queueing);
