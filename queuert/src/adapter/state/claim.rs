//! What is claimed, in which order, and for how long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::chain::ChainRecord;
use crate::id::{Fence, JobId, WorkerId};
use crate::job::{JobRecord, TypeName};
use crate::time::Timestamp;
use crate::worker::AbortReason;

/// How much waiting one step of priority is worth, unless an adapter is told otherwise: one minute.
pub const AGEING_STEP: Duration = Duration::from_secs(60);

/// The order of claiming, smallest first: the scheduled time minus the priority times the ageing step.
///
/// All waiting jobs age at the same rate, so the order between two of them never changes: a plain index serves it,
/// nothing is rewritten while jobs wait, and no job starves.
pub fn rank(scheduled_at: Timestamp, priority: i16, ageing_step: Duration) -> i64 {
    let step = i64::try_from(ageing_step.as_micros()).unwrap_or(i64::MAX);
    scheduled_at
        .as_micros()
        .saturating_sub(step.saturating_mul(i64::from(priority)))
}

/// Which jobs to claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimJobs {
    /// The types, with the duration of their leases.
    pub types: Vec<ClaimType>,
    /// How many at most.
    pub limit: usize,
    /// How many, if there are so many, whatever their inputs weigh; the first job is never refused. By default one.
    pub at_least: usize,
    /// How many bytes the inputs of all jobs together may have, beyond the first [`at_least`](Self::at_least) jobs. By
    /// default any number.
    pub bytes: usize,
    /// What the outputs of the blockers of a job count for, besides its input.
    pub outputs: BlockerOutputs,
    /// The worker that claims.
    pub worker: WorkerId,
    /// The fence of all jobs of this claim; never used before.
    pub fence: Fence,
}

impl ClaimJobs {
    /// A claim of up to `limit` jobs, whatever their inputs weigh.
    pub fn new(types: Vec<ClaimType>, limit: usize, worker: WorkerId, fence: Fence) -> Self {
        Self {
            types,
            limit,
            at_least: 1,
            bytes: usize::MAX,
            outputs: BlockerOutputs::default(),
            worker,
            fence,
        }
    }

    /// Limits the inputs of the jobs to so many bytes, beyond the first `at_least` jobs.
    #[must_use]
    pub fn within_bytes(mut self, at_least: usize, bytes: usize) -> Self {
        (self.at_least, self.bytes) = (at_least, bytes);
        self
    }

    /// Counts the outputs of the blockers of a job as well, as many bytes as the worker expects of them.
    #[must_use]
    pub fn expecting(mut self, outputs: BlockerOutputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Whether the claim may take one more job after `taken` others, with which they have `bytes` bytes together: those of
    /// their inputs, and for each job with blockers what [`outputs`](Self::outputs) says.
    pub fn admits(&self, taken: usize, bytes: usize) -> bool {
        taken < self.at_least.max(1) || bytes <= self.bytes
    }

    /// Whether the claim admits any job up to its limit, so that a store need not look at their inputs.
    pub fn admits_all(&self) -> bool {
        self.bytes == usize::MAX || self.limit <= self.at_least.max(1)
    }
}

/// How many bytes the outputs of the blockers of one job have, as far as a worker knows: a store counts them without reading
/// them. By default none.
#[derive(Clone, Debug, Default)]
pub struct BlockerOutputs {
    known: Arc<BTreeMap<TypeName, usize>>,
    unknown: usize,
}

impl BlockerOutputs {
    /// No type is known. A job with blockers counts for so many bytes until its type is.
    pub fn unknown(bytes: usize) -> Self {
        Self {
            known: Arc::default(),
            unknown: bytes,
        }
    }

    /// Notes that the blockers of one job of this type had so many bytes. A larger number counts at once, a smaller one
    /// gradually.
    pub fn note(&mut self, type_name: &TypeName, bytes: usize) {
        let before = self.known.get(type_name).copied();
        let after = before.map_or(bytes, |before| bytes.max(before - before / 8));
        if before != Some(after) {
            Arc::make_mut(&mut self.known).insert(type_name.clone(), after);
        }
    }

    /// How many bytes a job of this type counts for, besides its input, if it has blockers.
    pub fn expected(&self, type_name: &str) -> usize {
        self.known.get(type_name).copied().unwrap_or(self.unknown)
    }
}

/// A type to claim.
#[derive(Clone, Debug)]
pub struct ClaimType {
    /// Its name.
    pub name: TypeName,
    /// How long its leases last.
    pub lease: Duration,
}

/// The jobs that were claimed.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// In order of rank.
    pub jobs: Vec<ClaimedJob>,
    /// When fewer than `limit` were taken: the time until the next pending job of these types is due, if there is one. For a
    /// due job that was locked it is a short time, never zero. It is zero if a due job was left for its bytes.
    pub next_due: Option<Duration>,
}

/// A claimed job with what its processor needs.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// The job; its lease is set.
    pub job: JobRecord,
    /// Its blocker chains, in the declared order.
    pub blockers: Vec<ChainRecord>,
}

/// A lease to extend.
#[derive(Clone, Copy, Debug)]
pub struct RenewLease {
    /// The job.
    pub job: JobId,
    /// The fence under which it was claimed.
    pub fence: Fence,
    /// How long from now.
    pub lease: Duration,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Extended until then. A lease that had expired but was not taken yet is extended too.
    Renewed(Timestamp),
    /// A transaction has the job locked, or the whole store; nobody can take the job meanwhile. Ask again soon.
    Busy,
    /// The job is not this attempt's any more.
    Lost(AbortReason),
}
