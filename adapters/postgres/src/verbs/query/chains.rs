//! Pages of chains.

use queuert::adapter::ChainQuery;
use queuert::{ChainRecord, JobStatus, StateError};

use crate::connection::session::Session;
use crate::row::{self, CHAIN, FAILURE, LATEST, STATE, Table};
use crate::store::Store;
use crate::verbs::query::page::{
    Argument, Cursor, Merge, Page, STEPS, are_few, has_status, numbers, statuses, where_all, which,
};

/// What the page has to do with a chain's first job.
const JOINED: &str = "CROSS JOIN LATERAL (SELECT * FROM {schema}.job AS f WHERE f.id = p.id OFFSET 0) AS f CROSS JOIN ";

/// The latest job of the chain that starts with `f`. Computed once for each, hence the fence.
const LATEST_OF: &str = "CROSS JOIN LATERAL (SELECT coalesce((SELECT n.id FROM {schema}.job AS n WHERE n.chain_id = f.id \
     AND n.chain_index > 0 ORDER BY n.chain_index DESC LIMIT 1), f.id) AS id OFFSET 0) AS l";

pub(crate) async fn list_chains(
    session: &mut Session<'_>,
    store: &Store,
    wanted: &ChainQuery,
) -> Result<Vec<ChainRecord>, StateError> {
    let types = numbers(session, store, wanted.types.as_deref()).await?;
    if wanted.limit == 0 || types.is_empty() {
        return Ok(Vec::new());
    }
    let mut page = Page::new(wanted.order, wanted.limit);
    let filter = Filter::new(&mut page, wanted, types);
    let sources = match filter.named(&mut page, wanted) {
        Some(source) => vec![source],
        None => filter.by_status(session, store, &mut page).await?,
    };
    let joined = format!("{JOINED}{LATEST} CROSS JOIN {STATE} {FAILURE}");
    let rows = page.read(session, store, CHAIN, &sources, &joined).await?;
    row::chains(session, store, &rows).await
}

/// What is asked of a chain: of its first job `f`, or of a row that has a copy of its time and type.
struct Filter {
    types: Vec<i32>,
    /// The numbers of the types, as a text refers to them.
    list: String,
    /// Whether only some types are wanted.
    typed: bool,
    statuses: Option<Vec<JobStatus>>,
    from_to: Vec<String>,
    cursor: Option<Cursor>,
    /// That nobody waits for the chain.
    root: Option<&'static str>,
}

impl Filter {
    fn new(page: &mut Page, wanted: &ChainQuery, types: Vec<i32>) -> Self {
        Self {
            list: page.argument(Argument::Numbers(types.clone())),
            types,
            typed: wanted.types.is_some(),
            statuses: statuses(wanted.statuses.as_deref()),
            from_to: page.between("f.created_at", wanted.created_from, wanted.created_to),
            cursor: page.after(wanted.after),
            root: wanted
                .roots_only
                .then_some("(SELECT 1 FROM {schema}.blocker AS b WHERE b.chain_id = f.id LIMIT 1) IS NULL"),
        }
    }

    /// Conditions on the time, and on where the page begins.
    fn of_time(&self) -> Vec<String> {
        let after = self.cursor.iter().map(|cursor| cursor.exact("f.created_at", "f.id"));
        self.from_to.iter().cloned().chain(after).collect()
    }

    /// Conditions on the time, the type and the dependants.
    fn but_status(&self) -> Vec<String> {
        let mut conditions = self.of_time();
        if self.typed {
            conditions.push(format!("f.type_id = ANY ({})", self.list));
        }
        conditions.extend(self.root.map(str::to_owned));
        conditions
    }

