//! What happened, as one type: for the stream of events of a client and for observability adapters.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{QueueSample, ReapCause};
use crate::id::{ChainId, JobId, WorkerId};
use crate::job::{JobRecord, TypeName};
use crate::pause::Pause;
use crate::time::Timestamp;
use crate::worker::AbortReason;

/// The job that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id.
    pub id: JobId,
    /// The job's type.
    pub type_name: TypeName,
    /// The chain that the job belongs to.
    pub chain_id: ChainId,
    /// The type of the chain's first job.
    pub chain_type: TypeName,
}

/// How long a job and its chain had existed when the job ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ages {
    pub(crate) job: Option<Duration>,
    pub(crate) chain: Option<Duration>,
}

impl Ages {
    /// For a job that ended at this time.
    pub(crate) fn at(job: &JobRecord, ended_at: Timestamp) -> Self {
        // Only first jobs know when their chain began; for the others it is read from the chain's id, if the library
        // made that. A look into the store would cost every end of a job a read for the sake of one figure.
        let began = match job.chain_index {
            0 => Some(job.created_at),
            _ => job.chain_id.made_at(),
        };
        Self {
            job: Some(ended_at.saturating_duration_since(job.created_at)),
            chain: began.map(|began| ended_at.saturating_duration_since(began)),
        }
    }
}

impl JobInfo {
    pub(crate) fn of(job: &JobRecord) -> Self {
        Self {
            id: job.id,
            type_name: job.type_name.clone(),
            chain_id: job.chain_id,
            chain_type: job.chain_type.clone(),
        }
    }
}

/// The attempt that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The job that the attempt runs.
    pub job: JobInfo,
    /// The number of the attempt, from one.
    pub attempt: u32,
    /// The set of workers that runs the attempt.
    pub worker: WorkerId,
    /// The W3C trace context that was stored with the job.
    pub trace_context: Option<String>,
    /// When the job was created, by the store's clock.
    pub created_at: Timestamp,
    /// The time from which the attempt was due, by the store's clock.
    pub scheduled_at: Timestamp,
    /// When the job was claimed for this attempt, by the store's clock.
    pub started_at: Timestamp,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// The attempt finished its chain.
    Finished,
    /// The attempt continued its chain with another job.
    Continued {
        /// The id of the next job.
        next: JobId,
        /// The type of the next job.
        next_type: TypeName,
    },
    /// The attempt failed, and the job will be retried.
    Failed {
        /// The error with all its sources, as it is stored with the job.
        error: String,
        /// The backoff before the retry; `None` if the processor chose the time.
        retry_in: Option<Duration>,
        /// Whether the store failed it, as in an outage, and not the processor: a call to the store failed in a way that may
        /// pass, and the processor returned that error, or the worker could not commit.
        by_store: bool,
    },
    /// The attempt failed, and the job is dead.
    Died {
        /// The error with all its sources, as it is stored with the job.
        error: String,
    },
    /// The processor snoozed: the job runs again later, and no attempt is spent.
    Snoozed,
    /// The attempt lost its job, for this reason.
    Aborted(AbortReason),
}

