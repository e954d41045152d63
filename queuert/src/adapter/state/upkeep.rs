//! The upkeep of a store, and the depth of its queues.

use std::time::Duration;

use super::settle::UnblockedJob;
use crate::id::{ChainId, WorkerId};
use crate::job::TypeName;

/// Who offers to do a piece of upkeep.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Maintain {
    /// The workers, under an id that no others have or had.
    pub worker: WorkerId,
}

impl Maintain {
    /// By these workers.
    pub fn new(worker: WorkerId) -> Self {
        Self { worker }
    }
}

/// What was done for the upkeep of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// When these workers should ask again; `None` if never.
    pub again_in: Option<Duration>,
    /// The chains that were deleted because of their age.
    pub deleted: Vec<ExpiredChain>,
    /// Jobs that waited for nothing any more, and are pending now.
    pub unblocked: Vec<UnblockedJob>,
    /// What a person should know, each a sentence that says what to do.
    pub findings: Vec<String>,
}

/// A chain that was deleted because of its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredChain {
    /// The chain.
    pub id: ChainId,
    /// Its type.
    pub type_name: TypeName,
}

/// Which queues to look at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SampleQueues {
    /// The types; no type twice.
    pub types: Vec<TypeName>,
    /// How many jobs of a type to look at.
    pub limit: usize,
}

impl SampleQueues {
    /// A look at these types.
    pub fn new(types: Vec<TypeName>, limit: usize) -> Self {
        Self { types, limit }
    }
}

/// What waits to be run, of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSample {
    /// The type.
    pub type_name: TypeName,
    /// How many jobs are ready, counted up to the limit.
    pub ready: usize,
    /// How long the one that has been due longest, of those that were looked at, has been so.
    pub oldest: Option<Duration>,
}
