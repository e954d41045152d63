//! The seam to the store: what is kept, in about twenty verbs.

use std::future::Future;
use std::ops::DerefMut;
use std::time::Duration;

use tokio::time::Instant;

use crate::chain::ChainRecord;
use crate::deduplication::Deduplication;
use crate::error::{BlockerReference, StateError};
use crate::id::{ChainId, Fence, JobId, WorkerId};
use crate::job::{JobRecord, JobStatus, Lease, TypeName};
use crate::payload::Payload;
use crate::time::{Schedule, Timestamp};
use crate::worker::AbortReason;

/// Keeps jobs and chains.
///
/// # Contract
///
/// **Transactions.** A verb that takes `within: Option<&mut Connection>` runs inside the caller's transaction when it
/// is given one, and its effect exists if and only if that transaction commits. With `None` the adapter runs it by
/// itself, atomically, and has committed when it returns; it is free to group such calls. A verb that returns an error
/// with `None` may or may not have taken effect (the connection broke); verbs that the library repeats say what a
/// repetition gives. Readers outside a transaction never see uncommitted changes.
///
/// **Locks.** Every verb that changes a job locks its *chain* (and, when it ends the chain, the chains of the jobs that
/// wait for it) until its transaction ends, and waits for a lock that another transaction holds, in id order within
/// the call. What a worker's loops call never waits, so that one slow transaction cannot stall a process:
/// [`claim_jobs`](Self::claim_jobs) and [`reap_leases`](Self::reap_leases) skip what is locked,
/// [`renew_leases`](Self::renew_leases) reports it as [`Renewal::Busy`], and [`settle_jobs`](Self::settle_jobs) without
/// a transaction as [`Settled::Busy`]. (A store with one writer at a time may let all of them wait for their turn.)
/// What another transaction has not committed does not exist and is not waited for, except where it would make a second
/// job with one id or a second chain with one deduplication key. Rolling back to a savepoint may keep locks. A deadlock
/// is a [`Conflict`](crate::StateErrorKind::Conflict), never a hang.
///
/// **Refusals.** A refused verb changes nothing and leaves the transaction usable: find a taken id by looking, not by
/// a violated constraint.
///
/// **Fences.** A write with [`Authority::Fence`] is applied only while the job runs under that fence. If the job has
/// already been settled under that very fence (the answer to an earlier call was lost) the answer is
/// [`Settled::Repeated`]; otherwise [`Settled::Lost`] with the reason, in this order: the row is gone, `NotFound`;
/// it is completed, `AlreadyCompleted`; it is cancelled, `Cancelled`; else `TakenByAnotherWorker`. Only the last fence
/// under which the job was settled need be remembered.
///
/// **Fan-in.** A job is blocked while at least one of its blocker chains has not completed. Whoever completes the last
/// one makes it pending, exactly once, in the same transaction, with `scheduled_at` raised to now. Because both the
/// creation of a dependant and the end of a blocker lock the blocker's chain, either the end sees the dependant or
/// the dependant sees the end.
///
/// **Time.** All times are the store's clock at the statement, never the process's and never the start of the
/// transaction. A scheduled time is never written in the past.
///
/// **Order.** Jobs are claimed by [`rank`], ties by id.
///
/// **Batches.** Results come in the order of the request. The cost of a claim must not grow with the backlog, the
/// history, the number of types or the jobs due later.
///
/// Implement the methods as plain `async fn`. Futures may be dropped at any await: a dropped verb has happened
/// entirely or not at all.
pub trait StateAdapter: Send + Sync + 'static {
    /// What the caller's own statements run on: `PgConnection`, `SqliteConnection`.
    type Connection: Send;

    /// An open transaction. Dereferences to the connection; dropped, it rolls back.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Opens a transaction.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, StateError>> + Send;

    /// Commits a transaction. After an error it may or may not have been committed; a transaction in which a statement
    /// had failed, so that the store would roll it back silently, is an error too.
    fn commit(&self, transaction: Self::Transaction) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Rolls a transaction back and waits until its locks are gone.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Sets a savepoint. `depth` is one more than that of the enclosing savepoint, from one.
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

    /// Undoes everything since the savepoint and forgets it. The transaction is usable afterwards, also if a statement
    /// had failed since.
    fn rollback_to_savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: u32,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Starts chains: all of them, or none if one is refused.
    ///
    /// A chain whose [`Deduplication`] matches an existing one of the same type and key (the newest that counts) is
    /// not created; an earlier item of the same call counts as existing. Concurrent callers with one key get one
    /// chain: the second waits for the transaction of the first. A matching key wins over a supplied id.
    ///
    /// Refused with [`Refusal::IdTaken`] or [`Refusal::BlockerNotFound`]. A blocker may be an earlier item of the same
    /// call, but not a later one or the job itself. It may be given twice, and then stands at both places.
    fn create_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[NewChain],
    ) -> impl Future<Output = Result<Result<Vec<CreatedChain>, Refusal>, StateError>> + Send;

    /// Takes up to `limit` due jobs of the given types, in order of rank: running, attempt and claims one up, lease and
    /// fence set. Committed on return. Skips what is locked. Returns the outputs of their blockers with them. If the
    /// answer is lost, [`claimed_jobs`](Self::claimed_jobs) gives it again.
    fn claim_jobs(&self, claim: &ClaimJobs) -> impl Future<Output = Result<Claimed, StateError>> + Send;

    /// The jobs that run under a fence, with the outputs of their blockers, in any order: what a claim took whose answer
    /// was lost. Nothing is changed, and no lock waited for. A fence that nothing runs under has none.
    fn claimed_jobs(&self, fence: Fence) -> impl Future<Output = Result<Vec<ClaimedJob>, StateError>> + Send;

    /// Extends leases. Committed on return. Never waits for a lock.
    fn renew_leases(&self, renewals: &[RenewLease]) -> impl Future<Output = Result<Vec<Renewal>, StateError>> + Send;

    /// Ends attempts: finish, continue, retry, bury, release, snooze. Each item stands alone: one that is lost, refused
    /// or busy changes nothing and does not keep the others from being settled. No two items name the same job.
    /// Without a transaction it waits for no lock of another one.
    ///
    /// A finished job ends its chain and unblocks the jobs that wait for it. A continued one gets a successor at the
    /// next index, refused with [`Refusal::IdTaken`], [`Refusal::BlockerNotFound`] or [`Refusal::BlockerCycle`] (the
    /// blocker waits, or would wait if it were retried, directly or through others, for this very chain).
    fn settle_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<Vec<Settled>, StateError>> + Send;

    /// The same in a transaction that this store has opened, for stores that can make something of knowing that: what
    /// ends an attempt is usually the last thing before the commit.
    fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<Vec<Settled>, StateError>> + Send {
        self.settle_jobs(Some(transaction), settlements)
    }

    /// Takes back jobs of the given types whose lease has expired, oldest expiry first: pending now, or dead if the
    /// attempts are exhausted; the expiry is stored as the attempt's error. Committed on return. Skips what is locked
    /// and what the caller runs itself.
    ///
    /// A store that can know that the process of an owner has died takes back its leases too, in the same way, whatever
    /// is left of them; see [`owner_died`](Self::owner_died).
    fn reap_leases(&self, reap: &ReapLeases) -> impl Future<Output = Result<Vec<ReapedJob>, StateError>> + Send;

    /// Checks that the job runs under the fence, and locks it so that this stays true until the transaction ends.
    fn hold_lease(
        &self,
        connection: &mut Self::Connection,
        job: JobId,
        fence: Fence,
    ) -> impl Future<Output = Result<Result<(), AbortReason>, StateError>> + Send;

    /// Locks a chain until the transaction ends and returns its latest job as it is after the lock was granted.
    fn lock_chain(
        &self,
        connection: &mut Self::Connection,
        chain: ChainId,
    ) -> impl Future<Output = Result<Option<JobRecord>, StateError>> + Send;

    /// Makes pending jobs due now: all of them, or none if one is refused with [`Refusal::JobNotFound`] or
    /// [`Refusal::NotPending`]. One that is due already keeps its place. An id that is given twice is triggered once
    /// and returned twice; the same holds for [`cancel_chains`](Self::cancel_chains) and
    /// [`retry_chains`](Self::retry_chains).
    fn trigger_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        jobs: &[JobId],
    ) -> impl Future<Output = Result<Result<Vec<JobRecord>, Refusal>, StateError>> + Send;

    /// Cancels the latest job of open chains: all of them, or none if one is refused with [`Refusal::ChainNotFound`] or
    /// [`Refusal::NotOpen`]. Dependants stay blocked.
    fn cancel_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> impl Future<Output = Result<Result<Vec<StoppedChain>, Refusal>, StateError>> + Send;

    /// Makes dead or cancelled chains go on: their latest job is pending now (or blocked, while a blocker is open),
    /// with no attempt spent. All of them, or none if one is refused with [`Refusal::ChainNotFound`],
    /// [`Refusal::NotRetryable`] or [`Refusal::KeyTaken`].
    fn retry_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> impl Future<Output = Result<Result<Vec<JobRecord>, Refusal>, StateError>> + Send;

    /// Deletes chains in any status with all their jobs. Ids that do not exist are skipped. Refused as a whole with
    /// [`Refusal::Referenced`] while a job of another chain that is not completed has one of them as blocker.
    fn delete_chains(
        &self,
        within: Option<&mut Self::Connection>,
        delete: &DeleteChains,
    ) -> impl Future<Output = Result<Result<Vec<StoppedChain>, Refusal>, StateError>> + Send;

    /// Reads jobs by id; those that do not exist are left out.
    fn get_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        jobs: &[JobId],
    ) -> impl Future<Output = Result<Vec<JobRecord>, StateError>> + Send;

    /// Reads chains by id; those that do not exist are left out. The id of a later job is not a chain's id.
    fn get_chains(
        &self,
        within: Option<&mut Self::Connection>,
        chains: &[ChainId],
    ) -> impl Future<Output = Result<Vec<ChainRecord>, StateError>> + Send;

    /// Reads a page of jobs.
    fn list_jobs(
        &self,
        within: Option<&mut Self::Connection>,
        query: &JobQuery,
    ) -> impl Future<Output = Result<Vec<JobRecord>, StateError>> + Send;

    /// Reads a page of chains.
    fn list_chains(
        &self,
        within: Option<&mut Self::Connection>,
        query: &ChainQuery,
    ) -> impl Future<Output = Result<Vec<ChainRecord>, StateError>> + Send;

    /// Reads the blockers of a job in the order in which they were given; those that were deleted are left out.
    fn list_blockers(
        &self,
        within: Option<&mut Self::Connection>,
        job: JobId,
    ) -> impl Future<Output = Result<Vec<ChainRecord>, StateError>> + Send;

    /// Waits until the store has found out, later than `since`, that a process has died that held leases, so that
    /// [`reap_leases`](Self::reap_leases) would take them back now. Workers call it after every sweep, with the time at
    /// which that sweep began. A store that cannot know waits for ever, which is what an adapter does that does not
    /// implement it: the leases decide then.
    ///
    /// Only what cannot be mistaken, or hardly, is knowledge: a lock that the operating system takes from a dead process,
    /// a session that ended and has not come back. A pause, a slow answer or a lost packet is none. Should it be wrong all
    /// the same, the fence refuses what the living attempt writes: that costs an attempt, and nothing else. It must not
    /// disturb the store while nothing has happened. Dropped, it leaves nothing behind.
    fn owner_died(&self, since: Instant) -> impl Future<Output = ()> + Send {
        let _ = since;
        std::future::pending()
    }

    /// Does a piece of the store's own upkeep: what it needs to stay fast, and what its settings say about old chains.
    /// Workers call it as often as its last answer says, and not at all once the answer is that there is nothing to do,
    /// which is what an adapter says that does not implement it.
    ///
    /// Of all workers on one store, one does it at a time; to the others it is soon answered that they should ask
    /// again. It waits for no lock, keeps nothing locked for long, and one call ends within seconds. It never changes a
    /// chain that has not ended, except for putting right what is broken, and what it deletes is what
    /// [`delete_chains`](Self::delete_chains) would delete too. Dropped, it leaves whole pieces of work.
    ///
    /// What a person should know but no caller can act upon, such as a missing right, is a finding and no error.
    fn maintain(&self, maintain: &Maintain) -> impl Future<Output = Result<Maintained, StateError>> + Send {
        let _ = maintain;
        async { Ok(Maintained::default()) }
    }

    /// How many jobs of each type are ready: pending and due. One answer per type, in the order of the request, from
    /// an adapter that can tell; none at all from one that cannot, which is the default.
    ///
    /// The cost is bounded: at most `limit` jobs of a type are looked at, in the order of claiming, and it does not
    /// grow with the backlog, the history or the jobs due later. No lock is waited for, and none is held.
    fn sample_queues(
        &self,
        sample: &SampleQueues,
    ) -> impl Future<Output = Result<Vec<QueueSample>, StateError>> + Send {
        let _ = sample;
        async { Ok(Vec::new()) }
    }
}

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

