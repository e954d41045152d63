//! What operators do to jobs and chains: trigger, cancel, retry, delete.

use std::collections::BTreeSet;

use super::locks::Key;
use super::view::View;
use crate::adapter::{DeleteChains, Refusal, StoppedChain};
use crate::deduplication::Deduplication;
use crate::error::BlockerReference;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus};

pub(super) fn trigger_keys(view: &View<'_>, jobs: &[JobId]) -> Vec<Key> {
    let rows = jobs.iter().filter_map(|job| view.row(*job));
    rows.map(|row| Key::Chain(row.job.chain_id)).collect()
}

pub(super) fn trigger(view: &mut View<'_>, jobs: &[JobId]) -> Result<Vec<JobRecord>, Refusal> {
    for id in jobs {
        let row = view.row(*id).ok_or(Refusal::JobNotFound(*id))?;
        if row.job.status != JobStatus::Pending {
            return Err(Refusal::NotPending(*id, row.job.status));
        }
    }
    let now = view.now;
    for id in jobs {
        // A job that is due already keeps the place that it has waited for.
        view.update(*id, |row| row.job.scheduled_at = row.job.scheduled_at.min(now));
    }
    Ok(jobs.iter().filter_map(|id| view.job(*id)).collect())
}

pub(super) fn cancel(view: &mut View<'_>, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
    let mut latest = Vec::with_capacity(chains.len());
    for chain in chains {
        let row = view.latest(*chain).ok_or(Refusal::ChainNotFound(*chain))?;
        if !row.job.status.is_open() {
            return Err(Refusal::NotOpen(*chain, row.job.status));
        }
        latest.push((row.job.id, row.job.lease.is_some()));
    }
    let now = view.now;
    for (job, _) in &latest {
        view.update(*job, |row| {
            row.job.status = JobStatus::Cancelled;
            row.job.ended_at = Some(now);
            row.job.lease = None;
        });
    }
    let stopped = chains.iter().zip(latest).filter_map(|(chain, (job, was_running))| {
        Some(StoppedChain {
            chain: view.chain_record(*chain)?,
            interrupted: was_running.then_some(job),
        })
    });
    Ok(stopped.collect())
}

/// The chains; their blockers, so that none ends unseen; and their keys, so that nobody starts a chain with one.
pub(super) fn retry_keys(view: &View<'_>, chains: &[ChainId]) -> Vec<Key> {
    let mut keys: Vec<_> = view.chain_keys(chains).collect();
    for chain in chains {
        if let Some(latest) = view.latest(*chain) {
            keys.extend(view.chain_keys(&latest.blockers));
        }
        if let Some(first) = view.first(*chain)
            && let Some(key) = &first.job.deduplication_key
        {
            keys.push(Key::Deduplication(first.job.type_name.clone(), key.clone()));
        }
    }
    keys
}

pub(super) fn retry(view: &mut View<'_>, chains: &[ChainId]) -> Result<Vec<JobRecord>, Refusal> {
    let mut latest = Vec::with_capacity(chains.len());
    let mut retried_keys: Vec<(ChainId, _, _)> = Vec::new();
    for chain in chains {
        let row = view.latest(*chain).ok_or(Refusal::ChainNotFound(*chain))?;
        if !row.job.status.is_retryable() {
            return Err(Refusal::NotRetryable(*chain, row.job.status));
        }
        latest.push(row.job.id);
        let first = view.first(*chain).ok_or(Refusal::ChainNotFound(*chain))?;
        if let Some(key) = first.job.deduplication_key.clone() {
            let type_name = first.job.type_name.clone();
            let open = view.find_duplicate(&type_name, &Deduplication::while_open(key.clone()));
            let earlier = retried_keys
                .iter()
                .find(|(other, other_type, other_key)| other != chain && *other_type == type_name && *other_key == key);
            if let Some(holder) = open.or(earlier.map(|(other, ..)| *other)) {
                return Err(Refusal::KeyTaken { chain: *chain, holder });
            }
            retried_keys.push((*chain, type_name, key));
        }
    }
    let now = view.now;
    for job in &latest {
        let status = match view.row(*job) {
            Some(row) => view.waiting_status(&row.blockers),
            None => continue,
        };
        view.update(*job, |row| {
            row.job.status = status;
            row.job.attempt = 0;
            row.job.scheduled_at = now;
            row.place = None;
            row.job.ended_at = None;
        });
    }
    for (chain, ..) in retried_keys {
        view.reopen(chain);
    }
    Ok(latest.into_iter().filter_map(|job| view.job(job)).collect())
}

/// The chains that exist, each once, in the order given; then what the cascade adds.
pub(super) fn deletion(view: &View<'_>, delete: &DeleteChains) -> Vec<ChainId> {
    let mut seen = BTreeSet::new();
    let mut chains: Vec<ChainId> = Vec::with_capacity(delete.chains.len());
    let named = delete.chains.iter().copied();
    chains.extend(named.filter(|chain| view.first(*chain).is_some() && seen.insert(*chain)));
    let mut next = 0;
    while delete.cascade && next < chains.len() {
        // All jobs of the chain: a continuation may have blockers of its own.
        for job in jobs_of(view, chains[next]) {
            if let Some(row) = view.row(job) {
                chains.extend(view.blockers(row).filter(|chain| seen.insert(*chain)));
            }
        }
        next += 1;
    }
    chains
}

pub(super) fn delete(view: &mut View<'_>, delete: &DeleteChains) -> Result<Vec<StoppedChain>, Refusal> {
    let chains = deletion(view, delete);
    let doomed: BTreeSet<_> = chains.iter().copied().collect();
    let mut references = Vec::new();
    for chain in &chains {
        for job in view.dependants(*chain) {
            let keeps = view
                .row(job)
                .is_some_and(|row| row.job.status != JobStatus::Completed && !doomed.contains(&row.job.chain_id));
            if keeps {
                references.push(BlockerReference { chain: *chain, job });
            }
        }
    }
    if !references.is_empty() {
        return Err(Refusal::Referenced(references));
    }
    let mut stopped = Vec::with_capacity(chains.len());
    for chain in &chains {
        if let (Some(record), Some(latest)) = (view.chain_record(*chain), view.latest(*chain)) {
            stopped.push(StoppedChain {
                interrupted: latest.job.lease.is_some().then_some(latest.job.id),
                chain: record,
            });
        }
    }
    for chain in chains {
        for job in jobs_of(view, chain) {
            view.remove(job);
        }
    }
    Ok(stopped)
}

/// The jobs of a chain, by index.
pub(super) fn jobs_of(view: &View<'_>, chain: ChainId) -> Vec<JobId> {
    let first = view.first(chain).into_iter();
    first
        .flat_map(|row| std::iter::once(row.job.id).chain(row.later.iter().copied()))
        .collect()
}
