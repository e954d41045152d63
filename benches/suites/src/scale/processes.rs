//! Several worker processes on one store.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queuert::{Attempt, Client, JobType};
use queuert_measured::{Cost, Figure, Receipt};
use queuert_postgres::PostgresState;

use crate::measure::{BoxError, Report, Stopwatch};
use crate::postgres::ours::SendLetter;
use crate::postgres::server::Server;

/// How the suite calls itself for a worker process.
pub(super) const CHILD: &str = "a worker process";
const SECONDS: &str = "QUEUERT_BENCH_SECONDS";
const CONCURRENCY: usize = 25;
const READY: &str = "ready";

pub(super) async fn run(
    name: &'static str,
    processes: usize,
    backlog: usize,
    seconds: f64,
) -> Result<Report, BoxError> {
    let mut server = Server::clean().await?;
    let state = server.state(None).await?;
    server.maker().ready(SendLetter::NAME, backlog).await?;
    server.maker().vacuum().await?;
    let before = server.counts().await?;
    let reports = tokio::task::spawn_blocking(move || work(processes, seconds)).await??;
    let figures: Vec<Figure> = reports.into_iter().flat_map(|report| report.figures).collect();
    let units = |figure: &Figure| figure.cost.as_ref().map_or(0, |cost| cost.units);
    let cpu = |figure: &Figure| Some(figure.cost.as_ref()?.cpu_micros? * units(figure) as f64);
    let memory = |figure: &Figure| figure.cost.as_ref()?.peak_megabytes;
    let done: usize = figures.iter().map(units).sum();
    let mut whole = Figure {
        name: name.to_owned(),
        unit: "jobs/s".to_owned(),
        value: figures.iter().map(|figure| figure.value).sum(),
        cost: Some(Cost {
            units: done,
            cpu_micros: Some(figures.iter().filter_map(cpu).sum::<f64>() / done as f64),
            peak_megabytes: figures.iter().filter_map(memory).reduce(f64::max),
            ..Cost::default()
        }),
    };
    server.cost_since(&before, &mut whole).await?;
    if let Some(cost) = &mut whole.cost {
        // The processes and their connections have gone by now.
        cost.connections = None;
    }
    let finished = server.maker().count_finished().await?;
    if finished != done || done == 0 {
        return Err(format!("{done} jobs were processed, {finished} are finished").into());
    }
    server.maker().check_finished(&state).await?;
    state.close().await;
    server.described(Report::from(vec![whole])).await
}

/// Starts the processes, lets them begin together, and collects what they say.
fn work(processes: usize, seconds: f64) -> Result<Vec<Report>, BoxError> {
    let mut children: Vec<(Child, BufReader<ChildStdout>)> = Vec::new();
    for _ in 0..processes {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["scale", "--case", CHILD])
            .env(SECONDS, seconds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("a child without output")?;
        children.push((child, BufReader::new(output)));
    }
    let mut line = String::new();
    for (_, output) in &mut children {
        line.clear();
        output.read_line(&mut line)?;
        if line.trim() != READY {
            return Err("a worker process failed".into());
        }
    }
    for (child, _) in &mut children {
        writeln!(child.stdin.as_mut().ok_or("a child without input")?)?;
    }
    let mut reports = Vec::new();
    for (mut child, mut output) in children {
        line.clear();
        output.read_line(&mut line)?;
        if !child.wait()?.success() {
            return Err("a worker process failed".into());
        }
        reports.push(serde_json::from_str(&line)?);
    }
    Ok(reports)
}

/// Works for some seconds, when it is told to begin.
#[expect(clippy::print_stdout, reason = "the parent reads it")]
pub(super) async fn child() -> Result<Report, BoxError> {
    let seconds: f64 = std::env::var(SECONDS)?.parse()?;
    let server = Server::as_it_is().await?;
    let state = server.state(None).await?;
    let client = Client::new(state.clone());
    println!("{READY}");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    let done = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&done);
    let stopwatch = Stopwatch::start();
    let workers = client
        .worker()
        .process(move |job: Attempt<SendLetter, PostgresState>| {
            counting.fetch_add(1, Ordering::Relaxed);
            let receipt = Receipt::of(&job.0);
            async move { job.finish(receipt) }
        })
        .concurrency(CONCURRENCY)
        .start()
        .await?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    workers.stop().await;
    let figure = stopwatch.rate("share", "jobs/s", done.load(Ordering::Relaxed));
    state.close().await;
    Ok(Report::from(vec![figure]))
}
