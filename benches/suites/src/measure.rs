//! Runs the cases of a suite in interleaved rounds, and reads what they cost from the operating system.
//!
//! Every case of every round is a process of its own, so that none inherits the heap of another and the peak of its
//! memory is its own.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::Options;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Vec<Figure>, BoxError>> + Send>>;

/// Cases that are compared with one another.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// What was set, in words.
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) cases: Vec<Case>,
}

/// Something that is run once per round.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn() -> Running>,
}

impl Case {
    pub(crate) fn new<F, Fut>(name: impl Into<String>, run: F) -> Self
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result<Vec<Figure>, BoxError>> + Send + 'static,
    {
        Self {
            name: name.into(),
            run: Box::new(move || Box::pin(run())),
        }
    }
}

/// One measured value of a round.
#[derive(Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) value: f64,
    pub(crate) cost: Option<Cost>,
}

/// What the work cost, per unit.
#[derive(Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) cpu_micros: Option<f64>,
    pub(crate) peak_megabytes: Option<f64>,
    /// Calls of the state adapter.
    pub(crate) verbs: Option<BTreeMap<String, f64>>,
}

/// The figures of all rounds under one name.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) values: Vec<f64>,
    pub(crate) costs: Vec<Cost>,
}

pub(crate) struct Results {
    pub(crate) suite: &'static str,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) fn run(suite: Suite, options: &Options) -> Result<Results, BoxError> {
    let rounds = options.rounds;
    let mut rows: Vec<Row> = Vec::new();
    for round in 1..=rounds {
        for case in suite.cases.iter().filter(|case| case.name.contains(&options.only)) {
            eprintln!("round {round} of {rounds}: {}", case.name);
            for figure in run_apart(&options.suite, &case.name, options.divide)? {
                let place = rows.iter().position(|row| row.name == figure.name);
                let place = place.unwrap_or_else(|| {
                    rows.push(Row {
                        name: figure.name,
                        unit: figure.unit,
                        values: Vec::new(),
                        costs: Vec::new(),
                    });
                    rows.len() - 1
                });
                rows[place].values.push(figure.value);
                rows[place].costs.extend(figure.cost);
            }
        }
    }
    let mut settings = suite.settings;
    settings.push(("rounds", format!("{rounds}, interleaved")));
    if let Some(load) = load_average() {
        settings.push(("load average at the end", load));
    }
    Ok(Results {
        suite: suite.name,
        settings,
        rows,
    })
}

fn run_apart(suite: &str, case: &str, divide: usize) -> Result<Vec<Figure>, BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([suite, "--case", case, "--divide", &divide.to_string()]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("`{case}` failed").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Time and processor time from its creation on.
pub(crate) struct Stopwatch {
    started: Instant,
    cpu: Option<Duration>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            cpu: cpu_time(),
            started: Instant::now(),
        }
    }

    /// The rate per second at which `count` units were done, and their cost.
    pub(crate) fn rate(self, name: impl Into<String>, unit: &'static str, count: usize) -> Figure {
        let elapsed = self.started.elapsed();
        let cpu = cpu_time()
            .zip(self.cpu)
            .map(|(after, before)| after.saturating_sub(before));
        let count = count as f64;
        Figure {
            name: name.into(),
            unit: unit.to_owned(),
            value: count / elapsed.as_secs_f64(),
            cost: Some(Cost {
                cpu_micros: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count),
                peak_megabytes: peak_memory(),
                verbs: None,
            }),
        }
    }
}

/// The time that all threads have been on a processor, in nanoseconds where the kernel counts them.
fn cpu_time() -> Option<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        let schedule = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        nanos += schedule.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

fn load_average() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().next().map(str::to_owned)
}

/// The value below which the given part of the sorted values lies.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len() as f64 * part) as usize;
    sorted.get(place).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

/// The sorted values.
pub(crate) fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}
