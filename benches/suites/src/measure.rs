//! Runs the cases of a suite in interleaved rounds.
//!
//! Every case of every round is a process of its own, so that none inherits the heap of another and the peak of its
//! memory is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::process::{Command, Stdio};

pub(crate) use queuert_measured::{BoxError, Cost, Figure, Report, Stopwatch};

use crate::{Options, flushes};

pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Report, BoxError>> + Send>>;

/// Cases that are compared with one another.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Unless the command line says otherwise.
    pub(crate) rounds: usize,
    /// What was set, in words.
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) cases: Vec<Case>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) limits: Vec<Limit>,
}

/// Something that is run once per round.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn() -> Running>,
}

impl Case {
    pub(crate) fn new<F, Fut, R>(name: impl Into<String>, run: F) -> Self
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        R: Into<Report>,
    {
        Self {
            name: name.into(),
            run: Box::new(move || {
                let running = run();
                Box::pin(async move { Ok(running.await?.into()) })
            }),
        }
    }
}

/// One figure divided by another of the same round.
pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) of: String,
    /// The best of these, by its median.
    pub(crate) against: Vec<String>,
    /// What was promised.
    pub(crate) wanted: Option<f64>,
}

impl Ratio {
    pub(crate) fn new(name: &str, of: &str, against: &[&str], wanted: Option<f64>) -> Self {
        Self {
            name: name.to_owned(),
            of: of.to_owned(),
            against: against.iter().map(|name| (*name).to_owned()).collect(),
            wanted,
        }
    }

    /// Its values by round, and against which figure; `None` if one of the two was not measured.
    pub(crate) fn values(&self, rows: &[Row]) -> Option<(Vec<f64>, String)> {
        let of = rows.iter().find(|row| row.name == self.of)?;
        let against = rows.iter().filter(|row| self.against.contains(&row.name));
        let best = against.max_by(|one, other| one.median().total_cmp(&other.median()))?;
        // A round in which one of the two has failed has no ratio.
        let values = of
            .values
            .iter()
            .filter_map(|(round, of)| Some(of / best.values.get(round)?));
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then(|| (values, best.name.clone()))
    }
}

/// A cost that must not be higher than was promised.
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    /// The figure whose cost it is.
    pub(crate) of: &'static str,
    pub(crate) cost: fn(&Cost) -> Option<f64>,
    pub(crate) at_most: f64,
}

impl Limit {
    /// Its values, sorted; `None` if it was not measured.
    pub(crate) fn values(&self, rows: &[Row]) -> Option<Vec<f64>> {
        let row = rows.iter().find(|row| row.name == self.of)?;
        let values = sorted(row.costs.iter().filter_map(self.cost));
        (!values.is_empty()).then_some(values)
    }
}

/// The figures of all rounds under one name.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// By round.
    pub(crate) values: BTreeMap<usize, f64>,
    pub(crate) costs: Vec<Cost>,
}

impl Row {
    fn new(name: String, unit: String) -> Self {
        Self {
            name,
            unit,
            values: BTreeMap::new(),
            costs: Vec::new(),
        }
    }

    pub(crate) fn median(&self) -> f64 {
        quantile(&sorted(self.values.values().copied()), 0.5)
    }
}

pub(crate) struct Results {
    pub(crate) suite: &'static str,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) limits: Vec<Limit>,
    /// What went wrong, in words.
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(suite: Suite, options: &Options) -> Result<Results, BoxError> {
    let rounds = options.rounds.unwrap_or(suite.rounds);
    let mut rows: Vec<Row> = Vec::new();
    let mut facts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let wanted = |case: &&Case| case.name.contains(&options.only);
    let mut cases: Vec<&Case> = suite.cases.iter().filter(wanted).collect();
    let mut failures = Vec::new();
    for round in 1..=rounds {
        for case in &cases {
            eprintln!("round {round} of {rounds}: {}", case.name);
            let report = match run_apart(&case.name, options) {
                Ok(report) => report,
                // The others are still worth their time.
                Err(error) => {
                    failures.push(format!("round {round}: {error}"));
                    continue;
                }
            };
            for (name, value) in report.facts {
                facts.entry(name).or_default().insert(value);
            }
            for figure in report.figures {
                let place = rows.iter().position(|row| row.name == figure.name);
                let place = place.unwrap_or_else(|| {
                    rows.push(Row::new(figure.name, figure.unit));
                    rows.len() - 1
                });
                rows[place].values.insert(round, figure.value);
                rows[place].costs.extend(figure.cost);
            }
        }
        // There and back again: nobody always comes first.
        cases.reverse();
    }
    if options.flushes {
        for case in suite.cases.iter().filter(wanted) {
            flushes::count(case, options, &mut rows)?;
        }
    }
    let settings = suite.settings.into_iter();
    let mut settings: Vec<_> = settings.map(|(name, value)| (name.to_owned(), value)).collect();
    for (name, values) in facts {
        settings.push((name, values.into_iter().collect::<Vec<_>>().join(" / ")));
    }
    settings.push(("rounds".to_owned(), format!("{rounds}, interleaved")));
    if let Some(load) = load_average() {
        settings.push(("load average at the end".to_owned(), load));
    }
    Ok(Results {
        suite: suite.name,
        settings,
        rows,
        ratios: suite.ratios,
        limits: suite.limits,
        failures,
    })
}

fn run_apart(case: &str, options: &Options) -> Result<Report, BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([&options.suite, "--case", case, "--divide", &options.divide.to_string()]);
    report_of(command, case)
}

/// Runs a measured program.
pub(crate) fn report_of(mut command: Command, case: &str) -> Result<Report, BoxError> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("`{case}` failed").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
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
