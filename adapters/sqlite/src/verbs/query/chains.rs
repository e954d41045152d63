//! Lists of chains.

use queuert::adapter::{ChainQuery, Order};
use queuert::{ChainRecord, JobStatus, StateError};

use super::page::Page;
use super::pending_are_few;
use crate::connection::Connection;
use crate::row::{self, status_number};
use crate::statements::json_rows::JsonRows;
use crate::statements::{LIST_CHAINS, LIST_CHAINS_BY_LATEST, WHERE_HAS_JOB, WHERE_PENDING, WHERE_ROOT};
use crate::store::Store;

pub(crate) async fn list_chains(
    connection: &mut Connection<'_>,
    store: &Store,
    wanted: &ChainQuery,
) -> Result<Vec<ChainRecord>, StateError> {
    let mut page = Page::default();
    let mut narrow = false;
    if let Some(ids) = &wanted.ids {
        page.any_id("first_job.id", ids.iter().map(|id| id.as_uuid()));
        narrow = true;
    }
    if let Some(jobs) = &wanted.jobs {
        let list = JsonRows::of_ids(jobs.iter().map(|job| job.as_uuid()));
        page.only_with(WHERE_HAS_JOB, "{list}", list);
        narrow = true;
    }
    if let Some(types) = &wanted.types {
        page.any_type("first_job.type", types);
    }
    if let Some(from) = wanted.created_from {
        page.bound("first_job.created_at", ">=", from.as_micros());
    }
    if let Some(to) = wanted.created_to {
        page.bound("first_job.created_at", "<=", to.as_micros());
    }
    if wanted.roots_only {
        page.only(WHERE_ROOT);
    }
    let access = match wanted.statuses.as_deref() {
        Some([status]) if !narrow => Access::of(connection, store, *status).await?,
        _ => Access::Time,
    };
    page.after("first_job.created_at", "first_job.id", wanted.order, wanted.after);
    let (text, index) = match access {
        Access::Time => {
            page.only("first_job.chain_index = 0");
            if let Some(statuses) = &wanted.statuses {
                page.any_status("latest_job.status", statuses);
            }
            let index = if narrow {
                None
            } else {
                page.only(format!("first_job.created_at > {}", i64::MIN));
                Some("job_created")
            };
            (LIST_CHAINS, index)
        }
        Access::Running => {
            page.only(format!(
                "latest_job.status = 2 AND latest_job.lease_until > {}",
                i64::MIN
            ));
            (LIST_CHAINS_BY_LATEST, Some("job_lease"))
        }
        Access::Pending => {
            page.only(WHERE_PENDING.replace("{job}", "latest_job"));
            (LIST_CHAINS_BY_LATEST, None)
        }
        Access::Rest(status) => {
            page.only("latest_job.latest = 1");
            page.only("latest_job.status NOT IN (1, 2)");
            page.bound("latest_job.status", "=", status_number(status));
            if let Some(position) = wanted.after {
                let operator = match wanted.order {
                    Order::OldestFirst => ">=",
                    Order::NewestFirst => "<=",
                };
                page.bound("latest_job.chain_created_at", operator, position.value);
            }
            (LIST_CHAINS_BY_LATEST, Some("job_rest"))
        }
    };
    // The index over statuses has the time of the chain too, and so gives the order.
    let value = match access {
        Access::Rest(_) => "latest_job.chain_created_at",
        Access::Time | Access::Running | Access::Pending => "first_job.created_at",
    };
    let select = page.finish(store, text, index, value, wanted.order, wanted.limit);
    connection.fetch(select, row::chain).await
}

/// How a page finds chains without reading all of them.
#[derive(Clone, Copy)]
enum Access {
    /// By their times, looking at each.
    Time,
    /// By the index over leases, which has only running jobs.
    Running,
    /// By the pending jobs, which are few.
    Pending,
    /// By the index over statuses that change rarely.
    Rest(JobStatus),
}

impl Access {
    async fn of(connection: &mut Connection<'_>, store: &Store, status: JobStatus) -> Result<Self, StateError> {
        Ok(match status {
            JobStatus::Running => Self::Running,
            JobStatus::Pending if pending_are_few(connection, store).await? => Self::Pending,
            JobStatus::Pending => Self::Time,
            status => Self::Rest(status),
        })
    }
}
