//! What is created: jobs and chains.

use std::time::Duration;

use crate::deduplication::Deduplication;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobStatus, TypeName};
use crate::payload::Payload;
use crate::time::Schedule;

/// A job to be created.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// Its type.
    pub type_name: TypeName,
    /// Its input.
    pub input: Payload,
    /// When it may run.
    pub schedule: Schedule,
    /// Larger goes first.
    pub priority: i16,
    /// Attempts after which it is dead, where the starter chose a number.
    pub max_attempts: Option<u32>,
    /// The chains that it waits for, in the declared order.
    pub blockers: Vec<ChainId>,
    /// W3C trace context.
    pub trace_context: Option<String>,
    /// Set by a worker that would claim the job at once. Only for the next job of an attempt.
    pub hand_over: Option<HandOver>,
}

impl NewJob {
    /// A job that may run at once.
    pub fn new(id: JobId, type_name: impl Into<TypeName>, input: Payload) -> Self {
        Self {
            id,
            type_name: type_name.into(),
            input,
            schedule: Schedule::Now,
            priority: 0,
            max_attempts: None,
            blockers: Vec::new(),
            trace_context: None,
            hand_over: None,
        }
    }
}

/// How a worker would claim the next job of its chain in the same breath in which it creates it.
///
/// A job for [`Schedule::Now`] that waits for nothing is created running, as [`claim_jobs`](super::StateAdapter::claim_jobs) would
/// have left it: first attempt, first claim, started now, leased to the worker of the settlement's [`Authority::Fence`](super::Authority::Fence)
/// under this fence. [`Applied::handed_over`](super::Applied::handed_over) says so. Any other job is created as if it had not been asked for, as is one
/// that is created from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The fence; never used before.
    pub fence: Fence,
    /// How long the lease lasts.
    pub lease: Duration,
}

/// A chain to be started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewChain {
    /// Its first job.
    pub job: NewJob,
    /// Which existing chain would be returned instead.
    pub deduplication: Option<Deduplication>,
}

impl NewChain {
    /// A chain that is started in any case.
    pub fn new(job: NewJob) -> Self {
        Self {
            job,
            deduplication: None,
        }
    }
}

/// A chain that was started, or was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedChain {
    /// The chain.
    pub id: ChainId,
    /// The chain's status.
    pub status: JobStatus,
    /// Whether it was there already.
    pub deduplicated: bool,
}
