//! The verbs of the seam. Each names the locks it needs and what it does once it has them.

use super::claim;
use super::create;
use super::locks::Key;
use super::operate;
use super::query;
use super::settle;
use super::transaction::{MemoryConnection, MemoryTransaction};
use super::view::View;
use super::{Inner, MemoryState};
use crate::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, Pauses, QueueSample,
    ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter, StoppedChain,
};
use crate::chain::ChainRecord;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobRecord, TypeName};
use crate::pause::Pause;
use crate::time::Timestamp;
use crate::worker::AbortReason;

impl StateAdapter for MemoryState {
    type Connection = MemoryConnection;
    type Transaction = MemoryTransaction;

    async fn begin(&self) -> Result<MemoryTransaction, StateError> {
        let id = self.lock().locks.begin();
        let connection = MemoryConnection::new(self.clone(), id);
        Ok(MemoryTransaction { connection })
    }

    async fn commit(&self, mut transaction: MemoryTransaction) -> Result<(), StateError> {
        self.check_connection(&transaction)?;
        let overlay = std::mem::take(&mut transaction.overlay);
        let held = std::mem::take(&mut transaction.held);
        let mut inner = self.lock();
        let Inner { store, locks, .. } = &mut *inner;
        store.apply(overlay, self.clock().now());
        // In the same critical section, so that no caller finds a committed chain still locked.
        locks.end(transaction.id, &held);
        // The transaction takes the lock once more when it goes.
        drop(inner);
        Ok(())
    }

    async fn rollback(&self, transaction: MemoryTransaction) -> Result<(), StateError> {
        drop(transaction);
        Ok(())
    }

    async fn savepoint(&self, connection: &mut MemoryConnection, depth: u32) -> Result<(), StateError> {
        connection.set_savepoint(depth);
        Ok(())
    }

    async fn release_savepoint(&self, connection: &mut MemoryConnection, depth: u32) -> Result<(), StateError> {
        connection.take_savepoint(depth).map(drop)
    }

    async fn rollback_to_savepoint(&self, connection: &mut MemoryConnection, depth: u32) -> Result<(), StateError> {
        connection.overlay = connection.take_savepoint(depth)?;
        Ok(())
    }

    async fn create_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        let keys = |view: &View<'_>| create::keys(view, chains);
        self.run(within, keys, |view| create::apply(view, chains)).await
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        Ok(self.run_now(|view, locks, _| claim::claim(view, locks, claim)))
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        Ok(self.run_now(|view, _, _| claim::claimed(view, fence)))
    }

    async fn renew_leases(
        &self,
        within: Option<&mut MemoryConnection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        self.run_at_once(within, |view, locks, saboteur| {
            claim::renew(view, locks, saboteur.fencing(), renewals)
        })
    }

    async fn settle_jobs(
        &self,
        mut within: Option<&mut MemoryConnection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        let saboteur = self.lock().saboteur;
        let fencing = saboteur.fencing();
        if saboteur.races_unblocking() {
            let look = |view: &View<'_>| settle::look_too_early(view, settlements);
            let stale = self.read(within.as_deref_mut(), look)?;
            // Gives others the time to complete something that will not be seen.
            tokio::task::yield_now().await;
            let keys = |view: &View<'_>| settle::keys(view, fencing, settlements, Some(&stale));
            let mut believed = stale.clone();
            let apply = |view: &mut View<'_>| settle::apply(view, fencing, settlements, Some(&mut believed));
            return self.run(within, keys, apply).await;
        }
        if within.is_none() {
            return Ok(self.run_now(|view, locks, _| settle::apply_unlocked(view, locks, fencing, settlements)));
        }
        let keys = |view: &View<'_>| settle::keys(view, fencing, settlements, None);
        let apply = |view: &mut View<'_>| settle::apply(view, fencing, settlements, None);
        self.run(within, keys, apply).await
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        Ok(self.run_now(|view, locks, _| claim::reap(view, locks, reap)))
    }

    async fn hold_lease(
        &self,
        connection: &mut MemoryConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        let fencing = self.lock().saboteur.fencing();
        let keys = |view: &View<'_>| match claim::held(view, fencing, job, fence) {
            Ok(row) => vec![Key::Chain(row.job.chain_id)],
            Err(_) => Vec::new(),
        };
        let check = |view: &mut View<'_>| claim::held(view, fencing, job, fence).map(drop);
        self.run(Some(connection), keys, check).await
    }

    async fn lock_chain(
        &self,
        connection: &mut MemoryConnection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        let keys = |view: &View<'_>| view.chain_keys(&[chain]).collect();
        let read = |view: &mut View<'_>| view.latest(chain).map(|row| row.job.clone());
        self.run(Some(connection), keys, read).await
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut MemoryConnection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let keys = |view: &View<'_>| operate::trigger_keys(view, jobs);
        self.run(within, keys, |view| operate::trigger(view, jobs)).await
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let keys = |view: &View<'_>| view.chain_keys(chains).collect();
        self.run(within, keys, |view| operate::cancel(view, chains)).await
    }

    async fn retry_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let keys = |view: &View<'_>| operate::retry_keys(view, chains);
        self.run(within, keys, |view| operate::retry(view, chains)).await
    }

    async fn delete_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let keys = |view: &View<'_>| view.chain_keys(&operate::deletion(view, delete)).collect();
        self.run(within, keys, |view| operate::delete(view, delete)).await
    }

    async fn get_jobs(
        &self,
        within: Option<&mut MemoryConnection>,
        jobs: &[JobId],
    ) -> Result<Vec<JobRecord>, StateError> {
        self.read(within, |view| query::get_jobs(view, jobs))
    }

    async fn get_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.read(within, |view| query::get_chains(view, chains))
    }

    async fn list_jobs(
        &self,
        within: Option<&mut MemoryConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        self.read(within, |view| query::list_jobs(view, query))
    }

    async fn list_chains(
        &self,
        within: Option<&mut MemoryConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.read(within, |view| query::list_chains(view, query))
    }

    async fn list_blockers(
        &self,
        within: Option<&mut MemoryConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.read(within, |view| query::list_blockers(view, job))
    }

    async fn list_pauses(&self, within: Option<&mut MemoryConnection>) -> Result<Pauses, StateError> {
        self.read(within, query::pauses)
    }

    async fn put_pause(&self, within: Option<&mut MemoryConnection>, pause: &Pause) -> Result<(), StateError> {
        self.run_at_once(within, |view, _, _| {
            operate::write_pause(view, &pause.type_name, Some(pause.clone()));
        })
    }

    async fn delete_pause(
        &self,
        within: Option<&mut MemoryConnection>,
        type_name: &TypeName,
    ) -> Result<bool, StateError> {
        self.run_at_once(within, |view, _, _| operate::write_pause(view, type_name, None))
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        // In one critical section, in which the clock is read that new jobs will be read after.
        let inner = self.lock();
        let now = self.clock().now();
        let earliest = inner.locks.earliest_creation();
        Ok(earliest.map_or(now, |earliest| earliest.min(now)))
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        self.read(None, |view| query::sample(view, sample))
    }
}
