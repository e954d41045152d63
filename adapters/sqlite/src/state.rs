//! The state adapter: every verb of the seam, by itself or in the caller's transaction.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use queuert::__task::{Lock, spawn_in};
use queuert::adapter::{
    BoxFuture, ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, Pauses,
    QueueSample, ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter,
    StoppedChain,
};
use queuert::{
    AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, Pause, StateError, StateErrorKind, Timestamp, TypeName,
};
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::connection::close::{CloseCall, CloseStage, Closing, wait_for_close};
use crate::error::translate;
use crate::migrate::{self, Migration};
use crate::options::SqliteOptions;
use crate::store::Store;
use crate::transaction::SqliteTransaction;
use crate::verbs::{claim, create, lease, operate, pause, query, settle};
use crate::writer::batch::{Request, Task};
use crate::writer::queue::{WriterQueue, no_runtime};
use crate::{liveness, locks, transaction};

/// How often to check whether a process that holds leases has died: one read of a table with a row per process.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(250);

/// How long a transaction that has begun waits to be accepted by its caller. The caller has been woken and accepts it within
/// microseconds, unless its future is not polled: then other writers need not wait for it.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(50);

/// The longest time that a transaction waits for a caller that was late before. Other writers must not reach their
/// `lock_timeout` meanwhile, so it is at most a part of that too.
const LONGEST_ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps jobs and chains in one SQLite file. Clones share it.
///
/// All writes go through one queue: operations that wait at the same time share a transaction, and the caller's
/// transactions take their turn. Reads have their own connections and never wait for a writer.
#[derive(Clone, Debug)]
pub struct SqliteState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<Store>,
    pub(crate) queue: WriterQueue,
    /// `None` for a database in memory, which has a single connection.
    pub(crate) readers: Option<SqlitePool>,
    pub(crate) lock_timeout: Duration,
    pub(crate) closing: Lock<CloseStage>,
    /// The file, if it can be opened without options of the caller.
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

    /// The schema as plain SQL, for applications that apply it themselves: one entry per version, in order.
    /// [`open`](Self::open) does not change a file that has them all.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](queuert::StateErrorKind::Misconfigured) if the prefix cannot be used.
    pub fn migrations(prefix: &str) -> Result<Vec<Migration>, StateError> {
        migrate::migrations(prefix)
    }

    /// Waits until all calls that were made before are done, and closes the file. Calls on handles that are left, and on
    /// their [`SqliteNotify`](crate::SqliteNotify)s, fail from now on.
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
    /// another runtime that the program does not drive. Nothing is lost then. The store accepts no more calls, the
    /// transaction can still be used, committed and rolled back, and the file is closed after it has ended. Before that,
    /// after a second, a warning of `tracing` (target `queuert`) says what `close` waits for.
    ///
    /// [`Misconfigured`](StateErrorKind::Misconfigured) if the file at the path is no longer the one that the store has
    /// opened: everything is closed, but the log could not be folded, and SQLite has left it at the path. The message says
    /// what to do before a program opens the database again. If the file has been put back, a second call folds the log.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped after it was polled once closes the file all the same.
    pub async fn close(&self) -> Result<(), StateError> {
        let call = self.inner.closing.lock().call();
        let (calls, answer) = match call {
            CloseCall::Closed => return Ok(()),
            CloseCall::Join(answer) => return wait_for_close(answer).await,
            CloseCall::Start(calls, answer) => (calls, answer),
        };
        // Both requests enter the queue in this order, before anything is awaited.
        let state = self.clone();
        let mut unregister = Box::pin(async move {
            let unregister = state.operation((), |connection, store, ()| {
                Box::pin(liveness::unregister(connection, store))
            });
            let _ = state.write_quietly(unregister).await;
        });
        let unregistered = unregister.as_mut().now_or_never().is_some();
        let closing = Closing {
            inner: Arc::clone(&self.inner),
            unregister: (!unregistered).then_some(unregister),
            shared: self.inner.queue.is_shared(),
            writer: Box::pin(self.inner.queue.close()),
            log: tracing::dispatcher::get_default(Clone::clone),
        };
        self.inner.store.connections.close();
        closing.start(calls)?;
        wait_for_close(answer).await
    }

    /// How many transactions have been committed through this handle and its clones.
    pub fn commits(&self) -> u64 {
        self.inner.store.commits()
    }

    pub(crate) fn new(
        store: Arc<Store>,
        queue: WriterQueue,
        readers: Option<SqlitePool>,
        file: Option<PathBuf>,
        lock_timeout: Duration,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
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

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.inner.store
    }

    pub(crate) fn readers(&self) -> Option<&SqlitePool> {
        self.inner.readers.as_ref()
    }

    /// Runs an operation in a transaction that it may share with others.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Connection<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
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

    /// Runs an operation whose commit other processes need not notice.
    pub(crate) async fn write_quietly<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Connection<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
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

    /// Runs a read on one of the reading connections.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, StateError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Connection<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static,
    {
        let Some(readers) = self.inner.readers.clone() else {
            return self.write(work).await;
        };
        let store = Arc::clone(&self.inner.store);
        store.check_file()?;
        if Handle::try_current().is_err() {
            return Err(no_runtime());
        }
        // A task, because a future that is polled once and kept would keep the connection from other readers. The task ends
        // with the future.
        let mut reading = JoinSet::new();
        spawn_in(&mut reading, async move {
            let mut connection = readers.acquire().await.map_err(translate)?;
            // If the file has been replaced meanwhile, the connection may be one to the other file.
            if let Err(replaced) = store.check_file() {
                connection.close_on_drop();
                return Err(replaced);
            }
            work(&mut Connection::Sqlx(&mut connection)).await
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

    /// Runs a verb that writes: on the caller's connection, or as an operation.
    async fn run_write<A, T>(
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
            Some(connection) => verb(&mut Connection::Sqlx(connection), &self.inner.store, &argument).await,
            None => self.write(self.operation(argument, verb)).await,
        }
    }

    /// Runs a verb that reads: on the caller's connection, or on a reading one.
    async fn run_read<A, T>(
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
            Some(connection) => verb(&mut Connection::Sqlx(connection), &self.inner.store, &argument).await,
            None => self.read(self.operation(argument, verb)).await,
        }
    }

    fn operation<A, T>(
        &self,
        argument: A,
        verb: Verb<A, T>,
    ) -> impl for<'a> Fn(&'a mut Connection<'_>) -> BoxFuture<'a, Result<T, StateError>> + Send + 'static
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let store = Arc::clone(&self.inner.store);
        let argument = Arc::new(argument);
        move |connection| {
            let store = Arc::clone(&store);
            let argument = Arc::clone(&argument);
            Box::pin(async move { verb(connection, &store, &argument).await })
        }
    }
}

