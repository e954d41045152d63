//! Pages: what lists of jobs and of chains share. A page is cut from sources, each of which is in order and limited. No source
//! may have to read finished jobs in order to find unfinished ones.

use queuert::adapter::{Order, Position};
use queuert::{JobStatus, StateError, Timestamp, TypeName};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::connection::session::{Query, Session, query};
use crate::row::{self, Table};
use crate::statements::{Filling, fill, text};
use crate::store::Store;

/// Up to here the rows of the small tables are all looked up and sorted for a page.
pub(crate) const FEW: usize = 10_000;

/// How many steps a walk by time goes, in the hope of a full page, where there is another way.
pub(crate) const STEPS: usize = 11;

/// How many rows the first step of a walk looks at, and how many each of the others.
const FIRST_STEP: usize = 500;
const STEP: usize = 2_000;

/// As many as there are. A number, because a plan for any number might sort everything first.
const ALL: usize = 1_000_000_000_000;

/// A page in the making: its arguments, numbered as they come, and how it is cut.
#[derive(Debug)]
pub(crate) struct Page {
    arguments: Vec<Argument>,
    order: Order,
    limit: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Number(i64),
    Numbers(Vec<i32>),
    Id(Uuid),
    Ids(Vec<Uuid>),
}

impl Page {
    pub(crate) fn new(order: Order, limit: usize) -> Self {
        Self {
            arguments: Vec::new(),
            order,
            limit,
        }
    }

    /// Adds an argument, and returns how a text refers to it.
    pub(crate) fn argument(&mut self, argument: Argument) -> String {
        let kind = match &argument {
            Argument::Number(_) => "bigint",
            Argument::Numbers(_) => "integer[]",
            Argument::Id(_) => "uuid",
            Argument::Ids(_) => "uuid[]",
        };
        self.arguments.push(argument);
        format!("${}::{kind}", self.arguments.len())
    }

    /// How many rows every source gives: a literal, and one of few, so that there are few different texts.
    pub(crate) fn reach(&self) -> usize {
        self.limit.min(ALL).next_power_of_two()
    }

    /// The end of a source, or of the page.
    pub(crate) fn cut(&self, value: &str, id: &str) -> String {
        self.cut_at(value, id, self.reach())
    }

    fn cut_at(&self, value: &str, id: &str, limit: usize) -> String {
        let direction = self.direction();
        format!("ORDER BY {value} {direction}, {id} {direction} LIMIT {limit}")
    }

    /// The end of something whose order is by time alone: it goes on until the time changes.
    pub(crate) fn cut_ties(&self, limit: usize) -> String {
        let direction = self.direction();
        format!("ORDER BY created_at {direction} FETCH FIRST {limit} ROWS WITH TIES")
    }

