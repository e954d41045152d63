//! Reading chains, jobs and blockers by id.

use super::Client;
use super::request::{CallRequest, Request, RequestContext};
use crate::adapter::StateAdapter;
use crate::chain::{Chain, ChainHandle, ChainRecord};
use crate::error::Error;
use crate::id::{ChainId, JobId};
use crate::job::{Job, JobRecord};
use crate::job_type::JobType;

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
    pub fn get_chain<H: ChainHandle>(&self, chain: H) -> CallRequest<'_, S, Option<Chain<H::Entry>>> {
        let chain = chain.chain_ref().id();
        Request::read(self, "get_chain", move |context| {
            Box::pin(async move { get_chain(context, chain).await?.map(ChainRecord::typed).transpose() })
        })
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
    pub fn get_chain_record(&self, chain: impl Into<ChainId>) -> CallRequest<'_, S, Option<ChainRecord>> {
        let chain = chain.into();
        Request::read(self, "get_chain_record", move |context| {
            Box::pin(get_chain(context, chain))
        })
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
    pub fn get_job<J: JobType>(&self, job: JobId) -> CallRequest<'_, S, Option<Job<J>>> {
        Request::read(self, "get_job", move |context| {
            Box::pin(async move { get_job(context, job).await?.map(JobRecord::typed).transpose() })
        })
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
    pub fn get_job_record(&self, job: JobId) -> CallRequest<'_, S, Option<JobRecord>> {
        Request::read(self, "get_job_record", move |context| Box::pin(get_job(context, job)))
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
    pub fn get_blockers(&self, job: JobId) -> CallRequest<'_, S, Vec<ChainRecord>> {
        Request::read(self, "get_blockers", move |context| {
            Box::pin(get_blockers(context, job))
        })
    }
}

async fn get_chain<S: StateAdapter>(
    mut context: RequestContext<'_, S>,
    chain: ChainId,
) -> Result<Option<ChainRecord>, Error> {
    let (state, within) = context.store();
    Ok(state.get_chains(within, &[chain]).await?.pop())
}

async fn get_job<S: StateAdapter>(mut context: RequestContext<'_, S>, job: JobId) -> Result<Option<JobRecord>, Error> {
    let (state, within) = context.store();
    Ok(state.get_jobs(within, &[job]).await?.pop())
}

async fn get_blockers<S: StateAdapter>(
    mut context: RequestContext<'_, S>,
    job: JobId,
) -> Result<Vec<ChainRecord>, Error> {
    let (state, mut within) = context.store();
    let blockers = state.list_blockers(within.as_deref_mut(), job).await?;
    if blockers.is_empty() && state.get_jobs(within, &[job]).await?.is_empty() {
        return Err(Error::JobNotFound(job));
    }
    Ok(blockers)
}
