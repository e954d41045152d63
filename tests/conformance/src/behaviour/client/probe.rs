//! What the cases look at, and how they put a store into a state that they need.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{
    Authority, ClaimJobs, ClaimType, ClaimedJob, NewChain, NewJob, Outcome, Settled, Settlement, StateAdapter,
};
use queuert::{
    AbortReason, Attempt, ChainId, ChainRecord, Client, Fence, JobId, JobRecord, JobStatus, Page, Payload, WorkerId,
    Workers,
};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::jobs::{Greet, hasty};
use crate::behaviour::PairFixture;

/// An id of the caller's own.
pub(crate) fn own_id(number: u128) -> JobId {
    JobId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | number))
}

/// The id of a chain that is in no store.
pub(crate) fn unknown_chain() -> ChainId {
    own_id(0xdead).as_chain()
}

/// The chain as it is stored.
pub(crate) async fn chain<S: StateAdapter>(client: &Client<S>, id: impl Into<ChainId>) -> ChainRecord {
    let found = client.get_chain_record(id).await.expect("the chain can be read");
    found.expect("the chain exists")
}

/// The chain's status.
pub(crate) async fn status<S: StateAdapter>(client: &Client<S>, id: impl Into<ChainId>) -> JobStatus {
    chain(client, id).await.status
}

/// The job as it is stored.
pub(crate) async fn job<S: StateAdapter>(client: &Client<S>, id: JobId) -> JobRecord {
    let found = client.get_job_record(id).await.expect("the job can be read");
    found.expect("the job exists")
}

/// The latest job of a chain as it is stored.
pub(crate) async fn latest<S: StateAdapter>(client: &Client<S>, id: impl Into<ChainId>) -> JobRecord {
    let chain = chain(client, id).await;
    job(client, chain.latest_job).await
}

/// How many chains there are.
pub(crate) async fn chain_count<S: StateAdapter>(client: &Client<S>) -> usize {
    let page = client.list_chains().limit(1_000).await.expect("chains can be listed");
    assert!(page.next.is_none(), "the case has more chains than it counts");
    page.items.len()
}

/// How many jobs there are.
pub(crate) async fn job_count<S: StateAdapter>(client: &Client<S>) -> usize {
    let page = client.list_jobs().limit(1_000).await.expect("jobs can be listed");
    assert!(page.next.is_none(), "the case has more jobs than it counts");
    page.items.len()
}

pub(crate) fn chain_ids(page: &Page<ChainRecord>) -> Vec<ChainId> {
    page.items.iter().map(|chain| chain.id).collect()
}

pub(crate) fn job_ids(page: &Page<JobRecord>) -> Vec<JobId> {
    page.items.iter().map(|job| job.id).collect()
}

/// Starts a chain of any type with any text as its input, behind the client's back.
pub(crate) async fn smuggle<S: StateAdapter>(client: &Client<S>, id: JobId, type_name: &'static str, input: &str) {
    let new = NewChain::new(NewJob::new(id, type_name, Payload::from_text(input)));
    let created = client.state().create_chains(None, &[new]).await;
    created.expect("the store answers").expect("the chain can be started");
}

/// Takes the due jobs of a type as a worker would, under a fence of its own.
pub(crate) async fn claim<S: StateAdapter>(client: &Client<S>, type_name: &'static str) -> Vec<ClaimedJob> {
    let claim = ClaimJobs::new(
        vec![ClaimType {
            name: type_name.into(),
            lease: Duration::from_secs(60),
        }],
        100,
        WorkerId::new("prober"),
        Fence::from_uuid(Uuid::from_u128(0xfe)),
    );
    let claimed = client.state().claim_jobs(&claim).await;
    claimed.expect("the store answers").jobs
}

/// What the store says to the worker of [`claim`] when it finishes the job.
pub(crate) async fn finish_as_worker<S: StateAdapter>(client: &Client<S>, job: JobId) -> Settled {
    let settlement = Settlement {
        job,
        authority: Authority::Fence {
            fence: Fence::from_uuid(Uuid::from_u128(0xfe)),
            worker: WorkerId::new("prober"),
        },
        outcome: Outcome::Finish {
            output: Payload::from_text("\"by the worker\""),
        },
    };
    // A transaction that was dropped may hold its locks for a moment still.
    loop {
        let settled = client
            .state()
            .settle_jobs(None, std::slice::from_ref(&settlement))
            .await;
        match settled.expect("the store answers").remove(0) {
            Settled::Busy => tokio::time::sleep(Duration::from_millis(5)).await,
            settled => return settled,
        }
    }
}

/// Finishes the current job of a chain from outside with any text, behind the client's back.
pub(crate) async fn smuggle_output<S: StateAdapter>(client: &Client<S>, chain: ChainId, output: &str) {
    let state = client.state();
    let mut transaction = state.begin().await.expect("a transaction can be opened");
    let locked = state.lock_chain(&mut transaction, chain).await;
    let current = locked.expect("the store answers").expect("the chain exists");
    let settlement = Settlement {
        job: current.id,
        authority: Authority::Outside,
        outcome: Outcome::Finish {
            output: Payload::from_text(output),
        },
    };
    let settled = state.settle_jobs(Some(&mut transaction), &[settlement]).await;
    assert!(matches!(settled.expect("the store answers")[..], [Settled::Applied(_)]));
    state
        .commit(transaction)
        .await
        .expect("the transaction can be committed");
}

/// A worker whose attempt of a `Greet` runs until it is told to stop, and then tries to finish all the same.
pub(crate) struct Stubborn<S: StateAdapter> {
    workers: Workers<S>,
    runs: Arc<Notify>,
    told: mpsc::UnboundedReceiver<AbortReason>,
}

impl<S: StateAdapter> Stubborn<S> {
    pub(crate) async fn start(client: &Client<S>) -> Self {
        let runs = Arc::new(Notify::new());
        let (tell, told) = mpsc::unbounded_channel();
        let started = Arc::clone(&runs);
        let workers = hasty(client)
            .process(move |job: Attempt<Greet, S>| {
                let (started, tell) = (Arc::clone(&started), tell.clone());
                async move {
                    started.notify_one();
                    let reason = job.signal().aborted().await;
                    let _ = tell.send(reason);
                    job.finish("too late".to_owned())
                }
            })
            .start()
            .await
            .expect("the worker can be set up");
        Self { workers, runs, told }
    }

    /// Waits until an attempt runs.
    pub(crate) async fn runs(&self) {
        self.runs.notified().await;
    }

    /// Waits until the attempt is told to stop, and everything has come to rest.
    pub(crate) async fn told(mut self) -> AbortReason {
        let reason = self
            .told
            .recv()
            .await
            .expect("the attempt is told before the worker is gone");
        self.workers.stop().await;
        reason
    }
}

/// Watches something for a while and says whether it was done by then; it goes on afterwards.
pub(crate) async fn is_done<F: PairFixture, T>(fixture: &F, task: &mut (impl Future<Output = T> + Unpin)) -> bool {
    tokio::time::timeout(fixture.patience(), task).await.is_ok()
}
