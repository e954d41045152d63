//! Runs the cases of a suite in interleaved rounds.
//!
//! Every case of every round is a process of its own, so that none inherits the heap of another and the peak of its
//! memory is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};

pub(crate) use queuert_measured::{BoxError, Cost, Figure, Report, Stopwatch};

use crate::plot::Plot;
use crate::{Options, flushes};

pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Report, BoxError>> + Send>>;

/// Names the run of a suite to its cases.
pub(crate) const RUN: &str = "QUEUERT_BENCH_RUN";

/// What the names of the figures of the build before begin with.
const BEFORE: &str = "before: ";

/// A build that reaches less of what the one before it did has lost more than the noise of interleaved rounds.
const LEAST_OF_BEFORE: f64 = 0.97;

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
    /// Drawings of some figures.
    pub(crate) plots: Vec<Plot>,
}

/// Something that is run once per round.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Whether it measures a program of `benches/peers`, which is the same whatever build of the library it is compared with.
    peer: bool,
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
            peer: false,
            run: Box::new(move || {
                let running = run();
                Box::pin(async move { Ok(running.await?.into()) })
            }),
        }
    }

    /// One that measures a program of `benches/peers`.
    pub(crate) fn peer<F, Fut, R>(name: impl Into<String>, run: F) -> Self
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        R: Into<Report>,
    {
        Self {
            peer: true,
            ..Self::new(name, run)
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
    /// The figures are better the lower they are: the ratio is turned round, so that more is still better.
    lower: bool,
    /// What was promised is a bound from above.
    at_most: bool,
}

impl Ratio {
    pub(crate) fn new(name: &str, of: &str, against: &[impl AsRef<str>], wanted: Option<f64>) -> Self {
        Self {
            name: name.to_owned(),
            of: of.to_owned(),
            against: against.iter().map(|name| name.as_ref().to_owned()).collect(),
            wanted,
            lower: false,
            at_most: false,
        }
    }

    /// How many times as much as another figure something may be.
    pub(crate) fn at_most(name: &str, of: &str, against: &str, bound: Option<f64>) -> Self {
        Self {
            at_most: true,
            ..Self::new(name, of, &[against], bound)
        }
    }

    /// Whether that is what was promised.
    pub(crate) fn is_reached(&self, median: f64) -> Option<bool> {
        let wanted = self.wanted?;
        Some(if self.at_most {
            median <= wanted
        } else {
            median >= wanted
        })
    }

    /// What was promised, as people read it.
    pub(crate) fn promise(&self) -> String {
        let sign = if self.at_most { "<= " } else { "" };
        self.wanted.map_or(String::new(), |wanted| format!("{sign}{wanted:.2}"))
    }

    /// For times: the best of the others, divided by ours.
    pub(crate) fn lower(name: &str, of: &str, against: &[impl AsRef<str>], wanted: Option<f64>) -> Self {
        Self {
            lower: true,
            ..Self::new(name, of, against, wanted)
        }
    }

    /// The figure of a row against that of the build before, if that was measured too.
    fn with_before(row: &Row, rows: &[Row]) -> Option<Self> {
        let before = format!("{BEFORE}{}", row.name);
        rows.iter().find(|other| other.name == before)?;
        let compare = if less_is_better(&row.unit) {
            Self::lower
        } else {
            Self::new
        };
        Some(compare(&row.name, &row.name, &[before], Some(LEAST_OF_BEFORE)))
    }

    /// Its values by round, and against which figure; `None` if one of the two was not measured.
    pub(crate) fn values(&self, rows: &[Row]) -> Option<(Vec<f64>, String)> {
        let of = rows.iter().find(|row| row.name == self.of)?;
        let against = rows.iter().filter(|row| self.against.contains(&row.name));
        let worth = |row: &&Row| if self.lower { -row.median() } else { row.median() };
        let best = against.max_by(|one, other| worth(one).total_cmp(&worth(other)))?;
        // A round in which one of the two has failed has no ratio.
        let values = of.values.iter().filter_map(|(round, of)| {
            let best = best.values.get(round)?;
            Some(if self.lower { best / of } else { of / best })
        });
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then(|| (values, best.name.clone()))
    }
}

/// Whether a figure in this unit is a cost: a time (`µs, p50`), a share of a core, memory, or statements per second (`/s`).
/// Everything else is work that was done (`jobs/s`).
fn less_is_better(unit: &str) -> bool {
    let unit = unit.split(',').next().unwrap_or(unit);
    ["ns", "µs", "ms", "s", "% of a core", "/s", "B", "kB", "MB"].contains(&unit)
}

/// A cost, or a figure itself, that must not be higher than was promised, or not lower.
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    /// The figure that is meant, or whose cost it is.
    pub(crate) of: String,
    cost: Option<fn(&Cost) -> Option<f64>>,
    pub(crate) bound: f64,
    /// Whether more is better.
    pub(crate) at_least: bool,
}

