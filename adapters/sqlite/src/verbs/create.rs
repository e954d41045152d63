//! Starting chains, and inserting jobs.

use std::collections::{HashMap, HashSet};

use queuert::adapter::rules::{self, StartPlan};
use queuert::adapter::{CreatedChain, NewChain, Refusal};
use queuert::{ChainId, JobId, JobStatus, StateError, Timestamp};

use crate::clock;
use crate::connection::{Connection, query};
use crate::error::StatementError;
use crate::row::{self, NewRow, status_number};
use crate::statements::json_rows::JsonRows;
use crate::store::{Store, count};

pub(crate) type Created = Result<Vec<CreatedChain>, Refusal>;

/// Starts chains, all or none. It reads everything before it writes, so a refusal has written nothing.
pub(crate) async fn create(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[NewChain],
) -> Result<Created, StateError> {
    if chains.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let now = clock::now();
    let duplicates = find_duplicates(connection, store, chains, now).await?;
    let blockers: HashSet<ChainId> = chains
        .iter()
        .flat_map(|chain| chain.job.blockers.iter().copied())
        .collect();
    let statuses = chain_statuses(connection, store, blockers).await?;
    let plan = rules::plan_starts(
        chains,
        |place| duplicates.get(&place).cloned(),
        |chain| statuses.get(&chain).copied(),
    );
    if plan.is_refused()
        && let Some(refusal) = refusal(connection, store, &plan).await?
    {
        return Ok(Err(refusal));
    }
    if plan.starts.is_empty() {
        return Ok(Ok(plan.created));
    }
    let rows: Vec<NewRow<'_>> = plan
        .starts
        .iter()
        .map(|start| {
            let job = &start.chain.job;
            let key = start.chain.deduplication.as_ref().map(|wanted| wanted.key.as_str());
            NewRow {
                job,
                chain_id: job.id.as_chain(),
                chain_type: &job.type_name,
                chain_index: 0,
                chain_created_at: now,
                status: start.status,
                deduplication_key: key,
                keyed: key.is_some(),
            }
        })
        .collect();
    if let Err(error) = insert_jobs(connection, store, &rows, now).await {
        // An id that exists, or is given twice, is found by the unique index. The failed statement has undone itself.
        if error.is_unique_violation()
            && let Some(refusal) = refusal(connection, store, &plan).await?
        {
            return Ok(Err(refusal));
        }
        return Err(error.into());
    }
    let edges = rows.iter().map(|row| (row.job.id, row.job.blockers.as_slice()));
    insert_blockers(connection, store, edges, &statuses).await?;
    Ok(Ok(plan.created))
}

/// Why the call is refused, once it is known which of its ids exist.
async fn refusal(
    connection: &mut Connection<'_>,
    store: &Store,
    plan: &StartPlan<'_>,
) -> Result<Option<Refusal>, StateError> {
    let ids = JsonRows::of_ids(plan.ids().iter().map(|id| id.as_uuid()));
    let existing = connection.fetch(query(&store.statements.existing_jobs).bind(ids), |found| {
        Ok(JobId::from_uuid(found.get("id")?))
    });
    let existing: HashSet<JobId> = existing.await?.into_iter().collect();
    Ok(plan.refusal(|id| existing.contains(&id)))
}

