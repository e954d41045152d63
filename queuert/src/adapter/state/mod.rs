//! The seam to the store: what is kept, in about twenty verbs.

mod claim;
mod create;
mod operate;
mod query;
mod settle;
mod upkeep;

pub use claim::{AGEING_STEP, BlockerOutputs, ClaimJobs, ClaimType, Claimed, ClaimedJob, RenewLease, Renewal, rank};
pub use create::{CreatedChain, HandOver, NewChain, NewJob};
pub use operate::{DeleteChains, Pauses, Refusal, StoppedChain};
pub use query::{ChainQuery, JobQuery, JobSort, Order, Position};
pub use settle::{Applied, Authority, Outcome, Repeated, Settled, Settlement, UnblockedJob};
pub use upkeep::{ExpiredChain, Maintain, Maintained, QueueSample, SampleQueues};

use std::future::Future;
use std::ops::DerefMut;

use tokio::time::Instant;

use super::rules::reap::{ReapLeases, ReapedJob};
use crate::chain::ChainRecord;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobRecord, TypeName};
use crate::pause::Pause;
use crate::time::Timestamp;
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
/// renewals: while a transaction has the turn no other caller can take a job, so they are [`Renewal::Busy`].)
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
/// **Fan-in.** A job is blocked while at least one of its blocker chains has not completed. The verb that completes the
/// last one makes it pending, exactly once, in the same transaction, with `scheduled_at` raised to now. Because both the
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
    /// A chain whose [`Deduplication`](crate::Deduplication) matches an existing one of the same type and key (the newest that counts) is
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

    /// Reads the pauses of job types, with the time of the store. The library decides by them what workers claim; no other
    /// verb looks at them. It waits for no lock.
    fn list_pauses(
        &self,
        within: Option<&mut Self::Connection>,
    ) -> impl Future<Output = Result<Pauses, StateError>> + Send;

    /// Writes a pause as it is, in place of the one that the type has. Of two writers at once, the later one wins. The type
    /// need not have a job.
    fn put_pause(
        &self,
        within: Option<&mut Self::Connection>,
        pause: &Pause,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Deletes the pause of a type, and says whether there was one.
    fn delete_pause(
        &self,
        within: Option<&mut Self::Connection>,
        type_name: &TypeName,
    ) -> impl Future<Output = Result<bool, StateError>> + Send;

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
