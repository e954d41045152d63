//! What operators do to chains, and why a verb is refused.

use crate::chain::ChainRecord;
use crate::error::BlockerReference;
use crate::id::{ChainId, JobId};
use crate::job::JobStatus;
use crate::pause::Pause;
use crate::time::Timestamp;

/// A chain that was cancelled or deleted.
#[derive(Clone, Debug)]
pub struct StoppedChain {
    /// The chain: as it is now if cancelled, as it was if deleted.
    pub chain: ChainRecord,
    /// The job whose attempt was running, and is to be told.
    pub interrupted: Option<JobId>,
}

/// Which chains to delete.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeleteChains {
    /// The chains.
    pub chains: Vec<ChainId>,
    /// Whether to delete their blockers too, those of all their jobs, and so on.
    pub cascade: bool,
}

impl DeleteChains {
    /// These chains only.
    pub fn new(chains: Vec<ChainId>, cascade: bool) -> Self {
        Self { chains, cascade }
    }
}

/// The stored pauses of job types.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pauses {
    /// The time of the store at the statement.
    pub now: Timestamp,
    /// All pauses, also those that have ended by themselves, by type name.
    pub pauses: Vec<Pause>,
}

impl Pauses {
    /// These pauses at this time; they are put in order.
    pub fn new(now: Timestamp, mut pauses: Vec<Pause>) -> Self {
        pauses.sort_unstable_by(|one, other| one.type_name.cmp(&other.type_name));
        Self { now, pauses }
    }

    /// The pauses that are in force.
    pub fn in_force(self) -> Vec<Pause> {
        let mut pauses = self.pauses;
        pauses.retain(|pause| pause.is_in_force(self.now));
        pauses
    }
}

/// Why a verb changed nothing although the store is well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A job with this id exists.
    IdTaken(JobId),
    /// The job would wait for a chain that does not exist.
    BlockerNotFound {
        /// The job.
        job: JobId,
        /// The chain.
        chain: ChainId,
    },
    /// The job would wait for a chain that waits for the job's chain.
    BlockerCycle {
        /// The job.
        job: JobId,
        /// The chain.
        chain: ChainId,
    },
    /// No such job.
    JobNotFound(JobId),
    /// No such chain.
    ChainNotFound(ChainId),
    /// The job is not pending.
    NotPending(JobId, JobStatus),
    /// The chain has ended.
    NotOpen(ChainId, JobStatus),
    /// The chain is neither dead nor cancelled.
    NotRetryable(ChainId, JobStatus),
    /// Another open chain has the deduplication key.
    KeyTaken {
        /// The chain that was to be retried.
        chain: ChainId,
        /// The open chain.
        holder: ChainId,
    },
    /// The store has lost the state of the chain's latest job: the chain can only be deleted. For stores that keep it apart
    /// from the job.
    Damaged(ChainId),
    /// Jobs of other chains depend on the chains.
    Referenced(Vec<BlockerReference>),
}
