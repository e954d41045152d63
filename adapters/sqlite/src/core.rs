//! What all verbs share: the statements, the settings, and how a change becomes rows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use queuert::adapter::rank;
use queuert::{ChainId, Fence, JobId, JobStatus, Payload, StateError, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{SqlStr, Sqlite, SqliteConnection};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock;
use crate::error::translate;
use crate::json::Batch;
use crate::row::{self, Head, NewRow, StoredJob, status_number};
use crate::sql::Statements;
use crate::values::Row;

/// Notices that are kept for other processes: enough for the busiest interval between two of their looks.
const NOTICES: i64 = 10_000;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) sql: Statements,
    pub(crate) ageing_step: Duration,
    /// Names this handle among all that write to the file, so that it does not hear its own hints.
    pub(crate) origin: Uuid,
    claims: Mutex<HashMap<usize, SqlStr>>,
    /// Transactions that were committed through this handle.
    commits: AtomicU64,
    opened: Instant,
    /// When the last of them was, in milliseconds since `opened`, plus one; zero for never.
    last_commit: AtomicU64,
}

/// What changes on a job, other than by its claim.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) seq: i64,
    pub(crate) status: JobStatus,
    pub(crate) latest: bool,
    pub(crate) scheduled_at: Timestamp,
    pub(crate) priority: i16,
    pub(crate) attempt: u32,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) completed_by: Option<String>,
    pub(crate) error: ErrorChange,
    pub(crate) settled: Option<Fence>,
    pub(crate) output: Option<Payload>,
    /// The chain, if it has a key, and whether it is open after the change.
    pub(crate) chain: ChainId,
    pub(crate) chain_index: u32,
    pub(crate) keyed: bool,
    pub(crate) chain_open: bool,
}

#[derive(Debug)]
pub(crate) enum ErrorChange {
    Keep,
    Clear,
    Set {
        attempt: u32,
        at: Timestamp,
        message: String,
    },
}

impl Change {
    /// The job stays as it is, but for what the caller sets; its lease goes.
    pub(crate) fn of_head(head: &Head) -> Self {
        Self {
            seq: head.seq,
            status: head.status,
            latest: true,
            scheduled_at: head.scheduled_at,
            priority: head.priority,
            attempt: head.attempt,
            ended_at: None,
            completed_by: None,
            error: ErrorChange::Keep,
            settled: None,
            output: None,
            chain: head.chain_id,
            chain_index: head.chain_index,
            keyed: head.keyed,
            chain_open: true,
        }
    }

    /// The job as it is in the record, whose lease has been taken.
    pub(crate) fn of_job(stored: &StoredJob) -> Self {
        let job = &stored.job;
        Self {
            seq: stored.seq,
            status: job.status,
            latest: true,
            scheduled_at: job.scheduled_at,
            priority: job.priority,
            attempt: job.attempt,
            ended_at: job.ended_at,
            completed_by: None,
            error: ErrorChange::Keep,
            settled: None,
            output: None,
            chain: job.chain_id,
            chain_index: job.chain_index,
            keyed: stored.keyed,
            chain_open: job.status.is_open(),
        }
    }
}

pub(crate) type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

impl Core {
    pub(crate) fn new(prefix: &str, ageing_step: Duration) -> Self {
        Self {
            sql: Statements::new(prefix),
            ageing_step,
            origin: Uuid::new_v4(),
            claims: Mutex::default(),
            commits: AtomicU64::new(0),
            opened: Instant::now(),
            last_commit: AtomicU64::new(0),
        }
    }

    pub(crate) fn claim_statement(&self, types: usize) -> SqlStr {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.entry(types).or_insert_with(|| self.sql.claim(types)).clone()
    }

    pub(crate) fn committed(&self) {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.last_commit.store(self.age() + 1, Ordering::SeqCst);
    }

    /// Whether something was committed not longer ago than this.
    pub(crate) fn committed_within(&self, time: Duration) -> bool {
        match self.last_commit.load(Ordering::SeqCst) {
            0 => false,
            last => u128::from(self.age() + 1 - last.min(self.age() + 1)) <= time.as_millis(),
        }
    }

