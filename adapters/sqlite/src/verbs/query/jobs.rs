//! Lists of jobs.

use queuert::adapter::{JobQuery, JobSort};
use queuert::{JobRecord, JobStatus, StateError};

use super::page::Page;
use super::pending_are_few;
use crate::connection::Connection;
use crate::row;
use crate::statements::json_rows::JsonRows;
use crate::statements::{LIST_JOBS, WHERE_BLOCKED_BY, WHERE_IN_CHAINS, WHERE_PENDING};
use crate::store::Store;

pub(crate) async fn list_jobs(
    connection: &mut Connection<'_>,
    store: &Store,
    wanted: &JobQuery,
) -> Result<Vec<JobRecord>, StateError> {
    let mut page = Page::default();
    let mut narrow = false;
    if let Some(ids) = &wanted.ids {
        page.any_id("job.id", ids.iter().map(|id| id.as_uuid()));
        narrow = true;
    }
    if let Some(chains) = &wanted.chains {
        let list = JsonRows::of_ids(chains.iter().map(|chain| chain.as_uuid()));
        page.only_with(WHERE_IN_CHAINS, "{list}", list);
        narrow = true;
    }
    if let Some(chain) = wanted.blocked_by {
        page.only_with(WHERE_BLOCKED_BY, "{chain}", chain.as_uuid());
        narrow = true;
    }
    if let Some(types) = &wanted.types {
        page.any_type("job.type", types);
    }
    if let Some(types) = &wanted.chain_types {
        page.any_type("job.chain_type", types);
    }
    if let Some(statuses) = &wanted.statuses {
        page.any_status("job.status", statuses);
    }
    if let Some(from) = wanted.created_from {
        page.bound("job.created_at", ">=", from.as_micros());
    }
    if let Some(to) = wanted.created_to {
        page.bound("job.created_at", "<=", to.as_micros());
    }
    let value = match wanted.sort {
        JobSort::CreatedAt => "job.created_at",
        JobSort::ChainIndex => "job.chain_index",
    };
    page.after(value, "job.id", wanted.order, wanted.after);
    // SQLite accepts the name of an index only if a condition uses it: hence conditions that hold for every row.
    let always = i64::MIN;
    let index = match (narrow, wanted.sort, wanted.statuses.as_deref()) {
        (true, ..) => None,
        (false, _, Some([JobStatus::Running])) => {
            page.only(format!("job.status = 2 AND job.lease_until > {always}"));
            Some("job_lease")
        }
        (false, _, Some([JobStatus::Pending])) if pending_are_few(connection, store).await? => {
            page.only(WHERE_PENDING.replace("{job}", "job"));
            None
        }
        // Jobs in these statuses are always the latest of their chains.
        (false, _, Some([JobStatus::Blocked | JobStatus::Dead | JobStatus::Cancelled])) => {
            page.only("job.latest = 1 AND job.status NOT IN (1, 2)");
            Some("job_rest")
        }
        // The index over times gives the order, and a full page ends the walk.
        (false, JobSort::CreatedAt, _) => {
            page.only(format!("job.created_at > {always}"));
            Some("job_created")
        }
        (false, JobSort::ChainIndex, _) => None,
    };
    let select = page.finish(store, LIST_JOBS, index, value, wanted.order, wanted.limit);
    connection.fetch(select, |found| Ok(row::job(found)?.job)).await
}
