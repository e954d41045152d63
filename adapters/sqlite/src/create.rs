//! Starting chains.

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::KeysOfCall;
use queuert::adapter::{CreatedChain, NewChain, NewJob, Refusal};
use queuert::{ChainId, JobId, JobStatus, StateError, Timestamp};

use crate::clock;
use crate::core::Core;
use crate::db::{Db, query};
use crate::json::Batch;
use crate::row::{self, NewRow};

pub(crate) type Created = Result<Vec<CreatedChain>, Refusal>;

/// Starts chains, all or none. Everything is looked up before anything is written, so a refusal leaves nothing behind.
pub(crate) async fn create(db: &mut Db<'_>, core: &Core, chains: &[NewChain]) -> Result<Created, StateError> {
    if chains.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let now = clock::now();
    let duplicates = find_duplicates(db, core, chains, now).await?;
    let named: HashSet<ChainId> = chains
        .iter()
        .flat_map(|chain| chain.job.blockers.iter().copied())
        .collect();
    let mut known = match named.is_empty() {
        true => HashMap::new(),
        false => core.chain_statuses(db, named).await?,
    };
    let mut created: Vec<CreatedChain> = Vec::with_capacity(chains.len());
    let mut rows = Vec::with_capacity(chains.len());
    let mut missing = None;
    let mut keys = KeysOfCall::new();
    for (place, chain) in chains.iter().enumerate() {
        let job = &chain.job;
        if let Some(found) = keys.find(chain).or_else(|| duplicates.get(&place).cloned()) {
            created.push(found);
            continue;
        }
        missing = missing_blocker(job, &known);
        if missing.is_some() {
            break;
        }
        let status = waiting_status(&job.blockers, &known);
        let id = job.id.as_chain();
        let key = chain.deduplication.as_ref().map(|wanted| wanted.key.as_str());
        rows.push(NewRow {
            job,
            chain_id: id,
            chain_type: &job.type_name,
            chain_index: 0,
            chain_created_at: now,
            status,
            deduplication_key: key,
            keyed: key.is_some(),
        });
        known.insert(id, status);
        keys.created(chain, status);
        created.push(CreatedChain {
            id,
            status,
            deduplicated: false,
        });
    }
    if let Some(refusal) = missing {
        // An earlier item may have been refused for its id; that comes first.
        let taken = taken_id(db, core, &rows).await?;
        return Ok(Err(taken.unwrap_or(refusal)));
    }
    if rows.is_empty() {
        return Ok(Ok(created));
    }
    if let Err(error) = core.insert_jobs(db, &rows, now).await {
        // The index over ids has the last word. The failed statement has undone itself.
        if error.is_unique_violation()
            && let Some(refusal) = taken_id(db, core, &rows).await?
        {
            return Ok(Err(refusal));
        }
        return Err(error.into());
    }
    let edges = rows.iter().map(|row| (row.job.id, row.job.blockers.as_slice()));
    core.insert_blockers(db, edges, |chain| known.get(chain) == Some(&JobStatus::Completed))
        .await?;
    Ok(Ok(created))
}

pub(crate) fn missing_blocker(job: &NewJob, known: &HashMap<ChainId, JobStatus>) -> Option<Refusal> {
    let missing = job.blockers.iter().find(|chain| !known.contains_key(chain))?;
    Some(Refusal::BlockerNotFound {
        job: job.id,
        chain: *missing,
    })
}

/// Blocked while one of the blockers has not completed, pending otherwise.
pub(crate) fn waiting_status(blockers: &[ChainId], known: &HashMap<ChainId, JobStatus>) -> JobStatus {
    let completed = |chain: &ChainId| known.get(chain) == Some(&JobStatus::Completed);
    match blockers.iter().all(completed) {
        true => JobStatus::Pending,
        false => JobStatus::Blocked,
    }
}

/// The first of the new jobs whose id exists, or is given twice.
async fn taken_id(db: &mut Db<'_>, core: &Core, rows: &[NewRow<'_>]) -> Result<Option<Refusal>, StateError> {
    let ids = Batch::of_ids(rows.iter().map(|row| row.job.id.as_uuid()));
    let taken = db.fetch(query(&core.sql.taken_ids).bind(ids), |found| {
        Ok(JobId::from_uuid(found.get(0)?))
    });
    let mut taken: HashSet<_> = taken.await?.into_iter().collect();
    let first = rows.iter().find(|row| !taken.insert(row.job.id));
    Ok(first.map(|row| Refusal::IdTaken(row.job.id)))
}

/// For each item with a key, by place: the newest chain in the store that counts.
async fn find_duplicates(
    db: &mut Db<'_>,
    core: &Core,
    chains: &[NewChain],
    now: Timestamp,
) -> Result<HashMap<usize, CreatedChain>, StateError> {
    let mut batch = Batch::new();
    let mut places = Vec::new();
    for (place, chain) in chains.iter().enumerate() {
        let Some(wanted) = &chain.deduplication else {
            continue;
        };
        places.push(place);
        let since = wanted.scope.ended_since(now).map(Timestamp::as_micros);
        let except = Batch::of_ids(wanted.except.iter().map(|chain| chain.as_uuid()));
        batch.row(|row| {
            row.text(chain.job.type_name.as_str()).exact_text(Some(&wanted.key));
            row.optional_number(since).raw(&except);
        });
    }
    let mut duplicates = HashMap::new();
    if batch.is_empty() {
        return Ok(duplicates);
    }
    let rows = db.fetch(query(&core.sql.duplicates).bind(batch.finish()), |found| {
        let place = usize::try_from(found.get::<i64>(0)?).unwrap_or(usize::MAX);
        let status = found.get::<Option<i64>>(2)?.and_then(row::status);
        Ok((place, ChainId::from_uuid(found.get(1)?), status))
    });
    for (place, id, status) in rows.await? {
        if let (Some(place), Some(status)) = (places.get(place), status) {
            let existing = CreatedChain {
                id,
                status,
                deduplicated: true,
            };
            duplicates.insert(*place, existing);
        }
    }
    Ok(duplicates)
}
