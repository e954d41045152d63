//! What happened, as one type: for the stream of events of a worker and for observability adapters.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::{QueueSample, ReapCause};
use crate::id::{ChainId, JobId, WorkerId};
use crate::job::{JobRecord, TypeName};
use crate::time::Timestamp;
use crate::worker::AbortReason;

/// Which job an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job.
    pub id: JobId,
    /// Its type.
    pub type_name: TypeName,
    /// Its chain.
    pub chain_id: ChainId,
    /// The type of its chain.
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

/// Which attempt an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The job.
    pub job: JobInfo,
    /// The number of the attempt, from one.
    pub attempt: u32,
    /// Who runs it.
    pub worker: WorkerId,
    /// The trace context that was stored with the job.
    pub trace_context: Option<String>,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the attempt could have begun at the earliest.
    pub scheduled_at: Timestamp,
    /// When it was claimed.
    pub started_at: Timestamp,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// It finished its chain.
    Finished,
    /// It continued its chain with a job of this type.
    Continued {
        /// The next job.
        next: JobId,
        /// Its type.
        next_type: TypeName,
    },
    /// It failed, and the job is retried.
    Failed {
        /// What with.
        error: String,
        /// How long until the retry, where the library chose it.
        retry_in: Option<Duration>,
        /// Whether the store failed it, as in an outage, and not the processor: a call to the store failed in a way that may
        /// pass, and the processor returned that error, or the worker could not commit.
        by_store: bool,
    },
    /// It failed, and the job is dead.
    Died {
        /// What with.
        error: String,
    },
    /// It asked to run again later, at no cost.
    Snoozed,
    /// It lost its job.
    Aborted(AbortReason),
}

/// Something that happened.
///
/// Events that claim a write are emitted after its commit, and dropped with a rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Workers started.
    WorkerStarted {
        /// Who.
        worker: WorkerId,
        /// How many they are, each with one job at a time.
        concurrency: usize,
    },
    /// The store fails; the worker retries until it answers.
    WorkerDegraded {
        /// Who.
        worker: WorkerId,
        /// What the store said.
        error: Arc<str>,
    },
    /// The store answers again.
    WorkerRecovered {
        /// Who.
        worker: WorkerId,
    },
    /// Stop was asked for.
    WorkerStopping {
        /// Who.
        worker: WorkerId,
    },
    /// Nothing runs any more.
    WorkerStopped {
        /// Who.
        worker: WorkerId,
    },
    /// A chain was started.
    ChainCreated {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
    },
    /// A chain was not started because one with its key was there.
    ChainDeduplicated {
        /// The chain that was there.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
    },
    /// A chain completed.
    ChainCompleted {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
        /// How long it took from its start, where that is known: its first job, or an id that the library made, tells.
        duration: Option<Duration>,
    },
    /// A chain died.
    ChainDead {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
        /// How long it took from its start, where that is known: its first job, or an id that the library made, tells.
        duration: Option<Duration>,
    },
    /// A chain was cancelled.
    ChainCancelled {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
        /// How long it took from its start, where that is known: its first job, or an id that the library made, tells.
        duration: Option<Duration>,
    },
    /// A dead or cancelled chain was sent on its way again.
    ChainRetried {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
    },
    /// A chain was deleted.
    ChainDeleted {
        /// The chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
    },
    /// A job was created.
    JobCreated(JobInfo),
    /// A job waits for other chains.
    JobBlocked(JobInfo),
    /// The last blocker of a job completed.
    JobUnblocked {
        /// The job.
        job: JobId,
        /// Its chain.
        chain: ChainId,
        /// Its type.
        type_name: TypeName,
    },
    /// A job was made due now.
    JobTriggered(JobInfo),
    /// A job was completed, by an attempt or from outside.
    JobCompleted {
        /// The job.
        job: JobInfo,
        /// Who completed it; `None` from outside.
        worker: Option<WorkerId>,
        /// Whether the chain goes on.
        continued: bool,
        /// How long the job took from its creation, where that is known.
        duration: Option<Duration>,
    },
    /// A job died.
    JobDead {
        /// The job.
        job: JobInfo,
        /// What of.
        error: String,
        /// How long the job took from its creation, where that is known.
        duration: Option<Duration>,
    },
    /// A job was cancelled, and its chain with it.
    JobCancelled(JobInfo),
    /// The lease of a job was taken back, because it had expired or its owner had died.
    JobReaped {
        /// The job.
        job: JobInfo,
        /// Who had it.
        owner: WorkerId,
        /// Until when the lease would have lasted.
        expired_at: Timestamp,
        /// Why it was taken.
        cause: ReapCause,
        /// Who took it.
        worker: WorkerId,
    },
    /// An attempt began.
    AttemptStarted(Arc<AttemptInfo>),
    /// An attempt ran longer than it may, by its type's timeout or that of a middleware. It fails, and ends.
    AttemptTimedOut {
        /// Which.
        attempt: Arc<AttemptInfo>,
        /// How long it may run.
        timeout: Duration,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Which.
        attempt: Arc<AttemptInfo>,
        /// How.
        outcome: AttemptOutcome,
        /// How long it ran, by the process's clock.
        duration: Duration,
    },
    /// A lease was extended.
    LeaseRenewed {
        /// Which attempt's.
        attempt: Arc<AttemptInfo>,
        /// Until when.
        until: Timestamp,
    },
    /// An attempt lost its lease while it ran.
    LeaseLost {
        /// Which.
        attempt: Arc<AttemptInfo>,
        /// Why.
        reason: AbortReason,
    },
    /// A call to the store failed.
    StateFailed {
        /// Which verb.
        operation: &'static str,
        /// What it said.
        error: Arc<str>,
    },
    /// The upkeep of the store found something that a person should know. It is told once, not at every look.
    MaintenanceFinding {
        /// Whose upkeep it was.
        worker: WorkerId,
        /// What it found, and what to do about it.
        finding: Arc<str>,
    },
    /// Something that is likely a mistake of the program's, and what to do about it. It is told once, not every time.
    Advice {
        /// What was seen, and what to do.
        advice: Arc<str>,
    },
    /// A call to the notify adapter failed.
    NotifyFailed {
        /// Which operation.
        operation: &'static str,
        /// What it said.
        error: Arc<str>,
    },
    /// How much waits to be run, of the types that a worker has processors for. Looked at only if the observability
    /// adapter [asks for it](crate::adapter::ObservabilityAdapter::sample_queues_every).
    QueuesSampled {
        /// Who looked.
        worker: WorkerId,
        /// What was found, one for each type.
        samples: Vec<QueueSample>,
    },
    /// The observability adapter was too slow, and was not told of some events. Only it hears of this.
    EventsMissed {
        /// How many.
        count: u64,
    },
}
