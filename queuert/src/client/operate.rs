//! What an operator does to chains: trigger, cancel, retry, delete.

use super::Client;
use super::request::{Operation, Request, Sealed};
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
    pub fn trigger(&self, job: JobId) -> Request<'_, S, Trigger> {
        Request::new(self, Trigger(job))
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
    pub fn trigger_many(&self, jobs: impl IntoIterator<Item = JobId>) -> Request<'_, S, TriggerMany> {
        Request::new(self, TriggerMany(jobs.into_iter().collect()))
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
    pub fn cancel(&self, chain: impl Into<ChainId>) -> Request<'_, S, Cancel> {
        Request::new(self, Cancel(chain.into()))
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
    pub fn cancel_many<C: Into<ChainId>>(&self, chains: impl IntoIterator<Item = C>) -> Request<'_, S, CancelMany> {
        Request::new(self, CancelMany(chains.into_iter().map(Into::into).collect()))
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
    pub fn retry(&self, chain: impl Into<ChainId>) -> Request<'_, S, RetryChain> {
        Request::new(self, RetryChain(chain.into()))
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
    pub fn retry_many<C: Into<ChainId>>(&self, chains: impl IntoIterator<Item = C>) -> Request<'_, S, RetryMany> {
        Request::new(self, RetryMany(chains.into_iter().map(Into::into).collect()))
    }

    /// Deletes chains in any status, with all their jobs, and returns their records. Ids that do not exist are skipped.
    /// A running attempt gets the reason [`NotFound`](crate::AbortReason::NotFound) and cannot commit any more.
    ///
    /// # Errors
    ///
    /// [`Error::BlockerReference`] while a job of another chain that is not completed has one of them as blocker: the
    /// error names these chains and jobs, and nothing is deleted. [`Error::State`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future has deleted all of the chains or none; repeating the call is harmless.
    pub fn delete_chains<C: Into<ChainId>>(&self, chains: impl IntoIterator<Item = C>) -> Request<'_, S, Delete> {
        let chains = chains.into_iter().map(Into::into).collect();
        Request::new(self, Delete(DeleteChains::new(chains, false)))
    }
}

/// Makes a pending job due now.
#[derive(Debug)]
pub struct Trigger(JobId);

/// Makes pending jobs due now.
#[derive(Debug)]
pub struct TriggerMany(Vec<JobId>);

/// Cancels a chain.
#[derive(Debug)]
pub struct Cancel(ChainId);

/// Cancels chains.
#[derive(Debug)]
pub struct CancelMany(Vec<ChainId>);

/// Retries a dead or cancelled chain.
#[derive(Debug)]
pub struct RetryChain(ChainId);

/// Retries dead or cancelled chains.
#[derive(Debug)]
pub struct RetryMany(Vec<ChainId>);

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

impl Sealed for TriggerMany {}
impl Sealed for CancelMany {}
impl Sealed for RetryMany {}
impl Sealed for Delete {}

impl<S: StateAdapter> Operation<S> for TriggerMany {
    type Output = Vec<JobRecord>;

    const WRITES: bool = true;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Vec<JobRecord>, Error> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let jobs = client.state().trigger_jobs(within, &self.0).await?;
        let jobs = jobs.map_err(|refusal| refused(refusal, self.0.iter().copied()))?;
        for job in &jobs {
            effects.jobs_available(&job.type_name, 1);
            effects.often(|| Event::JobTriggered(JobInfo::of(job)));
        }
        Ok(jobs)
    }
}

impl<S: StateAdapter> Operation<S> for CancelMany {
    type Output = Vec<ChainRecord>;

    const WRITES: bool = true;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Vec<ChainRecord>, Error> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let stopped = client.state().cancel_chains(within, &self.0).await?;
        let stopped = stopped.map_err(|refusal| refused(refusal, self.0.iter().map(|chain| chain.first_job())))?;
        for StoppedChain { chain, .. } in &stopped {
            effects.event(|| {
                Event::JobCancelled(JobInfo {
                    id: chain.latest_job,
                    type_name: chain.latest_type.clone(),
                    chain_id: chain.id,
                    chain_type: chain.type_name.clone(),
                })
            });
            effects.event(|| Event::ChainCancelled {
                chain: chain.id,
                type_name: chain.type_name.clone(),
                duration: chain
                    .ended_at
                    .map(|ended_at| ended_at.saturating_duration_since(chain.created_at)),
            });
        }
        Ok(ended(stopped, effects))
    }
}

impl<S: StateAdapter> Operation<S> for RetryMany {
    type Output = Vec<JobRecord>;

    const WRITES: bool = true;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Vec<JobRecord>, Error> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let jobs = client.state().retry_chains(within, &self.0).await?;
        let jobs = jobs.map_err(|refusal| refused(refusal, self.0.iter().map(|chain| chain.first_job())))?;
        for job in &jobs {
            if job.status == JobStatus::Pending {
                effects.jobs_available(&job.type_name, 1);
            }
            effects.event(|| Event::ChainRetried {
                chain: job.chain_id,
                type_name: job.chain_type.clone(),
            });
        }
        Ok(jobs)
    }
}

impl<S: StateAdapter> Operation<S> for Delete {
    type Output = Vec<ChainRecord>;

    const WRITES: bool = true;

    #[expect(private_interfaces, reason = "sealed")]
    async fn run(
        self,
        client: &Client<S>,
        within: Option<&mut S::Connection>,
        effects: &mut Effects,
    ) -> Result<Vec<ChainRecord>, Error> {
        if self.0.chains.is_empty() {
            return Ok(Vec::new());
        }
        let stopped = client.state().delete_chains(within, &self.0).await??;
        for StoppedChain { chain, .. } in &stopped {
            effects.event(|| Event::ChainDeleted {
                chain: chain.id,
                type_name: chain.type_name.clone(),
            });
        }
        Ok(ended(stopped, effects))
    }
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

macro_rules! single {
    ($($one:ident => $many:ident, $output:ty, $missing:path;)+) => {$(
        impl Sealed for $one {}

        impl<S: StateAdapter> Operation<S> for $one {
            type Output = $output;

            const WRITES: bool = true;

            #[expect(private_interfaces, reason = "sealed")]
            async fn run(
                self,
                client: &Client<S>,
                within: Option<&mut S::Connection>,
                effects: &mut Effects,
            ) -> Result<$output, Error> {
                let results = $many(vec![self.0]).run(client, within, effects).await;
                let mut results = results.map_err(Error::alone)?;
                results.pop().ok_or($missing(self.0))
            }
        }
    )+};
}

single! {
    Trigger => TriggerMany, JobRecord, Error::JobNotFound;
    Cancel => CancelMany, ChainRecord, Error::ChainNotFound;
    RetryChain => RetryMany, JobRecord, Error::ChainNotFound;
}