/// How a worker would claim the next job of its chain in the same breath in which it creates it.
///
/// A job for [`Schedule::Now`] that waits for nothing is created running, as [`claim_jobs`](StateAdapter::claim_jobs) would
/// have left it: first attempt, first claim, started now, leased to the worker of the settlement's [`Authority::Fence`]
/// under this fence. [`Applied::handed_over`] says so. Any other job is created as if it had not been asked for, as is one
/// that is created from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The fence; never used before.
    pub fence: Fence,
    /// How long the lease lasts.
    pub lease: Duration,
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

/// Which jobs to claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimJobs {
    /// The types, with the duration of their leases.
    pub types: Vec<ClaimType>,
    /// How many at most.
    pub limit: usize,
    /// Who claims.
    pub worker: WorkerId,
    /// The fence of all jobs of this claim; never used before.
    pub fence: Fence,
}

impl ClaimJobs {
    /// A claim.
    pub fn new(types: Vec<ClaimType>, limit: usize, worker: WorkerId, fence: Fence) -> Self {
        Self {
            types,
            limit,
            worker,
            fence,
        }
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
    /// When fewer than `limit` were due: the time until the next pending job of these types is, if there is one. For a
    /// due job that was locked it is a short time, never zero.
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
    /// Another transaction has the job locked; ask again soon.
    Busy,
    /// The job is not this attempt's any more.
    Lost(AbortReason),
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
    /// From outside: the caller has locked the chain with [`StateAdapter::lock_chain`] in the same transaction. Lost
    /// unless the job is the latest of its chain and open.
    Outside,
}

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
    Repeated(JobStatus),
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
    /// When the next job was created, if it was handed over: it runs since then, under the fence of its [`HandOver`].
    pub handed_over: Option<Timestamp>,
    /// The jobs that became pending because the chain completed.
    pub unblocked: Vec<UnblockedJob>,
    /// Whether an attempt was running (and is to be told), when the job was settled from outside.
    pub interrupted: bool,
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

/// Which expired leases to take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReapLeases {
    /// The types, with the attempts after which a job is dead unless it has a number of its own.
    pub types: Vec<ReapType>,
    /// How many at most.
    pub limit: usize,
    /// What the caller runs itself.
    pub except: Vec<JobId>,
}

