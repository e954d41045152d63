//! What work costs, read from the operating system.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Figure;

/// What the work cost, per unit.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// How many units were done.
    pub units: usize,
    /// Time on a processor of all threads.
    pub cpu_micros: Option<f64>,
    /// The largest resident set from the start of the stopwatch on.
    pub peak_megabytes: Option<f64>,
    /// Bytes that were handed to the operating system to be written.
    pub written_bytes: Option<f64>,
    /// Transactions of the store.
    pub transactions: Option<f64>,
    /// Statements that the server ran, `BEGIN` and `COMMIT` counted.
    pub statements: Option<f64>,
    /// Bytes of the server's write-ahead log.
    pub wal_bytes: Option<f64>,
    /// Connections to the server, in all.
    pub connections: Option<f64>,
    /// Pages that the server touched.
    pub pages: Option<f64>,
    /// Rows that the server read from tables and indexes.
    pub rows: Option<f64>,
    /// Calls of the operating system that wait for the disk; counted by the suite, in a run of their own.
    pub flushes: Option<f64>,
    /// Calls of the state adapter.
    pub verbs: Option<BTreeMap<String, f64>>,
}

/// Time and processor time from its creation on.
#[derive(Debug)]
pub struct Stopwatch {
    cpu: Option<Duration>,
    written: Option<u64>,
    started: Instant,
}

impl Stopwatch {
    /// Starts it, and forgets how much memory the process has used before.
    pub fn start() -> Self {
        // Where it is refused, the peak is that of the whole process.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self {
            cpu: cpu_time(),
            written: written(),
            started: now(),
        }
    }

    /// The time since its start.
    pub fn elapsed(&self) -> Duration {
        now().duration_since(self.started)
    }

    /// The rate per second at which `count` units were done until now, and their cost.
    pub fn rate(&self, name: impl Into<String>, unit: &str, count: usize) -> Figure {
        self.rate_over(self.elapsed(), name, unit, count)
    }

    /// The same for work that was over at some moment before now.
    pub fn rate_over(&self, elapsed: Duration, name: impl Into<String>, unit: &str, count: usize) -> Figure {
        let cpu = cpu_time().zip(self.cpu);
        let cpu = cpu.map(|(after, before)| after.saturating_sub(before));
        let written = written().zip(self.written);
        let units = count;
        let count = count as f64;
        Figure {
            name: name.into(),
            unit: unit.to_owned(),
            value: count / elapsed.as_secs_f64(),
            cost: Some(Cost {
                units,
                cpu_micros: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count),
                peak_megabytes: peak_memory(),
                written_bytes: written.map(|(after, before)| after.saturating_sub(before) as f64 / count),
                ..Cost::default()
            }),
        }
    }

    /// The share of one processor that was used until now, in per cent.
    pub fn busy(&self, name: impl Into<String>) -> Option<Figure> {
        let cpu = cpu_time()?.saturating_sub(self.cpu?);
        Some(Figure {
            name: name.into(),
            unit: "% of a core".to_owned(),
            value: 100.0 * cpu.as_secs_f64() / self.elapsed().as_secs_f64(),
            cost: None,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "benchmarks measure the real time, also in programs without tokio"
)]
fn now() -> Instant {
    Instant::now()
}

/// The time that all threads have been on a processor, in nanoseconds. A thread that has ended is not in it, but those
/// that do the work of a measured program live as long as it does.
fn cpu_time() -> Option<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end while we look.
        let Ok(schedule) = fs::read_to_string(task.ok()?.path().join("schedstat")) else {
            continue;
        };
        nanos += schedule.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

fn written() -> Option<u64> {
    let counts = fs::read_to_string("/proc/self/io").ok()?;
    let line = counts.lines().find_map(|line| line.strip_prefix("wchar:"))?;
    line.trim().parse().ok()
}

fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}
