//! A state adapter that counts the calls of another one and fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, Maintain, Maintained, NewChain,
    QueueSample, ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter,
    StoppedChain,
};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError, StateErrorKind, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

/// A verb of a [`StateAdapter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "each is the verb of the same name; `Within` is in a transaction of the caller's, where it has a name of its own"
)]
pub enum Verb {
    Begin,
    Commit,
    Rollback,
    Savepoint,
    ReleaseSavepoint,
    RollbackToSavepoint,
    CreateChains,
    ClaimJobs,
    ClaimedJobs,
    RenewLeases,
    RenewLeasesWithin,
    SettleJobs,
    ReapLeases,
    HoldLease,
    LockChain,
    TriggerJobs,
    CancelChains,
    RetryChains,
    DeleteChains,
    GetJobs,
    GetChains,
    ListJobs,
    ListChains,
    ListBlockers,
    Watermark,
    Maintain,
    SampleQueues,
}

impl Verb {
    /// The verbs that a worker calls by itself or on behalf of a processor.
    pub const OF_WORKERS: [Self; 9] = [
        Self::Begin,
        Self::Commit,
        Self::ClaimJobs,
        Self::ClaimedJobs,
        Self::RenewLeases,
        Self::RenewLeasesWithin,
        Self::SettleJobs,
        Self::ReapLeases,
        Self::HoldLease,
    ];
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An error; nothing happened.
    Before,
    /// An error, but it happened: only the answer was lost.
    After,
    /// A panic; nothing happened.
    Panic,
    /// No answer, ever; nothing happened.
    Hang,
    /// It takes this long, and then goes well.
    Slow(Duration),
    /// Renewals seem to go well, but nothing happened, as when a store forgets what it had not yet written down. Other
    /// verbs fail as with [`Before`](Self::Before).
    Pretend,
}

/// A state adapter that passes everything on to another one, counts the calls, and fails on demand. Clones share the
/// adapter and the [`Faults`].
#[derive(Debug)]
pub struct Faulty<S> {
    inner: Arc<S>,
    faults: Faults,
}

impl<S> Clone for Faulty<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            faults: self.faults.clone(),
        }
    }
}

impl<S> Faulty<S> {
    /// Passes everything on, until it is told otherwise through [`faults`](Self::faults).
    pub fn new(inner: S) -> Self {
        Self {
            inner: Arc::new(inner),
            faults: Faults::default(),
        }
    }

    /// The adapter inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// What is counted and what goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// A twin on the same store whose calls are counted and disturbed apart, as those of another process are.
    #[must_use]
    pub fn twin(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            faults: Faults::default(),
        }
    }

    async fn call<T>(
        &self,
        verb: Verb,
        items: usize,
        call: impl Future<Output = Result<T, StateError>>,
    ) -> Result<T, StateError> {
        match self.faults.enter(verb, items) {
            None => call.await,
            Some((fault, kind)) => self.disturb(verb, fault, kind, call).await,
        }
    }

    async fn disturb<T>(
        &self,
        verb: Verb,
        fault: Fault,
        kind: StateErrorKind,
        call: impl Future<Output = Result<T, StateError>>,
    ) -> Result<T, StateError> {
        let error = || StateError::new(kind, format!("made to fail: {verb:?}"));
        match fault {
            Fault::Before | Fault::Pretend => Err(error()),
            Fault::After => call.await.and_then(|_| Err(error())),
            Fault::Panic => panic!("made to panic: {verb:?}"),
            Fault::Hang => std::future::pending().await,
            Fault::Slow(time) => {
                tokio::time::sleep(time).await;
                call.await
            }
        }
    }
}

/// What a [`Faulty`] adapter has counted, and what goes wrong next. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// How many calls there were, to wait for the next.
    progress: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<Verb, Vec<(usize, Instant)>>,
    next: BTreeMap<Verb, Vec<(Fault, StateErrorKind)>>,
    always: BTreeMap<Verb, Fault>,
    refused: BTreeMap<JobId, StateErrorKind>,
    locked: BTreeSet<JobId>,
    bursts: Option<Bursts>,
}

