//! The state adapter: every verb of the seam, by itself or in the caller's transaction.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use queuert::__task::{Lock, spawn_in};
use queuert::adapter::{
    BoxFuture, ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, QueueSample,
    ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError, StateErrorKind, Timestamp};
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::close::{Call, Closing, Stage, joined};
use crate::core::Core;
use crate::db::Db;
use crate::error::translate;
use crate::group::{Request, Task};
use crate::migrate::{self, Migration};
use crate::options::SqliteOptions;
use crate::queue::{Queue, no_runtime};
use crate::transaction::SqliteTransaction;
use crate::{claim, create, operate, presence, query, settle, transaction};

/// How often to look whether a process that holds leases has died: one read of a table with a row per process.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How long a transaction that has begun waits for its caller to come for it. The caller has been woken and comes within
/// microseconds, unless nobody polls it: then others need not wait for it.
const COME_FOR_IT: Duration = Duration::from_millis(50);

/// The longest that a transaction waits for a caller that came too late before, which may be short of time, and may be one
/// that nobody polls. Others must not run out of patience meanwhile, so it is a part of `lock_timeout` too.
const LONGEST_COMING: Duration = Duration::from_secs(1);

/// Keeps jobs and chains in one SQLite file. Clones share it.
///
/// All writing goes through one queue: operations that wait at the same time share a transaction, and the caller's own
/// transactions take their turn. Reading has connections of its own and never waits for a writer.
#[derive(Clone, Debug)]
pub struct SqliteState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) queue: Queue,
    /// `None` for a database in memory, which has a single connection.
    pub(crate) readers: Option<SqlitePool>,
    pub(crate) lock_timeout: Duration,
    pub(crate) closing: Lock<Stage>,
    /// The file, if it can be opened without options of the caller's.
    file: Option<PathBuf>,
}

