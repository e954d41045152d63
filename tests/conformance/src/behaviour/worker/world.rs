//! What the cases stand on: a store whose calls are counted and can fail, clients, and waiting for conditions.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queuert::adapter::{ClaimJobs, ClaimType, ReapLeases, ReapType, StateAdapter};
use queuert::{
    Attempt, ChainHandle, ChainId, ChainRecord, Client, Entry, Event, EventStream, Fence, JobId, JobRecord, JobStatus,
    RetryPolicy, WorkerBuilder, WorkerId, Workers,
};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::behaviour::PairFixture;
use crate::faulty::{Faults, Faulty};
use crate::faulty_notify::FaultyNotify;
use crate::fixture::StateFixture;

/// The state adapter of the cases.
pub(crate) type State<F> = Faulty<<F as StateFixture>::State>;
/// An attempt on it.
pub(crate) type Job<F, J> = Attempt<J, State<F>>;
/// What a processor on it returns.
pub(crate) type JobResult<F> = queuert::JobResult<State<F>>;

/// Longer than anything takes that happens at all.
const LIMIT: Duration = Duration::from_secs(20);
/// How often conditions are looked at.
const LOOK: Duration = Duration::from_millis(5);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Retries after a millisecond, so that cases need not wait.
pub(crate) const SOON: RetryPolicy = RetryPolicy::new().initial(ms(1)).maximum(ms(5));

/// A lease that is longer than any backoff: what expires is due at once.
const LONGEST_BACKOFF: Duration = Duration::from_secs(3_600);

/// Says that a case, or a part of it, was left out.
pub(crate) fn skip(why: &str) {
    eprintln!("left out: {why}");
}

/// A store, and a client on it.
pub(crate) struct World<F: PairFixture> {
    pub(crate) fixture: Arc<F>,
    pub(crate) state: State<F>,
    pub(crate) faults: Faults,
    pub(crate) notify: FaultyNotify,
    pub(crate) client: Client<State<F>>,
}

impl<F: PairFixture> World<F> {
    pub(crate) async fn new(fixture: F) -> Self {
        let state = Faulty::new(fixture.state().await);
        let notify = FaultyNotify::new(fixture.notify().await);
        let client = Client::builder(state.clone()).notify(notify.clone()).build();
        Self {
            fixture: Arc::new(fixture),
            faults: state.faults().clone(),
            state,
            notify,
            client,
        }
    }

    /// The client of another process on the same store, whose calls are counted and fail apart.
    pub(crate) fn other_process(&self) -> (Client<State<F>>, Faults) {
        let state = self.state.twin();
        let faults = state.faults().clone();
        (Client::builder(state).notify(self.notify.clone()).build(), faults)
    }

    /// A worker that polls often and retries soon.
    pub(crate) fn worker(&self) -> WorkerBuilder<State<F>> {
        eager(&self.client)
    }

    /// The output of a chain, once it completed.
    pub(crate) async fn output<H: ChainHandle>(&self, chain: H) -> <H::Entry as Entry>::Output {
        let wait = self.client.wait(chain).poll_interval(LOOK * 2).timeout(LIMIT);
        match wait.await {
            Ok(output) => output,
            Err(error) => panic!("the chain should complete: {error}"),
        }
    }

    pub(crate) async fn chain(&self, chain: impl Into<ChainId>) -> ChainRecord {
        let chain = self.client.get_chain_record(chain).await.expect("chains can be read");
        chain.expect("the chain exists")
    }

    /// The latest job of a chain.
    pub(crate) async fn latest(&self, chain: impl Into<ChainId>) -> JobRecord {
        let latest = self.chain(chain).await.latest_job;
        self.job(latest).await
    }

    pub(crate) async fn job(&self, job: JobId) -> JobRecord {
        let job = self.client.get_job_record(job).await.expect("jobs can be read");
        job.expect("the job exists")
    }

