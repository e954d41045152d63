//! A transaction that a case holds open.

use std::time::Duration;

use queuert::adapter::{Applied, Authority, Outcome, RenewLease, Renewal, Settled, Settlement, StateAdapter};
use queuert::{AbortReason, ChainId, JobId, JobRecord, StateError};

use super::{Attempt, Bench, answer};
use crate::draft;
use crate::fixture::StateFixture;

pub(crate) struct Open<F: StateFixture> {
    pub(super) bench: Bench<F>,
    pub(super) transaction: <F::State as StateAdapter>::Transaction,
}

impl<F: StateFixture> Open<F> {
    pub(super) fn new(bench: Bench<F>, transaction: <F::State as StateAdapter>::Transaction) -> Self {
        Self { bench, transaction }
    }

    pub(crate) async fn try_commit(self) -> Result<(), StateError> {
        self.bench.state.commit(self.transaction).await
    }

    pub(crate) async fn commit(self) {
        answer(self.try_commit().await);
    }

    pub(crate) async fn rollback(self) {
        answer(self.bench.state.rollback(self.transaction).await);
    }

    pub(crate) async fn savepoint(&mut self, depth: u32) {
        answer(self.bench.state.savepoint(&mut self.transaction, depth).await);
    }

    pub(crate) async fn release_savepoint(&mut self, depth: u32) {
        answer(self.bench.state.release_savepoint(&mut self.transaction, depth).await);
    }

    pub(crate) async fn rollback_to_savepoint(&mut self, depth: u32) {
        answer(
            self.bench
                .state
                .rollback_to_savepoint(&mut self.transaction, depth)
                .await,
        );
    }

    pub(crate) async fn poison(&mut self) {
        self.bench.fixture.poison(&mut self.transaction).await;
    }

    pub(crate) async fn write_marker(&mut self, marker: &str) {
        self.bench.fixture.write_marker(&mut self.transaction, marker).await;
    }

    pub(crate) async fn try_lock(&mut self, chain: ChainId) -> Result<Option<JobRecord>, StateError> {
        self.bench.state.lock_chain(&mut self.transaction, chain).await
    }

    pub(crate) async fn lock(&mut self, chain: ChainId) -> Option<JobRecord> {
        answer(self.try_lock(chain).await)
    }

    pub(crate) async fn hold(&mut self, attempt: &Attempt) -> Result<(), AbortReason> {
        answer(
            self.bench
                .state
                .hold_lease(&mut self.transaction, attempt.id(), attempt.fence)
                .await,
        )
    }

    pub(crate) async fn renew(&mut self, attempt: &Attempt, lease: Duration) -> Renewal {
        let renewal = RenewLease {
            job: attempt.id(),
            fence: attempt.fence,
            lease,
        };
        let state = &self.bench.state;
        let renewed = answer(state.renew_leases(Some(&mut self.transaction), &[renewal]).await);
        assert_eq!(renewed.len(), 1, "one renewal has one answer");
        renewed[0]
    }

    /// Settles a job from outside; the case has locked its chain.
    pub(crate) async fn settle_outside(&mut self, job: JobId, outcome: Outcome) -> Settled {
        let settlement = Settlement {
            job,
            authority: Authority::Outside,
            outcome,
        };
        self.settle_all(&[settlement]).await.remove(0)
    }

    /// Locks a chain and finishes its latest job.
    pub(crate) async fn complete_outside(&mut self, chain: ChainId, output: &str) -> Applied {
        let job = self.lock(chain).await.expect("the chain is there");
        match self.settle_outside(job.id, draft::finish(output)).await {
            Settled::Applied(applied) => applied,
            other => panic!("the chain could not be completed from outside: {other:?}"),
        }
    }
}
