//! Every verb of a state adapter, for a store that only keeps and finds jobs.
//!
//! `work.rs` is one verb in one transaction: what it has locked, and what it has changed and not yet written. The other
//! files are the verbs, by the names that they have in every adapter.

mod claim;
mod create;
mod operate;
mod query;
mod settle;
mod work;

use self::work::Work;
use super::records::Records;
use super::rules::reap::{ReapLeases, ReapedJob};
use super::state::{
    ChainQuery, ClaimJobs, Claimed, ClaimedJob, CreatedChain, DeleteChains, JobQuery, NewChain, Pauses, QueueSample,
    Refusal, RenewLease, Renewal, SampleQueues, Settled, Settlement, StateAdapter, StoppedChain,
};
use crate::chain::ChainRecord;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobRecord, TypeName};
use crate::pause::Pause;
use crate::time::Timestamp;
use crate::worker::AbortReason;

/// A complete [`StateAdapter`] on a store that keeps and finds jobs: see [`Records`].
///
/// It is right rather than fast: a claim looks at all pending jobs, a list at all jobs.
#[derive(Clone, Debug)]
pub struct General<R> {
    records: R,
}

impl<R: Records> General<R> {
    /// An adapter on this store.
    pub fn new(records: R) -> Self {
        Self { records }
    }

    /// The store.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// The caller's transaction, or one that the verb opens.
    async fn open<'a>(&self, within: Option<&'a mut R::Connection>) -> Result<Scope<'a, R>, StateError> {
        match within {
            Some(connection) => Ok(Scope::Callers(connection)),
            None => self.records.begin().await.map(Scope::Own),
        }
    }

    /// Commits a transaction that the verb has opened. Without it, dropping the scope rolls back.
    async fn close(&self, scope: Scope<'_, R>) -> Result<(), StateError> {
        match scope {
            Scope::Callers(_) => Ok(()),
            Scope::Own(transaction) => self.records.commit(transaction).await,
        }
    }
}

enum Scope<'a, R: Records> {
    Callers(&'a mut R::Connection),
    Own(R::Transaction),
}

impl<R: Records> Scope<'_, R> {
    fn connection(&mut self) -> &mut R::Connection {
        match self {
            Self::Callers(connection) => connection,
            Self::Own(transaction) => &mut *transaction,
        }
    }

    async fn work<'s>(&'s mut self, records: &'s R) -> Result<Work<'s, R>, StateError> {
        Work::new(records, self.connection()).await
    }
}

/// Runs the function of a verb in the caller's transaction, or in one of its own. Boxed, because these futures are large, and
/// a worker holds several of them inside one another.
macro_rules! in_scope {
    ($self:ident, $within:expr, |$work:ident| $answer:expr) => {{
        let mut scope = $self.open($within).await?;
        let mut $work = scope.work(&$self.records).await?;
        let answer = Box::pin($answer).await?;
        $work.write().await?;
        $self.close(scope).await?;
        Ok(answer)
    }};
}

impl<R: Records> StateAdapter for General<R> {
    type Connection = R::Connection;
    type Transaction = R::Transaction;

    async fn begin(&self) -> Result<R::Transaction, StateError> {
        self.records.begin().await
    }

    async fn commit(&self, transaction: R::Transaction) -> Result<(), StateError> {
        self.records.commit(transaction).await
    }

    async fn rollback(&self, transaction: R::Transaction) -> Result<(), StateError> {
        self.records.rollback(transaction).await
    }

    async fn savepoint(&self, connection: &mut R::Connection, depth: u32) -> Result<(), StateError> {
        self.records.savepoint(connection, depth).await
    }

    async fn release_savepoint(&self, connection: &mut R::Connection, depth: u32) -> Result<(), StateError> {
        self.records.release_savepoint(connection, depth).await
    }

    async fn rollback_to_savepoint(&self, connection: &mut R::Connection, depth: u32) -> Result<(), StateError> {
        self.records.rollback_to_savepoint(connection, depth).await
    }

