//! Lists: which jobs and chains pass the filters, and which of them are on a page.

use std::collections::HashSet;
use std::hash::Hash;

use crate::adapter::{ChainQuery, JobQuery, JobSort, Order, Position};
use crate::chain::ChainRecord;
use crate::id::{ChainId, JobId};
use crate::job::{JobRecord, JobStatus, TypeName};

/// The record of a chain, from its first job and its latest one.
pub fn chain_record(first: &JobRecord, latest: &JobRecord) -> ChainRecord {
    ChainRecord {
        id: first.chain_id,
        type_name: first.type_name.clone(),
        input: first.input.clone(),
        status: latest.status,
        output: latest.output.clone(),
        latest_job: latest.id,
        latest_type: latest.type_name.clone(),
        length: latest.chain_index.saturating_add(1),
        created_at: first.created_at,
        ended_at: latest.ended_at.filter(|_| !latest.status.is_open()),
        last_error: latest.last_error.clone(),
        deduplication_key: first.deduplication_key.clone(),
        trace_context: first.trace_context.clone(),
        unreadable: None,
    }
}

/// The filters of a [`JobQuery`], ready to be asked for every job.
#[derive(Debug)]
pub struct JobFilter<'a> {
    query: &'a JobQuery,
    ids: Option<HashSet<&'a JobId>>,
    chains: Option<HashSet<&'a ChainId>>,
    types: Option<HashSet<&'a TypeName>>,
    chain_types: Option<HashSet<&'a TypeName>>,
}

impl<'a> JobFilter<'a> {
    /// The filters of the query.
    pub fn of(query: &'a JobQuery) -> Self {
        Self {
            query,
            ids: set(&query.ids),
            chains: set(&query.chains),
            types: set(&query.types),
            chain_types: set(&query.chain_types),
        }
    }

    /// Whether the job passes. `has_blocker` says whether it has this chain as blocker.
    pub fn admits(&self, job: &JobRecord, has_blocker: impl FnOnce(ChainId) -> bool) -> bool {
        let query = self.query;
        among(&self.ids, &job.id)
            && among(&self.chains, &job.chain_id)
            && among(&self.types, &job.type_name)
            && among(&self.chain_types, &job.chain_type)
            && in_status(&query.statuses, job.status)
            && query.created_from.is_none_or(|from| job.created_at >= from)
            && query.created_to.is_none_or(|to| job.created_at <= to)
            && query.blocked_by.is_none_or(has_blocker)
    }

    /// The page of the query, of jobs that have passed.
    pub fn page<T>(&self, jobs: impl Iterator<Item = T>, record: impl Fn(&T) -> &JobRecord) -> Vec<T> {
        let position = |job: &T| {
            let job = record(job);
            let value = match self.query.sort {
                JobSort::CreatedAt => job.created_at.as_micros(),
                JobSort::ChainIndex => i64::from(job.chain_index),
            };
            Position { value, id: job.id }
        };
        page(jobs, position, self.query.order, self.query.after, self.query.limit)
    }
}

/// The filters of a [`ChainQuery`], ready to be asked for every chain.
#[derive(Debug)]
pub struct ChainFilter<'a> {
    query: &'a ChainQuery,
    ids: Option<HashSet<&'a ChainId>>,
    types: Option<HashSet<&'a TypeName>>,
}

impl<'a> ChainFilter<'a> {
    /// The filters of the query.
    pub fn of(query: &'a ChainQuery) -> Self {
        Self {
            query,
            ids: set(&query.ids),
            types: set(&query.types),
        }
    }

    /// Whether the chain with this first job and status passes. The store finds the chains of
    /// [`ChainQuery::jobs`], which this does not look at. `is_blocker` says whether a job has it as blocker.
    pub fn admits(&self, first: &JobRecord, status: JobStatus, is_blocker: impl FnOnce() -> bool) -> bool {
        let query = self.query;
        among(&self.ids, &first.chain_id)
            && among(&self.types, &first.type_name)
            && in_status(&query.statuses, status)
            && query.created_from.is_none_or(|from| first.created_at >= from)
            && query.created_to.is_none_or(|to| first.created_at <= to)
            && (!query.roots_only || !is_blocker())
    }

    /// The page of the query, of chains that have passed.
    pub fn page<T>(&self, chains: impl Iterator<Item = T>, first: impl Fn(&T) -> &JobRecord) -> Vec<T> {
        let position = |chain: &T| Position {
            value: first(chain).created_at.as_micros(),
            id: first(chain).id,
        };
        page(chains, position, self.query.order, self.query.after, self.query.limit)
    }
}

