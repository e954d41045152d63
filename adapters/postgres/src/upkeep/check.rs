//! Checks that every row is where it belongs, a page at a time. What can be put right without a guess is; the rest is
//! told. Nothing is ever deleted here.

use std::time::Duration;

use queuert::adapter::UnblockedJob;
use queuert::{ChainId, JobId, StateError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::connect::Access;
use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row;
use crate::store::Store;
use crate::transaction::Work;
use crate::upkeep::{Term, elect};
use crate::verbs::settle::general::named;

/// How often all rows are checked.
const EVERY: Duration = Duration::from_secs(86_400);
/// How long one turn may go on, and how many rows one statement reads.
const TURN: Duration = Duration::from_millis(200);
const PAGE: usize = 1_000;
/// How many ids a finding names.
const NAMED: usize = 5;

/// $1 where the last page ended. The next page of a table: the last id, how many rows there were, and those without a
/// job. One statement, so one snapshot: a job that is being moved or deleted is seen before or after it.
const WITHOUT_JOB: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE (SELECT j.id FROM {schema}.job AS j WHERE j.id = p.id) IS NULL), \
     '{}') FROM (SELECT t.id FROM {schema}.{table} AS t WHERE t.id > $1 ORDER BY t.id LIMIT {page}) AS p";

/// The same of rows with another number for the type than their job has.
const OF_ANOTHER_TYPE: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE (SELECT j.type_id FROM {schema}.job AS j WHERE j.id = p.id) \
     <> p.type_id), '{}') FROM (SELECT t.id, t.type_id FROM {schema}.{table} AS t WHERE t.id > $1 ORDER BY t.id \
     LIMIT {page}) AS p";

/// The same of jobs with a number that no type has, and of first jobs of chains with another type than their chain.
const WITHOUT_TYPE: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE (p.chain_index = 0 AND p.type_id <> p.chain_type_id) \
     OR (SELECT t.id FROM {schema}.job_type AS t WHERE t.id = p.type_id) IS NULL \
     OR (SELECT t.id FROM {schema}.job_type AS t WHERE t.id = p.chain_type_id) IS NULL), '{}') FROM (\
     SELECT j.id, j.chain_index, j.type_id, j.chain_type_id FROM {schema}.job AS j WHERE j.id > $1 ORDER BY j.id \
     LIMIT {page}) AS p";

/// The same of jobs that are in none of the tables, or in more than one.
const NOT_IN_ONE_PLACE: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE p.places <> 1), '{}') FROM (SELECT t.id, \
     (SELECT count(*) FROM {schema}.ready AS x WHERE x.id = t.id) \
     + (SELECT count(*) FROM {schema}.later AS x WHERE x.id = t.id) \
     + (SELECT count(*) FROM {schema}.waiting AS x WHERE x.id = t.id) \
     + (SELECT count(*) FROM {schema}.running AS x WHERE x.id = t.id) \
     + (SELECT count(*) FROM {schema}.stopped AS x WHERE x.id = t.id) \
     + (SELECT count(*) FROM {schema}.result AS x WHERE x.id = t.id) AS places \
     FROM (SELECT t.id FROM {schema}.job AS t WHERE t.id > $1 ORDER BY t.id LIMIT {page}) AS t) AS p";

/// The same of blocked jobs that count another number of open blockers than they have.
const MISCOUNTED: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE p.remaining <> p.open), '{}') FROM (\
     SELECT w.id, w.remaining, (SELECT count(*) FROM {schema}.blocker AS b \
     CROSS JOIN LATERAL (SELECT b.chain_id AS id) AS c WHERE b.job_id = w.id \
     AND NOT EXISTS (SELECT 1 FROM {schema}.result AS r WHERE r.id = {latest} AND r.final)) AS open \
     FROM (SELECT w.id, w.remaining FROM {schema}.waiting AS w WHERE w.id > $1 ORDER BY w.id LIMIT {page}) AS w) AS p";