impl Limit {
    pub(crate) fn of_cost(
        name: &'static str,
        of: impl Into<String>,
        cost: fn(&Cost) -> Option<f64>,
        at_most: f64,
    ) -> Self {
        Self {
            name,
            of: of.into(),
            cost: Some(cost),
            bound: at_most,
            at_least: false,
        }
    }

    /// Of a figure itself.
    pub(crate) fn at_least(name: &'static str, of: impl Into<String>, bound: f64) -> Self {
        Self {
            name,
            of: of.into(),
            cost: None,
            bound,
            at_least: true,
        }
    }

    /// Of a figure itself.
    pub(crate) fn at_most(name: &'static str, of: impl Into<String>, bound: f64) -> Self {
        Self {
            at_least: false,
            ..Self::at_least(name, of, bound)
        }
    }

    /// Its values, sorted; `None` if it was not measured.
    pub(crate) fn values(&self, rows: &[Row]) -> Option<Vec<f64>> {
        let row = rows.iter().find(|row| row.name == self.of)?;
        let values = match self.cost {
            Some(cost) => sorted(row.costs.iter().filter_map(cost)),
            None => sorted(row.values.values().copied()),
        };
        (!values.is_empty()).then_some(values)
    }

    pub(crate) fn is_kept(&self, median: f64) -> bool {
        match self.at_least {
            true => median >= self.bound,
            false => median <= self.bound,
        }
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
    pub(crate) plots: Vec<Plot>,
    /// What went wrong, in words.
    pub(crate) failures: Vec<String>,
}

pub(crate) fn run(suite: Suite, options: &Options) -> Result<Results, BoxError> {
    let rounds = options.rounds.unwrap_or(suite.rounds);
    let mut rows: Vec<Row> = Vec::new();
    let mut facts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let program = std::env::current_exe()?;
    // The program, and what the names of its figures begin with.
    let mut builds = vec![(program.as_path(), "")];
    if let Some(before) = &options.before {
        builds.push((before, BEFORE));
    }
    let wanted = |case: &&Case| case.name.contains(&options.only) && !(case.peer && options.before.is_some());
    let mut cases: Vec<&Case> = suite.cases.iter().filter(wanted).collect();
    let mut failures = Vec::new();
    for round in 1..=rounds {
        for (case, (program, prefix)) in cases
            .iter()
            .flat_map(|case| builds.iter().map(move |build| (case, build)))
        {
            eprintln!("round {round} of {rounds}: {prefix}{}", case.name);
            let report = match run_apart(program, &case.name, options) {
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
            for mut figure in report.figures {
                figure.name.insert_str(0, prefix);
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
        builds.reverse();
    }
    let ratios = match &options.before {
        Some(_) => rows.iter().filter_map(|row| Ratio::with_before(row, &rows)).collect(),
        None => suite.ratios,
    };
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
        ratios,
        limits: suite.limits,
        plots: suite.plots,
        failures,
    })
}

fn run_apart(program: &Path, case: &str, options: &Options) -> Result<Report, BoxError> {
    let mut command = Command::new(program);
    // So that a case knows what an earlier round has prepared, with the same build.
    command.env(RUN, format!("{} {}", std::process::id(), program.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_whether_less_is_better() {
        for cost in ["ns", "µs", "µs, p50", "ms", "s", "% of a core", "/s", "MB"] {
            assert!(less_is_better(cost), "{cost}");
        }
        for work in ["jobs/s", "chains/s", "steps/s", "blockers/s", "share"] {
            assert!(!less_is_better(work), "{work}");
        }
    }
}