    pub(crate) async fn jobs(&self, chain: impl Into<ChainId>) -> Vec<JobRecord> {
        let page = self.client.list_chain_jobs(chain).await.expect("jobs can be listed");
        page.items
    }

    /// Waits until the latest job of a chain is in this status.
    pub(crate) async fn until(&self, chain: impl Into<ChainId>, status: JobStatus) -> JobRecord {
        let chain = chain.into();
        eventually(&format!("the chain is {status}"), async || {
            let latest = self.latest(chain).await;
            (latest.status == status).then_some(latest)
        })
        .await
    }

    pub(crate) async fn elapse(&self, time: Duration) {
        self.fixture.elapse(self.state.inner(), time).await;
    }

    /// Claims one job behind the workers' back, as a process does that dies afterwards.
    pub(crate) async fn claim_and_die(&self, type_name: &'static str, lease: Duration) -> JobRecord {
        let types = vec![ClaimType {
            name: type_name.into(),
            lease,
        }];
        let claim = ClaimJobs::new(
            types,
            1,
            WorkerId::new("the-dead"),
            Fence::from_uuid(Uuid::from_u128(1)),
        );
        let claimed = self
            .state
            .inner()
            .claim_jobs(&claim)
            .await
            .expect("jobs can be claimed");
        let job = claimed.jobs.into_iter().next().expect("a job was due");
        job.job
    }

    /// Takes expired leases of a type behind the workers' back, until there was one.
    pub(crate) async fn reap_one(&self, type_name: &'static str) -> JobRecord {
        eventually("a lease expires", async || {
            let types = vec![ReapType::new(type_name, SOON, LONGEST_BACKOFF)];
            let reap = ReapLeases::new(types, 1, Vec::new());
            let reaped = self
                .state
                .inner()
                .reap_leases(&reap)
                .await
                .expect("leases can be reaped");
            reaped.into_iter().next().map(|reaped| reaped.job)
        })
        .await
    }
}

/// A worker that polls often and retries soon.
pub(crate) fn eager<S: StateAdapter>(client: &Client<S>) -> WorkerBuilder<S> {
    client.worker().poll_interval(ms(20)).retry(SOON).grace(ms(100))
}

/// Looks until there is something to see.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < LIMIT, "it never happens that {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits for something that should come soon.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("it never happens that {what}"),
    }
}

/// Reads events until one that fits, and returns it with those before it.
pub(crate) async fn events_until(events: &mut EventStream, fits: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut seen = Vec::new();
    let read = async {
        loop {
            let event = events.next().await.expect("the client lives");
            let last = fits(&event);
            seen.push(event);
            if last {
                return;
            }
        }
    };
    if tokio::time::timeout(LIMIT, read).await.is_err() {
        panic!("the event never comes; there were {seen:#?}");
    }
    seen
}

/// Everything that is in the stream by now.
pub(crate) fn drain_events(events: &mut EventStream) -> Vec<Event> {
    std::iter::from_fn(|| events.try_next()).collect()
}

pub(crate) async fn start<S: StateAdapter>(worker: WorkerBuilder<S>) -> Workers<S> {
    worker.start().await.expect("the worker starts")
}

/// Holds processors until it is opened, and tells how many have arrived.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self {
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Passes when the gate is open.
    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("the gate is there");
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn arrivals(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Waits until so many have arrived, also those that have passed.
    pub(crate) async fn arrived(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        let enough = soon(
            "enough attempts arrive at the gate",
            arrived.wait_for(|arrived| *arrived >= count),
        )
        .await;
        enough.expect("the gate is there");
    }
}

/// A list that processors add to and cases read.
pub(crate) struct Log<T>(Arc<std::sync::Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.lock().expect("nobody panics with the list").push(entry);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().expect("nobody panics with the list").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.all().len()
    }

    /// Waits until there are so many.
    pub(crate) async fn until_len(&self, count: usize) -> Vec<T> {
        eventually("the list is long enough", async || {
            (self.len() >= count).then(|| self.all())
        })
        .await
    }
}
