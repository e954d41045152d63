//! The seam to the store: what is kept, in about twenty verbs.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reap::{ReapLeases, ReapedJob};
use crate::chain::ChainRecord;
use crate::deduplication::Deduplication;
use crate::error::{BlockerReference, StateError};
use crate::id::{ChainId, Fence, JobId, WorkerId};
use crate::job::{JobRecord, JobStatus, TypeName};
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
/// a transaction as [`Settled::Busy`]. (A store with one writer at a time may let them wait for their turn, but not the
/// renewals: while a transaction has the turn nobody can take a job, so they are [`Renewal::Busy`].)
/// What another transaction has not committed does not exist and is not waited for, except where it would make a second
/// job with one id or a second chain with one deduplication key. Rolling back to a savepoint may keep locks. A deadlock
/// is a [`Conflict`](crate::StateErrorKind::Conflict), never a hang.
///
/// **Refusals.** A refused verb changes nothing and leaves the transaction usable: find a taken id by looking, not by
/// a violated constraint.
///
/// **Fences.** A write with [`Authority::Fence`] is applied only while the job runs under that fence. If the job has
/// already been settled under that very fence (the answer to an earlier call was lost) the answer is
/// [`Settled::Repeated`], with what that settlement did, so that it can be announced even so; otherwise [`Settled::Lost`] with the reason, in this order: the row is gone, `NotFound`;
/// it is completed, `AlreadyCompleted`; it is cancelled, `Cancelled`; else `TakenByAnotherWorker`. Only the last fence
/// under which the job was settled need be remembered.
///
/// **Errors.** [`Corrupt`](crate::StateErrorKind::Corrupt) is the error of one row or value: a worker gives up what it
/// wanted to write, and the attempt has failed. Everything else (no connection, no right, a read-only or full store) is
/// another kind: workers try again, with growing pauses, until the store takes what they have to write.
///
/// **Fan-in.** A job is blocked while at least one of its blocker chains has not completed. Whoever completes the last
/// one makes it pending, exactly once, in the same transaction, with `scheduled_at` raised to now. Because both the
/// creation of a dependant and the end of a blocker lock the blocker's chain, either the end sees the dependant or
/// the dependant sees the end.
///
/// **Damaged rows.** A row that something other than the library has damaged (an unknown type, a negative number, a text that
/// is none) does not make a verb fail for the others. Its record has neutral values for what cannot be read, and says what
/// that is in [`JobRecord::unreadable`] or [`ChainRecord::unreadable`]. It is claimed, renewed, settled, swept, listed,
/// cancelled and deleted like any other. A claimed job is of the type in whose queue it was, whatever else its row says: a
/// row is never taken for one of another type. The worker buries such a job instead of running it, and so does
/// [`reap_leases`](Self::reap_leases), see [`ReapLeases::take_back`].
///
/// **Time.** All times are the store's clock at the statement, never the process's and never the start of the
/// transaction. A scheduled time is never written in the past.
///
/// **Creation.** The `created_at` of a job is read after the transaction that creates it has shown itself as a writer to
/// [`watermark`](Self::watermark), by a lock or an entry that lasts until it ends. It is never a time that an
/// earlier statement has read.
///
/// **Order.** Jobs are claimed by [`rank`], ties by id. The rank is that of the scheduled time, with one exception: a job
/// that was taken back by [`reap_leases`](Self::reap_leases) keeps the rank that it had, although its scheduled time is
/// later, until it is scheduled anew. [`Outcome::Release`] keeps the rank too, whatever it is.
///
/// **Batches.** Results come in the order of the request. The cost of a claim must not grow with the backlog, the
/// history, the number of types or the jobs due later.
///
/// **Unfinished verbs.** Futures may be dropped at any await. A verb without a transaction has then happened entirely or not
/// at all. One in a transaction may have left half of its writes there: the library commits no transaction with such a
/// verb in it, and undoes the verb where the caller commits without the library (see [`shield`](Self::shield)). The
/// connection must stay usable for the rollback.
///
/// **Transactions that have ended.** A store may roll back a transaction by itself, and the caller may execute a `COMMIT` or
/// `ROLLBACK` on its connection. What the library is asked to do in it afterwards must not happen outside of a
/// transaction: [`has_ended`](Self::has_ended) says so, or the verb fails with
/// [`TransactionEnded`](crate::StateErrorKind::TransactionEnded) and changes nothing. So does the commit.
///
/// Implement the methods as plain `async fn`.
pub trait StateAdapter: Send + Sync + 'static {
    /// What the caller's own statements run on: `PgConnection`, `SqliteConnection`.
    type Connection: Send;

    /// An open transaction. Dereferences to the connection; dropped, it rolls back.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Opens a transaction.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, StateError>> + Send;

    /// Commits a transaction. After an error it may or may not have been committed; a transaction in which a statement
    /// had failed, so that the store would roll it back silently, is an error too. After an error of the kind
    /// [`TransactionEnded`](crate::StateErrorKind::TransactionEnded) it is certain that this call has not committed it.
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

    /// Whether a transaction that this store has opened has ended although neither [`commit`](Self::commit) nor
    /// [`rollback`](Self::rollback) was called: the store rolled it back because of an error, or a statement of the caller's
    /// ended it. Asked before every verb, savepoint and commit, so it must not cost anything: no statement. A store whose
    /// transactions do not end by themselves, or that answers the verbs with
    /// [`TransactionEnded`](crate::StateErrorKind::TransactionEnded) instead, need not implement it.
    fn has_ended(&self, transaction: &Self::Transaction) -> bool {
        let _ = transaction;
        false
    }

    /// Waits until the store has run every statement that the caller has sent on the connection, also one whose future the
    /// caller has dropped, so that [`has_ended`](Self::has_ended) knows what came of them. The library calls it before a verb,
    /// a savepoint or a commit, if the caller has used the connection since the last call. A store that need not implement
    /// `has_ended`, or whose drivers run nothing of a dropped statement, need not implement it.
    fn catch_up(&self, transaction: &mut Self::Transaction) -> impl Future<Output = Result<(), StateError>> + Send {
        let _ = transaction;
        async { Ok(()) }
    }

    /// Begins a stretch on a connection whose transaction the caller commits without this library: what is written until
    /// [`unshield`](Self::unshield) can be undone by [`undo_shielded`](Self::undo_shielded). Fails with
    /// [`TransactionEnded`](crate::StateErrorKind::TransactionEnded) if the connection is in no transaction. Dropped, it
    /// leaves nothing behind.
    ///
    /// A store that writes all of a verb between two awaits, so that a dropped verb has done nothing, need not implement it.
    fn shield(&self, connection: &mut Self::Connection) -> impl Future<Output = Result<(), StateError>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// Ends the stretch, and keeps what was written. If it is dropped or fails, `undo_shielded` follows.
    fn unshield(&self, connection: &mut Self::Connection) -> impl Future<Output = Result<(), StateError>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// Undoes the stretch, before anything else that happens on the connection: it cannot wait, because the future that
    /// wrote was dropped.
    fn undo_shielded(&self, connection: &mut Self::Connection) {
        let _ = connection;
    }

    /// Starts chains: all of them, or none if one is refused.
    ///
    /// A chain whose [`Deduplication`] matches an existing one of the same type and key (the newest that counts) is
    /// not created; an earlier item of the same call counts as existing. An open chain counts in every scope, so that no
    /// key has two open chains but where a caller has left one out by id. Concurrent callers with one key get one
    /// chain: the second waits for the transaction of the first. At an isolation level at which the second does not see
    /// what the first has committed, it gets a [`Conflict`](crate::StateErrorKind::Conflict); the same holds for every
    /// other verb whose answer depends on what its transaction cannot see. A matching key wins over a supplied id.
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
    ///
    /// The claim ends before the first job that [`ClaimJobs::admits`] does not admit: one with which the inputs of all its
    /// jobs would exceed [`bytes`](ClaimJobs::bytes), unless it is among the first [`at_least`](ClaimJobs::at_least), or the
    /// first of all. That job and those behind it stay as they are, as if they had not been looked at, and
    /// [`Claimed::next_due`] is zero. Nothing that was not admitted is ever held under the fence, so that an answer that is
    /// given again is bounded too. The outputs of blockers are not counted.
    fn claim_jobs(&self, claim: &ClaimJobs) -> impl Future<Output = Result<Claimed, StateError>> + Send;

    /// The jobs that run under a fence, with the outputs of their blockers, in any order: what a claim took whose answer
    /// was lost. Nothing is changed, and no lock waited for. A fence that nothing runs under has none.
    fn claimed_jobs(&self, fence: Fence) -> impl Future<Output = Result<Vec<ClaimedJob>, StateError>> + Send;

    /// Extends leases, counted from the time of the statement. Never waits for a lock of another transaction.
    ///
    /// In the caller's transaction it extends the leases of jobs that the transaction has locked with
    /// [`hold_lease`](Self::hold_lease), so that they are valid from its commit on, however long it took: no sweep finds them
    /// expired in between. A job that another transaction has locked is [`Renewal::Busy`] there too.
    fn renew_leases(
        &self,
        within: Option<&mut Self::Connection>,
        renewals: &[RenewLease],
    ) -> impl Future<Output = Result<Vec<Renewal>, StateError>> + Send;

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

    /// Takes back jobs of the given types whose lease has expired, oldest expiry first. Committed on return. Skips what is
    /// locked and what the caller runs itself.
    ///
    /// An attempt that is taken back has failed: [`ReapLeases::take_back`] decides for every store whether the job is dead
    /// or pending, when it is due, and what is stored as the attempt's error. A job that is pending again keeps the place in
    /// line that it had, also if it must wait for its backoff first.
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

    /// A time such that every job whose `created_at` is before it is visible to any read that begins after this call, or will
    /// never exist: no transaction that is open, or will be, can commit such a job. Followers read up to the watermark and go
    /// on from there, see [`Follow`](crate::request::Follow).
    ///
    /// A time that is too early is right too: the followers wait. It may be earlier than the answer to an earlier call. It
    /// should pass every committed job within moments, unless a transaction is open that has created jobs, or may have. A
    /// transaction that has only read, or has done nothing, should not hold it up.
    ///
    /// It runs by itself, waits for no lock and no transaction, and costs the writers nothing. A store that cannot know,
    /// because it lacks a right or is a copy of another one, says so with
    /// [`Misconfigured`](crate::StateErrorKind::Misconfigured) rather than guess.
    fn watermark(&self) -> impl Future<Output = Result<Timestamp, StateError>> + Send;

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
    /// How many, if there are so many, whatever their inputs weigh; the first job is never refused. By default one.
    pub at_least: usize,
    /// How many bytes the inputs of all jobs together may have, beyond the first [`at_least`](Self::at_least) jobs. By
    /// default any number.
    pub bytes: usize,
    /// What the outputs of the blockers of a job count for, besides its input.
    pub outputs: BlockerOutputs,
    /// The worker that claims.
    pub worker: WorkerId,
    /// The fence of all jobs of this claim; never used before.
    pub fence: Fence,
}