impl SqliteState {
    /// Opens the file with default settings, creates it if it does not exist, and brings the schema up to date.
    ///
    /// # Errors
    ///
    /// See [`SqliteOptions::open`].
    ///
    /// # Cancel safety
    ///
    /// See [`SqliteOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StateError> {
        Self::options().open(path).await
    }

    /// Opens the file that the pool of the application is on, with default settings.
    ///
    /// # Errors
    ///
    /// See [`SqliteOptions::from_pool`].
    ///
    /// # Cancel safety
    ///
    /// See [`SqliteOptions::open`].
    pub async fn from_pool(pool: &SqlitePool) -> Result<Self, StateError> {
        Self::options().from_pool(pool).await
    }

    /// Settings; finish with [`SqliteOptions::open`] or [`SqliteOptions::from_pool`].
    pub fn options() -> SqliteOptions {
        SqliteOptions::default()
    }

    /// The schema as plain SQL, for those who apply it themselves: one entry per version, in order. A file that has
    /// them all is not touched by [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](queuert::StateErrorKind::Misconfigured) if the prefix cannot be used.
    pub fn migrations(prefix: &str) -> Result<Vec<Migration>, StateError> {
        migrate::migrations(prefix)
    }

    /// Waits until everything that was asked for before is written, and closes the file. Handles that are left, and
    /// [`SqliteNotify`](crate::SqliteNotify)s on them, fail from now on.
    ///
    /// When it returns `Ok`, all connections of this handle and its clones are closed, on all runtimes, and the log
    /// (`-wal`) has been folded into the file, unless another handle or another process has the file open. Dropping the
    /// last handle closes the file in the background, and may leave the log beside it, with everything that was
    /// committed: the next connection finds it there.
    ///
    /// # Errors
    ///
    /// [`Transient`](StateErrorKind::Transient) if something keeps the file open: a transaction that a caller has begun
    /// and not ended within [`lock_timeout`](SqliteOptions::lock_timeout) (or within a second, if that is longer), or
    /// another runtime, which nobody drives. Nothing is lost then. The store takes no more calls, the transaction can
    /// still be used, committed and rolled back, and the file is closed after it has ended. Long before that, after a
    /// second, a warning of `tracing` (target `queuert`) says what it waits for.
    ///
    /// [`Misconfigured`](StateErrorKind::Misconfigured) if the file at the path is not the one any more that the store has
    /// opened: everything is closed, but the log could not be folded, and SQLite has left it at the path. The message says
    /// what to do before anybody opens the database again. If the file has been put back, a second call folds the log.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped after it was polled once closes the file all the same.
    pub async fn close(&self) -> Result<(), StateError> {
        let call = self.inner.closing.lock().call();
        let (calls, answer) = match call {
            Call::Closed => return Ok(()),
            Call::Join(answer) => return joined(answer).await,
            Call::Start(calls, answer) => (calls, answer),
        };
        // In this order into the queue, and all of it before anything is waited for. To others this process has died
        // from now on.
        let state = self.clone();
        let mut depart = Box::pin(async move {
            let depart = state.operation((), |db, core, ()| Box::pin(presence::depart(db, core)));
            let _ = state.write_quietly(depart).await;
        });
        let departed = depart.as_mut().now_or_never().is_some();
        let closing = Closing {
            inner: Arc::clone(&self.inner),
            depart: (!departed).then_some(depart),
            shared: self.inner.queue.is_shared(),
            writer: Box::pin(self.inner.queue.close()),
            log: tracing::dispatcher::get_default(Clone::clone),
        };
        self.inner.core.connections.close();
        closing.start(calls)?;
        joined(answer).await
    }

    /// How many transactions have been committed through this handle and its clones.
    pub fn commits(&self) -> u64 {
        self.inner.core.commits()
    }

    pub(crate) fn new(
        core: Arc<Core>,
        queue: Queue,
        readers: Option<SqlitePool>,
        file: Option<PathBuf>,
        lock_timeout: Duration,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                core,
                queue,
                readers,
                lock_timeout,
                closing: Lock::default(),
                file,
            }),
        }
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    pub(crate) fn readers(&self) -> Option<&SqlitePool> {
        self.inner.readers.as_ref()
    }

    /// Runs an operation in a transaction that it may share.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Db<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
    {
        let task = |reply| Task {
            work,
            result: None,
            reply,
        };
        self.inner
            .queue
            .ask(|reply| Request::Other(Box::new(task(reply))))
            .await
    }

    /// Runs an operation that is no news to other processes.
    pub(crate) async fn write_quietly<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Db<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
    {
        let task = |reply| Task {
            work,
            result: None,
            reply,
        };
        self.inner
            .queue
            .ask(|reply| Request::Quiet(Box::new(task(reply))))
            .await
    }

    /// Reads on a connection of its own.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Db<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
    {
        let Some(readers) = self.inner.readers.clone() else {
            return self.write(work).await;
        };
        let core = Arc::clone(&self.inner.core);
        core.check_file()?;
        if Handle::try_current().is_err() {
            return Err(no_runtime());
        }
        // A task, because a caller that is polled once and kept would keep the connection from the others. It goes with
        // the caller.
        let mut reading = JoinSet::new();
        spawn_in(&mut reading, async move {
            let mut connection = readers.acquire().await.map_err(translate)?;
            // The file may have been replaced meanwhile, and the connection be one to the other file.
            if let Err(replaced) = core.check_file() {
                connection.close_on_drop();
                return Err(replaced);
            }
            work(&mut Db::Lent(&mut connection)).await
        });
        match reading.join_next().await {
            Some(Ok(read)) => read,
            Some(Err(ended)) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            Some(Err(_)) | None => Err(StateError::new(
                StateErrorKind::Transient,
                "the runtime ended while the store was read; read again on a runtime that lives",
            )),
        }
    }

    /// Runs a writing verb: on the caller's connection, or as an operation.
    async fn run<A, T>(
        &self,
        within: Option<&mut SqliteConnection>,
        argument: A,
        verb: Verb<A, T>,
    ) -> Result<T, StateError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        match within {
            Some(connection) => verb(&mut Db::Lent(connection), &self.inner.core, &argument).await,
            None => self.write(self.operation(argument, verb)).await,
        }
    }

    /// Runs a reading verb.
    async fn look<A, T>(
        &self,
        within: Option<&mut SqliteConnection>,
        argument: A,
        verb: Verb<A, T>,
    ) -> Result<T, StateError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        match within {
            Some(connection) => verb(&mut Db::Lent(connection), &self.inner.core, &argument).await,
            None => self.read(self.operation(argument, verb)).await,
        }
    }

    fn operation<A, T>(
        &self,
        argument: A,
        verb: Verb<A, T>,
    ) -> impl for<'a> Fn(&'a mut Db<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let core = Arc::clone(&self.inner.core);
        let argument = Arc::new(argument);
        move |db| {
            let core = Arc::clone(&core);
            let argument = Arc::clone(&argument);
            Box::pin(async move { verb(db, &core, &argument).await })
        }
    }
}

