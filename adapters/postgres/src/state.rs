//! The state adapter: every verb of the seam, by itself or in the caller's transaction.

use std::sync::Arc;

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, Maintain, Maintained, NewChain,
    Pauses, QueueSample, ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement,
    StateAdapter, StoppedChain,
};
use queuert::{
    AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, Pause, StateError, StateErrorKind, Timestamp, TypeName,
};
use sqlx::{PgConnection, PgPool};
use tokio::time::Instant;

use crate::connection::budget::Budget;
use crate::connection::connect::Access;
use crate::connection::session::Session;
use crate::error::corrupt;
use crate::liveness::Liveness;
use crate::liveness::session_lock::SessionLock;
use crate::migrate::{self, Migration};
use crate::options::PostgresOptions;
use crate::statements::text;
use crate::store::Store;
use crate::transaction::{self, PostgresTransaction, Work};
use crate::upkeep::Upkeep;
use crate::verbs::create::LockWait;
use crate::verbs::create::coalesce::{self, Answer, Coalescer, Route};
use crate::verbs::query::watermark;
use crate::verbs::{claim, create, lease, operate, pause, query, settle, snapshot};

/// Keeps jobs and chains in a Postgres database. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: Arc<Store>,
    access: Access,
    upkeep: Upkeep,
    /// Of a store that was opened without a pooler.
    liveness: Option<Arc<Liveness>>,
    pub(crate) coalescer: Coalescer,
}

impl Inner {
    /// `None` behind a pooler, where a session may serve another client in the next moment.
    fn liveness(&self) -> Option<&Liveness> {
        self.liveness.as_deref().filter(|liveness| !liveness.is_pooled())
    }

    /// Starts chains that have neither keys nor blockers in one statement; `None` if an id is taken, and nothing was
    /// done.
    pub(crate) async fn start_simply(
        &self,
        chains: &[NewChain],
        lock_wait: LockWait,
    ) -> Result<Option<Vec<CreatedChain>>, StateError> {
        let mut work = Work::statement_for_client(&self.access).await?;
        let created = create::create_simply(&mut work.session(), &self.store, chains, lock_wait).await?;
        if created.is_some() {
            work.commit().await?;
        } else {
            work.rollback().await?;
        }
        Ok(created)
    }

    /// The same, together with other starts if any are under way.
    async fn start_in_turn(self: &Arc<Self>, chains: &[NewChain]) -> Result<Option<Vec<CreatedChain>>, StateError> {
        match coalesce::route(self, chains) {
            Route::First(turn) => {
                let created = self.start_simply(chains, LockWait::Short).await;
                drop(turn);
                match created {
                    // The start met a lock, and nothing was written.
                    Err(error) if error.kind() == StateErrorKind::Conflict => {}
                    created => return created,
                }
            }
            Route::Wait(answer) => {
                if let Ok(Answer::Sent(created)) = answer.await {
                    return created.map(Some);
                }
            }
            Route::Alone => {}
        }
        self.start_simply(chains, LockWait::Unlimited).await
    }
}

/// How often a verb that runs by itself is run again after a deadlock, which undoes it: the locks of one call are taken
/// in order, but a chain may move while they are.
const DEADLOCKS: usize = 5;

