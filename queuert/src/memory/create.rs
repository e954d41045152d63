//! Starting chains, and making the row of any new job.

use super::locks::Key;
use super::store::Row;
use super::view::View;
use crate::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use crate::id::ChainId;
use crate::job::{JobRecord, JobStatus, TypeName};

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
    let mut created: Vec<CreatedChain> = Vec::with_capacity(chains.len());
    for chain in chains {
        match create(view, chain) {
            Ok(one) => created.push(one),
            Err(refusal) => {
                // Nobody has seen the earlier ones: we are still in the same critical section.
                for chain in created.iter().filter(|chain| !chain.deduplicated) {
                    view.remove(chain.id.first_job());
                }
                return Err(refusal);
            }
        }
    }
    Ok(created)
}

fn create(view: &mut View<'_>, chain: &NewChain) -> Result<CreatedChain, Refusal> {
    let job = &chain.job;
    if let Some(wanted) = &chain.deduplication
        && let Some(id) = view.find_duplicate(&job.type_name, wanted)
        && let Some(latest) = view.latest(id)
    {
        return Ok(CreatedChain {
            id,
            status: latest.job.status,
            deduplicated: true,
        });
    }
    check(view, job)?;
    let id = job.id.as_chain();
    let mut row = new_row(view, job, id, job.type_name.clone(), 0);
    row.job.deduplication_key = chain.deduplication.as_ref().map(|wanted| wanted.key.clone());
    let status = row.job.status;
    view.insert(row);
    Ok(CreatedChain {
        id,
        status,
        deduplicated: false,
    })
}

/// Whether the job can be created: its id is free and its blockers exist.
pub(super) fn check(view: &View<'_>, job: &NewJob) -> Result<(), Refusal> {
    if view.row(job.id).is_some() {
        return Err(Refusal::IdTaken(job.id));
    }
    match job.blockers.iter().find(|chain| view.first(**chain).is_none()) {
        Some(chain) => Err(Refusal::BlockerNotFound {
            job: job.id,
            chain: *chain,
        }),
        None => Ok(()),
    }
}

pub(super) fn new_row(view: &mut View<'_>, job: &NewJob, chain: ChainId, chain_type: TypeName, index: u32) -> Row {
    let status = if job.blockers.is_empty() {
        JobStatus::Pending
    } else {
        view.waiting_status(&job.blockers)
    };
    Row {
        type_index: view.store.queues.intern(&job.type_name),
        blockers: job.blockers.clone(),
        settled: None,
        unblocked_by: None,
        place: None,
        later: Vec::new(),
        job: JobRecord {
            id: job.id,
            type_name: job.type_name.clone(),
            chain_id: chain,
            chain_type,
            chain_index: index,
            input: job.input.clone(),
            output: None,
            status,
            priority: job.priority,
            attempt: 0,
            claims: 0,
            max_attempts: job.max_attempts,
            created_at: view.now,
            scheduled_at: job.schedule.resolve(view.now),
            started_at: None,
            ended_at: None,
            completed_by: None,
            last_error: None,
            lease: None,
            deduplication_key: None,
            trace_context: job.trace_context.clone(),
            unreadable: None,
        },
    }
}
