//! A state adapter that counts the calls of another one and fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::adapter::{RenewLease, Renewal, Settled, Settlement, StateAdapter};
use queuert::{JobId, StateError, StateErrorKind, Timestamp};
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
    ListPauses,
    PutPause,
    DeletePause,
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

    /// The verb of this name. Those that [`Faulty`] implements itself are not among them.
    fn named(name: &str) -> Self {
        match name {
            "begin" => Self::Begin,
            "commit" => Self::Commit,
            "rollback" => Self::Rollback,
            "savepoint" => Self::Savepoint,
            "release_savepoint" => Self::ReleaseSavepoint,
            "rollback_to_savepoint" => Self::RollbackToSavepoint,
            "create_chains" => Self::CreateChains,
            "claim_jobs" => Self::ClaimJobs,
            "claimed_jobs" => Self::ClaimedJobs,
            "reap_leases" => Self::ReapLeases,
            "hold_lease" => Self::HoldLease,
            "lock_chain" => Self::LockChain,
            "trigger_jobs" => Self::TriggerJobs,
            "cancel_chains" => Self::CancelChains,
            "retry_chains" => Self::RetryChains,
            "delete_chains" => Self::DeleteChains,
            "get_jobs" => Self::GetJobs,
            "get_chains" => Self::GetChains,
            "list_jobs" => Self::ListJobs,
            "list_chains" => Self::ListChains,
            "list_blockers" => Self::ListBlockers,
            "list_pauses" => Self::ListPauses,
            "put_pause" => Self::PutPause,
            "delete_pause" => Self::DeletePause,
            "watermark" => Self::Watermark,
            "maintain" => Self::Maintain,
            "sample_queues" => Self::SampleQueues,
            name => panic!("`Verb` has no `{name}`: add it"),
        }
    }
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

    /// A call of the verb of this name.
    async fn verb<T>(
        &self,
        name: &'static str,
        items: usize,
        call: impl Future<Output = Result<T, StateError>>,
    ) -> Result<T, StateError> {
        self.call(Verb::named(name), items, call).await
    }

    async fn settle(
        &self,
        settlements: &[Settlement],
        call: impl Future<Output = Result<Vec<Settled>, StateError>>,
    ) -> Result<Vec<Settled>, StateError> {
        let refusal = |settlement: &Settlement| self.faults.lock().refused.get(&settlement.job).copied();
        let refused = settlements.iter().find_map(refusal);
        let call = async {
            match refused {
                Some(kind) => Err(StateError::new(kind, "made to fail: a row cannot be written")),
                None => call.await,
            }
        };
        self.call(Verb::SettleJobs, settlements.len(), call).await
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

    queuert::forward_state! {
        self => self.inner, via verb;
        except catch_up, shield, unshield, renew_leases, settle_jobs, settle_in
    }

    /// Not counted: the library does it around a verb.
    async fn catch_up(&self, transaction: &mut Self::Transaction) -> Result<(), StateError> {
        self.inner.catch_up(transaction).await
    }

    /// Not counted: the library does it around a verb.
    async fn shield(&self, connection: &mut Self::Connection) -> Result<(), StateError> {
        self.inner.shield(connection).await
    }

    /// Not counted.
    async fn unshield(&self, connection: &mut Self::Connection) -> Result<(), StateError> {
        self.inner.unshield(connection).await
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
        let is_locked = |settlement: &Settlement| self.faults.lock().locked.contains(&settlement.job);
        let locked: Vec<bool> = settlements.iter().map(is_locked).collect();
        if !locked.contains(&true) {
            let call = self.inner.settle_jobs(within, settlements);
            return self.settle(settlements, call).await;
        }
        let free = settlements.iter().zip(&locked).filter(|(_, locked)| !**locked);
        let free: Vec<Settlement> = free.map(|(settlement, _)| settlement.clone()).collect();
        let call = async {
            let mut settled = self.inner.settle_jobs(within, &free).await?.into_iter();
            let answers = locked
                .iter()
                .map(|locked| if *locked { Some(Settled::Busy) } else { settled.next() });
            Ok(answers.flatten().collect())
        };
        self.settle(settlements, call).await
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        let call = self.inner.settle_in(transaction, settlements);
        self.settle(settlements, call).await
    }
}
