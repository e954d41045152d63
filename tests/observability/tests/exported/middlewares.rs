//! The middlewares that are ready to use, and the rules that hold for them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use queuert::memory::{Attempt, MemoryState};
use queuert::middleware::{AttemptRequest, AttemptService, LimitConcurrency, ReportPanics, Timeout, TowerMiddleware};
use queuert::{
    AbortReason, AttemptContext, AttemptOutcome, Client, Drained, Event, JobError, JobStatus, JobTypes, Middleware,
    Next,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tower_layer::Layer;
use tower_service::Service;

#[derive(Serialize, Deserialize)]
struct Work {
    customer: u32,
}

#[derive(Serialize, Deserialize)]
struct Other;

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = (), retry(initial = "4m"))]
    Work(Work),
    #[job(entry, output = ())]
    Other(Other),
}

fn client() -> Client<MemoryState> {
    Client::new(MemoryState::new())
}

fn errors(drained: &Drained) -> Vec<&str> {
    drained.failures().into_iter().map(|(_, error)| error).collect()
}

#[tokio::test]
async fn a_timeout_covers_what_lies_inside_it() {
    struct Slow;
    impl Middleware<MemoryState> for Slow {
        async fn attempt(
            &self,
            job: &mut AttemptContext<MemoryState>,
            next: Next<'_, MemoryState>,
        ) -> queuert::memory::JobResult {
            tokio::time::sleep(Duration::from_millis(100)).await;
            next.run(job).await
        }
    }
    let client = client();
    let mut events = client.events();
    client.start(Work { customer: 1 }).await.unwrap();
    client.start(Other).await.unwrap();
    let signals = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&signals);
    let drained = client
        .worker()
        .middleware(Slow)
        .middleware(Timeout::new(Duration::from_millis(50)).and_of::<Other>(Duration::from_secs(60)))
        .process(move |job: Attempt<Work>| {
            seen.lock().unwrap().push(job.signal());
            std::future::pending()
        })
        .process(|job: Attempt<Other>| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            job.finish(())
        })
        .drain()
        .await
        .unwrap();
    assert_eq!(errors(&drained), ["timed out after 50ms"]);
    assert_eq!(drained.of::<Other>()[0].outcome, AttemptOutcome::Finished);
    assert_eq!(signals.lock().unwrap()[0].reason(), Some(AbortReason::TimedOut));
    let told = std::iter::from_fn(|| events.try_next());
    let timed_out =
        told.filter(|event| matches!(event, Event::AttemptTimedOut { timeout, .. } if timeout.as_millis() == 50));
    assert_eq!(timed_out.count(), 1);
}

#[tokio::test]
async fn panics_are_reported_and_count() {
    let client = client();
    client.start(Work { customer: 1 }).await.unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reports);
    let drained = client
        .worker()
        // One that panics itself hurts nobody.
        .middleware(ReportPanics::new(|_| panic!("in the reporter")))
        .middleware(ReportPanics::new(move |panic| {
            seen.lock().unwrap().push(panic.to_string())
        }))
        .middleware(ReportPanics::logged())
        .process(|job: Attempt<Work>| async move {
            if job.customer == 1 {
                panic!("oh no");
            }
            job.finish(())
        })
        .drain()
        .await
        .unwrap();
    assert_eq!(errors(&drained), ["panicked: oh no"]);
    let reports = reports.lock().unwrap();
    assert!(
        matches!(&reports[..], [report] if report.ends_with("of type work panicked: oh no")),
        "{reports:?}"
    );
}

/// Counts how many are inside at once, and holds them until it is opened.
#[derive(Clone)]
struct Room {
    inside: Arc<watch::Sender<usize>>,
    most: Arc<AtomicUsize>,
    door: Arc<Semaphore>,
}

impl Room {
    fn new() -> Self {
        Self {
            inside: Arc::new(watch::Sender::new(0)),
            most: Arc::default(),
            door: Arc::new(Semaphore::new(0)),
        }
    }

