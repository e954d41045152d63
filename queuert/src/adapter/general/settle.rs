//! The ends of attempts.

use std::collections::BTreeMap;

use super::work::{Lock, Work};
use crate::adapter::records::{Find, LockKey, Records, StoredJob};
use crate::adapter::rules;
use crate::adapter::state::{Applied, NewJob, Outcome, Refusal, Repeated, Settled, Settlement, UnblockedJob};
use crate::error::StateError;
use crate::id::ChainId;
use crate::job::JobStatus;

/// Settles one after the other: each sees what those before it have done.
pub(super) async fn settle_all<R: Records>(
    work: &mut Work<'_, R>,
    settlements: &[Settlement],
    waits: bool,
) -> Result<Vec<Settled>, StateError> {
    let mut answers = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        answers.push(settle(work, settlement, waits).await?);
    }
    Ok(answers)
}

async fn settle<R: Records>(
    work: &mut Work<'_, R>,
    settlement: &Settlement,
    waits: bool,
) -> Result<Settled, StateError> {
    loop {
        let stored = work.job(settlement.job).await?;
        let head = stored.as_ref().map(StoredJob::head);
        // What is lost stays lost, because fences do not come back: no reason to wait.
        let answer = rules::authorise(&settlement.authority, head.as_ref());
        let (stored, head) = match (answer, stored, head) {
            (Ok(()), Some(stored), Some(head)) => (stored, head),
            (Err(Settled::Repeated(_)), Some(stored), _) => return recall(work, &stored).await.map(Settled::Repeated),
            (Err(answer), ..) => return Ok(answer),
            (Ok(()), ..) => return Ok(Settled::Lost(rules::lost(None))),
        };
        let chain = stored.job.chain_id;
        let mut keys = vec![LockKey::Chain(chain)];
        let mut dependants = Vec::new();
        let mut way = Way::new();
        match &settlement.outcome {
            Outcome::Finish { .. } => {
                dependants = work.read(Find::Dependants(&[chain])).await?;
                dependants.retain(|dependant| dependant.job.status == JobStatus::Blocked);
                keys.extend(
                    dependants
                        .iter()
                        .map(|dependant| LockKey::Chain(dependant.job.chain_id)),
                );
            }
            Outcome::Continue { next } => {
                // Two continuations that close a circle together would not see each other unless each locks the whole way
                // that it has looked at.
                way = find_way(work, &next.blockers).await?;
                keys.push(LockKey::Chain(next.id.as_chain()));
                keys.extend(way.keys().copied().map(LockKey::Chain));
            }
            Outcome::Retry { .. } | Outcome::Bury { .. } | Outcome::Release | Outcome::Snooze { .. } => {}
        }
        match work.lock(keys, waits).await? {
            Lock::Busy => return Ok(Settled::Busy),
            Lock::New => continue,
            Lock::Held => {}
        }
        let mut applied = Applied {
            interrupted: rules::interrupts(&settlement.authority, &head),
            ..Applied::default()
        };
        if let Outcome::Continue { next } = &settlement.outcome {
            match create_next(work, settlement, &stored, next, &way).await? {
                Ok(status) => applied.next = Some(status),
                Err(refusal) => return Ok(Settled::Refused(refusal)),
            }
            applied.handed_over = (applied.next == Some(JobStatus::Running)).then_some(work.now);
        }
        let mut ended = stored;
        ended.apply(rules::settle(settlement, &head, work.now));
        work.put(ended);
        dependants.sort_unstable_by_key(|dependant| dependant.job.id);
        for dependant in dependants {
            applied.unblocked.extend(unblock(work, dependant, chain).await?);
        }
        return Ok(Settled::Applied(applied));
    }
}

/// Chains that exist, each with the chains that it waits for, or would wait for if it were retried.
type Way = BTreeMap<ChainId, Vec<ChainId>>;

