//! The lock of a chain: the row of its latest job, in whichever table it is.

pub(crate) mod scope;

use std::collections::{HashMap, HashSet};

use queuert::{ChainId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row::{self, JOB_COLUMNS, StoredJob, Table};
use crate::store::Store;

/// How often a chain may slip away, each time because another transaction has changed it, before something is wrong.
const MANY_ROUNDS: usize = 10_000;

/// Chains that are locked until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// The latest job of each, as it is since the lock was granted. Chains that do not exist are not in it.
    pub(crate) latest: HashMap<ChainId, StoredJob>,
    /// Chains whose latest job has no row of state, with that job. Something other than this library has deleted the row. The
    /// row of the job in `job` is locked in its place.
    pub(crate) damaged: HashMap<ChainId, Uuid>,
    /// Those that another transaction has locked, if the session does not wait.
    pub(crate) busy: HashSet<ChainId>,
    /// The time after the last lock was granted.
    pub(crate) now: Option<Timestamp>,
}

impl Locked {
    pub(crate) fn status(&self, chain: &ChainId) -> Option<JobStatus> {
        self.latest.get(chain).map(|stored| stored.job.status)
    }

    fn add(&mut self, other: Self) {
        self.latest.extend(other.latest);
        self.damaged.extend(other.damaged);
        self.busy.extend(other.busy);
        self.now = other.now.or(self.now);
    }
}