/// Runs a verb of several statements in a transaction of its own, or on the caller's connection. It is undone if it is
/// refused, and run again if it met a deadlock.
macro_rules! atomic {
    ($state:ident, $within:ident, |$session:ident| $verb:expr) => {{
        if let Some(connection) = $within {
            let $session = &mut Session::of_caller(connection);
            let answer = $verb.await?;
            if let Err(refusal) = &answer {
                snapshot::confirm_refusal($session, &$state.inner.store, refusal).await?;
            }
            return Ok(answer);
        }
        $state.inner.store.note_write();
        let mut deadlocks = 0;
        loop {
            let mut work = Work::transaction_for_client(&$state.inner.access).await?;
            let answer = {
                let $session = &mut work.session();
                $verb.await
            };
            match answer {
                Ok(Ok(answer)) => {
                    work.commit().await?;
                    return Ok(Ok(answer));
                }
                Ok(Err(refusal)) => {
                    work.rollback().await?;
                    return Ok(Err(refusal));
                }
                Err(error) if error.kind() == StateErrorKind::Conflict && deadlocks < DEADLOCKS => {
                    deadlocks += 1;
                    work.rollback().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }};
}

/// Runs a verb that only reads, or one that is a single statement.
macro_rules! statement {
    ($state:ident, $within:ident, |$session:ident| $verb:expr) => {{
        if let Some(connection) = $within {
            let $session = &mut Session::of_caller(connection);
            return $verb.await;
        }
        let mut work = Work::statement_for_client(&$state.inner.access).await?;
        let answer = {
            let $session = &mut work.session();
            $verb.await?
        };
        work.commit().await?;
        Ok(answer)
    }};
}

impl PostgresState {
    /// Connects with default settings, and brings the schema up to date.
    ///
    /// # Errors
    ///
    /// See [`PostgresOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// See [`PostgresOptions::connect`].
    pub async fn connect(url: &str) -> Result<Self, StateError> {
        Self::options().connect(url).await
    }

    /// Takes connections from the application's pool, with default settings otherwise.
    ///
    /// # Errors
    ///
    /// See [`PostgresOptions::from_pool`].
    ///
    /// # Cancel safety
    ///
    /// See [`PostgresOptions::from_pool`].
    pub async fn from_pool(pool: PgPool) -> Result<Self, StateError> {
        Self::options().from_pool(pool).await
    }

    /// Settings; finish with [`PostgresOptions::connect`] or [`PostgresOptions::from_pool`].
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    /// The schema as plain SQL, for applications that apply it themselves: one entry per version, in order.
    /// [`connect`](Self::connect) does not change a database that has them all.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StateErrorKind::Misconfigured) if the name of the schema cannot be used.
    pub fn migrations(schema: &str) -> Result<Vec<Migration>, StateError> {
        migrate::migrations(schema)
    }

    /// The connections that it uses.
    pub fn pool(&self) -> &PgPool {
        &self.inner.access.pool
    }

    /// The name of the schema that holds its tables.
    pub fn schema(&self) -> &str {
        self.inner.store.schema.name()
    }

    /// The lock by which other processes know that this one lives, if there is no pooler.
    pub(crate) fn session_lock(&self) -> Option<Arc<SessionLock>> {
        self.inner.liveness().map(Liveness::session_lock)
    }

    /// The budget of the library's own connections.
    pub(crate) fn budget(&self) -> &Budget {
        &self.inner.access.budget
    }

    /// What this handle knows of other processes, if there is no pooler.
    pub(crate) fn liveness(&self) -> Option<&Arc<Liveness>> {
        let liveness = self.inner.liveness.as_ref();
        liveness.filter(|liveness| !liveness.is_pooled())
    }

    /// Waits until the connections that are in use come back, and closes all of them. Handles that are left fail from
    /// now on. If it was made from a pool of the application's, that pool is closed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future closes the connections all the same.
    pub async fn close(&self) {
        if let Some(liveness) = &self.inner.liveness {
            liveness.leave();
        }
        self.inner.access.pool.close().await;
        self.inner.access.budget.close_reserve().await;
    }

    pub(crate) fn with(store: Store, access: Access, upkeep: Upkeep, liveness: Option<Liveness>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store: Arc::new(store),
                access,
                upkeep,
                liveness: liveness.map(Arc::new),
                coalescer: Coalescer::default(),
            }),
        }
    }
}

impl StateAdapter for PostgresState {
    type Connection = PgConnection;
    type Transaction = PostgresTransaction;

    async fn begin(&self) -> Result<PostgresTransaction, StateError> {
        PostgresTransaction::begin(&self.inner.access).await
    }

    async fn commit(&self, transaction: PostgresTransaction) -> Result<(), StateError> {
        transaction.commit().await
    }

    async fn rollback(&self, transaction: PostgresTransaction) -> Result<(), StateError> {
        transaction.rollback().await
    }

    async fn savepoint(&self, connection: &mut PgConnection, depth: u32) -> Result<(), StateError> {
        transaction::savepoint(connection, text::SAVEPOINT, depth).await
    }

    async fn release_savepoint(&self, connection: &mut PgConnection, depth: u32) -> Result<(), StateError> {
        transaction::savepoint(connection, text::RELEASE_SAVEPOINT, depth).await
    }