/// The same of blocked jobs with a blocker that does not exist, so that it will never complete.
const WITHOUT_BLOCKER: &str = "SELECT (array_agg(p.id ORDER BY p.id DESC))[1], count(*), \
     coalesce(array_agg(p.id ORDER BY p.id) FILTER (WHERE EXISTS (SELECT 1 FROM {schema}.blocker AS b \
     WHERE b.job_id = p.id AND (SELECT f.id FROM {schema}.job AS f WHERE f.id = b.chain_id AND f.chain_index = 0) IS NULL)), \
     '{}') FROM (SELECT w.id FROM {schema}.waiting AS w WHERE w.id > $1 ORDER BY w.id LIMIT {page}) AS p";

/// $1 blocked jobs. Their rows, locked, unless somebody else has their chain locked.
const LOCK_WAITING: &str = "SELECT w.id, w.remaining FROM {schema}.waiting AS w WHERE w.id = ANY ($1::uuid[]) \
     ORDER BY w.id FOR UPDATE SKIP LOCKED";

#[derive(Clone, Copy, Debug)]
enum Rule {
    HasJob(&'static str),
    HasTypeOfJob(&'static str),
    HasType,
    IsInOnePlace,
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
    Rule::IsInOnePlace,
];

impl Rule {
    fn statement(self) -> String {
        let text = match self {
            Self::HasJob(table) => WITHOUT_JOB.replace("{table}", table),
            Self::HasTypeOfJob(table) => OF_ANOTHER_TYPE.replace("{table}", table),
            Self::HasType => WITHOUT_TYPE.to_owned(),
            Self::IsInOnePlace => NOT_IN_ONE_PLACE.to_owned(),
            Self::CountsItsBlockers => MISCOUNTED.replace("{latest}", crate::statements::LATEST_ID),
            Self::HasItsBlockers => WITHOUT_BLOCKER.to_owned(),
        };
        text.replace("{page}", &PAGE.to_string())
    }

    /// What is told of rows that break it.
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
            Self::IsInOnePlace => format!(
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
            let page = query(&store.render(&rule.statement())).bind(self.after);
            let rows = work.session().fetch(page).await?;
            work.commit().await?;
            let found = rows.first().ok_or_else(|| corrupt("a count is missing"))?;
            let last: Option<Uuid> = row::get(found, 0)?;
            let rows: i64 = row::get(found, 1)?;
            let mut broken: Vec<Uuid> = row::get(found, 2)?;
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

/// Counts the blockers of these jobs again, if the upkeep is still this worker's, and moves those on that have none left.
/// Whoever completes a blocker locks the rows of those who wait before it commits, so with the rows locked, the blockers
/// that are completed for us are exactly those that have been counted off.
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
    for found in &session.fetch(query(&store.render(LOCK_WAITING)).bind(jobs)).await? {
        waiting.push((row::get(found, 0)?, row::get(found, 1)?));
    }
    let ids: Vec<Uuid> = waiting.iter().map(|(id, _)| *id).collect();
    let mut open: std::collections::HashMap<Uuid, i32> = std::collections::HashMap::new();
    for found in &session.fetch(query(&store.sql.open_blockers).bind(ids)).await? {
        open.insert(row::get(found, 0)?, row::get(found, 1)?);
    }
    let (mut mended, mut taken) = (Vec::new(), Vec::new());
    for (id, remaining) in waiting {
        let gone = remaining - open.get(&id).copied().unwrap_or_default();
        if gone != 0 {
            mended.push(id);
            taken.push(gone);
        }
    }
    if mended.is_empty() {
        return Ok(Default::default());
    }
    // No chain has ended here, so no edge is marked as the last one.
    let no_chain = vec![Uuid::nil(); mended.len()];
    let unblock = query(&store.sql.unblock)
        .bind(mended.clone())
        .bind(taken)
        .bind(store.step())
        .bind(no_chain);
    let rows = session.fetch(unblock).await?;
    let mut free = Vec::new();
    for found in &rows {
        let (job, chain) = (
            JobId::from_uuid(row::get(found, 0)?),
            ChainId::from_uuid(row::get(found, 1)?),
        );
        free.push((job, chain, row::get(found, 2)?));
    }
    let free = named(session, store, free).await?;
    Ok((mended, free))
}
