//! What operators do to jobs and chains: trigger, cancel, retry, delete.

use std::collections::BTreeSet;

use super::locks::Key;
use super::store::Row;
use super::view::View;
use crate::adapter::rules::{self, KeysOfRetry, keeps_blocker};
use crate::adapter::{DeleteChains, Refusal, StoppedChain};
use crate::deduplication::Deduplication;
use crate::error::BlockerReference;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};
use crate::pause::Pause;

pub(super) fn trigger_keys(view: &View<'_>, jobs: &[JobId]) -> Vec<Key> {
    let rows = jobs.iter().filter_map(|job| view.row(*job));
    rows.map(|row| Key::Chain(row.job.chain_id)).collect()
}

pub(super) fn trigger(view: &mut View<'_>, jobs: &[JobId]) -> Result<Vec<JobRecord>, Refusal> {
    let now = view.now;
    let change = |id: &JobId| rules::trigger(*id, view.row(*id).map(Row::head).as_ref(), now);
    let changes = jobs.iter().map(change).collect::<Result<Vec<_>, _>>()?;
    for (id, change) in jobs.iter().zip(changes) {
        view.update(*id, |row| row.apply(change));
    }
    Ok(jobs.iter().filter_map(|id| view.job(*id)).collect())
}

pub(super) fn cancel(view: &mut View<'_>, chains: &[ChainId]) -> Result<Vec<StoppedChain>, Refusal> {
    let now = view.now;
    let mut changes = Vec::with_capacity(chains.len());
    for chain in chains {
        let latest = view.latest(*chain);
        let change = rules::cancel(*chain, latest.map(Row::head).as_ref(), now)?;
        changes.extend(latest.map(|row| (row.job.id, row.job.lease.is_some(), change)));
    }
    let mut interrupted = Vec::with_capacity(chains.len());
    for (job, was_running, change) in changes {
        view.update(job, |row| row.apply(change));
        interrupted.push(was_running.then_some(job));
    }
    let stopped = chains.iter().zip(interrupted).filter_map(|(chain, interrupted)| {
        Some(StoppedChain {
            chain: view.chain_record(*chain)?,
            interrupted,
        })
    });
    Ok(stopped.collect())
}

/// The chains; their blockers, so that none ends unseen; and their keys, so that no other transaction starts a chain with one.
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
    let mut changes = Vec::with_capacity(chains.len());
    let mut keys = KeysOfRetry::new();
    for chain in chains {
        let latest = view.latest(*chain);
        let waiting = latest.map_or(JobStatus::Pending, |row| view.waiting_status(&row.blockers));
        let change = rules::retry(*chain, latest.map(Row::head).as_ref(), waiting, view.now)?;
        changes.extend(latest.map(|row| (row.job.id, change)));
        let key = view.first(*chain).and_then(|first| {
            let key = first.job.deduplication_key.clone()?;
            Some((first.job.type_name.clone(), Deduplication::while_open(key)))
        });
        if let Some((type_name, wanted)) = key {
            let holder = view.find_duplicate(&type_name, &wanted);
            keys.take(*chain, &type_name, &wanted.key, holder)?;
        }
    }
    let jobs: Vec<JobId> = changes.iter().map(|(job, _)| *job).collect();
    for (job, change) in changes {
        view.update(job, |row| row.apply(change));
    }
    for chain in chains {
        view.reopen(*chain);
    }
    Ok(jobs.into_iter().filter_map(|job| view.job(job)).collect())
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
                .is_some_and(|row| keeps_blocker(row.job.status) && !doomed.contains(&row.job.chain_id));
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

/// Writes the pause of a type, or deletes it, and says whether there was one.
pub(super) fn write_pause(view: &mut View<'_>, type_name: &TypeName, pause: Option<Pause>) -> bool {
    let committed = view.store.pauses.contains_key(type_name);
    match &mut view.overlay {
        Some(overlay) => {
            let before = overlay.pauses.insert(type_name.clone(), pause);
            before.map_or(committed, |before| before.is_some())
        }
        None => {
            match pause {
                Some(pause) => view.store.pauses.insert(type_name.clone(), pause),
                None => view.store.pauses.remove(type_name),
            };
            committed
        }
    }
}