    fn direction(&self) -> &'static str {
        match self.order {
            Order::OldestFirst => "ASC",
            Order::NewestFirst => "DESC",
        }
    }

    /// The rows after a position.
    pub(crate) fn after(&mut self, after: Option<Position>) -> Option<Cursor> {
        let position = after?;
        let operator = match self.order {
            Order::OldestFirst => '>',
            Order::NewestFirst => '<',
        };
        Some(Cursor {
            operator,
            value: self.argument(Argument::Number(position.value)),
            id: self.argument(Argument::Id(position.id.as_uuid())),
        })
    }

    /// Bounds of a time, as conditions on `value`.
    pub(crate) fn between(&mut self, value: &str, from: Option<Timestamp>, to: Option<Timestamp>) -> Vec<String> {
        let mut conditions = Vec::new();
        for (bound, operator) in [(from, ">="), (to, "<=")] {
            if let Some(bound) = bound {
                let bound = self.argument(Argument::Number(bound.as_micros()));
                conditions.push(format!("{value} {operator} {bound}"));
            }
        }
        conditions
    }

    /// Reads a page from sources of `(id, value)`; without a source the page is empty. The template is the statement around
    /// the sources.
    pub(crate) async fn read(
        self,
        session: &mut Session<'_>,
        store: &Store,
        template: &str,
        sources: &[String],
    ) -> Result<Vec<PgRow>, StateError> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let filling = Filling::none()
            .with("sources", format_args!("({})", sources.join(")\nUNION ALL\n(")))
            .with("cut", self.cut("source.value", "source.id"))
            .with("order", self.cut("page.value", "page.id"));
        let limit = self.limit;
        let mut rows = session.fetch_once(self.bind(store, &fill(template, &filling))).await?;
        rows.truncate(limit);
        Ok(rows)
    }

    /// Walks through a merge by time, a step at a time, until there is a page full of wanted rows. Returns what bounds the
    /// walk, as a further condition on the merge; `None` if it would take more steps than given.
    ///
    /// In steps, because a single statement would have to be planned for any distance.
    pub(crate) async fn walk(
        &self,
        session: &mut Session<'_>,
        store: &Store,
        merge: &Merge,
        wanted: &Wanted,
        steps: Option<usize>,
    ) -> Result<Option<Vec<String>>, StateError> {
        let (further, back, last) = match self.order {
            Order::OldestFirst => (">", "<=", "max"),
            Order::NewestFirst => ("<", ">=", "min"),
        };
        let (mut position, mut found, mut size) = (None, 0, FIRST_STEP);
        for _ in 0..steps.unwrap_or(usize::MAX) {
            let mut step = Self {
                arguments: self.arguments.clone(),
                ..*self
            };
            let mut conditions = Vec::new();
            if let Some(position) = position {
                let position = step.argument(Argument::Number(position));
                conditions.push(format!("{} {further} {position}", merge.column));
            }
            let cut = self.cut_ties(size);
            let filling = wanted.filling(merge).with("merge", merge.rows(&conditions, &cut));
            let text = fill(text::WALK, &filling.with("cut", cut).with("last", last));
            let answer = session.fetch_once(step.bind(store, &text)).await?;
            let Some(answer) = answer.first() else {
                break;
            };
            found += number(answer, "wanted")?;
            position = row::get(answer, "reached")?;
            if number(answer, "read")? < size {
                return Ok(Some(Vec::new()));
            }
            if found >= self.reach()
                && let Some(position) = position
            {
                // A time that is already known, and a plan that may see it.
                return Ok(Some(vec![format!("{} {back} {position}", merge.column)]));
            }
            size = STEP;
        }
        Ok(None)
    }

    fn bind(self, store: &Store, text: &str) -> Query {
        // Not remembered: there are too many ways to ask.
        let mut search = query(&store.schema.complete(text));
        for argument in self.arguments {
            search = match argument {
                Argument::Number(number) => search.bind(number),
                Argument::Numbers(numbers) => search.bind(numbers),
                Argument::Id(id) => search.bind(id),
                Argument::Ids(ids) => search.bind(ids),
            };
        }
        search
    }
}

/// Where a page begins.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    operator: char,
    value: String,
    id: String,
}

impl Cursor {
    /// In a form that an index over both columns can use.
    pub(crate) fn exact(&self, value: &str, id: &str) -> String {
        format!("({value}, {id}) {} ({}, {})", self.operator, self.value, self.id)
    }

    /// What an index over the value alone can use; [`exact`](Self::exact) must follow.
    pub(crate) fn coarse(&self, value: &str) -> String {
        format!("{value} {}= {}", self.operator, self.value)
    }

    /// The rows of other times than that of the position, and the rows of the same time.
    pub(crate) fn apart(&self, value: &str) -> [String; 2] {
        let (operator, position) = (self.operator, &self.value);
        [
            format!("{value} {operator} {position}"),
            format!("{value} = {position}"),
        ]
    }
}

/// `AND` and a condition, for all conditions.
pub(crate) fn and_all<'a>(conditions: impl IntoIterator<Item = &'a String>) -> String {
    let conditions: Vec<String> = conditions
        .into_iter()
        .map(|condition| format!("AND {condition}"))
        .collect();
    conditions.join("\n")
}

/// `WHERE` and all conditions, or nothing.
pub(crate) fn where_all<'a>(conditions: impl IntoIterator<Item = &'a String>) -> String {
    let conditions: Vec<&str> = conditions.into_iter().map(String::as_str).collect();
    if conditions.is_empty() {
        String::new()
    } else {
        format!("WHERE {}", conditions.join(" AND "))
    }
}

