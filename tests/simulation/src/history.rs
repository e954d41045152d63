//! What happened in a run, line by line, with short names instead of ids, and a hash of all of it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;

use queuert::{ChainId, Fence, JobId, WorkerId};
use uuid::Uuid;

/// The log of a run.
#[derive(Debug, Default)]
pub struct History {
    lines: Vec<String>,
    names: BTreeMap<Uuid, usize>,
    workers: BTreeMap<WorkerId, usize>,
    hash: Fnv,
}

#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

impl History {
    /// Adds a line. The time is in milliseconds since the start of the run, by tokio's clock.
    pub fn push(&mut self, millis: f64, what: fmt::Arguments<'_>) {
        let line = format!("{millis:>10.1} {what}");
        self.hash.write(line.as_bytes());
        self.lines.push(line);
    }

    /// A short name for an id, given in the order of first mention.
    fn name(&mut self, id: Uuid) -> usize {
        let next = self.names.len() + 1;
        *self.names.entry(id).or_insert(next)
    }

    /// `#7`: jobs and the chains that they start have the same name, as they have the same id.
    pub fn job(&mut self, id: JobId) -> String {
        format!("#{}", self.name(id.as_uuid()))
    }

    /// As [`job`](Self::job).
    pub fn chain(&mut self, id: ChainId) -> String {
        self.job(id.first_job())
    }

    /// `f9`.
    pub fn fence(&mut self, fence: Fence) -> String {
        format!("f{}", self.name(fence.as_uuid()))
    }

    /// `w2`.
    pub fn worker(&mut self, worker: &WorkerId) -> String {
        let next = self.workers.len() + 1;
        format!("w{}", self.workers.entry(worker.clone()).or_insert(next))
    }

    /// The hash of all lines: equal for two runs of one seed.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// All lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