/// A verb as a function of connection, store and argument.
type Verb<A, T> = for<'a> fn(&'a mut Connection<'_>, &'a Store, &'a A) -> BoxFuture<'a, Result<T, StateError>>;

impl StateAdapter for SqliteState {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;

    async fn begin(&self) -> Result<SqliteTransaction, StateError> {
        let longest = (self.inner.lock_timeout / 4).clamp(ACCEPT_TIMEOUT, LONGEST_ACCEPT_TIMEOUT);
        let mut patience = ACCEPT_TIMEOUT;
        loop {
            let offer = self.inner.queue.ask(|reply| Request::Begin(patience, reply)).await?;
            if let Some(transaction) = offer.accept() {
                return Ok(transaction);
            }
            // The writer has taken the transaction back. A caller that is slow gets more time at the next turn.
            patience = patience.saturating_mul(2).min(longest);
        }
    }

    async fn commit(&self, mut transaction: SqliteTransaction) -> Result<(), StateError> {
        self.inner.store.check_file()?;
        transaction.check_logs()?;
        let postponed = self.inner.store.postponed.all();
        if !postponed.is_empty() {
            // The transaction has kept these renewals waiting. After the commit, a sweep of another process could run first.
            // If they fail, the writer tries them again after the commit.
            let mut connection = Connection::Sqlx(&mut transaction);
            let renewed = lease::renew(&mut connection, &self.inner.store, &postponed).await;
            transaction.commit().await?;
            if renewed.is_ok() {
                self.inner.store.postponed.committed(&postponed);
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
        transaction::shield(connection, &self.inner.store).await
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
            Some(connection) => create::create(&mut Connection::Sqlx(connection), &self.inner.store, chains).await,
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
            .run_write(None, claim.clone(), |connection, store, claim| {
                Box::pin(claim::claim(connection, store, claim))
            })
            .await?;
        if !claimed.jobs.is_empty() {
            self.inner.store.liveness.registered(claim.worker.as_str());
        }
        Ok(claimed)
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        self.run_read(None, fence, |connection, store, fence| {
            Box::pin(claim::claimed(connection, store, *fence))
        })
        .await
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        self.run_read(None, sample.clone(), |connection, store, sample| {
            Box::pin(claim::sample(connection, store, sample))
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
            return lease::renew(&mut Connection::Sqlx(connection), &self.inner.store, renewals).await;
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
            Some(connection) => settle::settle(&mut Connection::Sqlx(connection), &self.inner.store, settlements).await,
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
        self.run_write(None, reap.clone(), |connection, store, reap| {
            Box::pin(lease::reap(connection, store, reap))
        })
        .await
    }

    async fn owner_died(&self, since: Instant) {
        if !self.inner.store.liveness.is_possible() {
            std::future::pending::<()>().await;
        }
        loop {
            let rows = self.run_read(None, (), |connection, store, ()| {
                Box::pin(liveness::processes(connection, store))
            });
            // Other calls report an error of the file, and the next check comes soon.
            if rows
                .await
                .is_ok_and(|rows| self.inner.store.liveness.has_died_since(&rows, since))
            {
                return;
            }
            tokio::time::sleep(LIVENESS_INTERVAL).await;
        }
    }

    async fn hold_lease(
        &self,
        connection: &mut SqliteConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        locks::hold_lease(&mut Connection::Sqlx(connection), &self.inner.store, job, fence).await
    }

    async fn lock_chain(
        &self,
        connection: &mut SqliteConnection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        locks::lock_chain(&mut Connection::Sqlx(connection), &self.inner.store, chain).await
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        self.run_write(within, jobs.to_vec(), |connection, store, jobs| {
            Box::pin(operate::trigger(connection, store, jobs))
        })
        .await
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        self.run_write(within, chains.to_vec(), |connection, store, chains| {
            Box::pin(operate::cancel(connection, store, chains))
        })
        .await
    }

    async fn retry_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        self.run_write(within, chains.to_vec(), |connection, store, chains| {
            Box::pin(operate::retry(connection, store, chains))
        })
        .await
    }

    async fn delete_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        self.run_write(within, delete.clone(), |connection, store, delete| {
            Box::pin(operate::delete(connection, store, delete))
        })
        .await
    }

    async fn get_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        jobs: &[JobId],
    ) -> Result<Vec<JobRecord>, StateError> {
        self.run_read(within, jobs.to_vec(), |connection, store, jobs| {
            Box::pin(query::jobs_by_id(connection, store, jobs))
        })
        .await
    }

    async fn get_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.run_read(within, chains.to_vec(), |connection, store, chains| {
            Box::pin(query::chains_by_id(connection, store, chains))
        })
        .await
    }

