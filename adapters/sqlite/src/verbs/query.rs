//! Reads.

use queuert::adapter::{ChainQuery, JobQuery, JobSort, Order, Position};
use queuert::{ChainId, ChainRecord, JobId, JobRecord, JobStatus, StateError, Timestamp, TypeName};

use crate::clock;
use crate::connection::{Db, Query, Value, query};
use crate::row::{self, CHAIN, PENDING, RUNNING, StoredJob, status_number};
use crate::statements::Statements;
use crate::statements::json::Batch;
use crate::store::{Core, count};
use crate::verbs::claim::blockers_of;

/// Up to here all pending jobs are sorted for a page; beyond it they are found by walking back in time, where with so
/// many of them the page is full soon.
const FEW: i64 = 10_000;

/// The pending jobs, from the two indexes that share them.
const PENDING_JOBS: &str = "SELECT seq FROM {prefix}job WHERE status = 1 AND due = 1 \
     UNION ALL SELECT seq FROM {prefix}job WHERE status = 1 AND due = 0";

/// A time before which no more jobs can appear.
///
/// A transaction reads the clock for its jobs while it has the write lock, and does not commit before the clock shows
/// another time ([`clock::outlast`]). So jobs that are committed later were created later than all that are there now,
/// whichever process creates them. The present is the limit: after the clock was set back, the newest job lies ahead of it.
pub(crate) async fn watermark(db: &mut Db<'_>, core: &Core) -> Result<Timestamp, StateError> {
    let now = clock::now();
    let newest: Option<Option<i64>> = db.first(query(&core.sql.newest), |found| found.get(0)).await?;
    let behind = newest.flatten().map_or(0, |newest| newest.saturating_add(1));
    Ok(Timestamp::from_micros(behind).min(now))
}

pub(crate) async fn stored_jobs(db: &mut Db<'_>, core: &Core, jobs: &[JobId]) -> Result<Vec<StoredJob>, StateError> {
    let ids = Batch::of_ids(jobs.iter().map(|job| job.as_uuid()));
    db.fetch(query(&core.sql.jobs_by_id).bind(ids), row::job).await
}

pub(crate) async fn jobs_by_id(db: &mut Db<'_>, core: &Core, jobs: &[JobId]) -> Result<Vec<JobRecord>, StateError> {
    let stored = stored_jobs(db, core, jobs).await?;
    Ok(stored.into_iter().map(|stored| stored.job).collect())
}

pub(crate) async fn chains_by_id(
    db: &mut Db<'_>,
    core: &Core,
    chains: &[ChainId],
) -> Result<Vec<ChainRecord>, StateError> {
    let ids = Batch::of_ids(chains.iter().map(|chain| chain.as_uuid()));
    db.fetch(query(&core.sql.chains_by_id).bind(ids), row::chain).await
}

pub(crate) async fn list_blockers(db: &mut Db<'_>, core: &Core, job: &JobId) -> Result<Vec<ChainRecord>, StateError> {
    let mut blockers = blockers_of(db, core, std::slice::from_ref(job)).await?;
    Ok(blockers.remove(job).unwrap_or_default())
}

/// A query in the making: conditions with their arguments, numbered as they come.
struct Search {
    conditions: Vec<String>,
    arguments: Vec<Value<'static>>,
}

impl Search {
    fn new() -> Self {
        Self {
            conditions: Vec::new(),
            arguments: Vec::new(),
        }
    }

    fn argument(&mut self, argument: impl Into<Value<'static>>) -> String {
        self.arguments.push(argument.into());
        format!("?{}", self.arguments.len())
    }

    fn only(&mut self, condition: impl Into<String>) {
        self.conditions.push(condition.into());
    }

    fn any_id(&mut self, column: &str, ids: impl IntoIterator<Item = uuid::Uuid>) {
        let list = self.argument(Batch::of_ids(ids));
        self.only(format!("{column} IN (SELECT unhex(value) FROM json_each({list}))"));
    }

    fn any_type(&mut self, column: &str, types: &[TypeName]) {
        let list = self.argument(Batch::of_texts(types.iter().map(TypeName::as_str)));
        self.only(format!("{column} IN (SELECT value FROM json_each({list}))"));
    }

    fn any_status(&mut self, column: &str, statuses: &[JobStatus]) {
        let list = self.argument(Batch::of_numbers(statuses.iter().map(|status| status_number(*status))));
        self.only(format!("{column} IN (SELECT value FROM json_each({list}))"));
    }

    fn bound(&mut self, column: &str, operator: &str, number: i64) {
        let bound = self.argument(number);
        self.only(format!("{column} {operator} {bound}"));
    }

