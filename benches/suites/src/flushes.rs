//! Counts how often a case waits for the disk. `strace` slows everything down, so this is a run of its own, with fewer
//! jobs and without figures.

use std::process::Command;

use crate::Options;
use crate::measure::{BoxError, Case, Row, report_of};

/// Fewer jobs, because every flush stops the process several times.
const DIVIDE: usize = 10;

/// Runs the case once and tells its last figure how many flushes there were per unit. Preparing is in it.
pub(crate) fn count(case: &Case, options: &Options, rows: &mut [Row]) -> Result<(), BoxError> {
    eprintln!("counting flushes: {}", case.name);
    let counts = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o"]);
    command.arg(counts.path()).arg(std::env::current_exe()?);
    let divide = options.divide * DIVIDE;
    command.args([&options.suite, "--case", &case.name, "--divide", &divide.to_string()]);
    let report = report_of(command, &case.name).map_err(|error| format!("{error}; `--flushes` needs strace"))?;
    let trace = std::fs::read_to_string(counts.path())?;
    // A call that another thread interrupts in the trace has a second line, which says that it resumed.
    let calls = trace.lines().filter(|line| line.contains("sync(")).count();
    let last = report.figures.into_iter().next_back();
    let cost = last.and_then(|figure| Some((figure.name, figure.cost?)));
    if let Some((name, cost)) = cost
        && let Some(row) = rows.iter_mut().find(|row| row.name == name)
    {
        for known in &mut row.costs {
            known.flushes = Some(calls as f64 / cost.units as f64);
        }
    }
    Ok(())
}
