//! What operators do to jobs and chains: trigger, cancel, retry, delete.

use std::collections::BTreeSet;

use super::create::find_duplicate;
use super::work::{Chains, Lock, Work};
use crate::adapter::records::{Find, LockKey, Records, StoredJob};
use crate::adapter::rules::{self, KeysOfRetry};
use crate::adapter::state::{DeleteChains, Refusal, StoppedChain};
use crate::deduplication::Deduplication;
use crate::error::{BlockerReference, StateError};
use crate::id::{ChainId, JobId};
use crate::job::JobRecord;

pub(super) async fn lock_chain<R: Records>(
    work: &mut Work<'_, R>,
    chain: ChainId,
) -> Result<Option<JobRecord>, StateError> {
    let chains = locked(work, &[chain]).await?;
    Ok(chains.latest(chain).map(|latest| latest.job.clone()))
}

/// The chains as they are once they are locked.
async fn locked<R: Records>(work: &mut Work<'_, R>, ids: &[ChainId]) -> Result<Chains, StateError> {
    loop {
        let chains = work.chains(ids).await?;
        if work.lock(chains.keys(ids), true).await? == Lock::Held {
            return Ok(chains);
        }
    }
}

pub(super) async fn trigger<R: Records>(
    work: &mut Work<'_, R>,
    jobs: &[JobId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    let found = loop {
        let found = work.read(Find::Jobs(jobs)).await?;
        let keys: Vec<_> = found.iter().map(|stored| LockKey::Chain(stored.job.chain_id)).collect();
        if work.lock(keys, true).await? == Lock::Held {
            break found;
        }
    };
    let mut changed = Vec::with_capacity(jobs.len());
    for id in jobs {
        let stored = found.iter().find(|stored| stored.job.id == *id);
        let head = stored.map(StoredJob::head);
        match rules::trigger(*id, head.as_ref(), work.now) {
            Ok(change) => changed.extend(stored.map(|stored| applied(stored, change))),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(put_all(work, changed)))
}

fn applied(stored: &StoredJob, change: rules::Change) -> StoredJob {
    let mut stored = stored.clone();
    stored.apply(change);
    stored
}

fn put_all<R: Records>(work: &mut Work<'_, R>, changed: Vec<StoredJob>) -> Vec<JobRecord> {
    let records = changed.iter().map(|stored| stored.job.clone()).collect();
    for stored in changed {
        work.put(stored);
    }
    records
}

pub(super) async fn cancel<R: Records>(
    work: &mut Work<'_, R>,
    ids: &[ChainId],
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let chains = locked(work, ids).await?;
    let (mut changed, mut stopped) = (Vec::new(), Vec::new());
    for id in ids {
        let latest = chains.latest(*id);
        let change = match rules::cancel(*id, latest.map(StoredJob::head).as_ref(), work.now) {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let (Some(first), Some(latest)) = (chains.first(*id), latest) {
            let cancelled = applied(latest, change);
            let first = if first.job.id == latest.job.id {
                &cancelled
            } else {
                first
            };
            stopped.push(StoppedChain {
                chain: rules::chain_record(&first.job, &cancelled.job),
                interrupted: latest.job.lease.is_some().then_some(latest.job.id),
            });
            changed.push(cancelled);
        }
    }
    put_all(work, changed);
    Ok(Ok(stopped))
}

pub(super) async fn retry<R: Records>(
    work: &mut Work<'_, R>,
    ids: &[ChainId],
) -> Result<Result<Vec<JobRecord>, Refusal>, StateError> {
    // The chains; their blockers, so that none ends unseen; and their keys, so that nobody starts a chain with one.
    let (chains, blockers) = loop {
        let chains = work.chains(ids).await?;
        let latest = ids.iter().filter_map(|id| chains.latest(*id));
        let named: Vec<ChainId> = latest.flat_map(|latest| latest.blockers.clone()).collect();
        let blockers = work.chains(&named).await?;
        let mut keys = chains.keys(ids);
        keys.extend(blockers.keys(&named));
        keys.extend(ids.iter().filter_map(|id| {
            let first = &chains.first(*id)?.job;
            let key = first.deduplication_key.clone()?;
            Some(LockKey::Deduplication(first.type_name.clone(), key))
        }));
        if work.lock(keys, true).await? == Lock::Held {
            break (chains, blockers);
        }
    };
    let mut changed = Vec::with_capacity(ids.len());
    let mut keys = KeysOfRetry::new();
    for id in ids {
        let latest = chains.latest(*id);
        let waits_for = latest.map_or(&[][..], |latest| &latest.blockers);
        let waiting = rules::waiting_status(waits_for, |chain| blockers.is_completed(chain));
        let retried = rules::retry(*id, latest.map(StoredJob::head).as_ref(), waiting, work.now);
        let change = match retried {
            Ok(change) => change,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(first) = chains.first(*id)
            && let Some(key) = &first.job.deduplication_key
        {
            let wanted = Deduplication::while_open(key.clone());
            let holder = find_duplicate(work, &first.job.type_name, &wanted).await?;
            let holder = holder.map(|holder| holder.id);
            if let Err(refusal) = keys.take(*id, &first.job.type_name, key, holder) {
                return Ok(Err(refusal));
            }
        }
        changed.extend(latest.map(|latest| applied(latest, change)));
    }
    Ok(Ok(put_all(work, changed)))
}

pub(super) async fn delete<R: Records>(
    work: &mut Work<'_, R>,
    delete: &DeleteChains,
) -> Result<Result<Vec<StoppedChain>, Refusal>, StateError> {
    let (ids, chains, dependants) = loop {
        let ids = doomed(work, delete).await?;
        let chains = work.chains(&ids).await?;
        let mut dependants = work.read(Find::Dependants(&ids)).await?;
        dependants.retain(|dependant| !ids.contains(&dependant.job.chain_id));
        let mut keys = chains.keys(&ids);
        keys.extend(
            dependants
                .iter()
                .map(|dependant| LockKey::Chain(dependant.job.chain_id)),
        );
        if work.lock(keys, true).await? == Lock::Held {
            break (ids, chains, dependants);
        }
    };
    if let Some(refusal) = references(&ids, &dependants) {
        return Ok(Err(refusal));
    }
    for mut dependant in dependants {
        // A chain that is started anew under the same id is another chain.
        dependant.blockers.retain(|blocker| !ids.contains(blocker));
        work.put(dependant);
    }
    let mut stopped = Vec::with_capacity(ids.len());
    for id in &ids {
        if let (Some(chain), Some(latest)) = (chains.record(*id), chains.latest(*id)) {
            let interrupted = latest.job.lease.is_some().then_some(latest.job.id);
            stopped.push(StoppedChain { chain, interrupted });
        }
        for stored in chains.jobs(*id) {
            work.delete(stored.job.id);
        }
    }
    Ok(Ok(stopped))
}

/// What keeps the chains from being deleted.
fn references(ids: &[ChainId], dependants: &[StoredJob]) -> Option<Refusal> {
    let mut references = Vec::new();
    for id in ids {
        let keeping = dependants
            .iter()
            .filter(|dependant| rules::keeps_blocker(dependant.job.status) && dependant.blockers.contains(id));
        let mut jobs: Vec<JobId> = keeping.map(|dependant| dependant.job.id).collect();
        jobs.sort_unstable();
        references.extend(jobs.into_iter().map(|job| BlockerReference { chain: *id, job }));
    }
    (!references.is_empty()).then_some(Refusal::Referenced(references))
}

/// The chains that exist, each once, in the order given; then what the cascade adds.
async fn doomed<R: Records>(work: &mut Work<'_, R>, delete: &DeleteChains) -> Result<Vec<ChainId>, StateError> {
    let mut seen = BTreeSet::new();
    let mut chains = Vec::new();
    let mut level = delete.chains.clone();
    while !level.is_empty() {
        level.retain(|chain| seen.insert(*chain));
        let found = work.chains(&level).await?;
        let mut next = Vec::new();
        for id in level {
            if found.first(id).is_some() {
                chains.push(id);
            }
            // All jobs of the chain: a continuation may have blockers of its own.
            next.extend(found.jobs(id).iter().flat_map(|stored| stored.blockers.iter().copied()));
        }
        level = if delete.cascade { next } else { Vec::new() };
    }
    Ok(chains)
}