#[derive(Debug)]
struct Bursts {
    verbs: Vec<Verb>,
    random: u64,
    longest: u64,
    good: u64,
    bad: u64,
    failed: u64,
}

impl Faults {
    /// How often the verb was called.
    pub fn calls(&self, verb: Verb) -> usize {
        self.lock().calls.get(&verb).map_or(0, Vec::len)
    }

    /// How many items each call of the verb had, in order; 1 for verbs that take one, the limit for claims and sweeps.
    pub fn batches(&self, verb: Verb) -> Vec<usize> {
        let plan = self.lock();
        let calls = plan.calls.get(&verb).into_iter().flatten();
        calls.map(|(items, _)| *items).collect()
    }

    /// How much time there was between each call of the verb and the next one, as the caller made them: that somebody
    /// looks late does not make them shorter.
    pub fn pauses(&self, verb: Verb) -> Vec<Duration> {
        let plan = self.lock();
        let calls = plan.calls.get(&verb).map_or(&[][..], Vec::as_slice);
        calls
            .windows(2)
            .map(|pair| pair[1].1.duration_since(pair[0].1))
            .collect()
    }

    /// How many calls there were altogether.
    pub fn total(&self) -> usize {
        self.lock().calls.values().map(Vec::len).sum()
    }

    /// Waits until the verb was called this often.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and nothing else.
    pub async fn called(&self, verb: Verb, times: usize) {
        let mut progress = self.progress.subscribe();
        let enough = progress.wait_for(|_| self.calls(verb) >= times).await;
        enough.expect("the sender lives as long as this value");
    }

    /// Makes the next calls of the verb fail as a store does that cannot be reached.
    pub fn fail_next(&self, verb: Verb, times: usize, fault: Fault) {
        self.fail_next_with(verb, times, fault, StateErrorKind::Transient);
    }

    /// Makes the next calls of the verb fail with errors of this kind.
    pub fn fail_next_with(&self, verb: Verb, times: usize, fault: Fault, kind: StateErrorKind) {
        let mut plan = self.lock();
        let next = plan.next.entry(verb).or_default();
        next.extend(std::iter::repeat_n((fault, kind), times));
    }

    /// Makes all calls of the verb fail until [`heal`](Self::heal).
    pub fn fail_always(&self, verb: Verb, fault: Fault) {
        self.lock().always.insert(verb, fault);
    }

    /// Makes every settlement of this job fail in this way, and every batch that it is part of, until
    /// [`heal`](Self::heal).
    pub fn refuse_to_settle(&self, job: JobId, kind: StateErrorKind) {
        self.lock().refused.insert(job, kind);
    }

    /// Answers every settlement of this job as if another transaction had it locked, until [`heal`](Self::heal).
    pub fn lock_job(&self, job: JobId) {
        self.lock().locked.insert(job);
    }

    /// Makes all verbs of workers fail until [`heal`](Self::heal), as a store does that is down.
    pub fn take_down(&self, fault: Fault) {
        for verb in Verb::OF_WORKERS {
            self.fail_always(verb, fault);
        }
    }

    /// Makes these verbs fail in bursts until [`heal`](Self::heal): 4 to 15 calls go well, then 1 to `longest` fail,
    /// before or after their effect. The same seed gives the same bursts.
    pub fn fail_in_bursts(&self, verbs: &[Verb], longest: u64, seed: u64) {
        self.lock().bursts = Some(Bursts {
            verbs: verbs.to_vec(),
            random: seed.wrapping_mul(2).wrapping_add(1),
            longest: longest.max(1),
            good: 4,
            bad: 1,
            failed: 0,
        });
    }

    /// How many calls have failed in bursts.
    pub fn failed_in_bursts(&self) -> u64 {
        self.lock().bursts.as_ref().map_or(0, |bursts| bursts.failed)
    }