impl Store {
    /// Locks chains. Ids that are no chain's are left out of the answer.
    pub(crate) async fn lock_chains(
        &self,
        session: &mut Session<'_>,
        chains: impl IntoIterator<Item = ChainId>,
    ) -> Result<Locked, StateError> {
        let mut ids: Vec<Uuid> = chains.into_iter().map(|chain| chain.as_uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut locked = Locked::default();
        let text = lock_statement(session.waits);
        for round in 0..MANY_ROUNDS {
            if ids.is_empty() {
                return Ok(locked);
            }
            let rows = session.fetch(query(&self.render(&text)).bind(ids.clone())).await?;
            let (mut missed, mut missed_jobs) = (Vec::new(), Vec::new());
            let mut jobs = Vec::new();
            for found in &rows {
                match (row::get::<Option<Uuid>>(found, 1)?, row::get::<bool>(found, 2)?) {
                    (None, _) => {}
                    (Some(job), true) => jobs.push(job),
                    (Some(job), false) => {
                        missed.push(row::get::<Uuid>(found, 0)?);
                        missed_jobs.push(job);
                    }
                }
            }
            // The row of almost every job that was missed has moved, or is locked.
            if !missed_jobs.is_empty() && (round > 0 || !session.waits) {
                let damaged = self.lock_damaged(session, missed_jobs).await?;
                missed.retain(|chain| !damaged.contains_key(&ChainId::from_uuid(*chain)));
                locked.damaged.extend(damaged);
            }
            let read = self.read_locked(session, jobs, &mut missed).await?;
            locked.add(read);
            if !session.waits {
                locked.busy.extend(missed.drain(..).map(ChainId::from_uuid));
            }
            // Who waited for a row that has moved meanwhile looks again where it is now.
            ids = missed;
            ids.sort_unstable();
        }
        Err(corrupt(format!(
            "the latest job of chain {} is in none of the tables: rows were removed by hand, or a backup was restored in part; \
             restore the missing row, or delete those that are left of the chain",
            ids.first().copied().unwrap_or_default()
        )))
    }

    /// Of these latest jobs, those that have no row of state, locked by their rows in `job`. A job that moves is in one table in
    /// every snapshot, so one statement tells.
    async fn lock_damaged(
        &self,
        session: &mut Session<'_>,
        jobs: Vec<Uuid>,
    ) -> Result<HashMap<ChainId, Uuid>, StateError> {
        let mut text = "SELECT j.chain_id, j.id FROM {schema}.job AS j WHERE j.id = ANY ($1::uuid[])".to_owned();
        for table in Table::ALL {
            let table = table.name();
            text.push_str(&format!(
                " AND NOT EXISTS (SELECT 1 FROM {{schema}}.{table} AS x WHERE x.id = j.id)"
            ));
        }
        text.push_str(" ORDER BY j.id FOR UPDATE OF j");
        if !session.waits {
            text.push_str(" SKIP LOCKED");
        }
        let mut damaged = HashMap::new();
        for found in session.fetch(query(&self.render(&text)).bind(jobs)).await? {
            damaged.insert(ChainId::from_uuid(row::get(&found, 0)?), row::get(&found, 1)?);
        }
        Ok(damaged)
    }

    /// Reads jobs whose rows have been locked, as a statement of its own that sees what their former holders left.
    async fn read_locked(
        &self,
        session: &mut Session<'_>,
        jobs: Vec<Uuid>,
        missed: &mut Vec<Uuid>,
    ) -> Result<Locked, StateError> {
        let mut locked = Locked::default();
        if jobs.is_empty() {
            return Ok(locked);
        }
        let read = match session.guarded {
            true => &self.sql.jobs_by_id_within,
            false => &self.sql.jobs_by_id,
        };
        let rows = session.fetch(query(read).bind(jobs)).await?;
        if let Some(last) = rows.last() {
            locked.now = row::time(last, JOB_COLUMNS)?;
        }
        for stored in row::jobs(session, self, &rows).await? {
            // A completed job that is not the last one any more: the chain went on while we waited.
            if stored.table == Table::Result && stored.awaited {
                missed.push(stored.job.chain_id.as_uuid());
            } else {
                locked.latest.insert(stored.job.chain_id, stored);
            }
        }
        Ok(locked)
    }

    /// Says of chains, whose lock the caller has, that some job has them as blockers, or again.
    ///
    /// The row is written even if it says so already, and even if the chain has completed. A transaction with one snapshot
    /// for all of its statements may be about to end or delete the chain, and cannot see the job; it must not get the lock
    /// of a row that has not changed, and go on.
    pub(crate) async fn mark_awaited<'a>(
        &self,
        session: &mut Session<'_>,
        chains: impl IntoIterator<Item = &'a StoredJob>,
    ) -> Result<(), StateError> {
        let mut by_table: HashMap<Table, Vec<Uuid>> = HashMap::new();
        for stored in chains {
            by_table.entry(stored.table).or_default().push(stored.job.id.as_uuid());
        }
        for (table, ids) in by_table {
            let change = match table {
                // Only a deletion looks for the dependants of a completed chain, and it asks for the edges.
                Table::Result => "final = final",
                _ => "awaited = true",
            };
            let update = self.render(&format!(
                "UPDATE {{schema}}.{} SET {change} WHERE id = ANY ($1::uuid[])",
                table.name()
            ));
            session.execute(query(&update).bind(ids)).await?;
        }
        Ok(())
    }
}

/// $1 chains. Each with its latest job, if it exists, and whether that job's row is locked now. Table after table, in
/// order of id in each.
fn lock_statement(waits: bool) -> String {
    let skip = if waits { "" } else { " SKIP LOCKED" };
    let latest = crate::statements::LATEST_ID;
    let mut text = format!(
        "WITH wanted AS MATERIALIZED (SELECT c.id AS chain_id, {latest} AS job_id FROM unnest($1::uuid[]) AS c(id))"
    );
    let mut all = Vec::new();
    for table in Table::ALL {
        let table = table.name();
        text.push_str(&format!(
            ", in_{table} AS MATERIALIZED (SELECT x.id FROM {{schema}}.{table} AS x \
             WHERE x.id = ANY (ARRAY(SELECT job_id FROM wanted)) ORDER BY x.id FOR UPDATE{skip})"
        ));
        all.push(format!("SELECT id FROM in_{table}"));
    }
    text.push_str(&format!(
        ", locked AS MATERIALIZED ({}) SELECT w.chain_id, w.job_id, \
         EXISTS (SELECT 1 FROM locked AS l WHERE l.id = w.job_id) FROM wanted AS w",
        all.join(" UNION ALL ")
    ));
    text
}
