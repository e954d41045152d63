//! What all verbs share: the statements, the settings, and how a change becomes rows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queuert::__task::Lock;
use queuert::adapter::rank;
use queuert::{ChainId, Fence, JobId, JobStatus, Payload, StateError, Timestamp};
use sqlx::SqlStr;
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock;
use crate::connections::Connections;
use crate::db::{Db, query};
use crate::error::DbError;
use crate::group::PutOff;
use crate::identity::Opened;
use crate::json::Batch;
use crate::presence::Presence;
use crate::row::{self, Head, NewRow, StoredJob, status_number};
use crate::sql::Statements;

/// Notices that are kept for other processes: enough for the busiest interval between two of their looks.
const NOTICES: i64 = 10_000;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) sql: Statements,
    pub(crate) ageing_step: Duration,
    /// Names this handle among all that write to the file, so that it does not hear its own hints.
    pub(crate) origin: Uuid,
    pub(crate) presence: Presence,
    pub(crate) connections: Connections,
    pub(crate) put_off: PutOff,
    /// `None` where files cannot be told apart.
    opened_file: Option<Opened>,
    claims: Lock<HashMap<usize, SqlStr>>,
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
    /// The rank to keep; `None` for that of the scheduled time.
    pub(crate) rank: Option<i64>,
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
            rank: None,
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
            rank: None,
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

impl Core {
    pub(crate) fn new(prefix: &str, ageing_step: Duration, presence: Presence, opened_file: Option<Opened>) -> Self {
        Self {
            sql: Statements::new(prefix),
            ageing_step,
            origin: Uuid::new_v4(),
            presence,
            connections: Connections::new(),
            put_off: PutOff::default(),
            opened_file,
            claims: Lock::default(),
            commits: AtomicU64::new(0),
            opened: Instant::now(),
            last_commit: AtomicU64::new(0),
        }
    }

    /// Fails if the path leads to another file than the one that was opened, or to none.
    pub(crate) fn check_file(&self) -> Result<(), StateError> {
        self.opened_file.as_ref().map_or(Ok(()), Opened::check)
    }

    /// The same after all connections are closed.
    pub(crate) fn check_file_at_close(&self) -> Result<(), StateError> {
        self.opened_file.as_ref().map_or(Ok(()), Opened::check_at_close)
    }

    pub(crate) fn claim_statement(&self, types: usize) -> SqlStr {
        let mut claims = self.claims.lock();
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

    /// Inserts jobs, all or none. The error is SQLite's own, because the caller may know what to make of it.
    pub(crate) async fn insert_jobs(
        &self,
        db: &mut Db<'_>,
        rows: &[NewRow<'_>],
        now: Timestamp,
    ) -> Result<(), DbError> {
        if rows.is_empty() {
            return Ok(());
        }
        // A statement that fails undoes itself, but not the one before it.
        if !self.sql.insert_jobs.takes_several(db, rows.len()) {
            self.insert_rows(db, rows, now).await?;
            clock::outlast(now);
            return Ok(());
        }
        db.execute(query(&self.sql.set_mark)).await?;
        if let Err(error) = self.insert_rows(db, rows, now).await {
            // The first error counts: after some, such as a full disk, SQLite has undone the whole transaction by itself,
            // and there is no mark to go back to.
            if db.execute(query(&self.sql.back_to_mark)).await.is_ok() {
                let _ = db.execute(query(&self.sql.drop_mark)).await;
            }
            return Err(error);
        }
        clock::outlast(now);
        db.execute(query(&self.sql.drop_mark)).await.map(drop)
    }

    async fn insert_rows(&self, db: &mut Db<'_>, rows: &[NewRow<'_>], now: Timestamp) -> Result<(), DbError> {
        let inserted = self.sql.insert_jobs.execute(db, rows, |values, new| {
            let job = new.job;
            let first = new.chain_index == 0;
            let scheduled_at = job.schedule.resolve(now);
            values.add(job.id.as_uuid());
            values.add((!first).then(|| new.chain_id.as_uuid()));
            values.number(new.chain_index).number(status_number(new.status));
            values.add(job.type_name.as_str());
            values.add((!first).then(|| new.chain_type.as_str()));
            values
                .number(new.chain_created_at.as_micros())
                .number(new.keyed)
                .number(now.as_micros());
            values
                .number(scheduled_at.as_micros())
                .number(job.priority)
                .number(self.rank(scheduled_at, job.priority));
            values
                .number(scheduled_at <= now)
                .add(job.max_attempts.map(i64::from))
                .number(count(job.blockers.len()));
            values
                .add(new.deduplication_key)
                .add(job.trace_context.as_deref())
                .add(job.input.as_str());
        });
        inserted.await.map(drop)
    }

    /// Inserts the edges of new jobs: job, blockers in order, each with whether it has completed.
    pub(crate) async fn insert_blockers<'a>(
        &self,
        db: &mut Db<'_>,
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
        db.execute(query(&self.sql.insert_blockers).bind(batch.finish()))
            .await?;
        Ok(())
    }

