//! `queuert-benches <suite>`: runs a suite, prints a table and, as the last line, the same figures as JSON.

mod counted;
mod measure;
mod memory;
mod report;

use std::process::ExitCode;

use measure::{BoxError, Suite};

/// Adding a suite is a module with such a function, and a line here.
const SUITES: &[(&str, MakeSuite)] = &[("memory", memory::suite)];

type MakeSuite = fn(&Options) -> Suite;

/// What the command line says.
#[derive(Debug)]
struct Options {
    suite: String,
    /// Interleaved: every case once per round.
    rounds: usize,
    /// Only cases whose name contains this.
    only: String,
    /// The jobs of a round are divided by this, for a quick look.
    divide: usize,
    /// Run this case once, in this process, and print its figures: how the suite calls itself.
    case: Option<String>,
}

/// Two, because the figures that we promise are for two cores.
const CORES: usize = 2;

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            let names: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
            eprintln!("{problem}\nusage: <suite> [--rounds n] [--only text] [--divide n]; suites: {names:?}");
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
        return Ok(report::print(&results)?);
    };
    let case = suite.cases.iter().find(|case| case.name == *name);
    let case = case.ok_or_else(|| format!("there is no case `{name}`"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CORES)
        .enable_time()
        .build()?;
    // On the runtime, as a service would be: the main thread has no place in its queues.
    let figures = runtime.block_on(runtime.spawn((case.run)()))??;
    Ok(report::print_figures(&figures)?)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let suite = arguments.next().ok_or("which suite?")?;
    let mut options = Options {
        suite,
        rounds: 5,
        only: String::new(),
        divide: 1,
        case: None,
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        let number = value.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| format!("`{value}` is not a positive number"));
        match name.as_str() {
            "--rounds" => options.rounds = number?,
            "--divide" => options.divide = number?,
            "--only" => options.only = value,
            "--case" => options.case = Some(value),
            _ => return Err(format!("unknown option `{name}`")),
        }
    }
    Ok(options)
}