/// These chains, and all that they wait for, directly or through others.
async fn find_way<R: Records>(work: &mut Work<'_, R>, chains: &[ChainId]) -> Result<Way, StateError> {
    let mut way = Way::new();
    let mut ahead = chains.to_vec();
    while !ahead.is_empty() {
        let found = work.chains(&ahead).await?;
        let mut waits_for = Vec::new();
        for jobs in found.iter() {
            let Some(latest) = jobs.last() else {
                continue;
            };
            let mut blockers = Vec::new();
            if rules::waits_for_blockers(latest.job.status) {
                let statuses = work.chains(&latest.blockers).await?;
                blockers.extend(latest.blockers.iter().filter(|chain| !statuses.is_completed(**chain)));
            }
            waits_for.extend(blockers.iter().copied());
            way.insert(latest.job.chain_id, blockers);
        }
        waits_for.retain(|chain| !way.contains_key(chain));
        ahead = waits_for;
    }
    Ok(way)
}

/// Creates the next job of the chain, and returns its status, or why it cannot be created.
async fn create_next<R: Records>(
    work: &mut Work<'_, R>,
    settlement: &Settlement,
    stored: &StoredJob,
    next: &NewJob,
    way: &Way,
) -> Result<Result<JobStatus, Refusal>, StateError> {
    let job = &stored.job;
    let taken = work.job(next.id).await?.is_some();
    let checked = rules::check_new_job(next, taken, |chain| way.contains_key(&chain));
    let waits_for = |chain| way.get(&chain).into_iter().flatten().copied();
    if let Err(refusal) = checked.and_then(|()| rules::check_circle(next, job.chain_id, waits_for)) {
        return Ok(Err(refusal));
    }
    let blockers = work.chains(&next.blockers).await?;
    let status = rules::waiting_status(&next.blockers, |chain| blockers.is_completed(chain));
    let index = job.chain_index.saturating_add(1);
    let mut record = rules::new_job(next, job.chain_id, job.chain_type.clone(), index, status, work.now);
    if let Some(lease) = rules::hand_over(&settlement.authority, next, status, work.now) {
        rules::claim(&mut record, lease, work.now);
    }
    let status = record.status;
    work.put(StoredJob::new(record, next.blockers.clone()));
    Ok(Ok(status))
}

/// Makes the dependant pending, if this was its last blocker.
async fn unblock<R: Records>(
    work: &mut Work<'_, R>,
    mut dependant: StoredJob,
    chain: ChainId,
) -> Result<Option<UnblockedJob>, StateError> {
    let blockers = work.chains(&dependant.blockers).await?;
    let completed = |chain| blockers.is_completed(chain);
    let Some(change) = rules::unblock(&dependant.head(), &dependant.blockers, completed, work.now) else {
        return Ok(None);
    };
    dependant.apply(change);
    dependant.unblocked_by = Some(chain);
    let unblocked = unblocked_job(&dependant);
    work.put(dependant);
    Ok(Some(unblocked))
}

fn unblocked_job(stored: &StoredJob) -> UnblockedJob {
    UnblockedJob {
        job: stored.job.id,
        chain: stored.job.chain_id,
        type_name: stored.job.type_name.clone(),
    }
}

/// What the settlement did under whose fence the job ended last.
async fn recall<R: Records>(work: &mut Work<'_, R>, stored: &StoredJob) -> Result<Repeated, StateError> {
    let mut repeated = Repeated::new(stored.job.status);
    if stored.job.status != JobStatus::Completed {
        return Ok(repeated);
    }
    let chain = stored.job.chain_id;
    let chains = work.chains(&[chain]).await?;
    let mut later = chains.jobs(chain).iter();
    if let Some(next) = later.find(|next| next.job.chain_index > stored.job.chain_index) {
        repeated.next_blocked = next.job.status == JobStatus::Blocked || next.unblocked_by.is_some();
        return Ok(repeated);
    }
    let mut dependants = work.read(Find::Dependants(&[chain])).await?;
    dependants.retain(|dependant| dependant.unblocked_by == Some(chain));
    dependants.sort_unstable_by_key(|dependant| dependant.job.id);
    repeated.unblocked = dependants.iter().map(unblocked_job).collect();
    Ok(repeated)
}
