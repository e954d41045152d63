//! The narrow seam of a store that keeps whole jobs: what the rules need of it, and nothing that they decide.

use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use super::rules::{Change, JobHead};
use super::state::AGEING_STEP;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::pause::Pause;
use crate::time::Timestamp;

/// Keeps whole jobs, and finds them again. [`General`](super::General) makes a complete
/// [`StateAdapter`](super::StateAdapter) of it: every verb is a search, a decision by the [`rules`](super::rules), and one
/// [`write`](Self::write). An adapter that grows implements the verbs that are hot itself, and forwards the others, see
/// [`forward_state!`](crate::forward_state).
///
/// # Contract
///
/// **Transactions** are those of [`StateAdapter`](super::StateAdapter): what is written in one is seen by it at once, and by
/// others if and only if it commits. Dropped, it rolls back.
///
/// **Locks.** A store with one writer at a time has locked everything when [`begin`](Self::begin) returns, and implements no
/// [`lock`](Self::lock); it says in [`try_begin`](Self::try_begin) whether another transaction has the turn. Any other
/// store implements `lock`.
///
/// **Writes.** A dropped [`write`](Self::write) has written all or nothing.
///
/// Implement the methods as plain `async fn`.
pub trait Records: Send + Sync + 'static {
    /// What the caller's own statements run on.
    type Connection: Send;

    /// An open transaction. Dereferences to the connection; dropped, it rolls back.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Opens a transaction. A store with one writer at a time waits for its turn.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, StateError>> + Send;

    /// Opens a transaction if that needs no waiting; `None` while another transaction has the turn. Default: for stores with
    /// many writers, [`begin`](Self::begin).
    fn try_begin(&self) -> impl Future<Output = Result<Option<Self::Transaction>, StateError>> + Send {
        async { self.begin().await.map(Some) }
    }

    /// Commits a transaction; see [`StateAdapter::commit`](super::StateAdapter::commit).
    fn commit(&self, transaction: Self::Transaction) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Rolls a transaction back and waits until its locks are gone.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Sets a savepoint; see [`StateAdapter::savepoint`](super::StateAdapter::savepoint).
    fn savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: u32,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Forgets the savepoint, keeping what was done since.
    fn release_savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: u32,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Undoes everything since the savepoint and forgets it.
    fn rollback_to_savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: u32,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// The time of the store, at this statement. A transaction that has asked for it may create jobs with that time, or a
    /// later one: see [`watermark`](Self::watermark).
    fn now(&self, within: Option<&mut Self::Connection>) -> impl Future<Output = Result<Timestamp, StateError>> + Send;

    /// Locks these until the transaction ends, in order, and says whether all are locked. `waits` says whether to wait for
    /// another transaction that has one locked; a deadlock is a [`Conflict`](crate::StateErrorKind::Conflict). What was
    /// locked before the answer `false` may stay locked. What is read afterwards is what others have committed by then.
    /// Default: for stores with one writer at a time, `true`.
    fn lock(
        &self,
        connection: &mut Self::Connection,
        keys: &[LockKey],
        waits: bool,
    ) -> impl Future<Output = Result<bool, StateError>> + Send {
        let _ = (connection, keys, waits);
        async { Ok(true) }
    }

    /// Reads jobs, in any order: in the transaction, or what is committed.
    fn read(
        &self,
        within: Option<&mut Self::Connection>,
        find: Find<'_>,
    ) -> impl Future<Output = Result<Vec<StoredJob>, StateError>> + Send;

    /// Writes jobs, new and changed, and deletes jobs. What it writes is locked.
    fn write(
        &self,
        connection: &mut Self::Connection,
        put: Vec<StoredJob>,
        delete: Vec<JobId>,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Reads the pauses of job types, in any order: in the transaction, or what is committed.
    fn pauses(
        &self,
        within: Option<&mut Self::Connection>,
    ) -> impl Future<Output = Result<Vec<Pause>, StateError>> + Send;

    /// Writes the pause of a type in place of the one that it has, or deletes that one.
    fn write_pause(
        &self,
        connection: &mut Self::Connection,
        type_name: &TypeName,
        pause: Option<Pause>,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// See [`StateAdapter::watermark`](super::StateAdapter::watermark).
    fn watermark(&self) -> impl Future<Output = Result<Timestamp, StateError>> + Send;

    /// How much waiting one step of priority is worth. Default: [`AGEING_STEP`].
    fn ageing_step(&self) -> Duration {
        AGEING_STEP
    }
}

/// A job with what its record does not show.
#[derive(Clone, Debug)]
pub struct StoredJob {
    /// The record.
    pub job: JobRecord,
    /// The chains that it has as blockers, in the declared order, repetitions included.
    pub blockers: Vec<ChainId>,
    /// The fence under which it was settled last, so that a repeated settlement is recognised.
    pub settled_fence: Option<Fence>,
    /// The chain whose end made it pending, if it was blocked.
    pub unblocked_by: Option<ChainId>,
    /// The scheduled time that decides its [`rank`](super::rank): it may be earlier than that of the record.
    pub ranked_at: Timestamp,
}

impl StoredJob {
    /// A new job.
    pub fn new(job: JobRecord, blockers: Vec<ChainId>) -> Self {
        Self {
            ranked_at: job.scheduled_at,
            job,
            blockers,
            settled_fence: None,
            unblocked_by: None,
        }
    }

    /// What the rules decide by.
    pub fn head(&self) -> JobHead {
        JobHead::of(&self.job, self.settled_fence)
    }

    /// Applies what the rules have decided.
    pub fn apply(&mut self, change: Change) {
        self.ranked_at = change.rank.apply(self.ranked_at, change.scheduled_at);
        self.settled_fence = change.settled_fence.or(self.settled_fence);
        change.apply(&mut self.job);
    }
}

/// Which jobs to read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Find<'a> {
    /// These jobs.
    Jobs(&'a [JobId]),
    /// All jobs of these chains.
    Chains(&'a [ChainId]),
    /// The jobs that have one of these chains as blocker, whether or not they still wait.
    Dependants(&'a [ChainId]),
    /// The first jobs of the chains of this type that were started with this deduplication key.
    Key(&'a TypeName, &'a str),
    /// The jobs in this status: pending or running.
    Status(JobStatus),
    /// All jobs.
    All,
}

impl Find<'_> {
    /// Whether this is one of the jobs, for stores that look at each.
    pub fn matches(&self, stored: &StoredJob) -> bool {
        let job = &stored.job;
        match self {
            Self::Jobs(jobs) => jobs.contains(&job.id),
            Self::Chains(chains) => chains.contains(&job.chain_id),
            Self::Dependants(chains) => stored.blockers.iter().any(|blocker| chains.contains(blocker)),
            Self::Key(type_name, key) => {
                job.chain_index == 0 && job.type_name == **type_name && job.deduplication_key.as_deref() == Some(*key)
            }
            Self::Status(status) => job.status == *status,
            Self::All => true,
        }
    }
}

/// What is locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LockKey {
    /// A chain, or the id of a job that is to be created.
    Chain(ChainId),
    /// A deduplication key of a type.
    Deduplication(TypeName, String),
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_new_store_implements_at_most_fourteen_methods() {
        let source = include_str!("records.rs");
        let body = source.split("pub trait Records").nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        let is_required = |method: &&str| {
            let end = method.find(['{', ';']).map(|at| &method[at..=at]);
            end == Some(";")
        };
        let required = body.split("\n    fn ").skip(1).filter(is_required).count();
        assert!((5..=14).contains(&required), "{required}");
    }
}