    /// Lets everything go well from now on.
    pub fn heal(&self) {
        let mut plan = self.lock();
        plan.next.clear();
        plan.always.clear();
        plan.refused.clear();
        plan.locked.clear();
        plan.bursts = None;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, verb: Verb, items: usize) -> Option<(Fault, StateErrorKind)> {
        let fault = {
            let mut plan = self.lock();
            plan.calls.entry(verb).or_default().push((items, Instant::now()));
            let next = plan.next.get_mut(&verb).filter(|next| !next.is_empty());
            let next = next.map(|next| next.remove(0));
            let always = plan.always.get(&verb).map(|fault| (*fault, StateErrorKind::Transient));
            let burst = plan.bursts.as_mut().and_then(|bursts| bursts.next(verb));
            next.or(always)
                .or(burst.map(|fault| (fault, StateErrorKind::Transient)))
        };
        self.progress.send_modify(|calls| *calls += 1);
        fault
    }
}

impl Bursts {
    fn next(&mut self, verb: Verb) -> Option<Fault> {
        if !self.verbs.contains(&verb) {
            return None;
        }
        if self.good == 0 && self.bad == 0 {
            self.good = 4 + self.random() % 12;
            self.bad = 1 + self.random() % self.longest;
        }
        if self.good > 0 {
            self.good -= 1;
            return None;
        }
        self.bad -= 1;
        self.failed += 1;
        Some(if self.random().is_multiple_of(2) {
            Fault::Before
        } else {
            Fault::After
        })
    }

    /// The generator of Marsaglia's xorshift: good enough to be irregular, and the same everywhere.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }
}

impl<S: StateAdapter> StateAdapter for Faulty<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn begin(&self) -> Result<Self::Transaction, StateError> {
        self.call(Verb::Begin, 1, self.inner.begin()).await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<(), StateError> {
        self.call(Verb::Commit, 1, self.inner.commit(transaction)).await
    }

    async fn rollback(&self, transaction: Self::Transaction) -> Result<(), StateError> {
        self.call(Verb::Rollback, 1, self.inner.rollback(transaction)).await
    }

    async fn savepoint(&self, connection: &mut Self::Connection, depth: u32) -> Result<(), StateError> {
        self.call(Verb::Savepoint, 1, self.inner.savepoint(connection, depth))
            .await
    }

    async fn release_savepoint(&self, connection: &mut Self::Connection, depth: u32) -> Result<(), StateError> {
        let call = self.inner.release_savepoint(connection, depth);
        self.call(Verb::ReleaseSavepoint, 1, call).await
    }

    async fn rollback_to_savepoint(&self, connection: &mut Self::Connection, depth: u32) -> Result<(), StateError> {
        let call = self.inner.rollback_to_savepoint(connection, depth);
        self.call(Verb::RollbackToSavepoint, 1, call).await
    }

    fn has_ended(&self, transaction: &Self::Transaction) -> bool {
        self.inner.has_ended(transaction)
    }

    async fn catch_up(&self, transaction: &mut Self::Transaction) -> Result<(), StateError> {
        self.inner.catch_up(transaction).await
    }

    async fn shield(&self, connection: &mut Self::Connection) -> Result<(), StateError> {
        self.inner.shield(connection).await
    }

    async fn unshield(&self, connection: &mut Self::Connection) -> Result<(), StateError> {
        self.inner.unshield(connection).await
    }

    fn undo_shielded(&self, connection: &mut Self::Connection) {
        self.inner.undo_shielded(connection);
    }