    async fn list_jobs(
        &self,
        within: Option<&mut SqliteConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        self.run_read(within, query.clone(), |connection, store, query| {
            Box::pin(query::list_jobs(connection, store, query))
        })
        .await
    }

    async fn list_chains(
        &self,
        within: Option<&mut SqliteConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.run_read(within, query.clone(), |connection, store, query| {
            Box::pin(query::list_chains(connection, store, query))
        })
        .await
    }

    async fn list_blockers(
        &self,
        within: Option<&mut SqliteConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        self.run_read(within, job, |connection, store, job| {
            Box::pin(query::list_blockers(connection, store, job))
        })
        .await
    }

    async fn list_pauses(&self, within: Option<&mut SqliteConnection>) -> Result<Pauses, StateError> {
        self.run_read(within, (), |connection, store, ()| {
            Box::pin(pause::list(connection, store))
        })
        .await
    }

    async fn put_pause(&self, within: Option<&mut SqliteConnection>, pause: &Pause) -> Result<(), StateError> {
        self.run_write(within, pause.clone(), |connection, store, pause| {
            Box::pin(pause::put(connection, store, pause))
        })
        .await
    }

    async fn delete_pause(
        &self,
        within: Option<&mut SqliteConnection>,
        type_name: &TypeName,
    ) -> Result<bool, StateError> {
        self.run_write(within, type_name.clone(), |connection, store, type_name| {
            Box::pin(pause::delete(connection, store, type_name))
        })
        .await
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        self.run_read(None, (), |connection, store, ()| {
            Box::pin(query::watermark(connection, store))
        })
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
