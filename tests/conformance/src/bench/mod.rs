//! A store under test, with its verbs in few words: what a case does not ask about is an assertion here.

mod attempt;
mod open;
mod verbs;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{
    BlockerOutputs, ClaimJobs, ClaimType, Claimed, ReapLeases, ReapType, ReapedJob, RenewLease, Renewal, StateAdapter,
};
use queuert::{Fence, JobId, RetryPolicy, StateError, Timestamp};

pub(crate) use attempt::Attempt;
pub(crate) use open::Open;
pub(crate) use waiting::End;

use crate::draft::draft;
use crate::fixture::{Capabilities, StateFixture};
use crate::identity;

/// A lease that does not expire during a case.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A lease or delay that a case outlives.
pub(crate) const SHORT: Duration = Duration::from_millis(60);

/// Long enough for two times to differ on any clock.
pub(crate) const TICK: Duration = Duration::from_millis(3);

/// The attempts that a sweep grants to types that say nothing.
pub(crate) const MANY_ATTEMPTS: u32 = 25;

/// A backoff that is over as soon as there is another call.
const AT_ONCE: Duration = Duration::from_micros(1);

/// The worker that claims unless a case names another.
pub(crate) const WORKER: &str = "worker";

pub(crate) struct Bench<F: StateFixture> {
    fixture: Arc<F>,
    state: Arc<F::State>,
}

impl<F: StateFixture> Clone for Bench<F> {
    fn clone(&self) -> Self {
        Self {
            fixture: Arc::clone(&self.fixture),
            state: Arc::clone(&self.state),
        }
    }
}

/// The answer of a store that is well.
pub(crate) fn answer<T>(result: Result<T, StateError>) -> T {
    match result {
        Ok(answer) => answer,
        Err(error) => panic!("the store failed ({:?}): {error}", error.kind()),
    }
}

impl<F: StateFixture> Bench<F> {
    pub(crate) async fn new(fixture: F) -> Self {
        let state = fixture.state().await;
        Self {
            fixture: Arc::new(fixture),
            state: Arc::new(state),
        }
    }

    pub(crate) fn state(&self) -> &F::State {
        &self.state
    }

    pub(crate) fn fixture(&self) -> &F {
        &self.fixture
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.fixture.capabilities()
    }

    /// Whether a transaction with writes may stay open while others write; says so if not.
    pub(crate) fn has_concurrent_writers(&self) -> bool {
        has(
            self.capabilities().concurrent_writers,
            "the store has one writer at a time",
        )
    }

    /// Whether the store finds out that a process has died; says so if not.
    pub(crate) fn knows_the_dead(&self) -> bool {
        has(
            self.capabilities().owners,
            "the store does not find out that a process has died",
        )
    }

    /// Another process on the store.
    pub(crate) async fn twin(&self) -> Self {
        Self {
            fixture: Arc::clone(&self.fixture),
            state: Arc::new(self.fixture.twin(&self.state).await),
        }
    }

    /// The process of a twin dies.
    pub(crate) async fn kill(&self, twin: Self) {
        let state = Arc::into_inner(twin.state).expect("nobody else has this twin");
        self.fixture.kill(state).await;
    }

    pub(crate) async fn elapse(&self, time: Duration) {
        self.fixture.elapse(&self.state, time).await;
    }

    /// The store's clock, read from a row that was just written.
    pub(crate) async fn now(&self) -> Timestamp {
        let probe = self.start("clock-probe").await;
        let now = self.chain(probe).await.created_at;
        self.delete(&[probe]).await.expect("nothing depends on the probe");
        now
    }

    pub(crate) async fn begin(&self) -> Open<F> {
        let transaction = answer(self.state.begin().await);
        Open::new(self.clone(), transaction)
    }

    pub(crate) async fn claim_as(&self, worker: &'static str, types: &[(&str, Duration)], limit: usize) -> Claimed {
        let types = types
            .iter()
            .map(|(name, lease)| ClaimType {
                name: (*name).to_owned().into(),
                lease: *lease,
            })
            .collect();
        let claim = ClaimJobs::new(types, limit, identity::worker(worker), identity::fence());
        answer(self.state.claim_jobs(&claim).await)
    }

    /// Claims jobs of these types with long leases.
    pub(crate) async fn claim(&self, types: &[&str], limit: usize) -> Claimed {
        let types: Vec<_> = types.iter().map(|name| (*name, LONG)).collect();
        self.claim_as(WORKER, &types, limit).await
    }

    /// The same with inputs of so many bytes, beyond the first `at_least` jobs.
    pub(crate) async fn claim_within(&self, types: &[&str], limit: usize, at_least: usize, bytes: usize) -> Claimed {
        let types = types.iter().map(|name| ClaimType {
            name: (*name).to_owned().into(),
            lease: LONG,
        });
        let claim = ClaimJobs::new(types.collect(), limit, identity::worker(WORKER), identity::fence());
        answer(self.state.claim_jobs(&claim.within_bytes(at_least, bytes)).await)
    }

    /// The same with what is expected of the outputs of blockers.
    pub(crate) async fn claim_expecting(
        &self,
        type_name: &str,
        at_least: usize,
        bytes: usize,
        outputs: &BlockerOutputs,
    ) -> Claimed {
        let claimed = ClaimType {
            name: type_name.to_owned().into(),
            lease: LONG,
        };
        let claim = ClaimJobs::new(vec![claimed], 10, identity::worker(WORKER), identity::fence());
        let claim = claim.within_bytes(at_least, bytes).expecting(outputs.clone());
        answer(self.state.claim_jobs(&claim).await)
    }