    async fn create_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        let call = self.inner.create_chains(within, chains);
        self.call(Verb::CreateChains, chains.len(), call).await
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        self.call(Verb::ClaimJobs, claim.limit, self.inner.claim_jobs(claim))
            .await
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        self.call(Verb::ClaimedJobs, 1, self.inner.claimed_jobs(fence)).await
    }

    async fn renew_leases(
        &self,
        within: Option<&mut Self::Connection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        // Of an attempt, in its own transaction. What befalls those of the worker does not befall it.
        if within.is_some() {
            let call = self.inner.renew_leases(within, renewals);
            return self.call(Verb::RenewLeasesWithin, renewals.len(), call).await;
        }
        let call = self.inner.renew_leases(None, renewals);
        match self.faults.enter(Verb::RenewLeases, renewals.len()) {
            None => call.await,
            Some((Fault::Pretend, _)) => {
                let renewed = |_: &RenewLease| Renewal::Renewed(Timestamp::from_micros(0));
                Ok(renewals.iter().map(renewed).collect())
            }
            Some((fault, kind)) => self.disturb(Verb::RenewLeases, fault, kind, call).await,
        }
    }

    async fn settle_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        let refusal = |settlement: &Settlement| self.faults.lock().refused.get(&settlement.job).copied();
        let refused = settlements.iter().find_map(refusal);
        let call = async {
            if let Some(kind) = refused {
                return Err(StateError::new(kind, "made to fail: a row cannot be written"));
            }
            let is_locked = |settlement: &Settlement| self.faults.lock().locked.contains(&settlement.job);
            let locked: Vec<bool> = settlements.iter().map(is_locked).collect();
            if !locked.contains(&true) {
                return self.inner.settle_jobs(within, settlements).await;
            }
            let free = settlements.iter().zip(&locked).filter(|(_, locked)| !**locked);
            let free: Vec<Settlement> = free.map(|(settlement, _)| settlement.clone()).collect();
            let mut settled = self.inner.settle_jobs(within, &free).await?.into_iter();
            let answers = locked
                .iter()
                .map(|locked| if *locked { Some(Settled::Busy) } else { settled.next() });
            Ok(answers.flatten().collect())
        };
        self.call(Verb::SettleJobs, settlements.len(), call).await
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        self.call(Verb::ReapLeases, reap.limit, self.inner.reap_leases(reap))
            .await
    }

    async fn hold_lease(
        &self,
        connection: &mut Self::Connection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        let call = self.inner.hold_lease(connection, job, fence);
        self.call(Verb::HoldLease, 1, call).await
    }

    async fn lock_chain(
        &self,
        connection: &mut Self::Connection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        self.call(Verb::LockChain, 1, self.inner.lock_chain(connection, chain))
            .await
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let call = self.inner.trigger_jobs(within, jobs);
        self.call(Verb::TriggerJobs, jobs.len(), call).await
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let call = self.inner.cancel_chains(within, chains);
        self.call(Verb::CancelChains, chains.len(), call).await
    }

    async fn retry_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        let call = self.inner.retry_chains(within, chains);
        self.call(Verb::RetryChains, chains.len(), call).await
    }

    async fn delete_chains(
        &self,
        within: Option<&mut Self::Connection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        let call = self.inner.delete_chains(within, delete);
        self.call(Verb::DeleteChains, delete.chains.len(), call).await
    }

    async fn get_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        jobs: &[JobId],
    ) -> Result<Vec<JobRecord>, StateError> {
        self.call(Verb::GetJobs, jobs.len(), self.inner.get_jobs(within, jobs))
            .await
    }

    async fn get_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        let call = self.inner.get_chains(within, chains);
        self.call(Verb::GetChains, chains.len(), call).await
    }

    async fn list_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        self.call(Verb::ListJobs, 1, self.inner.list_jobs(within, query)).await
    }

    async fn list_chains(
        &self,
        within: Option<&mut Self::Connection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.call(Verb::ListChains, 1, self.inner.list_chains(within, query))
            .await
    }

    async fn list_blockers(
        &self,
        within: Option<&mut Self::Connection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.call(Verb::ListBlockers, 1, self.inner.list_blockers(within, job))
            .await
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        self.call(Verb::Watermark, 1, self.inner.watermark()).await
    }

    /// Not counted: it is no call to the store while nothing has happened.
    async fn owner_died(&self, since: Instant) {
        self.inner.owner_died(since).await;
    }

    async fn maintain(&self, maintain: &Maintain) -> Result<Maintained, StateError> {
        self.call(Verb::Maintain, 1, self.inner.maintain(maintain)).await
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        let count = sample.types.len();
        self.call(Verb::SampleQueues, count, self.inner.sample_queues(sample))
            .await
    }
}