/// Up to how many types a merge has a run for each. The server plans every run, and gives up on a few thousand of them.
const MOST_RUNS: usize = 256;

/// The rows of a merge that are wanted.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// What is joined to a row of the merge for the condition.
    pub(crate) joined: String,
    pub(crate) condition: String,
}

impl Wanted {
    /// A condition that needs nothing but the row itself.
    pub(crate) fn new(condition: impl Into<String>) -> Self {
        Self {
            joined: String::new(),
            condition: condition.into(),
        }
    }

    fn filling(&self, merge: &Merge) -> Filling {
        let filling = Filling::none().with("name", merge.name).with("joined", &self.joined);
        filling.with("wanted", &self.condition)
    }
}

/// A merge by time: one run per type, each in order, of which no more is read than is needed. Of more than [`MOST_RUNS`] types,
/// as much of each is read as the page can hold.
#[derive(Debug)]
pub(crate) struct Merge {
    branches: Vec<Branch>,
    conditions: Vec<String>,
    /// The alias of a row.
    name: &'static str,
    /// The column that has the time, which a run calls `created_at`.
    column: &'static str,
}

/// A part of a merge.
#[derive(Debug)]
struct Branch {
    /// The list of the types `run_type.id`, if the branch has the runs of several types.
    types: Option<String>,
    template: &'static str,
    filling: Filling,
}

impl Merge {
    /// Conditions are on the columns of the table, and such that the index of the runs can use them.
    pub(crate) fn new(name: &'static str, column: &'static str, conditions: Vec<String>) -> Self {
        Self {
            branches: Vec::new(),
            conditions,
            name,
            column,
        }
    }

    /// Adds a run per type: the template has gaps for the type, the conditions and the cut. The number of runs is rounded up,
    /// so that there are few different texts: beyond the end of the list there is no type, and no row.
    pub(crate) fn add(&mut self, template: &'static str, filling: &Filling, types: &str, count: usize) {
        if count > MOST_RUNS {
            self.branches.push(Branch {
                types: Some(types.to_owned()),
                template,
                filling: filling.clone().with("type", "run_type.id"),
            });
            return;
        }
        let places = 1..=count.next_power_of_two();
        self.branches.extend(places.map(|place| Branch {
            types: None,
            template,
            filling: filling.clone().with("type", format_args!("({types})[{place}]")),
        }));
    }

    /// The rows that meet further conditions. Each run is in order and limited by itself: a planner that is not told
    /// so sorts them.
    pub(crate) fn rows(&self, further: &[String], cut: &str) -> String {
        let conditions = and_all(self.conditions.iter().chain(further));
        let run = |branch: &Branch| {
            let filling = branch.filling.clone().with("conditions", &conditions).with("cut", cut);
            let run = fill(branch.template, &filling);
            match &branch.types {
                None => format!("(\n{run}\n)"),
                Some(types) => fill(
                    text::RUN_OF_TYPES,
                    &Filling::none().with("types", types).with("run", run),
                ),
            }
        };
        self.branches.iter().map(run).collect::<Vec<_>>().join("\nUNION ALL\n")
    }

    /// The first rows, up to a page.
    pub(crate) fn first(&self, page: &Page) -> String {
        let cut = page.cut("created_at", "id");
        let filling = Filling::none().with("merge", self.rows(&[], &cut)).with("cut", cut);
        fill(text::SOURCE_OF_MERGE, &filling)
    }

    /// The wanted rows up to the bound that [`Page::walk`] has found.
    pub(crate) fn up_to(&self, page: &Page, bound: &[String], wanted: &Wanted) -> String {
        let cut = page.cut_at("created_at", "id", ALL);
        let filling = wanted
            .filling(self)
            .with("merge", self.rows(bound, &cut))
            .with("cut", cut);
        fill(text::SOURCE_OF_WALK, &filling.with("limit", page.reach()))
    }
}

pub(crate) fn number(answer: &PgRow, column: &str) -> Result<usize, StateError> {
    Ok(usize::try_from(row::get::<i64>(answer, column)?).unwrap_or_default())
}

