//! What it costs to be seen: the drain on SQLite, with nobody looking and with somebody.

use std::hint::black_box;

use opentelemetry_sdk::metrics::{ManualReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use queuert::adapter::ObservabilityAdapter;
use queuert::{Attempt, Client, ClientBuilder, JobTypes};
use queuert_measured::{CORES, Letter, Receipt};
use queuert_otel::Otel;
use queuert_sqlite::SqliteState;
use serde::{Deserialize, Serialize};

use crate::Options;
use crate::measure::{BoxError, Case, Figure, Ratio, Stopwatch, Suite};
use crate::work::{Countdown, batches, check_completed};

const JOBS: usize = 100_000;
const CONCURRENCY: usize = 100;
const CHECKS: usize = 20_000_000;

const OFF: &str = "drain, nobody looks";
const ASKED: &str = "what a job is asked when nobody looks";
const EVENTS: &str = "drain, events made and thrown away";
const UNSAMPLED: &str = "drain, OpenTelemetry, sampling off";
const SAMPLED: &str = "drain, OpenTelemetry, every span recorded";

#[derive(Debug, Serialize, Deserialize)]
struct SendLetter(Letter);

#[derive(JobTypes)]
enum Letters {
    #[job(entry, output = Receipt)]
    SendLetter(SendLetter),
}

pub(crate) fn suite(options: &Options) -> Suite {
    let jobs = (JOBS / options.divide).max(1_000);
    let checks = CHECKS / options.divide;
    Suite {
        name: "observability",
        rounds: 5,
        settings: vec![
            ("runtime", format!("multi-thread, {CORES} threads")),
            ("store", "SQLite, WAL, synchronous FULL; concurrency 100".into()),
            ("jobs drained per round", jobs.to_string()),
            ("metrics", "a reader that nobody reads: what recording costs".into()),
        ],
        cases: vec![
            Case::new(OFF, move || drain(OFF, jobs, |client| client)),
            Case::new(ASKED, move || asked(checks)),
            Case::new(EVENTS, move || {
                drain(EVENTS, jobs, |client| client.observability(Forgetful))
            }),
            Case::new(UNSAMPLED, move || {
                drain(UNSAMPLED, jobs, |client| client.observability(otel(Sampler::AlwaysOff)))
            }),
            Case::new(SAMPLED, move || {
                drain(SAMPLED, jobs, |client| client.observability(otel(Sampler::AlwaysOn)))
            }),
        ],
        ratios: vec![
            // Fifty times as fast as the drain: less than 2 % of it.
            Ratio::new("asked / drain", ASKED, &[OFF], Some(50.0)),
            Ratio::new("sampling off / nobody looks", UNSAMPLED, &[OFF], Some(0.9)),
            Ratio::new("events / nobody looks", EVENTS, &[OFF], None),
            Ratio::new("recorded / nobody looks", SAMPLED, &[OFF], None),
        ],
        limits: Vec::new(),
        plots: Vec::new(),
    }
}

/// Is told everything, and does nothing with it.
struct Forgetful;

impl ObservabilityAdapter for Forgetful {
    fn delivery(&self) -> queuert::adapter::Delivery {
        queuert::adapter::Delivery::Inline
    }
}

fn otel(sampler: Sampler) -> impl ObservabilityAdapter {
    let traces = SdkTracerProvider::builder().with_sampler(sampler).build();
    let metrics = SdkMeterProvider::builder()
        .with_reader(ManualReader::builder().build())
        .build();
    let otel = Otel::new(&traces, &metrics);
    // A meter provider that goes takes its readers with it; this one lasts as long as the process.
    std::mem::forget(metrics);
    otel
}

async fn drain(
    name: &'static str,
    jobs: usize,
    observed: impl Fn(ClientBuilder<SqliteState>) -> ClientBuilder<SqliteState>,
) -> Result<Vec<Figure>, BoxError> {
    // Next to the program: `/tmp` may be memory, where a flush costs nothing.
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir_in(program.parent().ok_or("a program has a directory")?)?;
    let state = SqliteState::open(directory.path().join("queue.db")).await?;
    // Started by a client that nobody looks at: the drain is what is measured.
    let starter = Client::new(state.clone());
    let mut started = Vec::with_capacity(jobs);
    for batch in batches(jobs, 1_000) {
        let letters = batch.map(|number| SendLetter(Letter::new(number)));
        started.extend(starter.start_many(letters).await?.iter().map(|chain| chain.id()));
    }
    let client = observed(Client::builder(state.clone())).build();
    let countdown = Countdown::new(jobs);
    let counting = countdown.clone();
    let worker = client
        .worker()
        .concurrency(CONCURRENCY)
        .process(move |job: Attempt<SendLetter, SqliteState>| {
            counting.one();
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        });
    let stopwatch = Stopwatch::start();
    let workers = worker.start().await?;
    countdown.done().await;
    workers.stop().await;
    let figure = stopwatch.rate(name, "jobs/s", jobs);
    check_completed(&state, &started).await?;
    state.close().await?;
    Ok(vec![figure])
}

/// The questions that the library asks for each job before it makes an event or a span: whether a subscriber wants it.
/// What is left of observability when nobody looks is this.
async fn asked(jobs: usize) -> Result<Vec<Figure>, BoxError> {
    let stopwatch = Stopwatch::start();
    for number in 0..jobs {
        // Attempt started, job completed, chain completed, attempt ended, and the ages for two of them.
        for _ in 0..6 {
            black_box(tracing::enabled!(target: "queuert", tracing::Level::DEBUG));
        }
        let span = tracing::info_span!(target: "queuert", "attempt", job_id = number, attempt = 1);
        // Two polls: one until the processor waits, one until it is done.
        for _ in 0..2 {
            let _entered = black_box(&span).enter();
        }
    }
    Ok(vec![stopwatch.rate(ASKED, "jobs/s", jobs)])
}
