//! The lock of a chain: the row of its latest job, in whichever table it is.

pub(crate) mod scope;

use std::collections::{HashMap, HashSet};

use queuert::{ChainId, JobStatus, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::error::corrupt;
use crate::row::{self, StoredJob, Table};
use crate::statements::{Filling, text};
use crate::store::Store;

/// How often a chain may slip away, each time because another transaction has changed it, before something is wrong.
const MOST_ROUNDS: usize = 10_000;

/// Chains that are locked until the transaction ends.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// The latest job of each, as it is since the lock was granted. Chains that do not exist are not in it.
    pub(crate) latest: HashMap<ChainId, StoredJob>,
    /// Chains whose latest job has no row of state, with that job. Something other than this library has deleted the row. The
    /// row of the job in `job` is locked in its place.
    pub(crate) damaged: HashMap<ChainId, Uuid>,
    /// The chains that another transaction has locked, if the session does not wait.
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
        let lock = self.sql.lock_chains.when(!session.waits);
        for round in 0..MOST_ROUNDS {
            if ids.is_empty() {
                return Ok(locked);
            }
            let rows = session.fetch(query(lock).bind(ids.clone())).await?;
            let (mut missed, mut missed_jobs) = (Vec::new(), Vec::new());
            let mut jobs = Vec::new();
            for found in &rows {
                match (
                    row::get::<Option<Uuid>>(found, "job_id")?,
                    row::get::<bool>(found, "is_locked")?,
                ) {
                    (None, _) => {}
                    (Some(job), true) => jobs.push(job),
                    (Some(job), false) => {
                        missed.push(row::get::<Uuid>(found, "chain_id")?);
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
            // A row that has moved while this session waited for it is looked for again, where it is now.
            ids = missed;
            ids.sort_unstable();
        }
        Err(corrupt(format!(
            "the latest job of chain {} is in none of the tables: rows were removed by hand, or a backup was restored in part; \
             restore the missing row, or delete those that are left of the chain",
            ids.first().copied().unwrap_or_default()
        )))
    }

    /// The jobs, of these latest ones, that have no row of state, locked by their rows in `job`.
    async fn lock_damaged(
        &self,
        session: &mut Session<'_>,
        jobs: Vec<Uuid>,
    ) -> Result<HashMap<ChainId, Uuid>, StateError> {
        let mut damaged = HashMap::new();
        let lock = query(self.sql.lock_damaged.when(!session.waits)).bind(jobs);
        for found in session.fetch(lock).await? {
            damaged.insert(
                ChainId::from_uuid(row::get(&found, "chain_id")?),
                row::get(&found, "id")?,
            );
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
        let read = query(self.sql.jobs_by_id.when(session.guarded)).bind(jobs);
        let rows = session.fetch(read).await?;
        if let Some(last) = rows.last() {
            locked.now = row::time(last, "now")?;
        }
        for stored in row::jobs(session, self, &rows).await? {
            // A completed job that is not the latest one any more: the chain went on while this session waited.
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
            let filling = Filling::none()
                .when("completed", table == Table::Result)
                .with("table", table.name());
            let update = self.statement(text::MARK_AWAITED, filling);
            session.execute(query(&update).bind(ids)).await?;
        }
        Ok(())
    }
}
