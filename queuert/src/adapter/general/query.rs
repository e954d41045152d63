//! Reads. Lists look at every job.

use std::collections::HashSet;

use super::work::Chains;
use crate::adapter::records::{Find, Records, StoredJob};
use crate::adapter::rules::{ChainFilter, JobFilter};
use crate::adapter::state::{ChainQuery, ClaimedJob, JobQuery, QueueSample, SampleQueues, rank};
use crate::chain::ChainRecord;
use crate::error::StateError;
use crate::id::{ChainId, Fence, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::time::Timestamp;

pub(super) async fn get_jobs<R: Records>(
    records: &R,
    within: Option<&mut R::Connection>,
    jobs: &[JobId],
) -> Result<Vec<JobRecord>, StateError> {
    let found = records.read(within, Find::Jobs(jobs)).await?;
    let record = |id: &JobId| found.iter().find(|stored| stored.job.id == *id);
    Ok(jobs
        .iter()
        .filter_map(record)
        .map(|stored| stored.job.clone())
        .collect())
}

pub(super) async fn get_chains<R: Records>(
    records: &R,
    within: Option<&mut R::Connection>,
    chains: &[ChainId],
) -> Result<Vec<ChainRecord>, StateError> {
    let found = Chains::of(records.read(within, Find::Chains(chains)).await?);
    Ok(chains.iter().filter_map(|chain| found.record(*chain)).collect())
}

pub(super) async fn list_blockers<R: Records>(
    records: &R,
    mut within: Option<&mut R::Connection>,
    job: JobId,
) -> Result<Vec<ChainRecord>, StateError> {
    match records.read(within.as_deref_mut(), Find::Jobs(&[job])).await?.pop() {
        Some(stored) => get_chains(records, within, &stored.blockers).await,
        None => Ok(Vec::new()),
    }
}

pub(super) async fn claimed_jobs<R: Records>(records: &R, fence: Fence) -> Result<Vec<ClaimedJob>, StateError> {
    let mut running = records.read(None, Find::Status(JobStatus::Running)).await?;
    running.retain(|stored| stored.job.lease.as_ref().is_some_and(|lease| lease.fence == fence));
    let named: Vec<ChainId> = running.iter().flat_map(|stored| stored.blockers.clone()).collect();
    let chains = Chains::of(records.read(None, Find::Chains(&named)).await?);
    Ok(with_blockers(running, &chains))
}

/// Jobs with the blockers that they have among the chains.
pub(super) fn with_blockers(jobs: Vec<StoredJob>, chains: &Chains) -> Vec<ClaimedJob> {
    let claimed = jobs.into_iter().map(|stored| ClaimedJob {
        blockers: stored
            .blockers
            .iter()
            .filter_map(|chain| chains.record(*chain))
            .collect(),
        job: stored.job,
    });
    claimed.collect()
}

pub(super) async fn list_jobs<R: Records>(
    records: &R,
    within: Option<&mut R::Connection>,
    query: &JobQuery,
) -> Result<Vec<JobRecord>, StateError> {
    let all = records.read(within, Find::All).await?;
    let filter = JobFilter::of(query);
    let passed = all.into_iter().filter(|stored| {
        let has_blocker = |chain| stored.blockers.contains(&chain);
        filter.admits(&stored.job, has_blocker)
    });
    let page = filter.page(passed, |stored| &stored.job);
    Ok(page.into_iter().map(|stored| stored.job).collect())
}

pub(super) async fn list_chains<R: Records>(
    records: &R,
    within: Option<&mut R::Connection>,
    query: &ChainQuery,
) -> Result<Vec<ChainRecord>, StateError> {
    let all = records.read(within, Find::All).await?;
    let blockers: HashSet<ChainId> = all.iter().flat_map(|stored| stored.blockers.clone()).collect();
    let chains = Chains::of(all);
    let filter = ChainFilter::of(query);
    let passed = chains.iter().filter_map(|jobs| {
        let (first, latest) = (jobs.first()?, jobs.last()?);
        let wanted = |jobs_of: &Vec<JobId>| jobs.iter().any(|stored| jobs_of.contains(&stored.job.id));
        let admitted = query.jobs.as_ref().is_none_or(wanted)
            && filter.admits(&first.job, latest.job.status, || blockers.contains(&first.job.chain_id));
        admitted.then_some(first)
    });
    let page = filter.page(passed, |first| &first.job);
    Ok(page
        .into_iter()
        .filter_map(|first| chains.record(first.job.chain_id))
        .collect())
}

pub(super) async fn sample_queues<R: Records>(
    records: &R,
    sample: &SampleQueues,
) -> Result<Vec<QueueSample>, StateError> {
    let now = records.now(None).await?;
    let mut ready = records.read(None, Find::Status(JobStatus::Pending)).await?;
    ready.retain(|stored| stored.job.scheduled_at <= now);
    let step = records.ageing_step();
    ready.sort_by_cached_key(|stored| (rank(stored.ranked_at, stored.job.priority, step), stored.job.id));
    let of_type = |name: &TypeName| {
        let jobs = ready.iter().filter(|stored| stored.job.type_name == *name);
        let times: Vec<Timestamp> = jobs.map(|stored| stored.job.scheduled_at).take(sample.limit).collect();
        QueueSample {
            type_name: name.clone(),
            ready: times.len(),
            oldest: times
                .iter()
                .min()
                .map(|earliest| now.saturating_duration_since(*earliest)),
        }
    };
    Ok(sample.types.iter().map(of_type).collect())
}
