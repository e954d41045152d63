//! What an operator does to chains: trigger, cancel, retry, delete.

use super::Client;
use super::request::{CallRequest, Operation, Request, RequestContext, Sealed};
use super::start::refused;
use crate::adapter::{DeleteChains, StateAdapter, StoppedChain};
use crate::chain::ChainRecord;
use crate::effects::Effects;
use crate::error::Error;
use crate::event::{Event, JobInfo};
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus};

impl<S: StateAdapter> Client<S> {
    /// Makes a pending job due now.
    ///
    /// # Errors
    ///
    /// [`Error::JobNotFound`], [`Error::NotTriggerable`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The job may or may not have been triggered; repeating the call is harmless.
    pub fn trigger(&self, job: JobId) -> CallRequest<'_, S, JobRecord> {
        Request::write(self, "trigger", move |context| {
            Box::pin(async move { alone(trigger_jobs(context, vec![job]).await, Error::JobNotFound(job)) })
        })
    }

    /// Makes pending jobs due now: all of them, or none if one is refused.
    ///
    /// # Errors
    ///
    /// [`Error::InBatch`] with the job that was refused and the error of [`trigger`](Self::trigger); [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future has triggered all of the jobs or none; repeating the call is harmless.
    pub fn trigger_many(&self, jobs: impl IntoIterator<Item = JobId>) -> CallRequest<'_, S, Vec<JobRecord>> {
        let jobs = jobs.into_iter().collect();
        Request::write(self, "trigger_many", move |context| {
            Box::pin(trigger_jobs(context, jobs))
        })
    }

    /// Ends an open chain at its current job. A running attempt gets the reason
    /// [`Cancelled`](crate::AbortReason::Cancelled) and cannot commit any more. Jobs that wait for the chain stay
    /// blocked until it is retried and completes.
    ///
    /// # Errors
    ///
    /// [`Error::ChainNotFound`], [`Error::ChainEnded`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The chain may or may not have been cancelled.
    pub fn cancel(&self, chain: impl Into<ChainId>) -> CallRequest<'_, S, ChainRecord> {
        let chain = chain.into();
        Request::write(self, "cancel", move |context| {
            Box::pin(async move { alone(cancel_chains(context, vec![chain]).await, Error::ChainNotFound(chain)) })
        })
    }

    /// Ends open chains at their current jobs: all of them, or none if one is refused.
    ///
    /// # Errors
    ///
    /// [`Error::InBatch`] with the chain that was refused and the error of [`cancel`](Self::cancel); [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future has cancelled all of the chains or none.
    pub fn cancel_many<C: Into<ChainId>>(
        &self,
        chains: impl IntoIterator<Item = C>,
    ) -> CallRequest<'_, S, Vec<ChainRecord>> {
        let chains = chains.into_iter().map(Into::into).collect();
        Request::write(self, "cancel_many", move |context| {
            Box::pin(cancel_chains(context, chains))
        })
    }

    /// Makes the job at which a chain died or was cancelled pending again, with all its attempts, or blocked if it has
    /// open blockers. Returns that job.
    ///
    /// # Errors
    ///
    /// [`Error::ChainNotFound`], [`Error::NotRetryable`], [`Error::KeyTaken`], [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The chain may or may not have been retried.
    pub fn retry(&self, chain: impl Into<ChainId>) -> CallRequest<'_, S, JobRecord> {
        let chain = chain.into();
        Request::write(self, "retry", move |context| {
            Box::pin(async move { alone(retry_chains(context, vec![chain]).await, Error::ChainNotFound(chain)) })
        })
    }

    /// Retries dead or cancelled chains: all of them, or none if one is refused.
    ///
    /// # Errors
    ///
    /// [`Error::InBatch`] with the chain that was refused and the error of [`retry`](Self::retry); [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future has retried all of the chains or none.
    pub fn retry_many<C: Into<ChainId>>(
        &self,
        chains: impl IntoIterator<Item = C>,
    ) -> CallRequest<'_, S, Vec<JobRecord>> {
        let chains = chains.into_iter().map(Into::into).collect();
        Request::write(self, "retry_many", move |context| {
            Box::pin(retry_chains(context, chains))
        })
    }

    /// Deletes a chain in any status, with all its jobs, and returns the records of what was deleted: that of the chain, with
    /// [`cascade`](Request::cascade) also those of its blockers, and none if the chain does not exist. A running attempt
    /// gets the reason [`NotFound`](crate::AbortReason::NotFound) and cannot commit any more.
    ///
    /// # Errors
    ///
    /// [`Error::BlockerReference`] while a job of another chain that is not completed has it as blocker: the error names
    /// these chains and jobs, and nothing is deleted. [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// The chain may or may not have been deleted; repeating the call is harmless.
    pub fn delete(&self, chain: impl Into<ChainId>) -> Request<'_, S, Delete> {
        self.delete_many([chain])
    }

    /// Deletes chains in any status, with all their jobs, and returns their records: all of them, or none if one is refused.
    /// Ids that do not exist are skipped.
    ///
    /// # Errors
    ///
    /// As [`delete`](Self::delete); a chain that waits for another one of the call does not keep that one.
    ///
    /// # Cancel safety
    ///
    /// A dropped future has deleted all of the chains or none; repeating the call is harmless.
    pub fn delete_many<C: Into<ChainId>>(&self, chains: impl IntoIterator<Item = C>) -> Request<'_, S, Delete> {
        let chains = chains.into_iter().map(Into::into).collect();
        Request::new(self, Delete(DeleteChains::new(chains, false)))
    }
}