    /// What runs under a fence, in order of id.
    pub(crate) async fn claimed(&self, fence: Fence) -> Vec<Attempt> {
        let claimed = answer(self.state.claimed_jobs(fence).await);
        let mut attempts: Vec<Attempt> = claimed.into_iter().map(Attempt::new).collect();
        attempts.sort_unstable_by_key(Attempt::id);
        attempts
    }

    /// The ids of the jobs that a claim takes, in its order.
    pub(crate) async fn claim_ids(&self, types: &[&str], limit: usize) -> Vec<JobId> {
        let claimed = self.claim(types, limit).await;
        claimed.jobs.iter().map(|claimed| claimed.job.id).collect()
    }

    /// Claims the next job of a type, which must be there.
    pub(crate) async fn attempt(&self, type_name: &str) -> Attempt {
        self.attempt_by(WORKER, type_name, LONG).await
    }

    pub(crate) async fn attempt_for(&self, type_name: &str, lease: Duration) -> Attempt {
        self.attempt_by(WORKER, type_name, lease).await
    }

    pub(crate) async fn attempt_by(&self, worker: &'static str, type_name: &str, lease: Duration) -> Attempt {
        let mut claimed = self.claim_as(worker, &[(type_name, lease)], 1).await;
        let claimed = claimed
            .jobs
            .pop()
            .unwrap_or_else(|| panic!("no job of type `{type_name}` could be claimed"));
        Attempt::new(claimed)
    }

    /// An attempt whose lease has expired by the store's clock.
    pub(crate) async fn expired_attempt(&self, type_name: &str) -> Attempt {
        let attempt = self.attempt_for(type_name, SHORT).await;
        self.elapse(SHORT * 2).await;
        attempt
    }

    pub(crate) async fn renew_for(&self, attempt: &Attempt, lease: Duration) -> Renewal {
        let renewal = RenewLease {
            job: attempt.id(),
            fence: attempt.fence,
            lease,
        };
        let mut renewed = answer(self.state.renew_leases(None, &[renewal]).await);
        assert_eq!(renewed.len(), 1, "one renewal has one answer");
        renewed.remove(0)
    }

    pub(crate) async fn renew(&self, attempt: &Attempt) -> Renewal {
        self.renew_for(attempt, LONG).await
    }

    pub(crate) async fn reap_with(&self, types: &[(&str, u32)], limit: usize, except: &[JobId]) -> Vec<ReapedJob> {
        let types = types
            .iter()
            .map(|(name, max_attempts)| {
                let retry = RetryPolicy::new().max_attempts(*max_attempts).initial(AT_ONCE);
                ReapType::new((*name).to_owned(), retry.maximum(AT_ONCE), SHORT)
            })
            .collect();
        self.reap_as(types, limit, except).await
    }

    /// The same with the whole settings of the types.
    pub(crate) async fn reap_as(&self, types: Vec<ReapType>, limit: usize, except: &[JobId]) -> Vec<ReapedJob> {
        answer(
            self.state
                .reap_leases(&ReapLeases::new(types, limit, except.to_vec()))
                .await,
        )
    }

    /// Takes all expired leases of one type.
    pub(crate) async fn reap(&self, type_name: &str) -> Vec<ReapedJob> {
        self.reap_with(&[(type_name, MANY_ATTEMPTS)], 100, &[]).await
    }

    /// A chain of this type that has completed with this output.
    pub(crate) async fn start_completed(&self, type_name: &str, output: &str) -> queuert::ChainId {
        let chain = self.start(type_name).await;
        self.complete_outside(chain, output).await;
        chain
    }

    /// Completes a chain from outside, in a transaction of its own.
    pub(crate) async fn complete_outside(&self, chain: queuert::ChainId, output: &str) -> queuert::adapter::Applied {
        let mut open = self.begin().await;
        let applied = open.complete_outside(chain, output).await;
        open.commit().await;
        applied
    }

    /// A chain of this type that is dead.
    pub(crate) async fn start_dead(&self, type_name: &str) -> queuert::ChainId {
        let chain = self.start(type_name).await;
        let attempt = self.attempt(type_name).await;
        assert_eq!(attempt.job.chain_id, chain, "the only due job of its type is claimed");
        self.apply(&attempt, crate::draft::bury("fatal")).await;
        chain
    }

    /// Chains of this type, created one after another.
    pub(crate) async fn start_in_turn(&self, type_name: &str, count: usize) -> Vec<queuert::ChainId> {
        let mut chains = Vec::with_capacity(count);
        for _ in 0..count {
            chains.push(self.start(type_name).await);
            self.elapse(TICK).await;
        }
        chains
    }

    /// Chains of this type, created by one call and so at the same moment.
    pub(crate) async fn start_at_once(&self, type_name: &str, count: usize) -> Vec<queuert::ChainId> {
        let chains: Vec<_> = (0..count).map(|_| draft(type_name).chain()).collect();
        let created = self.create(&chains).await.expect("nothing is wrong with the batch");
        created.iter().map(|chain| chain.id).collect()
    }
}

/// Whether the store can do it; says that the case was left out if not.
pub(crate) fn has(ability: bool, otherwise: &str) -> bool {
    if !ability {
        let case = std::thread::current().name().unwrap_or("a case").to_owned();
        eprintln!("skipped {case}: {otherwise}");
    }
    ability
}
