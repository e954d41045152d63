//! `queuert-benches <suite>`: runs a suite, prints a table and, as the last line, the same figures as JSON.

mod chains;
mod counted;
mod flushes;
mod growth;
mod idle;
mod latency;
mod measure;
mod memory;
mod observability;
mod peer;
mod peers;
mod plot;
mod postgres;
mod report;
mod scale;
mod sqlite;
mod urgent;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use measure::{BoxError, Suite};
use queuert_measured::CORES;

/// Adding a suite is a module with such a function, and a line here.
const SUITES: &[(&str, MakeSuite)] = &[
    ("chains", chains::suite),
    ("growth", growth::suite),
    ("idle", idle::suite),
    ("latency", latency::suite),
    ("memory", memory::suite),
    ("observability", observability::suite),
    ("peers", peers::suite),
    ("postgres", postgres::suite),
    ("scale", scale::suite),
    ("sqlite", sqlite::suite),
    ("urgent", urgent::suite),
];

/// A case that is stuck should not keep the others waiting.
const CASE_LIMIT: Duration = Duration::from_secs(600);

type MakeSuite = fn(&Options) -> Suite;

/// What the command line says.
#[derive(Debug)]
struct Options {
    suite: String,
    /// Interleaved: every case once per round. The suite knows how many are enough.
    rounds: Option<usize>,
    /// Only cases whose name contains this.
    only: String,
    /// The jobs of a round are divided by this, for a quick look.
    divide: usize,
    /// Also count how often each case waits for the disk.
    flushes: bool,
    /// The same program of another build: every case is run by both in turn, and their figures are compared.
    before: Option<PathBuf>,
    /// Run this case once, in this process, and print its figures: how the suite calls itself.
    case: Option<String>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            let names: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
            eprintln!(
                "{problem}\nusage: <suite> [--rounds n] [--only text] [--divide n] [--quick] [--flushes] \
                 [--before program]; suites: {names:?}"
            );
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), BoxError> {
    let Some((_, suite)) = SUITES.iter().find(|(name, _)| *name == options.suite) else {
        return Err(format!("there is no suite `{}`", options.suite).into());
    };
    let suite = suite(options);
    let Some(name) = &options.case else {
        let results = measure::run(suite, options)?;
        // Those of a quick look, or of a part, are not for the documentation.
        let directory = match options.divide == 1 && options.only.is_empty() && options.before.is_none() {
            true => PathBuf::from("docs"),
            false => std::env::temp_dir(),
        };
        for plot in plot::write(&results, &directory)? {
            eprintln!("plotted: {}", plot.display());
        }
        report::print(&results)?;
        return match results.failures.len() {
            0 => Ok(()),
            failures => Err(format!("{failures} runs failed").into()),
        };
    };
    let case = suite.cases.iter().find(|case| case.name == *name);
    let case = case.ok_or_else(|| format!("there is no case `{name}`"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CORES)
        .enable_all()
        .build()?;
    // On the runtime, as a service would be: the main thread has no place in its queues.
    let running = runtime.spawn((case.run)());
    let ended = runtime.block_on(async { tokio::time::timeout(CASE_LIMIT, running).await });
    let report = ended.map_err(|_| format!("`{name}` was not done within {CASE_LIMIT:?}"))???;
    Ok(report.print()?)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let suite = arguments.next().ok_or("which suite?")?;
    let mut options = Options {
        suite,
        rounds: None,
        only: String::new(),
        divide: 1,
        flushes: false,
        before: None,
        case: None,
    };
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--quick" => {
                (options.rounds, options.divide) = (Some(1), 20);
                continue;
            }
            "--flushes" => {
                options.flushes = true;
                continue;
            }
            _ => {}
        }
        let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        let number = value.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| format!("`{value}` is not a positive number"));
        match name.as_str() {
            "--rounds" => options.rounds = Some(number?),
            "--divide" => options.divide = number?,
            "--only" => options.only = value,
            "--before" => options.before = Some(value.into()),
            "--case" => options.case = Some(value),
            _ => return Err(format!("unknown option `{name}`")),
        }
    }
    Ok(options)
}