/// Something that happened.
///
/// An event about a write is emitted after the write has committed, and dropped if it is rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A set of workers started.
    WorkerStarted {
        /// The set of workers.
        worker: WorkerId,
        /// The number of workers in the set; each runs one job at a time.
        concurrency: usize,
    },
    /// The store fails; the workers retry until it answers.
    WorkerDegraded {
        /// The set of workers.
        worker: WorkerId,
        /// The store's error with all its sources.
        error: Arc<str>,
    },
    /// The store answers again.
    WorkerRecovered {
        /// The set of workers.
        worker: WorkerId,
    },
    /// `stop` was called.
    WorkerStopping {
        /// The set of workers.
        worker: WorkerId,
    },
    /// The workers have stopped: no attempt runs any more.
    WorkerStopped {
        /// The set of workers.
        worker: WorkerId,
    },
    /// A chain was started.
    ChainCreated {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
    },
    /// A start found an existing chain with its deduplication key, and started none.
    ChainDeduplicated {
        /// The id of the existing chain.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
    },
    /// A chain completed.
    ChainCompleted {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
        /// The time from the chain's start to its end; `None` if the start is not known, because the chain has several
        /// jobs and an id of the caller's own.
        duration: Option<Duration>,
    },
    /// A chain died.
    ChainDead {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
        /// The time from the chain's start to its end; `None` if the start is not known, because the chain has several
        /// jobs and an id of the caller's own.
        duration: Option<Duration>,
    },
    /// A chain was cancelled.
    ChainCancelled {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
        /// The time from the chain's start to its end; `None` if the start is not known, because the chain has several
        /// jobs and an id of the caller's own.
        duration: Option<Duration>,
    },
    /// A dead or cancelled chain was retried.
    ChainRetried {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
    },
    /// An operator paused a job type, or changed its pause.
    TypePaused(Pause),
    /// An operator ended the pause of a job type.
    TypeResumed(Pause),
    /// A chain was deleted.
    ChainDeleted {
        /// The chain's id.
        chain: ChainId,
        /// The type of the chain's first job.
        type_name: TypeName,
    },
    /// A job was created.
    JobCreated(JobInfo),
    /// A job was created that waits for other chains.
    JobBlocked(JobInfo),
    /// A job became pending, because the last of its blockers completed.
    JobUnblocked {
        /// The job's id.
        job: JobId,
        /// The chain that the job belongs to.
        chain: ChainId,
        /// The job's type.
        type_name: TypeName,
    },
    /// A pending job was made due now by a trigger.
    JobTriggered(JobInfo),
    /// A job was completed, by an attempt or from outside.
    JobCompleted {
        /// The job.
        job: JobInfo,
        /// The set of workers that completed it; `None` if it was completed from outside.
        worker: Option<WorkerId>,
        /// Whether the chain continues with another job.
        continued: bool,
        /// The time from the creation of the job to its end, where it is known.
        duration: Option<Duration>,
    },
    /// A job died.
    JobDead {
        /// The job.
        job: JobInfo,
        /// The error with all its sources, as it is stored with the job.
        error: String,
        /// The time from the creation of the job to its end, where it is known.
        duration: Option<Duration>,
    },
    /// A job was cancelled, and its chain with it.
    JobCancelled(JobInfo),
    /// The reaper took a job back from an attempt, because its lease had expired or its process had died.
    JobReaped {
        /// The job.
        job: JobInfo,
        /// The set of workers that had the job.
        owner: WorkerId,
        /// When the lease expired or would have expired, by the store's clock.
        expired_at: Timestamp,
        /// Why the job was taken back.
        cause: ReapCause,
        /// The set of workers whose reaper took the job back.
        worker: WorkerId,
    },
    /// An attempt began.
    AttemptStarted(Arc<AttemptInfo>),
    /// An attempt ran longer than its timeout, that of its type or of a middleware. The attempt fails.
    AttemptTimedOut {
        /// The attempt.
        attempt: Arc<AttemptInfo>,
        /// The timeout.
        timeout: Duration,
    },
    /// An attempt ended.
    AttemptEnded {
        /// The attempt.
        attempt: Arc<AttemptInfo>,
        /// How it ended.
        outcome: AttemptOutcome,
        /// How long it ran, by the process's clock.
        duration: Duration,
    },
    /// A lease was renewed.
    LeaseRenewed {
        /// The attempt that has the lease.
        attempt: Arc<AttemptInfo>,
        /// When the lease expires now, by the store's clock.
        until: Timestamp,
    },
    /// A running attempt lost its lease.
    LeaseLost {
        /// The attempt.
        attempt: Arc<AttemptInfo>,
        /// Why the lease was lost.
        reason: AbortReason,
    },
    /// A call to the store failed.
    StateFailed {
        /// The verb of the state adapter.
        operation: &'static str,
        /// The store's error with all its sources.
        error: Arc<str>,
    },
    /// The store's upkeep found something that a person should know. It is reported once.
    MaintenanceFinding {
        /// The set of workers that ran the upkeep.
        worker: WorkerId,
        /// What was found, and what to do about it.
        finding: Arc<str>,
    },
    /// The program most likely contains a mistake. It is reported once.
    Advice {
        /// What was observed, and what to do about it.
        advice: Arc<str>,
    },
    /// A call to the notify adapter failed.
    NotifyFailed {
        /// The operation: `announce` or `listen`, for example.
        operation: &'static str,
        /// The adapter's error with all its sources.
        error: Arc<str>,
    },
    /// The number of jobs that are ready to run, for the types that a set of workers processes. Sampled only if the
    /// observability adapter [asks for it](crate::adapter::ObservabilityAdapter::sample_queues_every).
    QueuesSampled {
        /// The set of workers that took the sample.
        worker: WorkerId,
        /// One sample for each type.
        samples: Vec<QueueSample>,
    },
    /// The observability adapter was too slow and missed events. Only that adapter gets this event.
    EventsMissed {
        /// The number of missed events.
        count: u64,
    },
}