    /// The status of each chain that exists.
    pub(crate) async fn chain_statuses(
        &self,
        db: &mut Db<'_>,
        chains: impl IntoIterator<Item = ChainId>,
    ) -> Result<HashMap<ChainId, JobStatus>, StateError> {
        let ids = Batch::of_ids(chains.into_iter().map(|chain| chain.as_uuid()));
        let rows = db.fetch(query(&self.sql.chain_statuses).bind(ids), |found| {
            let status = found.get::<Option<i64>>(1)?.and_then(row::status);
            let chain = ChainId::from_uuid(found.get(0)?);
            Ok(status.map(|status| (chain, status)))
        });
        Ok(rows.await?.into_iter().flatten().collect())
    }

    /// Writes changes of jobs.
    pub(crate) async fn change(&self, db: &mut Db<'_>, changes: &[Change], now: Timestamp) -> Result<(), StateError> {
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
        let changed = self.sql.change.execute(db, changes, |values, change| {
            let of_schedule = || self.rank(change.scheduled_at, change.priority);
            let rank = change.rank.unwrap_or_else(of_schedule);
            values
                .number(change.seq)
                .number(status_number(change.status))
                .number(change.latest);
            values
                .number(change.scheduled_at <= now)
                .number(change.scheduled_at.as_micros())
                .number(rank);
            values
                .number(change.attempt)
                .add(change.ended_at.map(|time| time.as_micros()))
                .add(change.completed_by.as_deref());
            match &change.error {
                ErrorChange::Keep => values.number(true).null().null().null(),
                ErrorChange::Clear => values.number(false).null().null().null(),
                ErrorChange::Set { attempt, at, message } => values
                    .number(false)
                    .number(*attempt)
                    .number(at.as_micros())
                    .add(message.as_str()),
            };
            values
                .add(change.settled.map(|fence| fence.as_uuid()))
                .add(change.output.as_ref().map(Payload::as_str))
                .number(change.chain_open);
        });
        changed.await?;
        if !keys.is_empty() {
            db.execute(query(&self.sql.change_keys).bind(keys.finish())).await?;
        }
        Ok(())
    }

    /// Tells other processes, in the same transaction, that attempts have lost their jobs.
    pub(crate) async fn note_lost_leases(
        &self,
        db: &mut Db<'_>,
        jobs: impl IntoIterator<Item = JobId>,
    ) -> Result<(), StateError> {
        let mut batch = Batch::new();
        for job in jobs {
            batch.row(|row| {
                row.number(2).id(job.as_uuid()).raw("null").number(1);
            });
        }
        self.insert_notices(db, batch).await
    }

    pub(crate) async fn insert_notices(&self, db: &mut Db<'_>, notices: Batch) -> Result<(), StateError> {
        if notices.is_empty() {
            return Ok(());
        }
        let insert = query(&self.sql.insert_notices)
            .bind(notices.finish())
            .bind(self.origin)
            .bind(clock::now().as_micros());
        db.execute(insert).await?;
        db.execute(query(&self.sql.drop_notices).bind(NOTICES)).await?;
        Ok(())
    }
}

pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
