//! Pages of jobs.

use queuert::adapter::{JobQuery, JobSort};
use queuert::{JobRecord, JobStatus, StateError};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::row::{self, Table};
use crate::statements::{Filling, fill, text};
use crate::store::Store;
use crate::verbs::query::page::{
    Argument, Cursor, FEW, Merge, Page, STEPS, Wanted, and_all, are_few, has_status, number, numbers, of_types,
    statuses, where_all, which,
};

pub(crate) async fn list_jobs(
    session: &mut Session<'_>,
    store: &Store,
    wanted: &JobQuery,
) -> Result<Vec<JobRecord>, StateError> {
    let types = numbers(session, store, wanted.types.as_deref()).await?;
    let chain_types = match &wanted.chain_types {
        Some(names) => Some(numbers(session, store, Some(names)).await?),
        None => None,
    };
    let nothing = wanted.limit == 0 || types.is_empty() || chain_types.as_ref().is_some_and(Vec::is_empty);
    if nothing {
        return Ok(Vec::new());
    }
    let mut page = Page::new(wanted.order, wanted.limit);
    let filter = Filter::new(&mut page, wanted, types, chain_types);
    let sources = filter.sources(session, store, &mut page, wanted).await?;
    let rows = page.read(session, store, text::PAGE_OF_JOBS, &sources).await?;
    let jobs = row::jobs(session, store, &rows).await?;
    Ok(jobs.into_iter().map(|stored| stored.job).collect())
}

/// The conditions on a job `job`.
struct Filter {
    types: Vec<i32>,
    chain_types: Option<Vec<i32>>,
    statuses: Option<Vec<JobStatus>>,
    /// The numbers of the types, as a text refers to them, unless every type is wanted.
    list: Option<String>,
    of_type: Option<String>,
    of_chain_type: Option<String>,
    of_status: Option<String>,
    /// What an index over types and times can use.
    of_time: Vec<String>,
    cursor: Option<Cursor>,
    value: &'static str,
}

impl Filter {
    fn new(page: &mut Page, wanted: &JobQuery, types: Vec<i32>, chain_types: Option<Vec<i32>>) -> Self {
        let value = match wanted.sort {
            JobSort::CreatedAt => "job.created_at",
            JobSort::ChainIndex => "job.chain_index",
        };
        let mut list = |types: &Vec<i32>| page.argument(Argument::Numbers(types.clone()));
        let types_list = wanted.types.as_ref().map(|_| list(&types));
        let of_type = types_list.as_ref().map(|list| format!("job.type_id = ANY ({list})"));
        let of_chain_type = chain_types.as_ref().map(&mut list);
        let of_chain_type = of_chain_type.map(|list| format!("job.chain_type_id = ANY ({list})"));
        let statuses = statuses(wanted.statuses.as_deref());
        Self {
            of_status: statuses.as_deref().map(|statuses| has_status("job.id", statuses)),
            of_time: page.between("job.created_at", wanted.created_from, wanted.created_to),
            cursor: page.after(wanted.after),
            types,
            chain_types,
            statuses,
            list: types_list,
            of_type,
            of_chain_type,
            value,
        }
    }

    fn after(&self) -> Option<String> {
        self.cursor.as_ref().map(|cursor| cursor.exact(self.value, "job.id"))
    }

    /// All conditions but that on the status.
    fn but_status(&self) -> Vec<String> {
        let types = self.of_type.iter().chain(&self.of_chain_type);
        types.chain(&self.of_time).cloned().chain(self.after()).collect()
    }