/// Deletes chains.
#[derive(Debug)]
pub struct Delete(DeleteChains);

impl<S: StateAdapter> Request<'_, S, Delete> {
    /// Also deletes the blockers of all jobs of the chains, the blockers of those, and so on. Default: only the named
    /// chains.
    pub fn cascade(mut self) -> Self {
        self.operation.0.cascade = true;
        self
    }
}

impl Sealed for Delete {}

impl<S: StateAdapter> Operation<S> for Delete {
    type Output = Vec<ChainRecord>;

    fn writes(&self) -> bool {
        true
    }

    async fn run(self, mut context: RequestContext<'_, S>) -> Result<Vec<ChainRecord>, Error> {
        if self.0.chains.is_empty() {
            return Ok(Vec::new());
        }
        let (state, within) = context.store();
        let stopped = state.delete_chains(within, &self.0).await??;
        for StoppedChain { chain, .. } in &stopped {
            context.effects.event(|| Event::ChainDeleted {
                chain: chain.id,
                type_name: chain.type_name.clone(),
            });
        }
        Ok(ended(stopped, context.effects))
    }
}

async fn trigger_jobs<S: StateAdapter>(
    mut context: RequestContext<'_, S>,
    jobs: Vec<JobId>,
) -> Result<Vec<JobRecord>, Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let (state, within) = context.store();
    let triggered = state.trigger_jobs(within, &jobs).await?;
    let triggered = triggered.map_err(|refusal| refused(refusal, jobs.iter().copied()))?;
    for job in &triggered {
        context.effects.jobs_available(&job.type_name, 1);
        context.effects.often(|| Event::JobTriggered(JobInfo::of(job)));
    }
    Ok(triggered)
}

async fn cancel_chains<S: StateAdapter>(
    mut context: RequestContext<'_, S>,
    chains: Vec<ChainId>,
) -> Result<Vec<ChainRecord>, Error> {
    if chains.is_empty() {
        return Ok(Vec::new());
    }
    let (state, within) = context.store();
    let stopped = state.cancel_chains(within, &chains).await?;
    let stopped = stopped.map_err(|refusal| refused(refusal, chains.iter().map(|chain| chain.first_job())))?;
    for StoppedChain { chain, .. } in &stopped {
        context.effects.event(|| {
            Event::JobCancelled(JobInfo {
                id: chain.latest_job,
                type_name: chain.latest_type.clone(),
                chain_id: chain.id,
                chain_type: chain.type_name.clone(),
            })
        });
        context.effects.event(|| Event::ChainCancelled {
            chain: chain.id,
            type_name: chain.type_name.clone(),
            duration: chain
                .ended_at
                .map(|ended_at| ended_at.saturating_duration_since(chain.created_at)),
        });
    }
    Ok(ended(stopped, context.effects))
}

async fn retry_chains<S: StateAdapter>(
    mut context: RequestContext<'_, S>,
    chains: Vec<ChainId>,
) -> Result<Vec<JobRecord>, Error> {
    if chains.is_empty() {
        return Ok(Vec::new());
    }
    let (state, within) = context.store();
    let jobs = state.retry_chains(within, &chains).await?;
    let jobs = jobs.map_err(|refusal| refused(refusal, chains.iter().map(|chain| chain.first_job())))?;
    for job in &jobs {
        if job.status == JobStatus::Pending {
            context.effects.jobs_available(&job.type_name, 1);
        }
        context.effects.event(|| Event::ChainRetried {
            chain: job.chain_id,
            type_name: job.chain_type.clone(),
        });
    }
    Ok(jobs)
}

/// The answer to a call for one item, from the answer to the call for many.
fn alone<T>(results: Result<Vec<T>, Error>, missing: Error) -> Result<T, Error> {
    results.map_err(Error::alone)?.pop().ok_or(missing)
}

/// Tells running attempts and waiters that their chains have ended.
fn ended(stopped: Vec<StoppedChain>, effects: &mut Effects) -> Vec<ChainRecord> {
    for StoppedChain { chain, interrupted } in &stopped {
        effects.chain_ended(chain.id);
        if let Some(job) = interrupted {
            effects.lease_lost(*job);
        }
    }
    stopped.into_iter().map(|stopped| stopped.chain).collect()
}
