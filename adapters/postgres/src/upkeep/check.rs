//! Checks that every row is where it belongs, a page at a time. Wrong numbers of open blockers are corrected; everything else is
//! reported. Nothing is ever deleted here.

use std::collections::HashMap;
use std::time::Duration;

use queuert::StateError;
use queuert::adapter::UnblockedJob;
use sqlx::SqlStr;
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row;
use crate::statements::{Filling, text};
use crate::store::Store;
use crate::transaction::Work;
use crate::upkeep::{Term, elect};
use crate::verbs::settle::general::unblock;

/// How often all rows are checked.
const EVERY: Duration = Duration::from_secs(86_400);
/// How long one turn may go on, and how many rows one statement reads.
const TURN: Duration = Duration::from_millis(200);
const PAGE: usize = 1_000;
/// How many ids a finding names.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Rule {
    HasJob(&'static str),
    HasTypeOfJob(&'static str),
    HasType,
    IsInOneTable,
    CountsItsBlockers,
    HasItsBlockers,
}

const RULES: [Rule; 15] = [
    Rule::HasJob("ready"),
    Rule::HasJob("later"),
    Rule::HasJob("waiting"),
    Rule::HasJob("running"),
    Rule::HasJob("stopped"),
    Rule::HasJob("result"),
    Rule::HasTypeOfJob("ready"),
    Rule::HasTypeOfJob("later"),
    Rule::HasTypeOfJob("waiting"),
    Rule::HasTypeOfJob("running"),
    Rule::HasTypeOfJob("stopped"),
    Rule::HasType,
    Rule::CountsItsBlockers,
    Rule::HasItsBlockers,
    Rule::IsInOneTable,
];

impl Rule {
    fn statement(self, store: &Store) -> SqlStr {
        let filling = Filling::none().with("page", PAGE);
        match self {
            Self::HasJob(table) => store.statement(text::CHECK_WITHOUT_JOB, filling.with("table", table)),
            Self::HasTypeOfJob(table) => store.statement(text::CHECK_OF_ANOTHER_TYPE, filling.with("table", table)),
            Self::HasType => store.statement(text::CHECK_WITHOUT_TYPE, filling),
            Self::IsInOneTable => store.statement(text::CHECK_NOT_IN_ONE_TABLE, filling),
            Self::CountsItsBlockers => store.statement(text::CHECK_MISCOUNTED, filling),
            Self::HasItsBlockers => store.statement(text::CHECK_WITHOUT_BLOCKER, filling),
        }
    }

    /// The finding about rows that break the rule.
    fn finding(self, count: usize, ids: &str) -> String {
        match self {
            Self::HasJob(table) => format!(
                "{count} rows of the table `{table}` have no job, so they can never run; restore the jobs or delete the \
                 rows: {ids}"
            ),
            Self::HasTypeOfJob(table) => format!(
                "{count} jobs have one number for their type in the table `{table}` and another in `job`, so no processor \
                 is given them; correct the `type_id` that is wrong, or delete their chains: {ids}"
            ),
            Self::HasType => format!(
                "{count} jobs have a `type_id` or `chain_type_id` that the table `job_type` does not have, or that is not \
                 the same though they are the first of their chain; a worker that processes a lost type adds it to \
                 `job_type` again; otherwise correct the number, or delete their chains: {ids}"
            ),
            Self::IsInOneTable => format!(
                "{count} jobs have no row of state or more than one, so no worker can go on with them; lists leave out those \
                 that have none; restore the rows or delete their chains: {ids}"
            ),
            Self::CountsItsBlockers => {
                format!("{count} blocked jobs had a wrong number of open blockers, which was corrected: {ids}")
            }
            Self::HasItsBlockers => format!(
                "{count} blocked jobs wait for chains that do not exist; cancel, complete or delete their chains: {ids}"
            ),
        }
    }
}

/// A check of all rows, which takes as many turns as it takes.
#[derive(Debug)]
pub(crate) struct Check {
    rule: usize,
    after: Uuid,
    /// For each rule, how many rows break it, and some of them.
    broken: [(usize, Vec<Uuid>); RULES.len()],
}

impl Check {
    /// A new one if the last one was long ago.
    pub(crate) fn due(term: Term) -> Option<Self> {
        let since = term.now.saturating_duration_since(term.checked_at);
        (since >= EVERY).then(|| Self {
            rule: 0,
            after: Uuid::nil(),
            broken: Default::default(),
        })
    }

    /// Goes on for one turn, and says whether all rows have been checked.
    pub(crate) async fn run(
        &mut self,
        store: &Store,
        access: &Access,
        worker: &str,
        unblocked: &mut Vec<UnblockedJob>,
    ) -> Result<bool, StateError> {
        let begun = Instant::now();
        while let Some(rule) = RULES.get(self.rule).copied() {
            if begun.elapsed() >= TURN || !unblocked.is_empty() {
                return Ok(false);
            }
            let mut work = Work::statement(access).await?;
            let page = query(&rule.statement(store)).bind(self.after);
            let rows = work.session().fetch(page).await?;
            work.commit().await?;
            let found = rows.first().ok_or_else(|| corrupt("a count is missing"))?;
            let last: Option<Uuid> = row::get(found, "last")?;
            let rows: i64 = row::get(found, "count")?;
            let mut broken: Vec<Uuid> = row::get(found, "broken")?;
            if matches!(rule, Rule::CountsItsBlockers) && !broken.is_empty() {
                let mut work = Work::transaction(access).await?;
                let (mended, free) = recount(&mut work.session(), store, worker, broken).await?;
                work.commit().await?;
                unblocked.extend(free);
                broken = mended;
            }
            let (count, some) = &mut self.broken[self.rule];
            *count += broken.len();
            broken.truncate(NAMED - some.len());
            some.extend(broken);
            match last {
                Some(last) if usize::try_from(rows).is_ok_and(|rows| rows >= PAGE) => self.after = last,
                _ => (self.rule, self.after) = (self.rule + 1, Uuid::nil()),
            }
        }
        Ok(true)
    }

    pub(crate) fn findings(self) -> Vec<String> {
        let tell = |(rule, (count, ids)): (&Rule, (usize, Vec<Uuid>))| {
            let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
            (count > 0).then(|| rule.finding(count, &ids.join(", ")))
        };
        RULES.iter().zip(self.broken).filter_map(tell).collect()
    }
}

/// Counts the blockers of these jobs again, if the upkeep is still this worker's, and moves on the jobs that have none left.
/// A transaction that completes a blocker locks the rows of the waiting jobs before it commits. So with the rows locked, the
/// blockers that this transaction sees as completed are exactly the ones that have been counted off.
async fn recount(
    session: &mut Session<'_>,
    store: &Store,
    worker: &str,
    jobs: Vec<Uuid>,
) -> Result<(Vec<Uuid>, Vec<UnblockedJob>), StateError> {
    if elect(session, store, worker).await?.is_none() {
        return Ok(Default::default());
    }
    let mut waiting: Vec<(Uuid, i32)> = Vec::new();
    for found in &session.fetch(query(&store.sql.lock_waiting).bind(jobs)).await? {
        waiting.push((row::get(found, "id")?, row::get(found, "remaining")?));
    }
    let ids: Vec<Uuid> = waiting.iter().map(|(id, _)| *id).collect();
    let mut open: HashMap<Uuid, i32> = HashMap::new();
    for found in &session.fetch(query(&store.sql.open_blockers).bind(ids)).await? {
        open.insert(row::get(found, "job_id")?, row::get(found, "count")?);
    }
    let mut miscounted: Vec<(Uuid, i32)> = Vec::new();
    for (id, remaining) in waiting {
        let gone = remaining - open.get(&id).copied().unwrap_or_default();
        if gone != 0 {
            miscounted.push((id, gone));
        }
    }
    // No chain has ended here, so no edge is noted as the last one.
    let taken = miscounted.iter().map(|(id, gone)| (*id, *gone, Uuid::nil()));
    let unblocked = unblock(session, store, taken).await?;
    Ok((miscounted.into_iter().map(|(id, _)| id).collect(), unblocked))
}