fn set<T: Eq + Hash>(filter: &Option<Vec<T>>) -> Option<HashSet<&T>> {
    filter.as_ref().map(|items| items.iter().collect())
}

/// A filter that is `None` lets everything through; an empty one matches nothing.
fn among<T: Eq + Hash>(filter: &Option<HashSet<&T>>, item: &T) -> bool {
    filter.as_ref().is_none_or(|items| items.contains(item))
}

fn in_status(filter: &Option<Vec<JobStatus>>, status: JobStatus) -> bool {
    filter.as_ref().is_none_or(|statuses| statuses.contains(&status))
}

fn page<T>(
    rows: impl Iterator<Item = T>,
    position: impl Fn(&T) -> Position,
    order: Order,
    after: Option<Position>,
    limit: usize,
) -> Vec<T> {
    let on_page = |row: &T| match (after, order) {
        (None, _) => true,
        (Some(after), Order::OldestFirst) => position(row) > after,
        (Some(after), Order::NewestFirst) => position(row) < after,
    };
    let mut page: Vec<T> = rows.filter(on_page).collect();
    page.sort_unstable_by(|a, b| match order {
        Order::OldestFirst => position(a).cmp(&position(b)),
        Order::NewestFirst => position(b).cmp(&position(a)),
    });
    page.truncate(limit);
    page
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::{new_job, tests};
    use super::*;
    use crate::time::Timestamp;

    /// The first job of a chain, created at this time.
    fn job(id: u128, created_at: i64) -> JobRecord {
        let new = tests::new_job(id);
        let chain = new.id.as_chain();
        let created_at = Timestamp::from_micros(created_at);
        new_job(&new, chain, "mail".into(), 0, JobStatus::Pending, created_at)
    }

    #[test]
    fn a_filter_that_is_absent_lets_all_through_and_an_empty_one_nothing() {
        let job = job(1, 10);
        let passes = |query: JobQuery| JobFilter::of(&query).admits(&job, |_| false);
        let base = JobQuery::default;
        let time = Timestamp::from_micros;
        let other = ChainId::from_uuid(Uuid::from_u128(9));
        for (query, expected) in [
            (base(), true),
            (
                JobQuery {
                    ids: Some(vec![]),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    ids: Some(vec![job.id]),
                    ..base()
                },
                true,
            ),
            (
                JobQuery {
                    chains: Some(vec![other]),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    chains: Some(vec![other, job.chain_id]),
                    ..base()
                },
                true,
            ),
            (
                JobQuery {
                    types: Some(vec!["page".into()]),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    types: Some(vec!["mail".into()]),
                    ..base()
                },
                true,
            ),
            (
                JobQuery {
                    chain_types: Some(vec![]),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    statuses: Some(vec![JobStatus::Dead]),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    statuses: Some(vec![JobStatus::Pending]),
                    ..base()
                },
                true,
            ),
            (
                JobQuery {
                    created_from: Some(time(10)),
                    created_to: Some(time(10)),
                    ..base()
                },
                true,
            ),
            (
                JobQuery {
                    created_from: Some(time(11)),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    created_to: Some(time(9)),
                    ..base()
                },
                false,
            ),
            (
                JobQuery {
                    blocked_by: Some(other),
                    ..base()
                },
                false,
            ),
        ] {
            assert_eq!(passes(query.clone()), expected, "{query:?}");
        }
    }

    #[test]
    fn a_page_goes_on_by_value_with_ties_by_id() {
        let jobs = [job(1, 10), job(2, 10), job(3, 20), job(4, 5)];
        let ids = |query: &JobQuery| {
            let page = JobFilter::of(query).page(jobs.iter(), |job| job);
            page.iter().map(|job| job.id.as_uuid().as_u128()).collect::<Vec<_>>()
        };
        let mut query = JobQuery {
            limit: 3,
            order: Order::OldestFirst,
            ..JobQuery::default()
        };
        assert_eq!(ids(&query), [4, 1, 2]);
        query.order = Order::NewestFirst;
        assert_eq!(ids(&query), [3, 2, 1]);
        query.after = Some(Position {
            value: 10,
            id: jobs[1].id,
        });
        assert_eq!(ids(&query), [1, 4]);
        query.order = Order::OldestFirst;
        assert_eq!(ids(&query), [3]);
    }
}
