//! A state adapter that counts the calls of another one: what a job costs in statements.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, QueueSample,
    ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError, Timestamp};

/// Passes every verb on and counts it. Clones share the counts.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    /// Takes the counts so far, each divided by `units`.
    pub(crate) fn take(&self, units: usize) -> BTreeMap<String, f64> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        let per_unit = |(verb, count): (&str, usize)| (verb.to_owned(), count as f64 / units as f64);
        calls.into_iter().map(per_unit).collect()
    }

    fn count(&self, verb: &'static str) -> &S {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry(verb).or_default() += 1;
        &self.inner
    }
}

macro_rules! passed_on {
    ($($verb:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        async fn $verb(&self, $($argument: $type),*) -> Result<$result, StateError> {
            self.count(stringify!($verb)).$verb($($argument),*).await
        }
    )*};
}

impl<S: StateAdapter> StateAdapter for Counted<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn owner_died(&self, since: tokio::time::Instant) {
        self.inner.owner_died(since).await;
    }

    fn has_ended(&self, transaction: &S::Transaction) -> bool {
        self.inner.has_ended(transaction)
    }

    async fn catch_up(&self, transaction: &mut S::Transaction) -> Result<(), StateError> {
        self.inner.catch_up(transaction).await
    }

    fn undo_shielded(&self, connection: &mut S::Connection) {
        self.inner.undo_shielded(connection);
    }

    passed_on! {
        begin() -> S::Transaction;
        commit(transaction: S::Transaction) -> ();
        rollback(transaction: S::Transaction) -> ();
        savepoint(connection: &mut S::Connection, depth: u32) -> ();
        release_savepoint(connection: &mut S::Connection, depth: u32) -> ();
        rollback_to_savepoint(connection: &mut S::Connection, depth: u32) -> ();
        shield(connection: &mut S::Connection) -> ();
        unshield(connection: &mut S::Connection) -> ();
        create_chains(within: Option<&mut S::Connection>, chains: &[NewChain])
            -> Result<Vec<CreatedChain>, Refusal>;
        claim_jobs(claim: &ClaimJobs) -> Claimed;
        claimed_jobs(fence: Fence) -> Vec<ClaimedJob>;
        renew_leases(within: Option<&mut S::Connection>, renewals: &[RenewLease]) -> Vec<Renewal>;
        settle_jobs(within: Option<&mut S::Connection>, settlements: &[Settlement]) -> Vec<Settled>;
        reap_leases(reap: &ReapLeases) -> Vec<ReapedJob>;
        hold_lease(connection: &mut S::Connection, job: JobId, fence: Fence) -> Result<(), AbortReason>;
        lock_chain(connection: &mut S::Connection, chain: ChainId) -> Option<JobRecord>;
        trigger_jobs(within: Option<&mut S::Connection>, jobs: &[JobId]) -> Result<Vec<JobRecord>, Refusal>;
        cancel_chains(within: Option<&mut S::Connection>, chains: &[ChainId])
            -> Result<Vec<StoppedChain>, Refusal>;
        retry_chains(within: Option<&mut S::Connection>, chains: &[ChainId]) -> Result<Vec<JobRecord>, Refusal>;
        delete_chains(within: Option<&mut S::Connection>, delete: &DeleteChains)
            -> Result<Vec<StoppedChain>, Refusal>;
        get_jobs(within: Option<&mut S::Connection>, jobs: &[JobId]) -> Vec<JobRecord>;
        get_chains(within: Option<&mut S::Connection>, chains: &[ChainId]) -> Vec<ChainRecord>;
        list_jobs(within: Option<&mut S::Connection>, query: &JobQuery) -> Vec<JobRecord>;
        list_chains(within: Option<&mut S::Connection>, query: &ChainQuery) -> Vec<ChainRecord>;
        list_blockers(within: Option<&mut S::Connection>, job: JobId) -> Vec<ChainRecord>;
        sample_queues(sample: &SampleQueues) -> Vec<QueueSample>;
        watermark() -> Timestamp;
    }
}