/// A verb as a function of connection, store and argument.
type Verb<A, T> = for<'a> fn(&'a mut Db<'_>, &'a Core, &'a A) -> BoxFuture<'a, Result<T, StateError>>;

impl StateAdapter for SqliteState {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;

    async fn begin(&self) -> Result<SqliteTransaction, StateError> {
        let longest = (self.inner.lock_timeout / 4).clamp(COME_FOR_IT, LONGEST_COMING);
        let mut patience = COME_FOR_IT;
        loop {
            let offer = self.inner.queue.ask(|reply| Request::Begin(patience, reply)).await?;
            if let Some(transaction) = offer.accept() {
                return Ok(transaction);
            }
            // It came too late. A process that is short of time has more of it at the next turn.
            patience = patience.saturating_mul(2).min(longest);
        }
    }

    async fn commit(&self, mut transaction: SqliteTransaction) -> Result<(), StateError> {
        self.inner.core.check_file()?;
        transaction.look_for_logs()?;
        let put_off = self.inner.core.put_off.all();
        if !put_off.is_empty() {
            // The transaction has kept these renewals waiting. After the commit a sweep of another process could be first.
            // If they fail, they are tried again after it.
            let renewed = claim::renew(&mut Db::Lent(&mut transaction), &self.inner.core, &put_off).await;
            transaction.commit().await?;
            if renewed.is_ok() {
                self.inner.core.put_off.committed(&put_off);
            }
            return Ok(());
        }
        transaction.commit().await
    }

    async fn rollback(&self, transaction: SqliteTransaction) -> Result<(), StateError> {
        transaction.rollback().await
    }

    async fn savepoint(&self, connection: &mut SqliteConnection, depth: u32) -> Result<(), StateError> {
        statement(connection, format!("SAVEPOINT queuert_{depth}")).await
    }

    async fn release_savepoint(&self, connection: &mut SqliteConnection, depth: u32) -> Result<(), StateError> {
        statement(connection, format!("RELEASE queuert_{depth}")).await
    }

    async fn rollback_to_savepoint(&self, connection: &mut SqliteConnection, depth: u32) -> Result<(), StateError> {
        let text = format!("ROLLBACK TO queuert_{depth}; RELEASE queuert_{depth}");
        statement(connection, text).await
    }

    fn has_ended(&self, transaction: &SqliteTransaction) -> bool {
        transaction.has_ended()
    }

    async fn catch_up(&self, transaction: &mut SqliteTransaction) -> Result<(), StateError> {
        transaction.catch_up().await
    }

    async fn shield(&self, connection: &mut SqliteConnection) -> Result<(), StateError> {
        transaction::shield(connection, &self.inner.core).await
    }

    async fn unshield(&self, connection: &mut SqliteConnection) -> Result<(), StateError> {
        transaction::unshield(connection).await
    }

    fn undo_shielded(&self, connection: &mut SqliteConnection) {
        transaction::undo_shielded(connection);
    }

