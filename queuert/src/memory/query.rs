//! Reads. Lists may look at every row: the memory store is for tests and small processes, and nothing hot lists.

use std::collections::BTreeSet;

use super::operate::jobs_of;
use super::view::View;
use crate::adapter::rules::{ChainFilter, JobFilter, chain_record};
use crate::adapter::{ChainQuery, JobQuery, Pauses, QueueSample, SampleQueues};
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

pub(super) fn pauses(view: &View<'_>) -> Pauses {
    let mut pauses = view.store.pauses.clone();
    for (type_name, change) in view.overlay.iter().flat_map(|overlay| &overlay.pauses) {
        match change {
            Some(pause) => pauses.insert(type_name.clone(), pause.clone()),
            None => pauses.remove(type_name),
        };
    }
    Pauses::new(view.now, pauses.into_values().collect())
}

pub(super) fn list_blockers(view: &View<'_>, job: JobId) -> Vec<ChainRecord> {
    let row = view.row(job).into_iter();
    row.flat_map(|row| view.blockers(row))
        .filter_map(|chain| view.chain_record(chain))
        .collect()
}

pub(super) fn list_jobs(view: &View<'_>, query: &JobQuery) -> Vec<JobRecord> {
    // The narrowest filter names the candidates; all are checked on each.
    let candidates: BTreeSet<JobId> = if let Some(ids) = &query.ids {
        ids.iter().copied().collect()
    } else if let Some(chains) = &query.chains {
        chains.iter().flat_map(|chain| jobs_of(view, *chain)).collect()
    } else if let Some(chain) = query.blocked_by {
        view.dependants(chain).into_iter().collect()
    } else {
        all(view)
    };
    let filter = JobFilter::of(query);
    let rows = candidates.iter().filter_map(|id| view.row(*id));
    let rows = rows.filter(|row| filter.admits(&row.job, |chain| view.has_edge(chain, row.job.id)));
    let page = filter.page(rows, |row| &row.job);
    page.into_iter().map(|row| row.job.clone()).collect()
}

pub(super) fn list_chains(view: &View<'_>, query: &ChainQuery) -> Vec<ChainRecord> {
    let candidates: BTreeSet<JobId> = if let Some(jobs) = &query.jobs {
        let rows = jobs.iter().filter_map(|job| view.row(*job));
        rows.map(|row| row.job.chain_id.first_job()).collect()
    } else if let Some(chains) = &query.ids {
        chains.iter().map(ChainId::first_job).collect()
    } else {
        all(view)
    };
    let filter = ChainFilter::of(query);
    let first = candidates.iter().filter_map(|id| view.first(id.as_chain()));
    let chains = first.filter_map(|first| Some((first, view.latest(first.job.chain_id)?)));
    let chains = chains.filter(|(first, latest)| {
        let is_blocker = || !view.dependants(first.job.chain_id).is_empty();
        filter.admits(&first.job, latest.job.status, is_blocker)
    });
    let page = filter.page(chains, |(first, _)| &first.job);
    let records = page
        .into_iter()
        .map(|(first, latest)| chain_record(&first.job, &latest.job));
    records.collect()
}

/// Every job in the view.
fn all(view: &View<'_>) -> BTreeSet<JobId> {
    let own = view.overlay.iter().flat_map(|overlay| overlay.rows.keys());
    let committed = view.store.rows.keys();
    let committed = committed.filter(|id| match &view.overlay {
        Some(overlay) => !overlay.rows.contains_key(id),
        None => true,
    });
    own.chain(committed).copied().collect()
}