    async fn sources(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &mut Page,
        wanted: &JobQuery,
    ) -> Result<Vec<String>, StateError> {
        let mut conditions = self.but_status();
        conditions.extend(self.of_status.clone());
        if let Some(chain) = wanted.blocked_by {
            let chain = page.argument(Argument::Id(chain.as_uuid()));
            if wanted.ids.is_none() && wanted.chains.is_none() {
                return Ok(vec![self.dependants(page, &chain, &conditions)]);
            }
            conditions.push(fill(text::IS_BLOCKED_BY, &Filling::none().with("chain", &chain)));
        }
        if let Some(chains) = &wanted.chains {
            let mut ids: Vec<Uuid> = chains.iter().map(|chain| chain.as_uuid()).collect();
            ids.sort_unstable();
            ids.dedup();
            let list = page.argument(Argument::Ids(ids));
            if wanted.ids.is_none() {
                let chains = format!("SELECT u.id FROM unnest({list}) AS u(id)");
                return Ok(vec![self.of_chains(page, &chains, &conditions, wanted.sort)]);
            }
            conditions.push(format!("job.chain_id = ANY ({list})"));
        }
        if let Some(ids) = &wanted.ids {
            let list = page.argument(Argument::Ids(ids.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(format!("job.id = ANY ({list})"));
            return Ok(vec![self.by_conditions(page, &conditions)]);
        }
        if let Some(types) = &self.chain_types
            && has_few_chains(session, store, types).await?
        {
            let list = page.argument(Argument::Numbers(types.clone()));
            let chains = fill(text::CHAINS_OF_TYPES, &Filling::none().with("types", list));
            return Ok(vec![self.of_chains(page, &chains, &conditions, wanted.sort)]);
        }
        self.by_status(session, store, page, wanted.sort).await
    }

    /// The jobs that meet conditions.
    fn by_conditions(&self, page: &Page, conditions: &[String]) -> String {
        let filling = Filling::none()
            .with("value", self.value)
            .with("conditions", where_all(conditions))
            .with("cut", page.cut("value", "job.id"));
        fill(text::JOBS_BY_CONDITION, &filling)
    }

    /// The jobs that have a chain as blocker.
    fn dependants(&self, page: &Page, chain: &str, conditions: &[String]) -> String {
        let filling = Filling::none()
            .with("chain", chain)
            .with("value", self.value)
            .with("conditions", where_all(conditions))
            .with("cut", page.cut("value", "job.id"));
        fill(text::DEPENDANTS_OF_CHAIN, &filling)
    }

    /// The jobs of chains.
    fn of_chains(&self, page: &Page, chains: &str, conditions: &[String], sort: JobSort) -> String {
        let mut conditions = conditions.to_vec();
        // What the index over places in the chain can use.
        let coarse = self.cursor.as_ref().filter(|_| sort == JobSort::ChainIndex);
        conditions.extend(coarse.map(|cursor| cursor.coarse(self.value)));
        let cut_chain = match sort {
            JobSort::CreatedAt => String::new(),
            JobSort::ChainIndex => page.cut("job.chain_index", "job.id"),
        };
        let filling = Filling::none()
            .with("chains", chains)
            .with("value", self.value)
            .with("conditions", and_all(&conditions))
            .with("cut_chain", cut_chain)
            .with("cut", page.cut("value", "job.id"));
        fill(text::JOBS_OF_CHAINS, &filling)
    }

    /// Jobs of any chain. A walk by time finds completed jobs, or jobs in any status: it meets no more unwanted jobs than are open
    /// or stopped. The other statuses have small tables; if these are not so small, then perhaps a walk fills the page soon.
    async fn by_status(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &mut Page,
        sort: JobSort,
    ) -> Result<Vec<String>, StateError> {
        if sort == JobSort::ChainIndex {
            // No index has this order, and callers ask for it only of few chains.
            let conditions: Vec<String> = self.but_status().into_iter().chain(self.of_status.clone()).collect();
            return Ok(vec![self.by_conditions(page, &conditions)]);
        }
        let merge = self.merge(page);
        let Some(statuses) = &self.statuses else {
            return Ok(vec![match &self.of_chain_type {
                None => merge.first(page),
                Some(condition) => far(session, store, page, &merge, &Wanted::new(condition)).await?,
            }]);
        };
        let mut sources = Vec::new();
        let (completed, open): (Vec<JobStatus>, Vec<JobStatus>) =
            statuses.iter().partition(|status| **status == JobStatus::Completed);
        if !completed.is_empty() {
            sources.push(far(session, store, page, &merge, &self.wanted(&completed)).await?);
        }
        let types = self.list.as_ref().map(|_| &*self.types);
        if !are_few(session, store, &open, types).await? {
            let wanted = self.wanted(&open);
            if let Some(bound) = page.walk(session, store, &merge, &wanted, Some(STEPS)).await? {
                sources.push(merge.up_to(page, &bound, &wanted));
                return Ok(sources);
            }
        }
        for table in Table::ALL {
            if let Some(which) = which(table, &open) {
                sources.push(self.in_table(page, table, which));
            }
        }
        Ok(sources)
    }

    /// All rows of a small table, sorted.
    fn in_table(&self, page: &Page, table: Table, which: &str) -> String {
        let mut state_conditions = vec![which.to_owned()];
        state_conditions.extend(self.list.as_ref().and_then(|list| of_types(table, list)));
        let filling = Filling::none()
            .with("table", table.name())
            .with("state_conditions", state_conditions.join(" AND "))
            .with("conditions", where_all(&self.but_status()))
            .with("cut", page.cut("value", "job.id"));
        fill(text::JOBS_IN_TABLE, &filling)
    }

    /// All jobs by time, first ones and others apart, as their indexes have them. What no index knows is asked of each job
    /// only after the merge: a run that asked for it would read on until it found one.
    fn merge(&self, page: &mut Page) -> Merge {
        let first: Vec<i32> = match &self.chain_types {
            Some(chain_types) => self
                .types
                .iter()
                .copied()
                .filter(|number| chain_types.binary_search(number).is_ok())
                .collect(),
            None => self.types.clone(),
        };
        let conditions = self.of_time.iter().cloned().chain(self.after()).collect();
        let mut merge = Merge::new("job", "job.created_at", conditions);
        for (types, kind) in [(first, "chain_index = 0"), (self.types.clone(), "chain_index > 0")] {
            if !types.is_empty() {
                let count = types.len();
                let types = page.argument(Argument::Numbers(types));
                let run = Filling::none().with("kind", kind);
                merge.add(text::RUN_OF_JOBS, &run, &types, count);
            }
        }
        merge
    }

    /// The rows of the merge that are wanted.
    fn wanted(&self, statuses: &[JobStatus]) -> Wanted {
        let of_status = has_status("job.id", statuses);
        Wanted::new(match &self.of_chain_type {
            Some(of_chain_type) => format!("{of_chain_type} AND {of_status}"),
            None => of_status,
        })
    }
}

/// The first wanted rows of a merge, however many rows lie before them.
async fn far(
    session: &mut Session<'_>,
    store: &Store,
    page: &Page,
    merge: &Merge,
    wanted: &Wanted,
) -> Result<String, StateError> {
    let bound = page.walk(session, store, merge, wanted, None).await?;
    Ok(merge.up_to(page, &bound.unwrap_or_default(), wanted))
}

/// Whether there are few chains of these types.
async fn has_few_chains(session: &mut Session<'_>, store: &Store, types: &[i32]) -> Result<bool, StateError> {
    let statement = store.statement(text::COUNT_CHAINS_OF_TYPES, Filling::none().with("limit", FEW + 1));
    let rows = session.fetch(query(&statement).bind(types.to_vec())).await?;
    let found = rows.first().map(|found| number(found, "count")).transpose()?;
    Ok(found.unwrap_or_default() <= FEW)
}