    /// The rows after a position. The first condition is what an index can use; the second one is exact.
    fn after(&mut self, value: &str, id: &str, order: Order, after: Option<Position>) {
        let Some(position) = after else {
            return;
        };
        let strictly = match order {
            Order::OldestFirst => ">",
            Order::NewestFirst => "<",
        };
        let last = self.argument(position.value);
        let last_id = self.argument(position.id.as_uuid());
        self.only(format!("{value} {strictly}= {last}"));
        self.only(format!("({value} {strictly} {last} OR {id} {strictly} {last_id})"));
    }

    fn finish(
        mut self,
        core: &Core,
        select: &str,
        value: &str,
        id: &str,
        order: Order,
        limit: usize,
    ) -> Query<'static> {
        let direction = match order {
            Order::OldestFirst => "ASC",
            Order::NewestFirst => "DESC",
        };
        let limit = self.argument(count(limit));
        let mut text = select.to_owned();
        if !self.conditions.is_empty() {
            text.push_str(" WHERE ");
            text.push_str(&self.conditions.join(" AND "));
        }
        text.push_str(&format!(
            " ORDER BY {value} {direction}, {id} {direction} LIMIT {limit}"
        ));
        Query::new(&core.sql.render(&text), self.arguments)
    }
}

pub(crate) async fn list_jobs(db: &mut Db<'_>, core: &Core, wanted: &JobQuery) -> Result<Vec<JobRecord>, StateError> {
    let mut search = Search::new();
    let mut narrow = false;
    if let Some(ids) = &wanted.ids {
        search.any_id("j.id", ids.iter().map(|id| id.as_uuid()));
        narrow = true;
    }
    if let Some(chains) = &wanted.chains {
        // Two indexes share the jobs of a chain: the first one is found by its id.
        let list = search.argument(Batch::of_ids(chains.iter().map(|chain| chain.as_uuid())));
        search.only(format!(
            "j.seq IN (SELECT c.seq FROM json_each({list}) AS r CROSS JOIN {{prefix}}job AS c ON c.id = unhex(r.value) \
             AND c.chain_index = 0 UNION ALL SELECT c.seq FROM json_each({list}) AS r CROSS JOIN {{prefix}}job AS c \
             ON c.chain_id = unhex(r.value) AND c.chain_index > 0)"
        ));
        narrow = true;
    }
    if let Some(chain) = wanted.blocked_by {
        let chain = search.argument(chain.as_uuid());
        search.only(format!(
            "j.id IN (SELECT job_id FROM {{prefix}}blocker WHERE chain_id = {chain})"
        ));
        narrow = true;
    }
    if let Some(types) = &wanted.types {
        search.any_type("j.type", types);
    }
    if let Some(types) = &wanted.chain_types {
        search.any_type("j.chain_type", types);
    }
    if let Some(statuses) = &wanted.statuses {
        search.any_status("j.status", statuses);
    }
    if let Some(from) = wanted.created_from {
        search.bound("j.created_at", ">=", from.as_micros());
    }
    if let Some(to) = wanted.created_to {
        search.bound("j.created_at", "<=", to.as_micros());
    }
    let value = match wanted.sort {
        JobSort::CreatedAt => "j.created_at",
        JobSort::ChainIndex => "j.chain_index",
    };
    search.after(value, "j.id", wanted.order, wanted.after);
    // An index can only be named where a condition uses it: hence those that hold for every row.
    let always = i64::MIN;
    let index = match (narrow, wanted.sort, wanted.statuses.as_deref()) {
        (true, ..) => "",
        (false, _, Some([JobStatus::Running])) => {
            search.only(format!("j.status = 2 AND j.lease_until > {always}"));
            " INDEXED BY {prefix}job_lease"
        }
        (false, _, Some([JobStatus::Pending])) if pending_jobs(db, core).await? <= FEW => {
            search.only(format!("j.seq IN ({PENDING_JOBS})"));
            ""
        }
        // Jobs in these statuses are always the latest of their chains.
        (false, _, Some([JobStatus::Blocked | JobStatus::Dead | JobStatus::Cancelled])) => {
            search.only("j.latest = 1 AND j.status NOT IN (1, 2)");
            " INDEXED BY {prefix}job_rest"
        }
        // The index over times gives the order, and a full page ends the walk.
        (false, JobSort::CreatedAt, _) => {
            search.only(format!("j.created_at > {always}"));
            " INDEXED BY {prefix}job_created"
        }
        (false, JobSort::ChainIndex, _) => "",
    };
    let select = format!("SELECT {} FROM {{prefix}}job AS j{index}", Statements::job_columns());
    let page = search.finish(core, &select, value, "j.id", wanted.order, wanted.limit);
    db.fetch(page, |found| Ok(row::job(found)?.job)).await
}

