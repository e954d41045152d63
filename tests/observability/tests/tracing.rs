//! Lines and spans of `tracing`, as a subscriber sees them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queuert::memory::{Attempt, MemoryState};
use queuert::middleware::{LogAttempts, TraceAttempts};
use queuert::{Client, JobStatus, JobTypes};
use queuert_conformance::{Fault, Faulty, Verb};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[derive(Serialize, Deserialize)]
struct Work {
    fails: u32,
}

#[derive(JobTypes)]
enum Jobs {
    #[job(entry, output = (), retry(initial = "1ms", max_attempts = 2))]
    Work(Work),
}

type Fields = BTreeMap<String, String>;

#[derive(Clone, Debug)]
struct Line {
    level: Level,
    target: String,
    fields: Fields,
    /// The names and fields of the spans around it, outermost first.
    spans: Vec<(String, Fields)>,
}

#[derive(Default)]
struct Reader(Fields);

impl Visit for Reader {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<Line>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut reader = Reader::default();
        attributes.record(&mut reader);
        let span = context.span(id).expect("the span is there");
        span.extensions_mut().insert(reader.0);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut reader = Reader::default();
        values.record(&mut reader);
        let span = context.span(id).expect("the span is there");
        let mut line = Line {
            level: Level::TRACE,
            target: "record".to_owned(),
            fields: reader.0,
            spans: Vec::new(),
        };
        line.fields.insert("span".to_owned(), span.name().to_owned());
        self.0.lock().unwrap().push(line);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut reader = Reader::default();
        event.record(&mut reader);
        let around = context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root());
        let spans = around.map(|span| {
            let fields = span.extensions().get::<Fields>().cloned().unwrap_or_default();
            (span.name().to_owned(), fields)
        });
        self.0.lock().unwrap().push(Line {
            level: *event.metadata().level(),
            target: event.metadata().target().to_owned(),
            fields: reader.0,
            spans: spans.collect(),
        });
    }
}

/// Which lines are written is decided once for the whole process, so the tests of this file run one after another.
struct Alone {
    _running: MutexGuard<'static, ()>,
}

impl Alone {
    fn wait() -> Self {
        static RUNNING: Mutex<()> = Mutex::new(());
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        Self { _running }
    }
}

impl Capture {
    /// Captures what this thread does, down to a level.
    fn install(level: LevelFilter) -> (Self, (DefaultGuard, Alone)) {
        let alone = Alone::wait();
        let capture = Self::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone().with_filter(level));
        (capture, (tracing::subscriber::set_default(subscriber), alone))
    }

    fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap().clone()
    }

    fn messages(&self, target: &str) -> Vec<(Level, String)> {
        let lines = self.lines().into_iter().filter(|line| line.target == target);
        lines.map(|line| (line.level, line.fields["message"].clone())).collect()
    }
}