/// A condition: whether the job with this id is in one of these statuses. A scalar subquery, because a join or `EXISTS`
/// might be turned into one that reads the tables from end to end.
pub(crate) fn has_status(id: &str, statuses: &[JobStatus]) -> String {
    let mut tables = Vec::new();
    for table in Table::ALL {
        if let Some(condition) = which(table, statuses) {
            let filling = Filling::none().with("table", table.name()).with("id", id);
            tables.push(fill(
                text::IS_IN_TABLE,
                &filling.with("conditions", format_args!("AND {condition}")),
            ));
        }
    }
    if tables.is_empty() {
        return "false".to_owned();
    }
    format!("(\n{}\nLIMIT 1\n) IS NOT NULL", tables.join("\nUNION ALL\n"))
}

/// Which rows `state_row` of a table are in one of these statuses, as a condition; `None` if none is.
pub(crate) fn which(table: Table, statuses: &[JobStatus]) -> Option<&'static str> {
    let has = |status| statuses.contains(&status);
    match table {
        Table::Ready | Table::Later => has(JobStatus::Pending).then_some("true"),
        Table::Waiting => has(JobStatus::Blocked).then_some("true"),
        Table::Running => has(JobStatus::Running).then_some("true"),
        Table::Result => has(JobStatus::Completed).then_some("true"),
        Table::Stopped => match (has(JobStatus::Dead), has(JobStatus::Cancelled)) {
            (true, true) => Some("true"),
            (true, false) => Some("state_row.status = 4"),
            (false, true) => Some("state_row.status = 5"),
            (false, false) => None,
        },
    }
}

/// Whether the rows in these statuses are few, counted until there are clearly more. If types are given, only rows of these
/// types count, in tables that have the type.
pub(crate) async fn are_few(
    session: &mut Session<'_>,
    store: &Store,
    statuses: &[JobStatus],
    types: Option<&[i32]>,
) -> Result<bool, StateError> {
    let mut counts = Vec::new();
    for table in Table::ALL {
        if let Some(condition) = which(table, statuses) {
            let of_types = types.and_then(|_| of_types(table, "$1::integer[]"));
            let conditions: Vec<String> = of_types.into_iter().chain([condition.to_owned()]).collect();
            let filling = Filling::none().with("table", table.name()).with("limit", FEW + 1);
            counts.push(fill(
                text::COUNT_OF_TABLE,
                &filling.with("conditions", conditions.join(" AND ")),
            ));
        }
    }
    if counts.is_empty() {
        return Ok(true);
    }
    let statement = store.statement(text::COUNT_ROWS, Filling::none().with("counts", counts.join("\n+ ")));
    let mut count = query(&statement);
    if let Some(types) = types {
        count = count.bind(types.to_vec());
    }
    let rows = session.fetch(count).await?;
    let found = rows.first().map(|found| number(found, "count")).transpose()?;
    Ok(found.unwrap_or_default() <= FEW)
}

/// Which rows `state_row` of a table are of one of the types in a list, as a condition; `None` if the table does not tell.
pub(crate) fn of_types(table: Table, list: &str) -> Option<String> {
    match table {
        Table::Ready | Table::Later | Table::Waiting | Table::Running => {
            Some(format!("state_row.type_id = ANY ({list})"))
        }
        Table::Result | Table::Stopped => None,
    }
}

/// The numbers of the types that a filter lets through. A type that does not exist matches nothing.
pub(crate) async fn numbers(
    session: &mut Session<'_>,
    store: &Store,
    filter: Option<&[TypeName]>,
) -> Result<Vec<i32>, StateError> {
    let Some(names) = filter else {
        return store.all_types(session).await;
    };
    store.find_types(session, names).await?;
    let mut numbers: Vec<i32> = names.iter().filter_map(|name| store.type_ids.number(name)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The statuses that a filter names, each once; `None` if it lets all of them through.
pub(crate) fn statuses(filter: Option<&[JobStatus]>) -> Option<Vec<JobStatus>> {
    let wanted = filter?;
    let mut statuses = JobStatus::ALL.to_vec();
    statuses.retain(|status| wanted.contains(status));
    (statuses.len() < JobStatus::ALL.len()).then_some(statuses)
}
