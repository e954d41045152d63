//! How attempts end, and what becomes of it.

use super::create::NewJob;
use super::operate::Refusal;
use crate::id::{ChainId, Fence, JobId, WorkerId};
use crate::job::{JobStatus, TypeName};
use crate::payload::Payload;
use crate::time::{Schedule, Timestamp};
use crate::worker::AbortReason;

/// The end of an attempt.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The job.
    pub job: JobId,
    /// By what right.
    pub authority: Authority,
    /// How it ends.
    pub outcome: Outcome,
}

/// By what right a job is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// By an attempt, under its fence.
    Fence {
        /// The fence.
        fence: Fence,
        /// The worker, stored as the one that completed the job.
        worker: WorkerId,
    },
    /// From outside: the caller has locked the chain with [`StateAdapter::lock_chain`](super::StateAdapter::lock_chain) in the same transaction. Lost
    /// unless the job is the latest of its chain and open.
    Outside,
}

/// How an attempt ends.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The chain ends with this output.
    Finish {
        /// The output.
        output: Payload,
    },
    /// The chain goes on with this job, at the next index.
    Continue {
        /// The next job.
        next: Box<NewJob>,
    },
    /// The attempt failed; the job is pending again at the given time.
    Retry {
        /// When.
        schedule: Schedule,
        /// What to store as the attempt's error.
        error: String,
    },
    /// The attempt failed; the job is dead.
    Bury {
        /// What to store as the attempt's error.
        error: String,
    },
    /// The job goes back at once, with the place it had; the attempt is not spent.
    Release,
    /// The job goes back until the given time; the attempt is not spent.
    Snooze {
        /// When.
        schedule: Schedule,
    },
}

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was applied.
    Applied(Applied),
    /// It, or another settlement under the same fence, had been applied before; nothing changed now.
    Repeated(Repeated),
    /// The job is not the caller's any more; nothing changed.
    Lost(AbortReason),
    /// The next job cannot be created; nothing changed.
    Refused(Refusal),
    /// Another transaction has a chain locked that this would change; nothing changed, ask again soon. Only without a
    /// transaction of the caller's.
    Busy,
}

/// What a settlement did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The status of the next job, if the chain goes on.
    pub next: Option<JobStatus>,
    /// When the next job was created, if it was handed over: it runs since then, under the fence of its [`HandOver`](super::HandOver).
    pub handed_over: Option<Timestamp>,
    /// The jobs that became pending because the chain completed.
    pub unblocked: Vec<UnblockedJob>,
    /// Whether an attempt was running (and is to be told), when the job was settled from outside.
    pub interrupted: bool,
}

/// What the store knows of a settlement that was applied before: what is to be announced although the answer to it was
/// lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repeated {
    /// The status of the job now.
    pub status: JobStatus,
    /// Whether the next job was created blocked, if the chain went on. A job that was not is pending, or was handed over
    /// as it was asked for; [`StateAdapter::claimed_jobs`](super::StateAdapter::claimed_jobs) finds it by its fence then.
    pub next_blocked: bool,
    /// The jobs that became pending because the chain completed with this settlement, whatever became of them since.
    /// Those that were deleted are left out.
    pub unblocked: Vec<UnblockedJob>,
}

impl Repeated {
    /// A settlement after which the job is in this status, and that concerned no other job.
    pub const fn new(status: JobStatus) -> Self {
        Self {
            status,
            next_blocked: false,
            unblocked: Vec::new(),
        }
    }
}

/// A job whose last blocker completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnblockedJob {
    /// The job.
    pub job: JobId,
    /// Its chain.
    pub chain: ChainId,
    /// Its type.
    pub type_name: TypeName,
}
