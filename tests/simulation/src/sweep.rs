//! Many seeds on all cores.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::faults::Coverage;
use crate::run::{Report, Setup, simulate};

/// How many runs went.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Runs.
    pub runs: u64,
    /// Calls to the store.
    pub calls: u64,
    /// What happened how often, over all runs.
    pub coverage: Coverage,
    /// The run with the smallest seed that broke a rule, of those that were run.
    pub failure: Option<Report>,
    /// How long it took.
    pub took: Duration,
}

/// Runs seeds on all cores, until one breaks a rule or all have held.
pub fn sweep(seeds: Range<u64>, setup: Setup) -> Sweep {
    #[expect(clippy::disallowed_methods, reason = "the throughput is measured by the wall")]
    let since = std::time::Instant::now();
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicBool::new(false);
    let worker = || {
        let mut sweep = Sweep::default();
        while !failed.load(Ordering::SeqCst) {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= seeds.end {
                break;
            }
            let report = simulate(Setup { seed, ..setup });
            sweep.runs += 1;
            sweep.calls += report.calls;
            for (name, times) in &report.coverage {
                *sweep.coverage.entry(name).or_default() += times;
            }
            if report.violation.is_some() {
                failed.store(true, Ordering::SeqCst);
                sweep.failure = Some(report);
            }
        }
        sweep
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let mut all = Sweep::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for one in workers {
            match one.join() {
                Ok(one) => all.add(one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.took = since.elapsed();
    all
}

impl Sweep {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.calls += other.calls;
        for (name, times) in other.coverage {
            *self.coverage.entry(name).or_default() += times;
        }
        let smaller = match (&self.failure, &other.failure) {
            (Some(mine), Some(theirs)) => theirs.seed < mine.seed,
            (None, Some(_)) => true,
            _ => false,
        };
        if smaller {
            self.failure = other.failure;
        }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.runs as f64 / self.took.as_secs_f64().max(0.001);
        writeln!(
            f,
            "{} seeds in {:.1?} ({per_second:.0} a second), {} calls to the store",
            self.runs, self.took, self.calls
        )?;
        for (name, times) in &self.coverage {
            writeln!(f, "{times:>9} {name}")?;
        }
        Ok(())
    }
}
