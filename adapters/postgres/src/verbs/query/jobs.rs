//! Pages of jobs.

use queuert::adapter::{JobQuery, JobSort};
use queuert::{JobRecord, JobStatus, StateError};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::row::{self, FAILURE, JOB, STATE, Table};
use crate::store::Store;
use crate::verbs::query::page::{
    Argument, Cursor, FEW, Merge, Page, STEPS, are_few, has_status, numbers, of_type, statuses, where_all, which,
};

/// What the page has to do with a job: the rest is in the statement's end.
const JOINED: &str = "CROSS JOIN LATERAL (SELECT * FROM {schema}.job AS j WHERE j.id = p.id OFFSET 0) AS j CROSS JOIN ";

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
    let joined = format!("{JOINED}{STATE} {FAILURE}");
    let rows = page.read(session, store, JOB, &sources, &joined).await?;
    let jobs = row::jobs(session, store, &rows).await?;
    Ok(jobs.into_iter().map(|stored| stored.job).collect())
}

/// What is asked of a job `j`.
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
            JobSort::CreatedAt => "j.created_at",
            JobSort::ChainIndex => "j.chain_index",
        };
        let mut list = |types: &Vec<i32>| page.argument(Argument::Numbers(types.clone()));
        let types_list = wanted.types.as_ref().map(|_| list(&types));
        let of_type = types_list.as_ref().map(|list| format!("j.type_id = ANY ({list})"));
        let of_chain_type = chain_types.as_ref().map(&mut list);
        let of_chain_type = of_chain_type.map(|list| format!("j.chain_type_id = ANY ({list})"));
        let statuses = statuses(wanted.statuses.as_deref());
        Self {
            of_status: statuses.as_deref().map(|statuses| has_status("j.id", statuses)),
            of_time: page.between("j.created_at", wanted.created_from, wanted.created_to),
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
        self.cursor.as_ref().map(|cursor| cursor.exact(self.value, "j.id"))
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
            conditions.push(format!(
                "(SELECT 1 FROM {{schema}}.blocker AS b WHERE b.chain_id = {chain} AND b.job_id = j.id LIMIT 1) IS NOT NULL"
            ));
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
            conditions.push(format!("j.chain_id = ANY ({list})"));
        }
        if let Some(ids) = &wanted.ids {
            let list = page.argument(Argument::Ids(ids.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(format!("j.id = ANY ({list})"));
            let (value, which) = (self.value, where_all(&conditions));
            let cut = page.cut("value", "j.id");
            return Ok(vec![format!(
                "SELECT j.id, {value}::bigint AS value FROM {{schema}}.job AS j{which}{cut}"
            )]);
        }
        if let Some(types) = &self.chain_types
            && has_few_chains(session, store, types).await?
        {
            let list = page.argument(Argument::Numbers(types.clone()));
            let chains = format!(
                "SELECT f.id FROM unnest({list}) AS t(id) CROSS JOIN LATERAL (SELECT f.id FROM {{schema}}.job AS f \
                 WHERE f.type_id = t.id AND f.chain_index = 0 OFFSET 0) AS f"
            );
            return Ok(vec![self.of_chains(page, &chains, &conditions, wanted.sort)]);
        }
        self.by_status(session, store, page, wanted.sort).await
    }

    /// The jobs that have a chain as blocker.
    fn dependants(&self, page: &Page, chain: &str, conditions: &[String]) -> String {
        let (value, which) = (self.value, where_all(conditions));
        let cut = page.cut("value", "j.id");
        format!(
            "SELECT j.id, {value}::bigint AS value FROM (SELECT DISTINCT b.job_id AS id FROM {{schema}}.blocker AS b \
             WHERE b.chain_id = {chain}) AS b CROSS JOIN LATERAL (SELECT * FROM {{schema}}.job AS j WHERE j.id = b.id OFFSET 0) \
             AS j{which}{cut}"
        )
    }

    /// The jobs of chains. A chain may be long: by place, no more of each is read than the page can hold.
    fn of_chains(&self, page: &Page, chains: &str, conditions: &[String], sort: JobSort) -> String {
        let value = self.value;
        let mut conditions = conditions.to_vec();
        // What the index over places can use.
        let coarse = self.cursor.as_ref().filter(|_| sort == JobSort::ChainIndex);
        conditions.extend(coarse.map(|cursor| cursor.coarse(value)));
        let and: String = conditions.iter().map(|condition| format!(" AND {condition}")).collect();
        let cut_chain = match sort {
            JobSort::CreatedAt => String::new(),
            JobSort::ChainIndex => page.cut("j.chain_index", "j.id"),
        };
        let cut = page.cut("value", "j.id");
        format!(
            "SELECT j.id, {value}::bigint AS value FROM ({chains}) AS c CROSS JOIN LATERAL (\
             (SELECT j.id, j.created_at, j.chain_index FROM {{schema}}.job AS j \
             WHERE j.id = c.id AND j.chain_index = 0{and}) UNION ALL \
             (SELECT j.id, j.created_at, j.chain_index FROM {{schema}}.job AS j \
             WHERE j.chain_id = c.id AND j.chain_index > 0{and}{cut_chain}) OFFSET 0) AS j{cut}"
        )
    }

    /// Jobs of any chain. What is completed, or in any status, is walked through by time: on the way lies no more that
    /// is not wanted than what is open or stopped. The other statuses have small tables; if these are not so small, then
    /// perhaps a walk fills the page soon.
    async fn by_status(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &mut Page,
        sort: JobSort,
    ) -> Result<Vec<String>, StateError> {
        if sort == JobSort::ChainIndex {
            // Nothing is in this order, and nobody asks for it except of few chains.
            let conditions: Vec<String> = self.but_status().into_iter().chain(self.of_status.clone()).collect();
            let (which, cut) = (where_all(&conditions), page.cut("value", "j.id"));
            return Ok(vec![format!(
                "SELECT j.id, j.chain_index::bigint AS value FROM {{schema}}.job AS j{which}{cut}"
            )]);
        }
        let merge = self.merge(page);
        let Some(statuses) = &self.statuses else {
            return Ok(vec![match &self.of_chain_type {
                None => merge.first(page),
                Some(asked) => far(session, store, page, &merge, asked).await?,
            }]);
        };
        let mut sources = Vec::new();
        let (completed, open): (Vec<JobStatus>, Vec<JobStatus>) =
            statuses.iter().partition(|status| **status == JobStatus::Completed);
        if !completed.is_empty() {
            sources.push(far(session, store, page, &merge, &self.asked(&completed)).await?);
        }
        let types = self.list.as_ref().map(|_| &*self.types);
        if !are_few(session, store, &open, types).await? {
            let asked = self.asked(&open);
            if let Some(way) = page.walk(session, store, &merge, "j", &asked, Some(STEPS)).await? {
                sources.push(merge.on_the_way(page, &way, "j", &asked));
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
        let name = table.name();
        let conditions = where_all(&self.but_status());
        let cut = page.cut("value", "j.id");
        let of_type = self.list.as_ref().map_or_else(String::new, |list| of_type(table, list));
        format!(
            "SELECT j.id, j.created_at AS value FROM (SELECT x.id FROM {{schema}}.{name} AS x WHERE true{which}{of_type}) AS x \
             CROSS JOIN LATERAL (SELECT * FROM {{schema}}.job AS j WHERE j.id = x.id OFFSET 0) AS j{conditions}{cut}"
        )
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
        let mut merge = Merge::new("j", "j.created_at", conditions);
        for (types, kind) in [(first, "chain_index = 0"), (self.types.clone(), "chain_index > 0")] {
            if !types.is_empty() {
                let count = types.len();
                let types = page.argument(Argument::Numbers(types));
                let run = format!(
                    "SELECT j.id, j.created_at, j.chain_type_id FROM {{schema}}.job AS j WHERE j.{kind} AND j.type_id"
                );
                merge.add(&run, &types, count);
            }
        }
        merge
    }

    /// What is asked of a job after the merge.
    fn asked(&self, statuses: &[JobStatus]) -> String {
        let of_status = has_status("j.id", statuses);
        match &self.of_chain_type {
            Some(of_chain_type) => format!("{of_chain_type} AND {of_status}"),
            None => of_status,
        }
    }
}

/// The first jobs of a merge that have what is asked for, however far the way.
async fn far(
    session: &mut Session<'_>,
    store: &Store,
    page: &Page,
    merge: &Merge,
    asked: &str,
) -> Result<String, StateError> {
    let way = page.walk(session, store, merge, "j", asked, None).await?;
    Ok(merge.on_the_way(page, &way.unwrap_or_default(), "j", asked))
}

/// Whether there are few chains of these types.
async fn has_few_chains(session: &mut Session<'_>, store: &Store, types: &[i32]) -> Result<bool, StateError> {
    let limit = FEW + 1;
    let text = store.render(&format!(
        "SELECT count(*) FROM (SELECT 1 FROM unnest($1::integer[]) AS t(id) CROSS JOIN LATERAL (\
         SELECT 1 FROM {{schema}}.job AS f WHERE f.type_id = t.id AND f.chain_index = 0 LIMIT {limit}) AS f \
         LIMIT {limit}) AS u"
    ));
    let rows = session.fetch(query(&text).bind(types.to_vec())).await?;
    let found = rows.first().map(|found| row::get::<i64>(found, 0)).transpose()?;
    Ok(usize::try_from(found.unwrap_or_default()).unwrap_or_default() <= FEW)
}