impl ClaimJobs {
    /// A claim of up to `limit` jobs, whatever their inputs weigh.
    pub fn new(types: Vec<ClaimType>, limit: usize, worker: WorkerId, fence: Fence) -> Self {
        Self {
            types,
            limit,
            at_least: 1,
            bytes: usize::MAX,
            outputs: BlockerOutputs::default(),
            worker,
            fence,
        }
    }

    /// Limits the inputs of the jobs to so many bytes, beyond the first `at_least` jobs.
    #[must_use]
    pub fn within_bytes(mut self, at_least: usize, bytes: usize) -> Self {
        (self.at_least, self.bytes) = (at_least, bytes);
        self
    }

    /// Counts the outputs of the blockers of a job as well, as many bytes as the worker expects of them.
    #[must_use]
    pub fn expecting(mut self, outputs: BlockerOutputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Whether the claim may take one more job after `taken` others, with which they have `bytes` bytes together: those of
    /// their inputs, and for each job with blockers what [`outputs`](Self::outputs) says.
    pub fn admits(&self, taken: usize, bytes: usize) -> bool {
        taken < self.at_least.max(1) || bytes <= self.bytes
    }

    /// Whether the claim admits any job up to its limit, so that a store need not look at their inputs.
    pub fn admits_all(&self) -> bool {
        self.bytes == usize::MAX || self.limit <= self.at_least.max(1)
    }
}

/// How many bytes the outputs of the blockers of one job have, as far as a worker knows: a store counts them without reading
/// them. By default none.
#[derive(Clone, Debug, Default)]
pub struct BlockerOutputs {
    known: Arc<BTreeMap<TypeName, usize>>,
    unknown: usize,
}

impl BlockerOutputs {
    /// None is known. A job with blockers counts for so many bytes until it is.
    pub fn unknown(bytes: usize) -> Self {
        Self {
            known: Arc::default(),
            unknown: bytes,
        }
    }

    /// The blockers of one job of this type had so many bytes. More count at once, less by and by.
    pub fn note(&mut self, type_name: &TypeName, bytes: usize) {
        let before = self.known.get(type_name).copied();
        let after = before.map_or(bytes, |before| bytes.max(before - before / 8));
        if before != Some(after) {
            Arc::make_mut(&mut self.known).insert(type_name.clone(), after);
        }
    }

    /// How many bytes a job of this type counts for, besides its input, if it has blockers.
    pub fn expected(&self, type_name: &str) -> usize {
        self.known.get(type_name).copied().unwrap_or(self.unknown)
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
    /// When fewer than `limit` were taken: the time until the next pending job of these types is due, if there is one. For a
    /// due job that was locked it is a short time, never zero. It is zero if a due job was left for its bytes.
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
    /// A transaction has the job locked, or the whole store; nobody can take the job meanwhile. Ask again soon.
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
    /// When the next job was created, if it was handed over: it runs since then, under the fence of its [`HandOver`].
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
    /// as it was asked for; [`StateAdapter::claimed_jobs`] finds it by its fence then.
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
    /// The store has lost the state of the chain's latest job: the chain can only be deleted. For stores that keep it apart
    /// from the job.
    Damaged(ChainId),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
