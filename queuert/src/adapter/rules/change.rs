//! What the rules know of a job, and what they change on it.

use crate::id::{Fence, WorkerId};
use crate::job::{AttemptError, JobRecord, JobStatus};
use crate::payload::Payload;
use crate::time::Timestamp;

/// The facts about a stored job that the rules decide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobHead {
    /// Its status.
    pub status: JobStatus,
    /// The fence of its lease; `None` unless it is running.
    pub fence: Option<Fence>,
    /// The fence under which it was settled last.
    pub settled_fence: Option<Fence>,
    /// Its current attempt, or its last one.
    pub attempt: u32,
    /// When it may run.
    pub scheduled_at: Timestamp,
}

impl JobHead {
    /// The head of a record. The store adds the fence under which the job was settled last, which no record has.
    pub fn of(job: &JobRecord, settled_fence: Option<Fence>) -> Self {
        Self {
            status: job.status,
            fence: job.lease.as_ref().map(|lease| lease.fence),
            settled_fence,
            attempt: job.attempt,
            scheduled_at: job.scheduled_at,
        }
    }
}

/// What a verb changes on a job, other than by claiming it: the values after the change. The job has no lease afterwards.
/// All that is not named here (input, type, priority, claims, the start of the attempt…) stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The status.
    pub status: JobStatus,
    /// When the job may run.
    pub scheduled_at: Timestamp,
    /// Where it stands among the jobs that wait.
    pub rank: RankChange,
    /// The attempts that are spent.
    pub attempt: u32,
    /// When it ended; `None` for an open job.
    pub ended_at: Option<Timestamp>,
    /// The worker that completed it; `None` if it is not completed, or was completed from outside.
    pub completed_by: Option<WorkerId>,
    /// The output, if the chain ends with this job.
    pub output: Option<Payload>,
    /// The stored error.
    pub error: ErrorChange,
    /// The fence to remember, under which the job was settled; `None` keeps the one that is remembered.
    pub settled_fence: Option<Fence>,
    /// Whether the job is still the latest of its chain: `false` if the chain goes on with another.
    pub latest: bool,
    /// Whether the chain is open.
    pub chain_open: bool,
}

/// What becomes of the [`rank`](crate::adapter::rank) of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankChange {
    /// It stays, whatever the scheduled time is.
    Keep,
    /// It becomes that of the scheduled time.
    OfSchedule,
    /// It becomes the smaller of the two.
    Smaller,
}

/// What becomes of the stored error of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorChange {
    /// It stays.
    Keep,
    /// It is forgotten.
    Clear,
    /// It becomes this one.
    Set(AttemptError),
}

impl RankChange {
    /// The rank after the change, from the stored rank and that of the new scheduled time. A store may as well keep the
    /// scheduled times by which jobs are ranked: the two are ordered alike for one job.
    pub fn apply<T: Ord>(self, stored: T, of_schedule: T) -> T {
        match self {
            Self::Keep => stored,
            Self::OfSchedule => of_schedule,
            Self::Smaller => stored.min(of_schedule),
        }
    }
}

impl Change {
    /// The lease goes, and everything else stays as it is.
    pub(super) fn of(head: &JobHead) -> Self {
        Self {
            status: head.status,
            scheduled_at: head.scheduled_at,
            rank: RankChange::Keep,
            attempt: head.attempt,
            ended_at: None,
            completed_by: None,
            output: None,
            error: ErrorChange::Keep,
            settled_fence: None,
            latest: true,
            chain_open: true,
        }
    }

    /// The job waits again. One that is blocked, and is settled from outside, stays blocked.
    pub(super) fn back(head: &JobHead) -> Self {
        Self {
            status: match head.status {
                JobStatus::Blocked => JobStatus::Blocked,
                _ => JobStatus::Pending,
            },
            ..Self::of(head)
        }
    }

    /// The job ends in this status, and its chain with it.
    pub(super) fn end(head: &JobHead, status: JobStatus, now: Timestamp) -> Self {
        Self {
            status,
            ended_at: Some(now),
            chain_open: false,
            ..Self::of(head)
        }
    }

    /// Changes a record to what the store has to write. What is not part of a record (rank, remembered fence) is the
    /// store's to write.
    pub fn apply(self, job: &mut JobRecord) {
        job.status = self.status;
        job.scheduled_at = self.scheduled_at;
        job.attempt = self.attempt;
        job.ended_at = self.ended_at;
        job.completed_by = self.completed_by;
        job.output = self.output;
        job.lease = None;
        match self.error {
            ErrorChange::Keep => {}
            ErrorChange::Clear => job.last_error = None,
            ErrorChange::Set(error) => job.last_error = Some(error),
        }
    }
}