    async fn create_chains(
        &self,
        within: Option<&mut R::Connection>,
        chains: &[NewChain],
    ) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
        in_scope!(self, within, |work| create::create(&mut work, chains))
    }

    async fn claim_jobs(&self, claim: &ClaimJobs) -> Result<Claimed, StateError> {
        in_scope!(self, None, |work| claim::claim(&mut work, claim))
    }

    async fn claimed_jobs(&self, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
        query::claimed_jobs(&self.records, fence).await
    }

    async fn renew_leases(
        &self,
        within: Option<&mut R::Connection>,
        renewals: &[RenewLease],
    ) -> Result<Vec<Renewal>, StateError> {
        if within.is_some() {
            return in_scope!(self, within, |work| claim::renew(&mut work, renewals));
        }
        // No transaction that has the turn can be waited for, and none of them lets another take the jobs.
        let Some(transaction) = self.records.try_begin().await? else {
            return Ok(vec![Renewal::Busy; renewals.len()]);
        };
        let mut scope = Scope::Own(transaction);
        let mut work = scope.work(&self.records).await?;
        let answer = Box::pin(claim::renew(&mut work, renewals)).await?;
        work.write().await?;
        self.close(scope).await?;
        Ok(answer)
    }

    async fn settle_jobs(
        &self,
        within: Option<&mut R::Connection>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StateError> {
        let waits = within.is_some();
        in_scope!(self, within, |work| settle::settle_all(&mut work, settlements, waits))
    }

    async fn reap_leases(&self, reap: &ReapLeases) -> Result<Vec<ReapedJob>, StateError> {
        in_scope!(self, None, |work| claim::reap(&mut work, reap))
    }

    async fn hold_lease(
        &self,
        connection: &mut R::Connection,
        job: JobId,
        fence: Fence,
    ) -> Result<Result<(), AbortReason>, StateError> {
        in_scope!(self, Some(connection), |work| claim::hold(&mut work, job, fence))
    }

    async fn lock_chain(
        &self,
        connection: &mut R::Connection,
        chain: ChainId,
    ) -> Result<Option<JobRecord>, StateError> {
        in_scope!(self, Some(connection), |work| operate::lock_chain(&mut work, chain))
    }

    async fn trigger_jobs(
        &self,
        within: Option<&mut R::Connection>,
        jobs: &[JobId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        in_scope!(self, within, |work| operate::trigger(&mut work, jobs))
    }

    async fn cancel_chains(
        &self,
        within: Option<&mut R::Connection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        in_scope!(self, within, |work| operate::cancel(&mut work, chains))
    }

    async fn retry_chains(
        &self,
        within: Option<&mut R::Connection>,
        chains: &[ChainId],
    ) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
        in_scope!(self, within, |work| operate::retry(&mut work, chains))
    }

    async fn delete_chains(
        &self,
        within: Option<&mut R::Connection>,
        delete: &DeleteChains,
    ) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
        in_scope!(self, within, |work| operate::delete(&mut work, delete))
    }

    async fn get_jobs(&self, within: Option<&mut R::Connection>, jobs: &[JobId]) -> Result<Vec<JobRecord>, StateError> {
        query::get_jobs(&self.records, within, jobs).await
    }

    async fn get_chains(
        &self,
        within: Option<&mut R::Connection>,
        chains: &[ChainId],
    ) -> Result<Vec<ChainRecord>, StateError> {
        query::get_chains(&self.records, within, chains).await
    }

    async fn list_jobs(
        &self,
        within: Option<&mut R::Connection>,
        query: &JobQuery,
    ) -> Result<Vec<JobRecord>, StateError> {
        query::list_jobs(&self.records, within, query).await
    }

    async fn list_chains(
        &self,
        within: Option<&mut R::Connection>,
        query: &ChainQuery,
    ) -> Result<Vec<ChainRecord>, StateError> {
        query::list_chains(&self.records, within, query).await
    }

    async fn list_blockers(
        &self,
        within: Option<&mut R::Connection>,
        job: JobId,
    ) -> Result<Vec<ChainRecord>, StateError> {
        query::list_blockers(&self.records, within, job).await
    }

    async fn list_pauses(&self, mut within: Option<&mut R::Connection>) -> Result<Pauses, StateError> {
        let pauses = self.records.pauses(within.as_deref_mut()).await?;
        Ok(Pauses::new(self.records.now(within).await?, pauses))
    }

    async fn put_pause(&self, within: Option<&mut R::Connection>, pause: &Pause) -> Result<(), StateError> {
        let mut scope = self.open(within).await?;
        let write = self
            .records
            .write_pause(scope.connection(), &pause.type_name, Some(pause.clone()));
        write.await?;
        self.close(scope).await
    }

    async fn delete_pause(&self, within: Option<&mut R::Connection>, type_name: &TypeName) -> Result<bool, StateError> {
        let mut scope = self.open(within).await?;
        let pauses = self.records.pauses(Some(scope.connection())).await?;
        let found = pauses.iter().any(|pause| pause.type_name == *type_name);
        self.records.write_pause(scope.connection(), type_name, None).await?;
        self.close(scope).await?;
        Ok(found)
    }

    async fn watermark(&self) -> Result<Timestamp, StateError> {
        self.records.watermark().await
    }

    async fn sample_queues(&self, sample: &SampleQueues) -> Result<Vec<QueueSample>, StateError> {
        query::sample_queues(&self.records, sample).await
    }
}