    fn age(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    pub(crate) fn rank(&self, scheduled_at: Timestamp, priority: i16) -> i64 {
        rank(scheduled_at, priority, self.ageing_step)
    }

    /// Inserts jobs. The error is SQLite's own, because the caller may know what to make of it.
    pub(crate) async fn insert_jobs(
        &self,
        connection: &mut SqliteConnection,
        rows: &[NewRow<'_>],
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        let fill = |row: &mut Row, new: &NewRow<'_>| {
            let job = new.job;
            let first = new.chain_index == 0;
            let scheduled_at = job.schedule.resolve(now);
            row.id(job.id.as_uuid());
            row.optional_id((!first).then(|| new.chain_id.as_uuid()));
            row.number(new.chain_index).number(status_number(new.status));
            row.text(job.type_name.as_str());
            row.optional_text((!first).then(|| new.chain_type.as_str()));
            row.number(new.chain_created_at.as_micros())
                .number(new.keyed)
                .number(now.as_micros());
            row.number(scheduled_at.as_micros())
                .number(job.priority)
                .number(self.rank(scheduled_at, job.priority));
            row.number(scheduled_at <= now)
                .optional_number(job.max_attempts)
                .number(count(job.blockers.len()));
            row.optional_text(new.deduplication_key)
                .optional_text(job.trace_context.as_deref())
                .text(job.input.as_str());
        };
        self.sql.insert_jobs.fetch(connection, rows, fill).await.map(drop)
    }

    /// Inserts the edges of new jobs: job, blockers in order, each with whether it has completed.
    pub(crate) async fn insert_blockers<'a>(
        &self,
        connection: &mut SqliteConnection,
        edges: impl IntoIterator<Item = (JobId, &'a [ChainId])>,
        completed: impl Fn(&ChainId) -> bool,
    ) -> Result<(), StateError> {
        let mut batch = Batch::new();
        for (job, blockers) in edges {
            for (position, chain) in blockers.iter().enumerate() {
                batch.row(|row| {
                    row.id(job.as_uuid())
                        .number(count(position))
                        .id(chain.as_uuid())
                        .number(completed(chain));
                });
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        execute(connection, query(&self.sql.insert_blockers).bind(batch.finish())).await
    }

    /// The status of each chain that exists.
    pub(crate) async fn chain_statuses(
        &self,
        connection: &mut SqliteConnection,
        chains: impl IntoIterator<Item = ChainId>,
    ) -> Result<HashMap<ChainId, JobStatus>, StateError> {
        let ids = Batch::of_ids(chains.into_iter().map(|chain| chain.as_uuid()));
        let rows = fetch(connection, query(&self.sql.chain_statuses).bind(ids)).await?;
        let mut statuses = HashMap::with_capacity(rows.len());
        for found in &rows {
            if let Some(status) = row::get::<Option<i64>>(found, 1)?.and_then(row::status) {
                statuses.insert(ChainId::from_uuid(row::uuid(found, 0)?), status);
            }
        }
        Ok(statuses)
    }

    /// Writes changes of jobs.
    pub(crate) async fn change(
        &self,
        connection: &mut SqliteConnection,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), StateError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut keys = Batch::new();
        for change in changes {
            if change.keyed && change.chain_index > 0 {
                keys.row(|row| {
                    row.id(change.chain.as_uuid()).number(change.chain_open);
                });
            }
        }
        let fill = |row: &mut Row, change: &Change| {
            row.number(change.seq)
                .number(status_number(change.status))
                .number(change.latest);
            row.number(change.scheduled_at <= now)
                .number(change.scheduled_at.as_micros())
                .number(self.rank(change.scheduled_at, change.priority));
            row.number(change.attempt)
                .optional_number(change.ended_at.map(|time| time.as_micros()))
                .optional_text(change.completed_by.as_deref());
            match &change.error {
                ErrorChange::Keep => row.number(true).null().null().null(),
                ErrorChange::Clear => row.number(false).null().null().null(),
                ErrorChange::Set { attempt, at, message } => {
                    row.number(false).number(*attempt).number(at.as_micros()).text(message)
                }
            };
            row.optional_id(change.settled.map(|fence| fence.as_uuid()))
                .optional_text(change.output.as_ref().map(Payload::as_str))
                .number(change.chain_open);
        };
        let changed = self.sql.change.fetch(connection, changes, fill).await;
        changed.map_err(translate)?;
        if keys.is_empty() {
            return Ok(());
        }
        execute(connection, query(&self.sql.change_keys).bind(keys.finish())).await
    }

    /// Tells other processes, in the same transaction, that attempts have lost their jobs.
    pub(crate) async fn note_lost_leases(
        &self,
        connection: &mut SqliteConnection,
        jobs: impl IntoIterator<Item = JobId>,
    ) -> Result<(), StateError> {
        let mut batch = Batch::new();
        for job in jobs {
            batch.row(|row| {
                row.number(2).id(job.as_uuid()).raw("null").number(1);
            });
        }
        self.insert_notices(connection, batch).await
    }

    pub(crate) async fn insert_notices(
        &self,
        connection: &mut SqliteConnection,
        notices: Batch,
    ) -> Result<(), StateError> {
        if notices.is_empty() {
            return Ok(());
        }
        let insert = query(&self.sql.insert_notices)
            .bind(notices.finish())
            .bind(self.origin.as_bytes().to_vec())
            .bind(clock::now().as_micros())
            .bind(NOTICES);
        execute(connection, insert).await
    }
}

pub(crate) fn query(sql: &SqlStr) -> Query {
    sqlx::query(sql.clone())
}

pub(crate) async fn execute(connection: &mut SqliteConnection, query: Query) -> Result<(), StateError> {
    query.execute(connection).await.map(drop).map_err(translate)
}

pub(crate) async fn fetch(connection: &mut SqliteConnection, query: Query) -> Result<Vec<SqliteRow>, StateError> {
    query.fetch_all(connection).await.map_err(translate)
}

pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
