//! The state adapter: every verb of the seam, by itself or in the caller's transaction.

use std::sync::Arc;

use queuert::adapter::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, Maintain, Maintained, NewChain,
    QueueSample, ReapLeases, ReapedJob, Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter,
    StoppedChain,
};
use queuert::{AbortReason, ChainId, ChainRecord, Fence, JobId, JobRecord, StateError, StateErrorKind, Timestamp};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::time::Instant;

use crate::connect::Access;
use crate::core::Core;
use crate::create::Patience;
use crate::error::{corrupt, translate};
use crate::lanes::Lanes;
use crate::lifeline::Lifeline;
use crate::maintain::Upkeep;
use crate::migrate::{self, Migration};
use crate::options::PostgresOptions;
use crate::presence::Presence;
use crate::session::Session;
use crate::starts::{self, Answer, Starts, Way};
use crate::transaction::{PostgresTransaction, Work};
use crate::{claim, create, lease, operate, query, settle, snapshot, transaction, watermark};

/// Keeps jobs and chains in a Postgres database. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostgresState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    core: Arc<Core>,
    access: Access,
    upkeep: Upkeep,
    /// Of a store that was opened without a pooler.
    presence: Option<Arc<Presence>>,
    pub(crate) starts: Starts,
}

impl Inner {
    /// `None` where the sessions may be somebody else's in the next moment.
    fn presence(&self) -> Option<&Presence> {
        self.presence.as_deref().filter(|presence| !presence.is_pooled())
    }

    /// Starts chains that have neither keys nor blockers in one statement; `None` if an id is taken, and nothing was
    /// done.
    pub(crate) async fn start_simply(
        &self,
        chains: &[NewChain],
        patience: Patience,
    ) -> Result<Option<Vec<CreatedChain>>, StateError> {
        let mut work = Work::single_for_client(&self.access).await?;
        let created = create::create_simply(&mut work.session(), &self.core, chains, patience).await?;
        match created.is_some() {
            true => work.finish().await?,
            false => work.undo().await?,
        }
        Ok(created)
    }

    /// The same, with others if there are any under way.
    async fn start_in_turn(self: &Arc<Self>, chains: &[NewChain]) -> Result<Option<Vec<CreatedChain>>, StateError> {
        match starts::way(self, chains) {
            Way::First(turn) => {
                let created = self.start_simply(chains, Patience::Short).await;
                drop(turn);
                match created {
                    // It met a lock, and nothing was written.
                    Err(error) if error.kind() == StateErrorKind::Conflict => {}
                    created => return created,
                }
            }
            Way::Later(answer) => {
                if let Ok(Answer::Together(created)) = answer.await {
                    return created.map(Some);
                }
            }
            Way::Beside => {}
        }
        self.start_simply(chains, Patience::Long).await
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
                snapshot::confirm_refusal($session, &$state.inner.core, refusal).await?;
            }
            return Ok(answer);
        }
        $state.inner.core.note_work();
        let mut deadlocks = 0;
        loop {
            let mut work = Work::atomic_for_client(&$state.inner.access).await?;
            let answer = {
                let $session = &mut work.session();
                $verb.await
            };
            match answer {
                Ok(Ok(answer)) => {
                    work.finish().await?;
                    return Ok(Ok(answer));
                }
                Ok(Err(refusal)) => {
                    work.undo().await?;
                    return Ok(Err(refusal));
                }
                Err(error) if error.kind() == StateErrorKind::Conflict && deadlocks < DEADLOCKS => {
                    deadlocks += 1;
                    work.undo().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }};
}

