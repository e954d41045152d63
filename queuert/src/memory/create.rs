//! Starting chains, and making the row of any new job.

use super::locks::Key;
use super::store::Row;
use super::view::View;
use crate::adapter::rules::{new_job, plan_starts};
use crate::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use crate::id::ChainId;
use crate::job::{JobStatus, TypeName};

pub(super) fn keys(view: &View<'_>, chains: &[NewChain]) -> Vec<Key> {
    let mut keys = Vec::with_capacity(chains.len());
    for chain in chains {
        new_job_keys(view, &chain.job, &mut keys);
        if let Some(wanted) = &chain.deduplication {
            keys.push(Key::Deduplication(chain.job.type_name.clone(), wanted.key.clone()));
        }
    }
    keys
}

/// The id, so that two creators of it wait for each other; and the blockers, so that either their end sees the new job
/// or the new job sees their end. A blocker that is not there, or not there yet for others, is not waited for.
pub(super) fn new_job_keys(view: &View<'_>, job: &NewJob, keys: &mut Vec<Key>) {
    keys.push(Key::Chain(job.id.as_chain()));
    keys.extend(view.chain_keys(&job.blockers));
}

pub(super) fn apply(view: &mut View<'_>, chains: &[NewChain]) -> Result<Vec<CreatedChain>, Refusal> {
    let duplicates: Vec<_> = chains.iter().map(|chain| duplicate(view, chain)).collect();
    let status_of = |chain| view.latest(chain).map(|row| row.job.status);
    let plan = plan_starts(chains, |place| duplicates.get(place).cloned().flatten(), status_of);
    if let Some(refusal) = plan.refusal(|job| view.row(job).is_some()) {
        return Err(refusal);
    }
    for start in plan.starts {
        let NewChain { job, deduplication } = start.chain;
        let mut row = new_row(view, job, job.id.as_chain(), job.type_name.clone(), 0, start.status);
        row.job.deduplication_key = deduplication.as_ref().map(|wanted| wanted.key.clone());
        view.insert(row);
    }
    Ok(plan.created)
}

/// The newest stored chain that the item repeats.
fn duplicate(view: &mut View<'_>, chain: &NewChain) -> Option<CreatedChain> {
    let wanted = chain.deduplication.as_ref()?;
    let id = view.find_duplicate(&chain.job.type_name, wanted)?;
    Some(CreatedChain {
        id,
        status: view.latest(id)?.job.status,
        deduplicated: true,
    })
}

pub(super) fn new_row(
    view: &mut View<'_>,
    job: &NewJob,
    chain: ChainId,
    chain_type: TypeName,
    index: u32,
    status: JobStatus,
) -> Row {
    Row {
        type_index: view.store.queues.intern(&job.type_name),
        blockers: job.blockers.clone(),
        settled: None,
        unblocked_by: None,
        place: None,
        later: Vec::new(),
        job: new_job(job, chain, chain_type, index, status, view.now),
    }
}