    /// Chains that are given by their ids, or by those of jobs.
    fn named(&self, page: &mut Page, wanted: &ChainQuery) -> Option<String> {
        let mut conditions = self.but_status();
        if let Some(ids) = &wanted.ids {
            let list = page.argument(Argument::Ids(ids.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(format!("f.id = ANY ({list})"));
        }
        if let Some(jobs) = &wanted.jobs {
            let list = page.argument(Argument::Ids(jobs.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(format!(
                "f.id = ANY (ARRAY(SELECT j.chain_id FROM {{schema}}.job AS j WHERE j.id = ANY ({list})))"
            ));
        }
        if wanted.ids.is_none() && wanted.jobs.is_none() {
            return None;
        }
        conditions.push("f.chain_index = 0".to_owned());
        let statuses = self.statuses.as_deref();
        conditions.extend(statuses.map(|statuses| has_status("l.id", statuses)));
        let (which, cut) = (where_all(&conditions), page.cut("value", "f.id"));
        Some(format!(
            "SELECT f.id, f.created_at AS value FROM {{schema}}.job AS f {LATEST_OF}{which}{cut}"
        ))
    }

    /// Ended chains have indexes in the order of the page. Open ones are in small tables; if these are not so small, then
    /// perhaps a walk by time fills the page soon. Chains in any status are walked through by time.
    async fn by_status(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &mut Page,
    ) -> Result<Vec<String>, StateError> {
        let merge = self.merge();
        let Some(statuses) = &self.statuses else {
            let Some(asked) = self.root else {
                return Ok(vec![merge.first(page)]);
            };
            let way = page.walk(session, store, &merge, "f", asked, None).await?;
            return Ok(vec![merge.on_the_way(page, &way.unwrap_or_default(), "f", asked)]);
        };
        let mut sources = Vec::new();
        let (open, ended): (Vec<JobStatus>, Vec<JobStatus>) = statuses.iter().partition(|status| status.is_open());
        for status in ended {
            sources.push(match status {
                JobStatus::Completed => self.ended(session, store, page, "result", "x.final").await?,
                JobStatus::Dead => self.ended(session, store, page, "stopped", "x.status = 4").await?,
                _ => self.ended(session, store, page, "stopped", "x.status = 5").await?,
            });
        }
        if !are_few(session, store, &open, None).await? {
            let joined = format!("f {LATEST_OF}");
            let mut asked = has_status("l.id", &open);
            if let Some(root) = self.root {
                asked = format!("{root} AND {asked}");
            }
            if let Some(way) = page.walk(session, store, &merge, &joined, &asked, Some(STEPS)).await? {
                sources.push(merge.on_the_way(page, &way, &joined, &asked));
                return Ok(sources);
            }
        }
        for table in Table::ALL {
            if which(table, &open).is_some() {
                sources.push(self.in_table(page, table));
            }
        }
        Ok(sources)
    }

    /// All rows of a small table, sorted. A job in one of them is the latest of its chain.
    fn in_table(&self, page: &Page, table: Table) -> String {
        let name = table.name();
        let (which, cut) = (where_all(&self.but_status()), page.cut("value", "f.id"));
        format!(
            "SELECT f.id, f.created_at AS value FROM {{schema}}.{name} AS x CROSS JOIN LATERAL (SELECT j.chain_id AS id, \
             j.chain_created_at AS created_at, j.chain_type_id AS type_id FROM {{schema}}.job AS j WHERE j.id = x.id OFFSET 0) \
             AS f{which}{cut}"
        )
    }

    /// First jobs by time. What no index knows is asked of each chain only after the merge: a run that asked for it would
    /// read on until it found one.
    fn merge(&self) -> Merge {
        let run = "SELECT f.id, f.created_at FROM {schema}.job AS f WHERE f.chain_index = 0 AND f.type_id";
        let mut merge = Merge::new("f", "f.created_at", self.of_time());
        merge.add(run, &self.list, self.types.len());
        merge
    }

    /// Ended chains by time. Their ids are not in the index: chains of one instant are sorted after they were looked up.
    async fn ended(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &Page,
        table: &str,
        which: &str,
    ) -> Result<String, StateError> {
        let column = "x.chain_created_at";
        let run = format!(
            "SELECT x.id, x.chain_created_at AS created_at FROM {{schema}}.{table} AS x WHERE {which} AND x.chain_type_id"
        );
        let bounds: Vec<String> = self
            .from_to
            .iter()
            .map(|bound| bound.replace("f.created_at", column))
            .collect();
        let merge = |further: Option<String>| {
            let mut merge = Merge::new("x", column, bounds.iter().cloned().chain(further).collect());
            merge.add(&run, &self.list, self.types.len());
            merge
        };
        let first =
            "CROSS JOIN LATERAL (SELECT j.chain_id AS id FROM {schema}.job AS j WHERE j.id = x.id OFFSET 0) AS f";
        let after = self.cursor.as_ref().map(|cursor| cursor.exact("x.created_at", "f.id"));
        let asked: Vec<String> = after.into_iter().chain(self.root.map(str::to_owned)).collect();
        let cut = page.cut("x.created_at", "f.id");
        let rows = if self.root.is_some() {
            let merge = merge(self.cursor.as_ref().map(|cursor| cursor.coarse(column)));
            let (joined, asked) = (format!("x {first}"), asked.join(" AND "));
            let way = page.walk(session, store, &merge, &joined, &asked, None).await?;
            merge.rows(&way.unwrap_or_default(), "")
        } else {
            // Those of the very time at which the page begins are asked for by themselves: how many of them come before
            // it, no index knows.
            let ties = page.cut_ties(page.reach());
            let runs = match &self.cursor {
                Some(cursor) => cursor.apart(column).map(|part| merge(Some(part))).into_iter().collect(),
                None => vec![merge(None)],
            };
            let parts = runs.iter().zip([&*ties, ""]).map(|(merge, cut)| match cut {
                "" => merge.rows(&[], ""),
                cut => format!("(SELECT * FROM ({}) AS u{cut})", merge.rows(&[], cut)),
            });
            parts.collect::<Vec<_>>().join(" UNION ALL ")
        };
        let which = where_all(&asked);
        Ok(format!(
            "SELECT f.id, x.created_at AS value FROM ({rows}) AS x {first}{which}{cut}"
        ))
    }
}
