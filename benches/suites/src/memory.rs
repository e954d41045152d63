//! The memory adapter: what the library itself costs, without a database in the way.

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::memory::MemoryState;
use queuert::{Attempt, ChainId, Client, JobStatus, JobTypes, WorkerBuilder};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::counted::Counted;
use queuert_measured::CORES;

use crate::Options;
use crate::measure::{BoxError, Case, Figure, Stopwatch, Suite, quantile, sorted};
use crate::work::{Countdown, batches, check_completed};

/// Does nothing.
#[derive(Debug, Serialize, Deserialize)]
struct Noop {
    number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct First {
    number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Second {
    number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Third {
    number: u64,
}

#[derive(JobTypes)]
enum Benchmarks {
    #[job(entry, output = ())]
    Noop(Noop),
    #[job(entry, continues = [Second])]
    First(First),
    #[job(continues = [Third])]
    Second(Second),
    #[job(output = u64)]
    Third(Third),
}

const DRAINED_JOBS: usize = 200_000;
const STARTED_CHAINS: usize = 500_000;
const STEPPED_CHAINS: usize = 50_000;
const LATENCY_SAMPLES: usize = 1_000;

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = DRAINED_JOBS / options.divide;
    let chains = STARTED_CHAINS / options.divide;
    let stepped = STEPPED_CHAINS / options.divide;
    let samples = LATENCY_SAMPLES / options.divide;
    let mut cases = Vec::new();
    for concurrency in [1, 10, 100] {
        cases.push(Case::new(format!("drain, concurrency {concurrency}"), move || {
            drain(Work::Plain, jobs, concurrency)
        }));
    }
    cases.push(Case::new("drain in transactions", move || {
        drain(Work::Transactional, jobs, 10)
    }));
    cases.push(Case::new("three steps", move || drain(Work::ThreeSteps, stepped, 10)));
    for batch in [1, 100, 1_000] {
        for tasks in [1, CORES] {
            cases.push(Case::new(
                format!("start in batches of {batch}, tasks: {tasks}"),
                move || start(chains, batch, tasks),
            ));
        }
    }
    cases.push(Case::new("latency", move || latency(samples)));
    Suite {
        name: "memory",
        rounds: 5,
        settings: vec![
            ("runtime", format!("multi-thread, {CORES} threads")),
            (
                "client and workers",
                "the defaults, except the concurrency in the name".into(),
            ),
            ("jobs drained per round", jobs.to_string()),
            ("chains started per round", chains.to_string()),
            ("three-step chains per round", stepped.to_string()),
            ("latency samples per round", samples.to_string()),
        ],
        cases,
        ratios: Vec::new(),
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

/// What the chains of a case do.
#[derive(Clone, Copy)]
enum Work {
    /// One step that finishes at once.
    Plain,
    /// One step that finishes in a transaction of its own.
    Transactional,
    /// Two steps that continue at once, and one that finishes.
    ThreeSteps,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "drain",
            Self::Transactional => "drain in transactions",
            Self::ThreeSteps => "three steps",
        }
    }

    fn steps(self) -> usize {
        match self {
            Self::Plain | Self::Transactional => 1,
            Self::ThreeSteps => 3,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Plain | Self::Transactional => "jobs/s",
            Self::ThreeSteps => "steps/s",
        }
    }

    async fn prefill<S: StateAdapter>(self, client: &Client<S>, chains: usize) -> Result<Vec<ChainId>, BoxError> {
        let mut ids = Vec::with_capacity(chains);
        for batch in batches(chains, 1_000) {
            match self {
                Self::Plain | Self::Transactional => {
                    let started = client.start_many(batch.map(|number| Noop { number })).await?;
                    ids.extend(started.iter().map(|chain| chain.id()));
                }
                Self::ThreeSteps => {
                    let started = client.start_many(batch.map(|number| First { number })).await?;
                    ids.extend(started.iter().map(|chain| chain.id()));
                }
            }
        }
        Ok(ids)
    }

    fn worker<S: StateAdapter>(self, client: &Client<S>, countdown: Countdown) -> WorkerBuilder<S> {
        let worker = client.worker();
        match self {
            Self::Plain => worker.process(move |job: Attempt<Noop, S>| {
                countdown.one();
                async move { job.finish(()) }
            }),
            Self::Transactional => worker.process(move |job: Attempt<Noop, S>| {
                countdown.one();
                async move {
                    let tx = job.begin().await?;
                    tx.finish(()).await
                }
            }),
            Self::ThreeSteps => {
                let (second, third) = (countdown.clone(), countdown.clone());
                worker
                    .process(move |job: Attempt<First, S>| {
                        countdown.one();
                        let number = job.number;
                        async move { job.continue_with(Second { number }) }
                    })
                    .process(move |job: Attempt<Second, S>| {
                        second.one();
                        let number = job.number;
                        async move { job.continue_with(Third { number }) }
                    })
                    .process(move |job: Attempt<Third, S>| {
                        third.one();
                        let number = job.number;
                        async move { job.finish(number) }
                    })
            }
        }
    }
}

/// Prefills chains and times workers from their start until they have stopped after the last job.
async fn drain(work: Work, chains: usize, concurrency: usize) -> Result<Vec<Figure>, BoxError> {
    // The calls are counted in a small round of their own: the counter's lock has no place in the measured one.
    let counted = Counted::new(MemoryState::new());
    let few = (chains / 20).max(1);
    let client = Client::new(counted.clone());
    let started = work.prefill(&client, few).await?;
    counted.take(1);
    run_out(work, &client, few, concurrency).await?;
    let verbs = counted.take(few * work.steps());
    check_completed(client.state(), &started).await?;

    let client = Client::new(MemoryState::new());
    let started = work.prefill(&client, chains).await?;
    let stopwatch = Stopwatch::start();
    run_out(work, &client, chains, concurrency).await?;
    let name = format!("{}, concurrency {concurrency}", work.name());
    let mut figure = stopwatch.rate(name, work.unit(), chains * work.steps());
    check_completed(client.state(), &started).await?;
    if let Some(cost) = &mut figure.cost {
        cost.verbs = Some(verbs);
    }
    Ok(vec![figure])
}

async fn run_out<S: StateAdapter>(
    work: Work,
    client: &Client<S>,
    chains: usize,
    concurrency: usize,
) -> Result<(), BoxError> {
    let countdown = Countdown::new(chains * work.steps());
    let worker = work.worker(client, countdown.clone()).concurrency(concurrency);
    let workers = worker.start().await?;
    countdown.done().await;
    // The processors have run; stopping waits until what they returned is committed.
    workers.stop().await;
    Ok(())
}

/// Times starts: each task starts its share of the chains in batches, one after the other.
async fn start(chains: usize, batch: usize, tasks: usize) -> Result<Vec<Figure>, BoxError> {
    let client = Client::new(MemoryState::new());
    let share = chains / tasks;
    let stopwatch = Stopwatch::start();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut last = None;
                for batch in batches(share, batch) {
                    last = client.start_many(batch.map(|number| Noop { number })).await?.pop();
                }
                Ok::<_, queuert::Error>(last)
            })
        })
        .collect();
    let mut last = Vec::new();
    for task in running {
        last.extend(task.await??);
    }
    let figure = stopwatch.rate(
        format!("start in batches of {batch}, tasks: {tasks}"),
        "chains/s",
        share * tasks,
    );
    for chain in last {
        let status = client.get_chain(&chain).await?.map(|chain| chain.status);
        if status != Some(JobStatus::Pending) {
            return Err(format!("the status of a started chain is {status:?}").into());
        }
    }
    Ok(vec![figure])
}

/// From the call of `start` to the call of the processor, with nothing else to do.
async fn latency(samples: usize) -> Result<Vec<Figure>, BoxError> {
    let client = Client::new(MemoryState::new());
    let (sender, mut called) = mpsc::unbounded_channel();
    let workers = client
        .worker()
        .process(move |job: Attempt<Noop, MemoryState>| {
            let _ = sender.send(Instant::now());
            async move { job.finish(()) }
        })
        .concurrency(10)
        .start()
        .await?;
    let mut micros = Vec::with_capacity(samples);
    for number in 0..samples as u64 {
        // Everybody is idle again by then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let before = Instant::now();
        client.start(Noop { number }).await?;
        let after = called.recv().await.ok_or("the workers have gone")?;
        micros.push(after.duration_since(before).as_secs_f64() * 1e6);
    }
    workers.stop().await;
    let micros = sorted(micros);
    let figure = |name: &str, part| Figure {
        name: format!("start to processor, idle workers, {name}"),
        unit: "µs".to_owned(),
        value: quantile(&micros, part),
        cost: None,
    };
    Ok(vec![figure("p50", 0.5), figure("p99", 0.99)])
}