    async fn create_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        match within {
            Some(connection) => create::create(&mut Db::Lent(connection), &self.inner.core, chains).await,
            None if chains.is_empty() => Ok(Ok(Vec::new())),
            None => {
                self.inner
                    .queue
                    .ask(|reply| Request::Create(chains.to_vec(), reply))
                    .await
            }
        }
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        let claimed = self
            .run(None, claim.clone(), |c, core, claim| {
                Box::pin(claim::claim(c, core, claim))
            })
            .await?;
        if !claimed.jobs.is_empty() {
            self.inner.core.presence.enlisted(claim.worker.as_str());
        }
        Ok(claimed)
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        self.look(None, fence, |c, core, fence| Box::pin(claim::claimed(c, core, *fence)))
            .await
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        self.look(None, sample.clone(), |c, core, sample| {
            Box::pin(claim::sample(c, core, sample))
        })
        .await
    }

    async fn renew_leases(
        &self,
        within: Option<&mut SqliteConnection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(connection) = within {
            return claim::renew(&mut Db::Lent(connection), &self.inner.core, renewals).await;
        }
        let renew = |reply| Request::Renew(renewals.to_vec(), Some(reply));
        self.inner.queue.ask(renew).await
    }

    async fn settle_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        match within {
            Some(connection) => settle::settle(&mut Db::Lent(connection), &self.inner.core, settlements).await,
            None if settlements.is_empty() => Ok(Vec::new()),
            None => {
                self.inner
                    .queue
                    .ask(|reply| Request::Settle(settlements.to_vec(), reply))
                    .await
            }
        }
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        self.run(None, reap.clone(), |c, core, reap| Box::pin(claim::reap(c, core, reap)))
            .await
    }

    async fn owner_died(&self, since: Instant) {
        if !self.inner.core.presence.is_possible() {
            std::future::pending::<()>().await;
        }
        loop {
            let rows = self.look(None, (), |db, core, ()| Box::pin(presence::processes(db, core)));
            // Should the file fail, others notice, and the next look comes soon.
            if rows
                .await
                .is_ok_and(|rows| self.inner.core.presence.has_died_since(&rows, since))
            {
                return;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    async fn hold_lease(
        &self,
        connection: &mut SqliteConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        claim::hold(&mut Db::Lent(connection), &self.inner.core, job, fence).await
    }

    async fn lock_chain(
        &self,
        connection: &mut SqliteConnection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        let mut latest = operate::latest_jobs(&mut Db::Lent(connection), &self.inner.core, &[chain]).await?;
        Ok(latest.remove(&chain).map(|stored| stored.job))
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        self.run(within, jobs.to_vec(), |c, core, jobs| {
            Box::pin(operate::trigger(c, core, jobs))
        })
        .await
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        self.run(within, chains.to_vec(), |c, core, chains| {
            Box::pin(operate::cancel(c, core, chains))
        })
        .await
    }

    async fn retry_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        self.run(within, chains.to_vec(), |c, core, chains| {
            Box::pin(operate::retry(c, core, chains))
        })
        .await
    }

    async fn delete_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        self.run(within, delete.clone(), |c, core, delete| {
            Box::pin(operate::delete(c, core, delete))
        })
        .await
    }

    async fn get_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        jobs: &[JobId],
    ) -> Result<Vec<JobRecord>, StateError> {
        self.look(within, jobs.to_vec(), |c, core, jobs| {
            Box::pin(query::jobs_by_id(c, core, jobs))
        })
        .await
    }

    async fn get_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.look(within, chains.to_vec(), |c, core, chains| {
            Box::pin(query::chains_by_id(c, core, chains))
        })
        .await
    }

    async fn list_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        self.look(within, query.clone(), |c, core, query| {
            Box::pin(query::list_jobs(c, core, query))
        })
        .await
    }

    async fn list_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.look(within, query.clone(), |c, core, query| {
            Box::pin(query::list_chains(c, core, query))
        })
        .await
    }

    async fn list_blockers(
        &self,
        within: Option<&mut SqliteConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.look(within, job, |c, core, job| Box::pin(query::list_blockers(c, core, job)))
            .await
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        self.look(None, (), |db, core, ()| Box::pin(query::watermark(db, core)))
            .await
    }
}

async fn statement(connection: &mut SqliteConnection, text: String) -> Result<(), StateError> {
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(connection)
        .await
        .map(drop)
        .map_err(translate)
}