pub(crate) async fn list_chains(
    db: &mut Db<'_>,
    core: &Core,
    wanted: &ChainQuery,
) -> Result<Vec<ChainRecord>, StateError> {
    let mut search = Search::new();
    let mut narrow = false;
    if let Some(ids) = &wanted.ids {
        search.any_id("f.id", ids.iter().map(|id| id.as_uuid()));
        narrow = true;
    }
    if let Some(jobs) = &wanted.jobs {
        let list = search.argument(Batch::of_ids(jobs.iter().map(|job| job.as_uuid())));
        search.only(format!(
            "f.id IN (SELECT c.chain_id FROM json_each({list}) AS r CROSS JOIN {{prefix}}job AS c ON c.id = unhex(r.value))"
        ));
        narrow = true;
    }
    if let Some(types) = &wanted.types {
        search.any_type("f.type", types);
    }
    if let Some(from) = wanted.created_from {
        search.bound("f.created_at", ">=", from.as_micros());
    }
    if let Some(to) = wanted.created_to {
        search.bound("f.created_at", "<=", to.as_micros());
    }
    if wanted.roots_only {
        search.only("NOT EXISTS (SELECT 1 FROM {prefix}blocker AS b WHERE b.chain_id = f.id)");
    }
    let through = match (narrow, wanted.statuses.as_deref()) {
        (true, _) | (false, None) => Through::Time,
        (false, Some(statuses)) => through(db, core, statuses).await?,
    };
    search.after("f.created_at", "f.id", wanted.order, wanted.after);
    let latest = Statements::latest("f.id");
    let first = "CROSS JOIN {prefix}job AS f ON f.id = l.chain_id";
    let source = match through {
        Through::Time => {
            search.only("f.chain_index = 0");
            if let Some(statuses) = &wanted.statuses {
                search.any_status("l.status", statuses);
            }
            let index = match narrow {
                true => "",
                false => {
                    search.only(format!("f.created_at > {}", i64::MIN));
                    " INDEXED BY {prefix}job_created"
                }
            };
            format!("{{prefix}}job AS f{index} CROSS JOIN {{prefix}}job AS l ON l.seq = {latest}")
        }
        Through::Few(condition, index) => {
            search.only(condition);
            format!("{{prefix}}job AS l{index} {first}")
        }
        Through::Pending => {
            search.only(format!("l.seq IN ({PENDING_JOBS})"));
            format!("{{prefix}}job AS l {first}")
        }
        Through::Rest(status) => {
            search.only("l.latest = 1");
            search.only("l.status NOT IN (1, 2)");
            search.bound("l.status", "=", status_number(status));
            if let Some(position) = wanted.after {
                let operator = match wanted.order {
                    Order::OldestFirst => ">=",
                    Order::NewestFirst => "<=",
                };
                search.bound("l.chain_created_at", operator, position.value);
            }
            format!("{{prefix}}job AS l INDEXED BY {{prefix}}job_rest {first}")
        }
    };
    // Where the latest jobs lead, their copy of the chain's time gives the order of their index.
    let value = match through {
        Through::Rest(_) => "l.chain_created_at",
        _ => "f.created_at",
    };
    let select = format!("SELECT {CHAIN} FROM {source}");
    let page = search.finish(core, &select, value, "f.id", wanted.order, wanted.limit);
    db.fetch(page, row::chain).await
}

/// How chains of given statuses are found without reading all of them.
#[derive(Clone, Copy)]
enum Through {
    /// By time, looking at each.
    Time,
    /// Through partial indexes that hold few rows: a condition and, where there is one, the index.
    Few(&'static str, &'static str),
    /// Through the pending jobs, which are few.
    Pending,
    /// Through the index over statuses that change rarely.
    Rest(JobStatus),
}

async fn through(db: &mut Db<'_>, core: &Core, statuses: &[JobStatus]) -> Result<Through, StateError> {
    let [status] = statuses else {
        return Ok(Through::Time);
    };
    Ok(match status_number(*status) {
        RUNNING => Through::Few(
            "l.status = 2 AND l.lease_until > -9223372036854775808",
            " INDEXED BY {prefix}job_lease",
        ),
        PENDING if pending_jobs(db, core).await? <= FEW => Through::Pending,
        PENDING => Through::Time,
        _ => Through::Rest(*status),
    })
}

/// How many jobs are pending, counted until there are clearly more than few.
async fn pending_jobs(db: &mut Db<'_>, core: &Core) -> Result<i64, StateError> {
    let count = core.sql.render(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM {prefix}job WHERE status = 1 AND due = 1 LIMIT ?1)) \
         + (SELECT count(*) FROM (SELECT 1 FROM {prefix}job WHERE status = 1 AND due = 0 LIMIT ?1))",
    );
    let found = db.first(query(&count).bind(FEW + 1), |found| found.get(0)).await?;
    Ok(found.unwrap_or_default())
}