async fn run(client: &Client<MemoryState>, fails: u32) {
    client.start(Work { fails }).await.unwrap();
    for _ in 0..2 {
        let worker = client
            .worker()
            .middleware(TraceAttempts::new())
            .middleware(LogAttempts::new());
        let process = |job: Attempt<Work>| async move {
            tokio::task::yield_now().await;
            tracing::info!(target: "mine", "at work");
            if job.number() <= job.fails {
                return Err("no".into());
            }
            job.finish(())
        };
        worker.process(process).drain().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_lines_of_a_processor_carry_its_attempt() {
    let (capture, _guard) = Capture::install(LevelFilter::INFO);
    let client = Client::new(MemoryState::new());
    let chain = client.start(Work { fails: 0 }).await.unwrap();
    run(&client, 1).await;
    let own: Vec<_> = capture
        .lines()
        .into_iter()
        .filter(|line| line.target == "mine")
        .collect();
    assert_eq!(own.len(), 3);
    let (name, fields) = &own[0].spans[0];
    assert_eq!(name, "attempt");
    assert_eq!(fields["job_id"], chain.id().to_string());
    assert_eq!(fields["chain_id"], chain.id().to_string());
    assert_eq!((fields["job_type"].as_str(), fields["attempt"].as_str()), ("work", "1"));
    assert!(!fields["worker"].is_empty());
    // The middleware's span lies inside.
    assert_eq!(own[0].spans[1].0, "process");
    let attempts: Vec<_> = own.iter().map(|line| line.spans[0].1["attempt"].as_str()).collect();
    assert_eq!(attempts, ["1", "1", "2"]);
    let outcomes: Vec<_> = capture
        .lines()
        .into_iter()
        .filter(|line| line.target == "record" && line.fields["span"] == "process")
        .map(|line| line.fields["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["finished", "failed", "finished"]);
}

#[tokio::test]
async fn levels_are_sensible() {
    let (capture, _guard) = Capture::install(LevelFilter::TRACE);
    let client = Client::new(MemoryState::new());
    run(&client, 2).await;
    let at = |level: Level| -> Vec<String> {
        let of = capture
            .messages("queuert")
            .into_iter()
            .filter(|(found, _)| *found == level);
        of.map(|(_, message)| message).collect()
    };
    assert_eq!(at(Level::ERROR), ["job died", "attempt failed for good"]);
    assert_eq!(at(Level::WARN), ["attempt failed"]);
    assert_eq!(at(Level::INFO), Vec::<String>::new());
    let life = [
        "chain created",
        "job created",
        "attempt started",
        "attempt started",
        "chain died",
    ];
    assert_eq!(at(Level::DEBUG), life);
    let failed = capture
        .lines()
        .into_iter()
        .find(|line| line.fields.get("message").is_some_and(|text| text == "attempt failed"));
    let failed = failed.unwrap();
    let fields = failed.fields;
    assert_eq!((fields["error"].as_str(), fields["job_type"].as_str()), ("no", "work"));
    let (span, around) = failed.spans.last().expect("it is a line of the attempt");
    assert_eq!(
        (span.as_str(), &around["job_id"], &around["attempt"]),
        ("attempt", &fields["job_id"], &fields["attempt"])
    );
    let logged: Vec<_> = capture
        .messages("queuert::attempts")
        .into_iter()
        .map(|(level, _)| level)
        .collect();
    assert_eq!(logged, [Level::INFO, Level::WARN, Level::INFO, Level::WARN]);
}

/// Half a minute without a store, with thousands of ends in hand and fifty sets of workers of two clients, is a page of lines:
/// each cause is told once, with how often it was left out, and so is its end.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_once_per_cause() {
    const SETS: usize = 50;
    const ENDS: usize = 2_000;
    let (capture, _guard) = Capture::install(LevelFilter::INFO);
    let store = Faulty::new(MemoryState::new());
    let faults = store.faults().clone();
    let clients = [Client::new(store.clone()), Client::new(store)];
    let client = &clients[0];
    let failures = Arc::new(AtomicUsize::new(0));
    for client in &clients {
        let (mut events, counter) = (client.events(), Arc::clone(&failures));
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let failed = matches!(event, queuert::Event::StateFailed { .. });
                counter.fetch_add(usize::from(failed), Ordering::Relaxed);
            }
        });
    }
    let worker = |client: &Client<Faulty<MemoryState>>| {
        let process = |job: queuert::Attempt<Work, Faulty<MemoryState>>| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            job.finish(())
        };
        client.worker().process(process).concurrency(ENDS)
    };
    let chains = client.start_many((0..ENDS).map(|_| Work { fails: 0 })).await.unwrap();
    let mut sets = vec![worker(client).start().await.unwrap()];
    let pending = || client.list_chains().statuses([JobStatus::Pending]);
    while !pending().await.unwrap().items.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for set in 1..SETS {
        sets.push(worker(&clients[set % 2]).start().await.unwrap());
    }
    faults.take_down(Fault::Before);
    tokio::time::sleep(Duration::from_secs(30)).await;
    faults.heal();
    for chain in &chains {
        client.wait(chain).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    for set in sets {
        set.stop().await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let failed = failures.load(Ordering::Relaxed);
    assert!(failed > 1_000, "the test is worth little with {failed} failures");
    let lines: Vec<_> = capture
        .lines()
        .into_iter()
        .filter(|line| line.target == "queuert")
        .collect();
    let warnings = lines.iter().filter(|line| line.level <= Level::WARN).count();
    assert!(lines.iter().all(|line| line.fields["message"] != "lease lost"));
    // A cause for each verb, twice a minute.
    assert!((1..=20).contains(&warnings), "{warnings} warnings");
    let recovered: Vec<_> = lines
        .iter()
        .filter(|line| line.fields["message"] == "the store answers again")
        .collect();
    assert!((1..=3).contains(&recovered.len()), "{recovered:?}");
    let left_out: usize = lines
        .iter()
        .filter_map(|line| line.fields.get("lines_left_out")?.parse::<usize>().ok())
        .sum();
    assert_eq!(left_out + warnings, failed, "every failure is a line or counted in one");
}

/// What an outage does to attempts with transactions of their own is one line for all of them; a failure of a processor has its
/// line each time.
#[tokio::test(start_paused = true)]
async fn attempts_that_the_store_fails_are_told_once_per_cause() {
    const JOBS: usize = 500;
    const OWN: usize = 20;
    let (capture, _guard) = Capture::install(LevelFilter::INFO);
    let store = Faulty::new(MemoryState::new());
    let faults = store.faults().clone();
    let client = Client::new(store);
    let jobs = (0..JOBS + OWN).map(|number| Work {
        fails: u32::from(number >= JOBS),
    });
    let chains = client.start_many(jobs).await.unwrap();
    faults.fail_next(Verb::Begin, JOBS, Fault::Before);
    let process = |job: queuert::Attempt<Work, Faulty<MemoryState>>| async move {
        if job.number() > 1 {
            return job.finish(());
        }
        if job.fails > 0 {
            return Err("the card was refused".into());
        }
        job.begin().await?.finish(()).await
    };
    let workers = client
        .worker()
        .process(process)
        .concurrency(JOBS)
        .start()
        .await
        .unwrap();
    for chain in &chains {
        client.wait(chain).await.unwrap();
    }
    workers.stop().await;
    let mut lines = capture.lines();
    lines.retain(|line| line.target == "queuert");
    let failed = |text: &str| {
        let failed = lines.iter().filter(|line| line.fields["message"] == "attempt failed");
        failed.filter(|line| line.fields["error"].contains(text)).count()
    };
    assert_eq!((failed("made to fail"), failed("the card was refused")), (1, OWN));
    let left_out = lines
        .iter()
        .filter_map(|line| line.fields.get("lines_left_out")?.parse::<usize>().ok());
    assert_eq!(left_out.sum::<usize>(), JOBS - 1, "the others are counted");
}

/// A line that is dead.
#[derive(Clone, Default)]
struct Dead(Arc<Mutex<Vec<queuert::adapter::NoticeSender>>>);

impl queuert::adapter::NotifyAdapter for Dead {
    fn announce<'a>(
        &'a self,
        _: &'a [queuert::adapter::Notice],
    ) -> queuert::adapter::BoxFuture<'a, Result<(), queuert::NotifyError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn subscribe(
        &self,
        _: queuert::adapter::Topic,
    ) -> queuert::adapter::BoxFuture<'_, Result<queuert::adapter::Subscription, queuert::NotifyError>> {
        let (sender, subscription) = queuert::adapter::Subscription::new(());
        sender.fail("the line is dead");
        self.0.lock().unwrap().push(sender);
        Box::pin(std::future::ready(Ok(subscription)))
    }
}

