//! The state adapter: every verb of the seam, by itself or in the caller's transaction.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use queuert::adapter::{
    BoxFuture, ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, ReapLeases,
    ReapedJob, Refusal, RenewLease, Renewal, Settled, Settlement, StateAdapter, StoppedChain,
};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError};
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::core::Core;
use crate::db::Db;
use crate::error::translate;
use crate::group::{Request, Task};
use crate::migrate::{self, Migration};
use crate::options::SqliteOptions;
use crate::transaction::SqliteTransaction;
use crate::writer::Queue;
use crate::{claim, create, operate, query, settle};

/// Keeps jobs and chains in one SQLite file. Clones share it.
///
/// All writing goes through one queue: operations that wait at the same time share a transaction, and the caller's own
/// transactions take their turn. Reading has connections of its own and never waits for a writer.
#[derive(Clone, Debug)]
pub struct SqliteState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    queue: Queue,
    /// `None` for a database in memory, which has a single connection.
    readers: Option<SqlitePool>,
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
    /// [`SqliteNotify`](crate::SqliteNotify)s on them, fail from now on. Dropping the last handle does the same in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped after it was polled once closes the file all the same.
    pub async fn close(&self) {
        // Both are told before either is waited for. The pool closes its connections only while somebody waits for that,
        // so a task does.
        let writer = self.inner.queue.close();
        let readers = self.inner.readers.clone();
        let readers = readers.map(|readers| tokio::spawn(async move { readers.close().await }));
        writer.await;
        if let Some(readers) = readers {
            // It fails only where the runtime ends.
            let _ = readers.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner.readers.as_ref().is_some_and(SqlitePool::is_closed)
    }

    /// How many transactions have been committed through this handle and its clones.
    pub fn commits(&self) -> u64 {
        self.inner.core.commits()
    }

    pub(crate) fn new(core: Arc<Core>, queue: Queue, readers: Option<SqlitePool>, file: Option<PathBuf>) -> Self {
        Self {
            inner: Arc::new(Inner {
                core,
                queue,
                readers,
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
        match &self.inner.readers {
            Some(readers) => {
                let mut connection = readers.acquire().await.map_err(translate)?;
                work(&mut Db::Lent(&mut connection)).await
            }
            None => self.write(work).await,
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
        self.inner.queue.ask(Request::Begin).await
    }

    async fn commit(&self, transaction: SqliteTransaction) -> Result<(), StateError> {
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
        self.run(None, claim.clone(), |c, core, claim| {
            Box::pin(claim::claim(c, core, claim))
        })
        .await
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        self.look(None, fence, |c, core, fence| Box::pin(claim::claimed(c, core, *fence)))
            .await
    }

    async fn renew_leases(&self, renewals: &[RenewLease]) -> Result<Vec<Renewal>, StateError> {
        self.run(None, renewals.to_vec(), |c, core, renewals| {
            Box::pin(claim::renew(c, core, renewals))
        })
        .await
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
}

async fn statement(connection: &mut SqliteConnection, text: String) -> Result<(), StateError> {
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(connection)
        .await
        .map(drop)
        .map_err(translate)
}
