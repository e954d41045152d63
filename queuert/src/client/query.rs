//! Reading chains, jobs and blockers by id.

use std::marker::PhantomData;

use super::Client;
use super::request::{Operation, Request, Sealed};
use super::start::Of;
use crate::adapter::StateAdapter;
use crate::chain::{Chain, ChainHandle, ChainRecord};
use crate::effects::Effects;
use crate::error::Error;
use crate::id::{ChainId, JobId};
use crate::job::{Job, JobRecord};
use crate::job_type::{Entry, JobType};

impl<S: StateAdapter> Client<S> {
    /// Reads a chain; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::TypeMismatch`], [`Error::Undecodable`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn get_chain<H: ChainHandle>(&self, chain: H) -> Request<'_, S, GetChain<H::Entry>> {
        Request::new(self, GetChain(chain.chain_ref().id(), PhantomData))
    }

    /// Reads a chain of any type; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn get_chain_record(&self, chain: impl Into<ChainId>) -> Request<'_, S, GetChainRecord> {
        Request::new(self, GetChainRecord(chain.into()))
    }

    /// Reads a job of type `J`; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::TypeMismatch`], [`Error::Undecodable`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn get_job<J: JobType>(&self, job: JobId) -> Request<'_, S, GetJob<J>> {
        Request::new(self, GetJob(job, PhantomData))
    }

    /// Reads a job of any type; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn get_job_record(&self, job: JobId) -> Request<'_, S, GetJobRecord> {
        Request::new(self, GetJobRecord(job))
    }

    /// Reads the blockers of a job, in the order in which they were given, whether the job still waits for them or not.
    ///
    /// # Errors
    ///
    /// [`Error::JobNotFound`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    pub fn get_blockers(&self, job: JobId) -> Request<'_, S, GetBlockers> {
        Request::new(self, GetBlockers(job))
    }
}

/// Reads a chain of a known type.
#[derive(Debug)]
pub struct GetChain<J>(ChainId, Of<J>);

/// Reads a chain of any type.
#[derive(Debug)]
pub struct GetChainRecord(ChainId);

/// Reads a job of a known type.
#[derive(Debug)]
pub struct GetJob<J>(JobId, Of<J>);

/// Reads a job of any type.
#[derive(Debug)]
pub struct GetJobRecord(JobId);

/// Reads the blockers of a job.
#[derive(Debug)]
pub struct GetBlockers(JobId);

impl<J> Sealed for GetChain<J> {}
impl Sealed for GetChainRecord {}
impl<J> Sealed for GetJob<J> {}
impl Sealed for GetJobRecord {}
impl Sealed for GetBlockers {}

impl<S: StateAdapter, J: Entry> Operation<S> for GetChain<J> {
    type Output = Option<Chain<J>>;

    const WRITES: bool = false;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Option<Chain<J>>, Error> {
        let record = GetChainRecord(self.0).run(client, within, effects).await?;
        record.map(ChainRecord::typed).transpose()
    }
}

impl<S: StateAdapter> Operation<S> for GetChainRecord {
    type Output = Option<ChainRecord>;

    const WRITES: bool = false;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        _: &mut Effects,
    ) -> Result<Option<ChainRecord>, Error> {
        Ok(client.state().get_chains(within, &[self.0]).await?.pop())
    }
}

impl<S: StateAdapter, J: JobType> Operation<S> for GetJob<J> {
    type Output = Option<Job<J>>;

    const WRITES: bool = false;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Option<Job<J>>, Error> {
        let record = GetJobRecord(self.0).run(client, within, effects).await?;
        record.map(JobRecord::typed).transpose()
    }
}

impl<S: StateAdapter> Operation<S> for GetJobRecord {
    type Output = Option<JobRecord>;

    const WRITES: bool = false;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        _: &mut Effects,
    ) -> Result<Option<JobRecord>, Error> {
        Ok(client.state().get_jobs(within, &[self.0]).await?.pop())
    }
}

impl<S: StateAdapter> Operation<S> for GetBlockers {
    type Output = Vec<ChainRecord>;

    const WRITES: bool = false;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        mut within: Option<&mut S::Connection>,
        _: &mut Effects,
    ) -> Result<Vec<ChainRecord>, Error> {
        let state = client.state();
        let blockers = state.list_blockers(within.as_deref_mut(), self.0).await?;
        if blockers.is_empty() && state.get_jobs(within, &[self.0]).await?.is_empty() {
            return Err(Error::JobNotFound(self.0));
        }
        Ok(blockers)
    }
}
