//! The processes that run jobs.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use queuert::adapter::{BoxFuture, Delivery, Notice, NotifyAdapter, ObservabilityAdapter, Subscription, Topic};
use queuert::{Client, Event, LeaseSettings, NotifyError, RetryPolicy};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::Result;
use crate::jobs::Jobs;
use crate::log::Log;
use crate::processors::{canary, newer, recent, run};
use crate::store::{self, Store};
use crate::torture::Role;

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Where the queue is.
    pub(crate) url: String,
    /// Where its listener hears.
    pub(crate) ears: String,
    /// Where the logs are.
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    pub(crate) seed: u64,
    /// Which rounds an enqueuer makes; all if it is empty.
    pub(crate) rounds: Vec<usize>,
    /// Of a hundred wake-ups, how many are lost; as many are doubled.
    pub(crate) unreliable: u8,
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
    pub(crate) poll: Duration,
    /// What a worker runs.
    pub(crate) role: Role,
    /// Whether its processors commit their effects before their jobs complete, which is a mistake.
    pub(crate) effects_apart: bool,
}

/// How often expired leases are looked for.
pub(crate) const REAP: Duration = Duration::from_millis(500);

/// Ready when the input of the process ends: because the parent wants it, or because the parent has gone.
pub(crate) fn told_to_stop() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    // A thread of its own, because a blocking read would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    receiver
}

pub(crate) async fn connect<S: Store>(orders: &Orders, log: &Log) -> Result<Client<S>> {
    let state: S = store::open(&orders.url).await?;
    let notify = Unreliable {
        inner: state.notify(&orders.ears)?,
        percent: orders.unreliable,
        log: log.clone(),
    };
    let client = Client::builder(state).notify(notify);
    Ok(client.observability(Noted(log.clone())).build())
}

pub(crate) async fn work<S: Store>(orders: &Orders) -> Result<()> {
    let stop = told_to_stop();
    let log = Log::create(&orders.directory, &orders.name)?;
    let client = connect::<S>(orders, &log).await?;
    // What is planned need not be printed.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("planned") {
            usual(panic);
        }
    }));
    let worker = match orders.role {
        Role::Sentry => client.worker().process(canary::<S>),
        Role::Recent => client.worker().process(recent::<S>),
        Role::Newer => client.worker().process(newer::<S>),
        Role::Working | Role::Enqueuing => client.worker().process_all::<Jobs, _, _>(run::<S>),
    };
    let _told = worker
        .provide(log)
        .provide(EffectsApart(orders.effects_apart))
        .name(&orders.name)
        .concurrency(orders.workers)
        // Attempts that were cut off are counted, and there will be many.
        .retry(
            RetryPolicy::new()
                .initial(Duration::from_millis(30))
                .maximum(Duration::from_secs(1))
                .max_attempts(1_000_000),
        )
        // Short, so that what a killed process ran goes on while others are being killed.
        .lease(LeaseSettings::new(orders.lease))
        .reap_interval(REAP)
        .poll_interval(orders.poll)
        .grace(Duration::from_secs(5))
        .run_until(stop)
        .await?;
    client.state().close().await;
    Ok(())
}

/// Whether processors commit their effects before their jobs complete, which is a mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EffectsApart(pub(crate) bool);

/// Loses some wake-ups, and announces others twice.
struct Unreliable<N> {
    inner: N,
    percent: u8,
    log: Log,
}

impl<N: NotifyAdapter> NotifyAdapter for Unreliable<N> {
    fn announce<'a>(&'a self, notices: &'a [Notice]) -> BoxFuture<'a, Result<(), NotifyError>> {
        if self.percent == 0 {
            return self.inner.announce(notices);
        }
        Box::pin(async move {
            let times = || match fastrand::u8(0..100) {
                lost if lost < self.percent => 0,
                twice if twice < self.percent.saturating_mul(2) => 2,
                _ => 1,
            };
            let times: Vec<usize> = notices.iter().map(|_| times()).collect();
            if times.iter().any(|times| *times != 1) {
                // That the fault happened is read from this line; without it the run fails.
                let _ = self.log.note("spoiled");
            }
            let left: Vec<Notice> = notices
                .iter()
                .zip(times)
                .flat_map(|(notice, times)| std::iter::repeat_n(notice.clone(), times))
                .collect();
            self.inner.announce(&left).await
        })
    }

    fn subscribe(&self, topic: Topic) -> BoxFuture<'_, Result<Subscription, NotifyError>> {
        self.inner.subscribe(topic)
    }
}

/// Notes how attempts end, and everything that is said to have happened, when the process learns of it.
struct Noted(Log);

impl ObservabilityAdapter for Noted {
    fn delivery(&self) -> Delivery {
        Delivery::Inline
    }

    fn event(&self, event: &Event) {
        let line = match event {
            Event::JobReaped { job, owner, .. } => format!("reaped {} {}", job.id, owner.as_str()),
            Event::AttemptEnded { attempt, outcome, .. } => {
                let outcome = format!("{outcome:?}");
                let mut words = outcome.split(|letter: char| !letter.is_alphanumeric());
                let mut how = words.next().unwrap_or_default().to_owned();
                if how == "Aborted" {
                    how = format!("Aborted-{}", words.next().unwrap_or_default());
                }
                format!("ended {} {} {how}", attempt.job.id, attempt.started_at.as_micros())
            }
            Event::JobCompleted { job, worker, .. } => {
                let by = worker.as_ref().map_or("-", |worker| worker.as_str());
                format!("event job-completed {} {by}", job.id)
            }
            Event::JobUnblocked { job, .. } => format!("event job-unblocked {job}"),
            Event::JobDead { job, .. } => format!("event job-dead {}", job.id),
            Event::ChainCompleted { chain, .. } => format!("event chain-completed {chain}"),
            Event::ChainDead { chain, .. } => format!("event chain-dead {chain}"),
            Event::ChainCancelled { chain, .. } => format!("event chain-cancelled {chain}"),
            Event::ChainRetried { chain, .. } => format!("event chain-retried {chain}"),
            Event::ChainDeleted { chain, .. } => format!("event chain-deleted {chain}"),
            Event::StateFailed { operation, error } => format!("failed {operation}: {error}"),
            Event::MaintenanceFinding { finding, .. } => format!("finding {finding}"),
            _ => return,
        };
        // A line that is missing is a broken rule.
        let _ = self.0.note(line);
    }
}