/// For each item with a key, by its place: the newest chain in the store that the item repeats.
async fn find_duplicates(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: &[NewChain],
    now: Timestamp,
) -> Result<HashMap<usize, CreatedChain>, StateError> {
    let mut wanted_keys = JsonRows::new();
    let mut places = Vec::new();
    for (place, chain) in chains.iter().enumerate() {
        let Some(wanted) = &chain.deduplication else {
            continue;
        };
        places.push(place);
        let since = wanted.scope.ended_since(now).map(Timestamp::as_micros);
        let except = JsonRows::of_ids(wanted.except.iter().map(|chain| chain.as_uuid()));
        wanted_keys.row(|row| {
            row.text(chain.job.type_name.as_str()).exact_text(Some(&wanted.key));
            row.optional_number(since).raw(&except);
        });
    }
    let mut duplicates = HashMap::new();
    if wanted_keys.is_empty() {
        return Ok(duplicates);
    }
    let search = query(&store.statements.duplicates).bind(wanted_keys.finish());
    let found = connection.fetch(search, |found| {
        let place = usize::try_from(found.get::<i64>("place")?).unwrap_or(usize::MAX);
        let status = found.get::<Option<i64>>("status")?.and_then(row::status);
        Ok((place, ChainId::from_uuid(found.get("chain_id")?), status))
    });
    for (place, id, status) in found.await? {
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

/// The status of each chain that exists.
pub(crate) async fn chain_statuses(
    connection: &mut Connection<'_>,
    store: &Store,
    chains: impl IntoIterator<Item = ChainId>,
) -> Result<HashMap<ChainId, JobStatus>, StateError> {
    let mut chains = chains.into_iter().peekable();
    if chains.peek().is_none() {
        return Ok(HashMap::new());
    }
    let ids = JsonRows::of_ids(chains.map(|chain| chain.as_uuid()));
    let found = connection.fetch(query(&store.statements.chain_statuses).bind(ids), |found| {
        let status = found.get::<Option<i64>>("status")?.and_then(row::status);
        let chain = ChainId::from_uuid(found.get("chain_id")?);
        Ok(status.map(|status| (chain, status)))
    });
    Ok(found.await?.into_iter().flatten().collect())
}

/// Inserts jobs, all or none. The error is that of SQLite, because the caller may know its reason.
pub(crate) async fn insert_jobs(
    connection: &mut Connection<'_>,
    store: &Store,
    rows: &[NewRow<'_>],
    now: Timestamp,
) -> Result<(), StatementError> {
    if rows.is_empty() {
        return Ok(());
    }
    let statements = &store.statements;
    // A statement that fails undoes itself, but not the statement before it.
    if !statements.insert_jobs.takes_several_calls(connection, rows.len()) {
        insert_rows(connection, store, rows, now).await?;
        clock::outlast(now);
        return Ok(());
    }
    connection.execute(query(&statements.savepoint_insert)).await?;
    if let Err(error) = insert_rows(connection, store, rows, now).await {
        // The first error is returned. After some errors, such as a full disk, SQLite has rolled back the whole transaction
        // by itself, and the savepoint is gone.
        if connection.execute(query(&statements.rollback_insert)).await.is_ok() {
            let _ = connection.execute(query(&statements.release_insert)).await;
        }
        return Err(error);
    }
    clock::outlast(now);
    connection.execute(query(&statements.release_insert)).await.map(drop)
}

async fn insert_rows(
    connection: &mut Connection<'_>,
    store: &Store,
    rows: &[NewRow<'_>],
    now: Timestamp,
) -> Result<(), StatementError> {
    let inserted = store.statements.insert_jobs.execute(connection, rows, |values, new| {
        let job = new.job;
        let first = new.chain_index == 0;
        let scheduled_at = job.schedule.resolve(now);
        values
            .add(job.id.as_uuid())
            .add((!first).then(|| new.chain_id.as_uuid()))
            .number(new.chain_index)
            .number(status_number(new.status))
            .add(job.type_name.as_str())
            .add((!first).then(|| new.chain_type.as_str()))
            .number(new.chain_created_at.as_micros())
            .number(new.keyed)
            .number(now.as_micros())
            .number(scheduled_at.as_micros())
            .number(job.priority)
            .number(store.rank(scheduled_at, job.priority))
            .number(scheduled_at <= now)
            .add(job.max_attempts.map(i64::from))
            .number(count(job.blockers.len()))
            .add(new.deduplication_key)
            .add(job.trace_context.as_deref())
            .add(job.input.as_str());
    });
    inserted.await.map(drop)
}

/// Inserts the blockers of new jobs, in order. `statuses` has the blockers that were there before the call.
pub(crate) async fn insert_blockers<'a>(
    connection: &mut Connection<'_>,
    store: &Store,
    edges: impl IntoIterator<Item = (JobId, &'a [ChainId])>,
    statuses: &HashMap<ChainId, JobStatus>,
) -> Result<(), StateError> {
    let mut rows = JsonRows::new();
    for (job, blockers) in edges {
        for (position, chain) in blockers.iter().enumerate() {
            rows.row(|row| {
                row.id(job.as_uuid())
                    .number(count(position))
                    .id(chain.as_uuid())
                    .number(statuses.get(chain) == Some(&JobStatus::Completed));
            });
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let insert = query(&store.statements.insert_blockers).bind(rows.finish());
    connection.execute(insert).await?;
    Ok(())
}