    async fn rollback_to_savepoint(&self, connection: &mut PgConnection, depth: u32) -> Result<(), StateError> {
        transaction::savepoint(connection, text::ROLLBACK_TO_SAVEPOINT, depth).await
    }

    async fn shield(&self, connection: &mut PgConnection) -> Result<(), StateError> {
        transaction::shield(connection).await
    }

    async fn unshield(&self, connection: &mut PgConnection) -> Result<(), StateError> {
        transaction::unshield(connection).await
    }

    fn undo_shielded(&self, connection: &mut PgConnection) {
        transaction::undo_shielded(connection);
    }

    async fn create_chains(
        &self,
        within: Option<&mut PgConnection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        if chains.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let Inner { store, access, .. } = &*self.inner;
        if within.is_none() {
            let unknown = store.type_ids.unknown(chains.iter().map(|chain| &chain.job.type_name));
            store.intern_for_client(access, unknown).await?;
        }
        // If an id is taken, the general way finds out which one.
        if within.is_none()
            && create::is_simple(chains)
            && let Some(created) = self.inner.start_in_turn(chains).await?
        {
            return Ok(Ok(created));
        }
        atomic!(self, within, |session| create::create(session, store, chains))
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        if claim.types.is_empty() || claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let Inner { store, access, .. } = &*self.inner;
        let unknown = store.type_ids.unknown(claim.types.iter().map(|claimed| &claimed.name));
        store.intern_alone(access, unknown).await?;
        // Before the process has a job: if it dies with its first job, the other processes know whose job that was.
        if let Some(liveness) = self.inner.liveness() {
            liveness.enlist(&claim.worker, store, access).await;
        }
        let claimed = claim::claim(access, store, claim).await?;
        if !claimed.jobs.is_empty() {
            store.note_write();
        }
        Ok(claimed)
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        let mut work = Work::statement(&self.inner.access).await?;
        let claimed = claim::claimed(&mut work.session(), &self.inner.store, fence).await?;
        work.commit().await?;
        Ok(claimed)
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        let Inner { store, access, .. } = &*self.inner;
        store
            .intern_alone(access, store.type_ids.unknown(sample.types.iter()))
            .await?;
        let mut work = Work::statement(access).await?;
        let samples = claim::sample::sample(&mut work.session(), store, sample).await?;
        work.commit().await?;
        Ok(samples)
    }

    async fn renew_leases(
        &self,
        within: Option<&mut PgConnection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(connection) = within {
            // Without the row of the process: it would stay locked until the commit, and the other renewals would wait for it. No
            // reaper takes a job that the transaction has locked, even if it takes the process for dead.
            return lease::renew(&mut Session::of_caller(connection), &self.inner.store, renewals, None).await;
        }
        let process = self.inner.liveness.as_deref().map(Liveness::key);
        let mut work = Work::renewal(&self.inner.access).await?;
        let renewed = lease::renew(&mut work.session(), &self.inner.store, renewals, process).await?;
        work.commit().await?;
        Ok(renewed)
    }

    async fn settle_jobs(
        &self,
        within: Option<&mut PgConnection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.inner.store.note_write();
        match within {
            Some(connection) => {
                settle::settle(&mut Session::of_caller(connection), &self.inner.store, settlements).await
            }
            None => settle::settle_alone(&self.inner.access, &self.inner.store, settlements).await,
        }
    }

    async fn settle_in(
        &self,
        transaction: &mut PostgresTransaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.inner.store.note_write();
        let settled = settle::settle(&mut transaction.session(), &self.inner.store, settlements).await?;
        transaction.prove();
        Ok(settled)
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        if reap.types.is_empty() || reap.limit == 0 {
            return Ok(Vec::new());
        }
        // Most sweeps find nothing, and need no transaction for it.
        let expired = if self.inner.liveness().is_some_and(Liveness::may_skip_sweep) {
            false
        } else {
            let mut work = Work::statement(&self.inner.access).await?;
            let expired = lease::has_expired(&mut work.session(), &self.inner.store, reap).await?;
            work.commit().await?;
            expired
        };
        let dead = self.inner.liveness().map(Liveness::deaths).unwrap_or_default();
        if !expired && dead.is_empty() {
            return Ok(Vec::new());
        }
        let mut work = Work::transaction(&self.inner.access).await?;
        let swept = lease::reap(&mut work.session(), &self.inner.store, reap, &dead).await?;
        work.commit().await?;
        Ok(swept.tell(&self.inner.store))
    }