impl ReapLeases {
    /// A sweep.
    pub fn new(types: Vec<ReapType>, limit: usize, except: Vec<JobId>) -> Self {
        Self { types, limit, except }
    }
}

/// A type to sweep.
#[derive(Clone, Debug)]
pub struct ReapType {
    /// Its name.
    pub name: TypeName,
    /// Attempts after which a job without a number of its own is dead.
    pub max_attempts: u32,
}

/// A job whose lease was taken back.
#[derive(Clone, Debug)]
pub struct ReapedJob {
    /// The job, as it is now: pending or dead.
    pub job: JobRecord,
    /// Who had it.
    pub owner: WorkerId,
    /// Until when the lease would have lasted: in the past, unless its owner died.
    pub expired_at: Timestamp,
    /// Why it was taken.
    pub cause: ReapCause,
}

/// Why a lease was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReapCause {
    /// Nobody had renewed it in time.
    LeaseExpired,
    /// The process of its owner is known to have died.
    OwnerDied,
}

impl ReapCause {
    /// What to store as the error of the attempt that had the lease.
    pub fn error(self, lease: &Lease) -> String {
        let Lease { owner, until, .. } = lease;
        match self {
            Self::LeaseExpired => format!("the lease of worker {owner} expired at {until}"),
            Self::OwnerDied => format!("the process of worker {owner} died while it ran the job"),
        }
    }
}

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
    /// Jobs of other chains depend on the chains.
    Referenced(Vec<BlockerReference>),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The sort value: microseconds since the epoch, or the chain index.
    pub value: i64,
    /// The id.
    pub id: JobId,
}

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
