//! Which jobs and chains to list.

use crate::id::{ChainId, JobId};
use crate::job::{JobStatus, TypeName};
use crate::time::Timestamp;

/// A page of jobs. A filter that is `None` lets everything through; an empty list matches nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct JobQuery {
    /// These jobs.
    pub ids: Option<Vec<JobId>>,
    /// Jobs of these chains.
    pub chains: Option<Vec<ChainId>>,
    /// Jobs of these types.
    pub types: Option<Vec<TypeName>>,
    /// Jobs of chains that start with these types.
    pub chain_types: Option<Vec<TypeName>>,
    /// Jobs in these statuses.
    pub statuses: Option<Vec<JobStatus>>,
    /// Jobs that have this chain as blocker, also if they wait no more.
    pub blocked_by: Option<ChainId>,
    /// Created at or after.
    pub created_from: Option<Timestamp>,
    /// Created at or before.
    pub created_to: Option<Timestamp>,
    /// What to sort by.
    pub sort: JobSort,
    /// Which way.
    pub order: Order,
    /// Where the page before ended.
    pub after: Option<Position>,
    /// How many at most.
    pub limit: usize,
}

/// A page of chains, sorted by the time of creation, ties by id.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChainQuery {
    /// These chains.
    pub ids: Option<Vec<ChainId>>,
    /// Chains with one of these jobs.
    pub jobs: Option<Vec<JobId>>,
    /// Chains that start with these types.
    pub types: Option<Vec<TypeName>>,
    /// Chains in these statuses.
    pub statuses: Option<Vec<JobStatus>>,
    /// Only chains that are nobody's blocker.
    pub roots_only: bool,
    /// Created at or after.
    pub created_from: Option<Timestamp>,
    /// Created at or before.
    pub created_to: Option<Timestamp>,
    /// Which way.
    pub order: Order,
    /// Where the page before ended.
    pub after: Option<Position>,
    /// How many at most.
    pub limit: usize,
}

/// Which way a page goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Latest first.
    #[default]
    NewestFirst,
    /// Earliest first.
    OldestFirst,
}

/// What jobs are sorted by; ties by id in the same direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSort {
    /// The time of creation.
    #[default]
    CreatedAt,
    /// The place in the chain.
    ChainIndex,
}

/// The last row of the page before: pages are found by value, so rows that come or go do not shift them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The sort value: microseconds since the epoch, or the chain index.
    pub value: i64,
    /// The id.
    pub id: JobId,
}