/// Every set of workers has two subscriptions, and all of them suffer from the same dead line, whichever client they belong to.
#[tokio::test(start_paused = true)]
async fn a_dead_listener_is_one_line() {
    let (capture, _guard) = Capture::install(LevelFilter::INFO);
    let client = || Client::builder(MemoryState::new()).notify(Dead::default()).build();
    let clients = [client(), client()];
    let mut sets = Vec::new();
    for set in 0..50 {
        let worker = clients[set % 2]
            .worker()
            .process(|job: Attempt<Work>| async move { job.finish(()) });
        sets.push(worker.start().await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    for set in sets {
        set.stop().await;
    }
    let lines = capture.lines();
    let warnings: Vec<_> = lines.iter().filter(|line| line.level == Level::WARN).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].fields["error"], "the line is dead");
    let left_out = lines.iter().filter_map(|line| line.fields.get("lines_left_out"));
    assert_eq!(left_out.collect::<Vec<_>>(), ["99"]);
}

#[tokio::test(start_paused = true)]
async fn idle_workers_say_nothing_at_info() {
    let (capture, _guard) = Capture::install(LevelFilter::TRACE);
    let client = Client::new(MemoryState::new());
    // Each set looks for jobs and for expired leases some fifty times.
    let often = Duration::from_millis(5);
    let mut sets = Vec::new();
    for _ in 0..50 {
        let worker = client
            .worker()
            .process(|job: Attempt<Work>| async move { job.finish(()) });
        let worker = worker.poll_interval(often).reap_interval(often);
        sets.push(worker.start().await.unwrap());
    }
    tokio::time::sleep(often * 50).await;
    let idle = capture.messages("queuert");
    assert_eq!(idle, vec![(Level::INFO, "workers started".to_owned()); 50]);
    for set in sets {
        set.stop().await;
    }
    let all = capture.messages("queuert").into_iter().map(|(_, message)| message);
    let expected = [["workers are stopping", "workers stopped"]; 50];
    assert_eq!(all.skip(50).collect::<Vec<_>>(), expected.as_flattened());
}

/// A subscriber that panics is code of somebody else's: the write stands.
#[tokio::test]
async fn a_subscriber_that_panics_hurts_nobody() {
    struct Hysteric;
    impl<S: Subscriber> Layer<S> for Hysteric {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            assert!(event.metadata().target() != "queuert", "look at that");
        }
    }
    let _alone = Alone::wait();
    let subscriber = tracing_subscriber::registry().with(Hysteric);
    let _guard = tracing::subscriber::set_default(subscriber);
    let client = Client::new(MemoryState::new());
    let chain = client.start(Work { fails: 0 }).await.unwrap();
    let worker = client
        .worker()
        .process(|job: Attempt<Work>| async move { job.finish(()) });
    assert_eq!(worker.drain().await.unwrap().len(), 1);
    client.wait(&chain).await.unwrap();
}