    async fn owner_died(&self, since: Instant) {
        let Inner { store, access, .. } = &*self.inner;
        match self.inner.liveness() {
            Some(liveness) => liveness.death_since(since, store, access).await,
            None => std::future::pending().await,
        }
    }

    async fn hold_lease(
        &self,
        connection: &mut PgConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        lease::hold(&mut Session::of_caller(connection), &self.inner.store, job, fence).await
    }

    async fn lock_chain(&self, connection: &mut PgConnection, chain: ChainId) -> Result<Option<JobRecord>, StateError> {
        let session = &mut Session::unguarded(connection);
        let mut locked = self.inner.store.lock_chains(session, [chain]).await?;
        if locked.damaged.contains_key(&chain) {
            return Err(corrupt(format!(
                "chain {chain} has lost the state of its latest job; delete the chain"
            )));
        }
        let latest = locked.latest.remove(&chain).map(|stored| stored.job);
        if latest.is_none() {
            snapshot::confirm(session, &self.inner.store, vec![chain.as_uuid()]).await?;
        }
        Ok(latest)
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut PgConnection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        atomic!(self, within, |session| operate::trigger(
            session,
            &self.inner.store,
            jobs
        ))
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut PgConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        atomic!(self, within, |session| operate::cancel(
            session,
            &self.inner.store,
            chains
        ))
    }

    async fn retry_chains(
        &self,
        within: Option<&mut PgConnection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        atomic!(self, within, |session| operate::retry(
            session,
            &self.inner.store,
            chains
        ))
    }

    async fn delete_chains(
        &self,
        within: Option<&mut PgConnection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        atomic!(self, within, |session| operate::delete(
            session,
            &self.inner.store,
            delete
        ))
    }

    async fn get_jobs(&self, within: Option<&mut PgConnection>, jobs: &[JobId]) -> Result<Vec<JobRecord>, StateError> {
        statement!(self, within, |session| query::jobs_by_id(
            session,
            &self.inner.store,
            jobs
        ))
    }

    async fn get_chains(
        &self,
        within: Option<&mut PgConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        statement!(self, within, |session| query::chains_by_id(
            session,
            &self.inner.store,
            chains
        ))
    }

    async fn list_jobs(
        &self,
        within: Option<&mut PgConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        statement!(self, within, |session| query::list_jobs(
            session,
            &self.inner.store,
            query
        ))
    }

    async fn list_chains(
        &self,
        within: Option<&mut PgConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        statement!(self, within, |session| query::list_chains(
            session,
            &self.inner.store,
            query
        ))
    }

    async fn list_blockers(
        &self,
        within: Option<&mut PgConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        statement!(self, within, |session| query::list_blockers(
            session,
            &self.inner.store,
            job
        ))
    }

    async fn list_pauses(&self, within: Option<&mut PgConnection>) -> Result<Pauses, StateError> {
        if let Some(connection) = within {
            return pause::list(&mut Session::of_caller(connection), &self.inner.store).await;
        }
        // Of the workers: they ask it with a claim.
        let mut work = Work::statement(&self.inner.access).await?;
        let pauses = pause::list(&mut work.session(), &self.inner.store).await?;
        work.commit().await?;
        Ok(pauses)
    }

    async fn put_pause(&self, within: Option<&mut PgConnection>, pause: &Pause) -> Result<(), StateError> {
        statement!(self, within, |session| pause::put(session, &self.inner.store, pause))
    }

    async fn delete_pause(&self, within: Option<&mut PgConnection>, type_name: &TypeName) -> Result<bool, StateError> {
        statement!(self, within, |session| pause::delete(
            session,
            &self.inner.store,
            type_name
        ))
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        let mut work = Work::statement_for_client(&self.inner.access).await?;
        let watermark = watermark::watermark(&mut work.session(), &self.inner.store).await?;
        work.commit().await?;
        Ok(watermark)
    }

    async fn maintain(&self, maintain: &Maintain) -> Result<Maintained, StateError> {
        let Inner {
            store, access, upkeep, ..
        } = &*self.inner;
        let alone = self.inner.liveness().is_some_and(Liveness::is_alone);
        upkeep.run(store, access, maintain, alone).await
    }
}