    async fn stay(&self) {
        self.inside.send_modify(|inside| *inside += 1);
        self.most.fetch_max(*self.inside.borrow(), Ordering::SeqCst);
        self.door.acquire().await.unwrap().forget();
        self.inside.send_modify(|inside| *inside -= 1);
    }

    async fn filled(&self, count: usize) {
        self.inside
            .subscribe()
            .wait_for(|inside| *inside == count)
            .await
            .unwrap();
    }
}

async fn worker_in(
    room: &Room,
    client: &Client<MemoryState>,
    limit: LimitConcurrency,
) -> queuert::Workers<MemoryState> {
    let room = room.clone();
    let worker = client.worker().concurrency(20).grace(Duration::ZERO).middleware(limit);
    let worker = worker.process(move |job: Attempt<Work>| {
        let room = room.clone();
        async move {
            room.stay().await;
            job.finish(())
        }
    });
    let other = worker.process(|job: Attempt<Other>| async move { job.finish(()) });
    other.start().await.unwrap()
}

#[tokio::test]
async fn a_limit_of_a_type_lets_others_pass() {
    for limit in [LimitConcurrency::of::<Work>(2), LimitConcurrency::per_type(2)] {
        let (client, room) = (client(), Room::new());
        let chains = client
            .start_many((0..6).map(|customer| Work { customer }))
            .await
            .unwrap();
        let workers = worker_in(&room, &client, limit).await;
        room.filled(2).await;
        let other = client.start(Other).await.unwrap();
        client.wait(&other).await.unwrap();
        room.door.add_permits(6);
        for chain in &chains {
            client.wait(chain).await.unwrap();
        }
        workers.stop().await;
        assert_eq!(room.most.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn a_limit_per_key_holds_for_each_key() {
    let (client, room) = (client(), Room::new());
    let chains = client
        .start_many([1, 1, 1, 2, 3].map(|customer| Work { customer }))
        .await
        .unwrap();
    let by_customer = LimitConcurrency::per_key(1, |job| {
        let input: Work = serde_json_of(job.input.as_str())?;
        (input.customer != 3).then(|| input.customer.to_string())
    });
    let workers = worker_in(&room, &client, by_customer).await;
    // One of the first customer, one of the second, and the third has no limit.
    room.filled(3).await;
    room.door.add_permits(5);
    for chain in &chains {
        client.wait(chain).await.unwrap();
    }
    workers.stop().await;
    assert_eq!(room.most.load(Ordering::SeqCst), 3);
}

fn serde_json_of<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

#[tokio::test]
async fn who_is_too_many_may_go_back_at_no_cost() {
    let (client, room) = (client(), Room::new());
    let mut events = client.events();
    let chains = client
        .start_many([1, 1].map(|customer| Work { customer }))
        .await
        .unwrap();
    let limit = LimitConcurrency::of::<Work>(1).snooze(Duration::from_millis(5));
    let workers = worker_in(&room, &client, limit).await;
    loop {
        if let Some(Event::AttemptEnded { outcome, .. }) = events.next().await {
            assert_eq!(outcome, AttemptOutcome::Snoozed);
            break;
        }
    }
    room.door.add_permits(2);
    for chain in &chains {
        client.wait(chain).await.unwrap();
        let job = client.get_job_record(chain.id().first_job()).await.unwrap().unwrap();
        assert_eq!(job.attempt, 1, "a snooze costs no attempt");
    }
    workers.stop().await;
}

#[tokio::test]
async fn who_waits_in_the_line_goes_back_when_the_worker_stops() {
    let (client, room) = (client(), Room::new());
    let chains = client
        .start_many([1, 1].map(|customer| Work { customer }))
        .await
        .unwrap();
    let workers = worker_in(&room, &client, LimitConcurrency::of::<Work>(1)).await;
    room.filled(1).await;
    workers.stop().await;
    for chain in &chains {
        let job = client.get_job_record(chain.id().first_job()).await.unwrap().unwrap();
        assert_eq!((job.status, job.attempt), (JobStatus::Pending, 0));
    }
}

#[tokio::test]
async fn layers_of_tower_wrap_attempts() {
    let (client, room) = (client(), Room::new());
    let chains = client
        .start_many((0..6).map(|customer| Work { customer }))
        .await
        .unwrap();
    let inside = room.clone();
    let workers = client
        .worker()
        .concurrency(6)
        // Its clones share the limit.
        .middleware(TowerMiddleware::new(tower::limit::ConcurrencyLimitLayer::new(2)))
        .middleware(TowerMiddleware::new(tower::timeout::TimeoutLayer::new(
            Duration::from_secs(60),
        )))
        .process(move |job: Attempt<Work>| {
            let inside = inside.clone();
            async move {
                inside.stay().await;
                job.finish(())
            }
        })
        .start()
        .await
        .unwrap();
    room.filled(2).await;
    room.door.add_permits(6);
    for chain in &chains {
        client.wait(chain).await.unwrap();
    }
    workers.stop().await;
    assert_eq!(room.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_error_of_a_layer_is_a_failure_and_those_inside_keep_their_meaning() {
    let client = client();
    client.start(Work { customer: 1 }).await.unwrap();
    client.start(Other).await.unwrap();
    let drained = client
        .worker()
        .middleware(TowerMiddleware::new(tower::timeout::TimeoutLayer::new(
            Duration::from_millis(50),
        )))
        .process(|_: Attempt<Work>| std::future::pending())
        .process(|job: Attempt<Other>| async move {
            let error = format!("hopeless for job {}", job.number());
            Err(JobError::fatal(error))
        })
        .drain()
        .await
        .unwrap();
    assert!(
        matches!(&drained.of::<Work>()[0].outcome, AttemptOutcome::Failed { error, .. } if error.contains("timed out"))
    );
    // The layer boxes it, and it is fatal all the same.
    let died = &drained.of::<Other>()[0].outcome;
    assert_eq!(
        *died,
        AttemptOutcome::Died {
            error: "hopeless for job 1".into()
        }
    );
}

/// A layer of one's own, which adds a value for those inside.
#[derive(Clone)]
struct Tag;

impl<T> Layer<T> for Tag {
    type Service = Tagged<T>;

    fn layer(&self, inner: T) -> Tagged<T> {
        Tagged(inner)
    }
}

#[derive(Clone)]
struct Tagged<T>(T);

impl<T: Service<AttemptRequest<MemoryState>>> Service<AttemptRequest<MemoryState>> for Tagged<T> {
    type Response = T::Response;
    type Error = T::Error;
    type Future = T::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: AttemptRequest<MemoryState>) -> T::Future {
        let tag = format!("{} tagged", request.context().info().job.type_name);
        request.context_mut().insert(tag);
        self.0.call(request)
    }
}

/// A layer that never calls what it wraps, and has no completion to give.
#[derive(Clone)]
struct Stubborn;

impl Layer<AttemptService<MemoryState>> for Stubborn {
    type Service = Self;

    fn layer(&self, _: AttemptService<MemoryState>) -> Self {
        Self
    }
}

impl Service<AttemptRequest<MemoryState>> for Stubborn {
    type Response = queuert::Completion<MemoryState>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: AttemptRequest<MemoryState>) -> Self::Future {
        Box::pin(async { Err(std::io::Error::other("shed")) })
    }
}

#[tokio::test]
async fn the_rules_of_middlewares_hold_for_layers() {
    let client = client();
    client.start(Other).await.unwrap();
    let drained = client
        .worker()
        .middleware(TowerMiddleware::new(Tag))
        .process(|job: Attempt<Other>| async move {
            assert_eq!(*job.get::<String>()?, "other tagged");
            job.finish(())
        })
        .drain();
    assert_eq!(drained.await.unwrap().attempts[0].outcome, AttemptOutcome::Finished);
    client.start(Work { customer: 1 }).await.unwrap();
    let drained = client
        .worker()
        .middleware(TowerMiddleware::new(Stubborn))
        .process(|job: Attempt<Work>| async move { job.finish(()) })
        .drain();
    assert_eq!(errors(&drained.await.unwrap()), ["shed"]);
}
