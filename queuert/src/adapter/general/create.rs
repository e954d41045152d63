//! Starting chains.

use super::work::{Lock, Work};
use crate::adapter::records::{Find, LockKey, Records, StoredJob};
use crate::adapter::rules::{counts, new_job, plan_starts};
use crate::adapter::state::{CreatedChain, NewChain, Refusal};
use crate::deduplication::Deduplication;
use crate::error::StateError;
use crate::id::{ChainId, JobId};
use crate::job::TypeName;

pub(super) async fn create<R: Records>(
    work: &mut Work<'_, R>,
    chains: &[NewChain],
) -> Result<Result<Vec<CreatedChain>, Refusal>, StateError> {
    let named: Vec<ChainId> = chains.iter().flat_map(|chain| chain.job.blockers.clone()).collect();
    let blockers = loop {
        let blockers = work.chains(&named).await?;
        let mut keys = blockers.keys(&named);
        for chain in chains {
            keys.push(LockKey::Chain(chain.job.id.as_chain()));
            if let Some(wanted) = &chain.deduplication {
                let type_name = chain.job.type_name.clone();
                keys.push(LockKey::Deduplication(type_name, wanted.key.clone()));
            }
        }
        if work.lock(keys, true).await? == Lock::Held {
            break blockers;
        }
    };
    let mut duplicates = Vec::with_capacity(chains.len());
    for chain in chains {
        let found = match &chain.deduplication {
            Some(wanted) => find_duplicate(work, &chain.job.type_name, wanted).await?,
            None => None,
        };
        duplicates.push(found);
    }
    let plan = plan_starts(
        chains,
        |place| duplicates.get(place).cloned().flatten(),
        |chain| blockers.status(chain),
    );
    let existing = work.read(Find::Jobs(plan.ids())).await?;
    let existing: Vec<JobId> = existing.iter().map(|stored| stored.job.id).collect();
    if let Some(refusal) = plan.refusal(|job| existing.contains(&job)) {
        return Ok(Err(refusal));
    }
    for start in plan.starts {
        let NewChain { job, deduplication } = start.chain;
        let chain = job.id.as_chain();
        let mut record = new_job(job, chain, job.type_name.clone(), 0, start.status, work.now);
        record.deduplication_key = deduplication.as_ref().map(|wanted| wanted.key.clone());
        work.put(StoredJob::new(record, job.blockers.clone()));
    }
    Ok(Ok(plan.created))
}

/// The newest chain of the type that counts.
pub(super) async fn find_duplicate<R: Records>(
    work: &mut Work<'_, R>,
    type_name: &TypeName,
    wanted: &Deduplication,
) -> Result<Option<CreatedChain>, StateError> {
    let mut firsts = work.read(Find::Key(type_name, &wanted.key)).await?;
    firsts.retain(|first| !wanted.except.contains(&first.job.chain_id));
    firsts.sort_unstable_by_key(|first| (first.job.created_at, first.job.id));
    let ids: Vec<ChainId> = firsts.iter().map(|first| first.job.chain_id).collect();
    let chains = work.chains(&ids).await?;
    for first in firsts.iter().rev() {
        let id = first.job.chain_id;
        if let Some(status) = chains.status(id)
            && counts(wanted.scope, first.job.created_at, status.is_open(), work.now)
        {
            return Ok(Some(CreatedChain {
                id,
                status,
                deduplicated: true,
            }));
        }
    }
    Ok(None)
}
