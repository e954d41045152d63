//! The verbs that work alike by themselves and within an open transaction.

use std::time::Duration;

use queuert::adapter::{
    Applied, ChainQuery, CreatedChain, DeleteChains, JobQuery, NewChain, Outcome, Refusal, Settled, Settlement,
    StateAdapter, StoppedChain,
};
use queuert::{ChainId, ChainRecord, JobId, JobRecord, JobStatus};

use super::{Attempt, Bench, Open, answer};
use crate::draft::{self, Draft, draft};
use crate::fixture::StateFixture;

/// How long to wait before asking again for what was busy.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

macro_rules! verbs {
    ([$($receiver:tt)+] $this:ident, $state:expr, $within:expr) => {
        /// Starts chains, or says why not.
        pub(crate) async fn create($($receiver)+, chains: &[NewChain]) -> Result<Vec<CreatedChain>, Refusal> {
            let created = answer($state.create_chains($within, chains).await);
            if let Ok(created) = &created {
                assert_eq!(created.len(), chains.len(), "one answer for each chain of the request");
            }
            created
        }

        /// Starts one chain, or says why not.
        pub(crate) async fn create_one($($receiver)+, draft: Draft) -> Result<CreatedChain, Refusal> {
            $this.create(&[draft.chain()]).await.map(|mut created| created.remove(0))
        }

        /// Starts a chain that must not be there yet.
        pub(crate) async fn start_as($($receiver)+, draft: Draft) -> ChainId {
            let created = $this.create_one(draft).await.expect("nothing is wrong with the chain");
            assert!(!created.deduplicated, "the chain is new");
            created.id
        }

        /// Starts a chain of this type.
        pub(crate) async fn start($($receiver)+, type_name: &str) -> ChainId {
            $this.start_as(draft(type_name)).await
        }

        /// Starts a chain that waits for others.
        pub(crate) async fn start_blocked($($receiver)+, type_name: &str, blockers: &[ChainId]) -> ChainId {
            $this.start_as(draft(type_name).blocked_by(blockers)).await
        }

        /// Settles, and asks again for what is busy, as a worker does.
        pub(crate) async fn settle_all($($receiver)+, settlements: &[Settlement]) -> Vec<Settled> {
            let mut settled = $this.settle_at_once(settlements).await;
            for (settlement, settled) in settlements.iter().zip(&mut settled) {
                while *settled == Settled::Busy {
                    tokio::time::sleep(BUSY_PAUSE).await;
                    *settled = $this.settle_at_once(std::slice::from_ref(settlement)).await.remove(0);
                }
            }
            settled
        }

        pub(crate) async fn settle_at_once($($receiver)+, settlements: &[Settlement]) -> Vec<Settled> {
            let settled = answer($state.settle_jobs($within, settlements).await);
            assert_eq!(settled.len(), settlements.len(), "one answer for each settlement");
            settled
        }

        pub(crate) async fn settle($($receiver)+, attempt: &Attempt, outcome: Outcome) -> Settled {
            $this.settle_all(&[attempt.settlement(outcome)]).await.remove(0)
        }

        /// Settles an attempt that must hold its job.
        pub(crate) async fn apply($($receiver)+, attempt: &Attempt, outcome: Outcome) -> Applied {
            match $this.settle(attempt, outcome).await {
                Settled::Applied(applied) => applied,
                other => panic!("the settlement was not applied: {other:?}"),
            }
        }

        pub(crate) async fn finish($($receiver)+, attempt: &Attempt) -> Applied {
            $this.apply(attempt, draft::finish("null")).await
        }

        /// Continues with a job of this type and returns its id.
        pub(crate) async fn continue_with($($receiver)+, attempt: &Attempt, type_name: &str) -> JobId {
            let next = draft(type_name);
            let id = next.id();
            let applied = $this.apply(attempt, next.next()).await;
            assert_eq!(applied.next, Some(JobStatus::Pending), "the next job is pending");
            id
        }

        pub(crate) async fn trigger($($receiver)+, jobs: &[JobId]) -> Result<Vec<JobRecord>, Refusal> {
            answer($state.trigger_jobs($within, jobs).await)
        }

        pub(crate) async fn cancel($($receiver)+, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
            answer($state.cancel_chains($within, chains).await)
        }

        pub(crate) async fn retry($($receiver)+, chains: &[ChainId]) -> Result<Vec<JobRecord>, Refusal> {
            answer($state.retry_chains($within, chains).await)
        }

        pub(crate) async fn delete($($receiver)+, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
            answer($state.delete_chains($within, &DeleteChains::new(chains.to_vec(), false)).await)
        }

        pub(crate) async fn delete_cascade($($receiver)+, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
            answer($state.delete_chains($within, &DeleteChains::new(chains.to_vec(), true)).await)
        }

        pub(crate) async fn jobs($($receiver)+, jobs: &[JobId]) -> Vec<JobRecord> {
            answer($state.get_jobs($within, jobs).await)
        }

        pub(crate) async fn chains($($receiver)+, chains: &[ChainId]) -> Vec<ChainRecord> {
            answer($state.get_chains($within, chains).await)
        }

        /// A job that must be there.
        pub(crate) async fn job($($receiver)+, job: JobId) -> JobRecord {
            $this.jobs(&[job]).await.pop().expect("the job is there")
        }

        /// A chain that must be there.
        pub(crate) async fn chain($($receiver)+, chain: ChainId) -> ChainRecord {
            $this.chains(&[chain]).await.pop().expect("the chain is there")
        }

        pub(crate) async fn exists($($receiver)+, chain: ChainId) -> bool {
            !$this.chains(&[chain]).await.is_empty()
        }

        /// The status of a chain, which is that of its latest job.
        pub(crate) async fn status($($receiver)+, chain: ChainId) -> JobStatus {
            let chain = $this.chain(chain).await;
            let latest = $this.job(chain.latest_job).await;
            assert_eq!(chain.status, latest.status, "a chain has the status of its latest job");
            chain.status
        }

        pub(crate) async fn list_jobs($($receiver)+, query: &JobQuery) -> Vec<JobRecord> {
            answer($state.list_jobs($within, query).await)
        }

        pub(crate) async fn list_chains($($receiver)+, query: &ChainQuery) -> Vec<ChainRecord> {
            answer($state.list_chains($within, query).await)
        }

        pub(crate) async fn blockers($($receiver)+, job: JobId) -> Vec<ChainRecord> {
            answer($state.list_blockers($within, job).await)
        }
    };
}

impl<F: StateFixture> Bench<F> {
    verbs!([&self] self, self.state, None);
}

#[expect(
    dead_code,
    reason = "both receivers have all verbs; not every case needs each within a transaction"
)]
impl<F: StateFixture> Open<F> {
    verbs!([&mut self] self, self.bench.state, Some(&mut *self.transaction));
}