/// Runs a verb that only reads.
macro_rules! read {
    ($state:ident, $within:ident, |$session:ident| $verb:expr) => {{
        if let Some(connection) = $within {
            let $session = &mut Session::of_caller(connection);
            return $verb.await;
        }
        let mut work = Work::single_for_client(&$state.inner.access).await?;
        let answer = {
            let $session = &mut work.session();
            $verb.await?
        };
        work.finish().await?;
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

    /// The schema as plain SQL, for those who apply it themselves: one entry per version, in order. A database that has
    /// them all is not changed by [`connect`](Self::connect).
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
        &self.inner.core.schema
    }

    /// The session by which other processes know that this one lives, if there is no pooler.
    pub(crate) fn lifeline(&self) -> Option<Arc<Lifeline>> {
        self.inner.presence().map(Presence::lifeline)
    }

    /// The library's own connections.
    pub(crate) fn lanes(&self) -> &Lanes {
        &self.inner.access.lanes
    }

    /// What this handle knows of other processes, if there is no pooler.
    pub(crate) fn presence(&self) -> Option<&Arc<Presence>> {
        let presence = self.inner.presence.as_ref();
        presence.filter(|presence| !presence.is_pooled())
    }

    /// Waits until the connections that are in use come back, and closes all of them. Handles that are left fail from
    /// now on. If it was made from a pool of the application's, that pool is closed.
    ///
    /// # Cancel safety
    ///
    /// A dropped future closes the connections all the same.
    pub async fn close(&self) {
        if let Some(presence) = &self.inner.presence {
            presence.leave();
        }
        self.inner.access.pool.close().await;
        self.inner.access.lanes.close_reserve().await;
    }

    pub(crate) fn with(core: Core, access: Access, upkeep: Upkeep, presence: Option<Presence>) -> Self {
        Self {
            inner: Arc::new(Inner {
                core: Arc::new(core),
                access,
                upkeep,
                presence: presence.map(Arc::new),
                starts: Starts::default(),
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
        statement(connection, format!("SAVEPOINT queuert_{depth}")).await
    }

    async fn release_savepoint(&self, connection: &mut PgConnection, depth: u32) -> Result<(), StateError> {
        statement(connection, format!("RELEASE SAVEPOINT queuert_{depth}")).await
    }

    async fn rollback_to_savepoint(&self, connection: &mut PgConnection, depth: u32) -> Result<(), StateError> {
        // One message, so that nothing comes in between.
        let text = format!("ROLLBACK TO SAVEPOINT queuert_{depth}; RELEASE SAVEPOINT queuert_{depth}");
        statement(connection, text).await
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
        let Inner { core, access, .. } = &*self.inner;
        if within.is_none() {
            let unknown = core.types.unknown(chains.iter().map(|chain| &chain.job.type_name));
            core.intern_for_client(access, unknown).await?;
        }
        // If an id is taken, the general way finds out which.
        if within.is_none()
            && create::is_simple(chains)
            && let Some(created) = self.inner.start_in_turn(chains).await?
        {
            return Ok(Ok(created));
        }
        atomic!(self, within, |session| create::create(session, core, chains))
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        if claim.types.is_empty() || claim.limit == 0 {
            return Ok(Claimed::default());
        }
        let Inner { core, access, .. } = &*self.inner;
        let unknown = core.types.unknown(claim.types.iter().map(|claimed| &claimed.name));
        core.intern_alone(access, unknown).await?;
        // Before it has a job: if it dies with the first one, the others know whose that was.
        if let Some(presence) = self.inner.presence() {
            presence.enlist(&claim.worker, core, access).await;
        }
        let claimed = claim::claim(access, core, claim).await?;
        if !claimed.jobs.is_empty() {
            core.note_work();
        }
        Ok(claimed)
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        let mut work = Work::single(&self.inner.access).await?;
        let claimed = claim::claimed(&mut work.session(), &self.inner.core, fence).await?;
        work.finish().await?;
        Ok(claimed)
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        let Inner { core, access, .. } = &*self.inner;
        core.intern_alone(access, core.types.unknown(sample.types.iter()))
            .await?;
        let mut work = Work::single(access).await?;
        let samples = claim::sample(&mut work.session(), core, sample).await?;
        work.finish().await?;
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
            // Without the row of the process, which would stay locked until the commit, and the other renewals would wait for
            // it. No reaper takes a job that the transaction has locked, whatever it thinks of the process.
            return lease::renew(&mut Session::of_caller(connection), &self.inner.core, renewals, None).await;
        }
        let process = self.inner.presence.as_deref().map(Presence::key);
        let mut work = Work::renewing(&self.inner.access).await?;
        let renewed = lease::renew(&mut work.session(), &self.inner.core, renewals, process).await?;
        work.finish().await?;
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
        self.inner.core.note_work();
        match within {
            Some(connection) => {
                settle::settle(&mut Session::of_caller(connection), &self.inner.core, settlements).await
            }
            None => settle::settle_alone(&self.inner.access, &self.inner.core, settlements).await,
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
        self.inner.core.note_work();
        let settled = settle::settle(&mut transaction.session(), &self.inner.core, settlements).await?;
        transaction.prove();
        Ok(settled)
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        if reap.types.is_empty() || reap.limit == 0 {
            return Ok(Vec::new());
        }
        // Most sweeps find nothing, and need no transaction for it.
        let expired = match self.inner.presence().is_some_and(Presence::may_skip_sweep) {
            true => false,
            false => {
                let mut work = Work::single(&self.inner.access).await?;
                let expired = lease::has_expired(&mut work.session(), &self.inner.core, reap).await?;
                work.finish().await?;
                expired
            }
        };
        let dead = self.inner.presence().map(Presence::deaths).unwrap_or_default();
        if !expired && dead.is_empty() {
            return Ok(Vec::new());
        }
        let mut work = Work::atomic(&self.inner.access).await?;
        let swept = lease::reap(&mut work.session(), &self.inner.core, reap, &dead).await?;
        work.finish().await?;
        Ok(swept.tell(&self.inner.core))
    }

    async fn owner_died(&self, since: Instant) {
        let Inner { core, access, .. } = &*self.inner;
        match self.inner.presence() {
            Some(presence) => presence.death_since(since, core, access).await,
            None => std::future::pending().await,
        }
    }

    async fn hold_lease(
        &self,
        connection: &mut PgConnection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        lease::hold(&mut Session::of_caller(connection), &self.inner.core, job, fence).await
    }

    async fn lock_chain(&self, connection: &mut PgConnection, chain: ChainId) -> Result<Option<JobRecord>, StateError> {
        let session = &mut Session::unguarded(connection);
        let mut locked = self.inner.core.lock_chains(session, [chain]).await?;
        if locked.damaged.contains_key(&chain) {
            return Err(corrupt(format!(
                "chain {chain} has lost the state of its latest job; delete the chain"
            )));
        }
        let latest = locked.latest.remove(&chain).map(|stored| stored.job);
        if latest.is_none() {
            snapshot::confirm(session, &self.inner.core, vec![chain.as_uuid()]).await?;
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
            &self.inner.core,
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
            &self.inner.core,
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
            &self.inner.core,
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
            &self.inner.core,
            delete
        ))
    }

    async fn get_jobs(&self, within: Option<&mut PgConnection>, jobs: &[JobId]) -> Result<Vec<JobRecord>, StateError> {
        read!(self, within, |session| query::jobs_by_id(
            session,
            &self.inner.core,
            jobs
        ))
    }

    async fn get_chains(
        &self,
        within: Option<&mut PgConnection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        read!(self, within, |session| query::chains_by_id(
            session,
            &self.inner.core,
            chains
        ))
    }

    async fn list_jobs(
        &self,
        within: Option<&mut PgConnection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        read!(self, within, |session| query::list_jobs(
            session,
            &self.inner.core,
            query
        ))
    }

    async fn list_chains(
        &self,
        within: Option<&mut PgConnection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        read!(self, within, |session| query::list_chains(
            session,
            &self.inner.core,
            query
        ))
    }

    async fn list_blockers(
        &self,
        within: Option<&mut PgConnection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        read!(self, within, |session| query::list_blockers(
            session,
            &self.inner.core,
            job
        ))
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        let mut work = Work::single_for_client(&self.inner.access).await?;
        let watermark = watermark::watermark(&mut work.session(), &self.inner.core).await?;
        work.finish().await?;
        Ok(watermark)
    }

    async fn maintain(&self, maintain: &Maintain) -> Result<Maintained, StateError> {
        let Inner {
            core, access, upkeep, ..
        } = &*self.inner;
        let alone = self.inner.presence().is_some_and(Presence::is_alone);
        upkeep.run(core, access, maintain, alone).await
    }
}

async fn statement(connection: &mut PgConnection, text: String) -> Result<(), StateError> {
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(connection)
        .await
        .map(drop)
        .map_err(translate)
}
