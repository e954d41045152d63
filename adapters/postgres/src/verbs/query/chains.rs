//! Pages of chains.

use queuert::adapter::ChainQuery;
use queuert::{ChainRecord, JobStatus, StateError};

use crate::connection::session::Session;
use crate::row::{self, Table};
use crate::statements::{Filling, fill, text};
use crate::store::Store;
use crate::verbs::query::page::{
    Argument, Cursor, Merge, Page, STEPS, Wanted, are_few, has_status, numbers, statuses, where_all, which,
};

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
    let rows = page.read(session, store, text::PAGE_OF_CHAINS, &sources).await?;
    row::chains(session, store, &rows).await
}

/// The conditions on a chain: on its first job `first`, or on a row that has a copy of its time and type.
struct Filter {
    types: Vec<i32>,
    /// The numbers of the types, as a text refers to them.
    list: String,
    /// Whether only some types are wanted.
    typed: bool,
    statuses: Option<Vec<JobStatus>>,
    from_to: Vec<String>,
    cursor: Option<Cursor>,
    /// That no job waits for the chain.
    root: Option<String>,
}

impl Filter {
    fn new(page: &mut Page, wanted: &ChainQuery, types: Vec<i32>) -> Self {
        Self {
            list: page.argument(Argument::Numbers(types.clone())),
            types,
            typed: wanted.types.is_some(),
            statuses: statuses(wanted.statuses.as_deref()),
            from_to: page.between("first.created_at", wanted.created_from, wanted.created_to),
            cursor: page.after(wanted.after),
            root: wanted.roots_only.then(|| fill(text::IS_ROOT, &Filling::none())),
        }
    }

    /// Conditions on the time, and on where the page begins.
    fn of_time(&self) -> Vec<String> {
        let after = self
            .cursor
            .iter()
            .map(|cursor| cursor.exact("first.created_at", "first.id"));
        self.from_to.iter().cloned().chain(after).collect()
    }

    /// Conditions on the time, the type and the dependants.
    fn but_status(&self) -> Vec<String> {
        let mut conditions = self.of_time();
        if self.typed {
            conditions.push(format!("first.type_id = ANY ({})", self.list));
        }
        conditions.extend(self.root.clone());
        conditions
    }

    /// Chains that are given by their ids, or by the ids of their jobs.
    fn named(&self, page: &mut Page, wanted: &ChainQuery) -> Option<String> {
        let mut conditions = self.but_status();
        if let Some(ids) = &wanted.ids {
            let list = page.argument(Argument::Ids(ids.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(format!("first.id = ANY ({list})"));
        }
        if let Some(jobs) = &wanted.jobs {
            let list = page.argument(Argument::Ids(jobs.iter().map(|id| id.as_uuid()).collect()));
            conditions.push(fill(text::IS_CHAIN_OF_JOBS, &Filling::none().with("jobs", list)));
        }
        if wanted.ids.is_none() && wanted.jobs.is_none() {
            return None;
        }
        conditions.push("first.chain_index = 0".to_owned());
        let statuses = self.statuses.as_deref();
        conditions.extend(statuses.map(|statuses| has_status("latest.id", statuses)));
        let filling = Filling::none()
            .with("conditions", where_all(&conditions))
            .with("cut", page.cut("value", "first.id"));
        Some(fill(text::CHAINS_BY_CONDITION, &filling))
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
            let Some(root) = &self.root else {
                return Ok(vec![merge.first(page)]);
            };
            let wanted = Wanted::new(root);
            let bound = page.walk(session, store, &merge, &wanted, None).await?;
            return Ok(vec![merge.up_to(page, &bound.unwrap_or_default(), &wanted)]);
        };
        let mut sources = Vec::new();
        let (open, ended): (Vec<JobStatus>, Vec<JobStatus>) = statuses.iter().partition(|status| status.is_open());
        for status in ended {
            sources.push(match status {
                JobStatus::Completed => self.ended(session, store, page, "result", "last.final").await?,
                JobStatus::Dead => self.ended(session, store, page, "stopped", "last.status = 4").await?,
                _ => self.ended(session, store, page, "stopped", "last.status = 5").await?,
            });
        }
        if !are_few(session, store, &open, None).await? {
            let of_status = has_status("latest.id", &open);
            let wanted = Wanted {
                joined: fill("{latest_of_first}", &Filling::none()),
                condition: match &self.root {
                    Some(root) => format!("{root} AND {of_status}"),
                    None => of_status,
                },
            };
            if let Some(bound) = page.walk(session, store, &merge, &wanted, Some(STEPS)).await? {
                sources.push(merge.up_to(page, &bound, &wanted));
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
        let filling = Filling::none()
            .with("table", table.name())
            .with("conditions", where_all(&self.but_status()))
            .with("cut", page.cut("value", "first.id"));
        fill(text::CHAINS_IN_TABLE, &filling)
    }

    /// First jobs by time. What no index knows is asked of each chain only after the merge: a run that asked for it would
    /// read on until it found one.
    fn merge(&self) -> Merge {
        let mut merge = Merge::new("first", "first.created_at", self.of_time());
        merge.add(text::RUN_OF_FIRST_JOBS, &Filling::none(), &self.list, self.types.len());
        merge
    }

    /// Ended chains by time. Their ids are not in the index: chains of one instant are sorted after they were looked up.
    async fn ended(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        page: &Page,
        table: &str,
        ended: &str,
    ) -> Result<String, StateError> {
        let column = "last.chain_created_at";
        let run = Filling::none().with("table", table).with("ended", ended);
        let bounds: Vec<String> = self
            .from_to
            .iter()
            .map(|bound| bound.replace("first.created_at", column))
            .collect();
        let merge = |further: Option<String>| {
            let mut merge = Merge::new("last", column, bounds.iter().cloned().chain(further).collect());
            merge.add(text::RUN_OF_ENDED, &run, &self.list, self.types.len());
            merge
        };
        let after = self.cursor.as_ref();
        let after = after.map(|cursor| cursor.exact("last.created_at", "first.id"));
        let conditions: Vec<String> = after.into_iter().chain(self.root.clone()).collect();
        let rows = if self.root.is_some() {
            let merge = merge(self.cursor.as_ref().map(|cursor| cursor.coarse(column)));
            let wanted = Wanted {
                joined: fill("{first_of_last}", &Filling::none()),
                condition: conditions.join(" AND "),
            };
            let bound = page.walk(session, store, &merge, &wanted, None).await?;
            merge.rows(&bound.unwrap_or_default(), "")
        } else {
            // Chains of the very time at which the page begins are asked for by themselves: how many of them come before the
            // page, no index knows.
            let ties = page.cut_ties(page.reach());
            let runs = match &self.cursor {
                Some(cursor) => cursor.apart(column).map(|part| merge(Some(part))).into_iter().collect(),
                None => vec![merge(None)],
            };
            let parts = runs.iter().zip([&*ties, ""]).map(|(merge, cut)| match cut {
                "" => merge.rows(&[], ""),
                cut => {
                    let filling = Filling::none().with("merge", merge.rows(&[], cut)).with("cut", cut);
                    fill(text::TIES, &filling)
                }
            });
            parts.collect::<Vec<_>>().join("\nUNION ALL\n")
        };
        let filling = Filling::none()
            .with("merge", rows)
            .with("conditions", where_all(&conditions))
            .with("cut", page.cut("last.created_at", "first.id"));
        Ok(fill(text::ENDED_CHAINS, &filling))
    }
}
