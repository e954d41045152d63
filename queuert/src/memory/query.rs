//! Reads. Lists may look at every row: the memory store is for tests and small processes, and nothing hot lists.

use std::collections::{BTreeSet, HashSet};

use super::operate::jobs_of;
use super::store::Row;
use super::view::View;
use crate::adapter::{ChainQuery, JobQuery, JobSort, Order, Position, QueueSample, SampleQueues};
use crate::chain::ChainRecord;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, TypeName};

pub(super) fn get_jobs(view: &View<'_>, jobs: &[JobId]) -> Vec<JobRecord> {
    jobs.iter().filter_map(|job| view.job(*job)).collect()
}

pub(super) fn get_chains(view: &View<'_>, chains: &[ChainId]) -> Vec<ChainRecord> {
    chains.iter().filter_map(|chain| view.chain_record(*chain)).collect()
}

pub(super) fn sample(view: &View<'_>, sample: &SampleQueues) -> Vec<QueueSample> {
    let of_type = |name: &TypeName| {
        let (ready, earliest) = view.store.queues.ready(name, &view.store.rows, sample.limit, view.now);
        QueueSample {
            type_name: name.clone(),
            ready,
            oldest: earliest.map(|earliest| view.now.saturating_duration_since(earliest)),
        }
    };
    sample.types.iter().map(of_type).collect()
}

pub(super) fn list_blockers(view: &View<'_>, job: JobId) -> Vec<ChainRecord> {
    let row = view.row(job).into_iter();
    row.flat_map(|row| view.blockers(row))
        .filter_map(|chain| view.chain_record(chain))
        .collect()
}

pub(super) fn list_jobs(view: &View<'_>, query: &JobQuery) -> Vec<JobRecord> {
    let chains = query.chains.as_deref().map(set);
    let ids = query.ids.as_deref().map(set);
    let (types, chain_types) = (names(&query.types), names(&query.chain_types));
    // The narrowest filter names the candidates; the others are checked on each.
    let candidates: Vec<JobId> = if let Some(ids) = &ids {
        ids.iter().copied().collect()
    } else if let Some(chains) = &chains {
        chains.iter().flat_map(|chain| jobs_of(view, *chain)).collect()
    } else if let Some(chain) = query.blocked_by {
        view.dependants(chain)
    } else {
        all(view)
    };
    let matches = |row: &Row| {
        let job = &row.job;
        chains.as_ref().is_none_or(|chains| chains.contains(&job.chain_id))
            && types.as_ref().is_none_or(|types| types.contains(&job.type_name))
            && chain_types.as_ref().is_none_or(|types| types.contains(&job.chain_type))
            && admits(&query.statuses, &job.status)
            && query.blocked_by.is_none_or(|chain| view.has_edge(chain, job.id))
            && query.created_from.is_none_or(|from| job.created_at >= from)
            && query.created_to.is_none_or(|to| job.created_at <= to)
    };
    let position = |row: &Row| Position {
        value: match query.sort {
            JobSort::CreatedAt => row.job.created_at.as_micros(),
            JobSort::ChainIndex => i64::from(row.job.chain_index),
        },
        id: row.job.id,
    };
    let rows = candidates.iter().filter_map(|id| view.row(*id));
    let rows = rows.filter(|row| matches(row));
    let page = page(rows, position, query.order, query.after, query.limit);
    page.into_iter().map(|row| row.job.clone()).collect()
}

pub(super) fn list_chains(view: &View<'_>, query: &ChainQuery) -> Vec<ChainRecord> {
    let with_jobs = query.jobs.as_deref().map(|jobs| {
        let rows = jobs.iter().filter_map(|job| view.row(*job));
        rows.map(|row| row.job.chain_id).collect::<BTreeSet<_>>()
    });
    let ids = query.ids.as_deref().map(set);
    let types = names(&query.types);
    let candidates: Vec<JobId> = match ids.as_ref().or(with_jobs.as_ref()) {
        Some(chains) => chains.iter().map(ChainId::first_job).collect(),
        None => all(view),
    };
    let matches = |row: &Row| {
        let job = &row.job;
        let chain = job.chain_id;
        job.chain_index == 0
            && with_jobs.as_ref().is_none_or(|chains| chains.contains(&chain))
            && types.as_ref().is_none_or(|types| types.contains(&job.type_name))
            && query.created_from.is_none_or(|from| job.created_at >= from)
            && query.created_to.is_none_or(|to| job.created_at <= to)
            && view
                .latest(chain)
                .is_some_and(|latest| admits(&query.statuses, &latest.job.status))
            && (!query.roots_only || view.dependants(chain).is_empty())
    };
    let position = |row: &Row| Position {
        value: row.job.created_at.as_micros(),
        id: row.job.id,
    };
    let rows = candidates.iter().filter_map(|id| view.row(*id));
    let rows = rows.filter(|row| matches(row));
    let page = page(rows, position, query.order, query.after, query.limit);
    let records = page.into_iter().map(|row| view.chain_record(row.job.chain_id));
    records.flatten().collect()
}

fn set<T: Copy + Ord>(items: &[T]) -> BTreeSet<T> {
    items.iter().copied().collect()
}

/// A filter by type: there may be many names, and each row asks.
fn names(filter: &Option<Vec<TypeName>>) -> Option<HashSet<&TypeName>> {
    filter.as_ref().map(|names| names.iter().collect())
}

/// A filter that is `None` lets everything through; an empty list matches nothing.
fn admits<T: PartialEq>(filter: &Option<Vec<T>>, value: &T) -> bool {
    filter.as_ref().is_none_or(|values| values.contains(value))
}

/// Every job in the view, in no particular order: pages are sorted.
fn all(view: &View<'_>) -> Vec<JobId> {
    let own = view.overlay.iter().flat_map(|overlay| overlay.rows.keys());
    let committed = view.store.rows.keys();
    let committed = committed.filter(|id| match &view.overlay {
        Some(overlay) => !overlay.rows.contains_key(id),
        None => true,
    });
    own.chain(committed).copied().collect()
}

fn page<'a>(
    rows: impl Iterator<Item = &'a Row>,
    position: impl Fn(&Row) -> Position,
    order: Order,
    after: Option<Position>,
    limit: usize,
) -> Vec<&'a Row> {
    let key = |row: &Row| {
        let position = position(row);
        (position.value, position.id)
    };
    let after = after.map(|after| (after.value, after.id));
    let mut page: Vec<_> = rows
        .filter(|row| match (after, order) {
            (None, _) => true,
            (Some(after), Order::OldestFirst) => key(row) > after,
            (Some(after), Order::NewestFirst) => key(row) < after,
        })
        .collect();
    page.sort_unstable_by(|a, b| match order {
        Order::OldestFirst => key(a).cmp(&key(b)),
        Order::NewestFirst => key(b).cmp(&key(a)),
    });
    page.truncate(limit);
    page
}
