//! Transitions: moves a job from one table to another, for verbs that have read the whole job. The hot verbs have statements
//! of their own.

use std::collections::BTreeMap;

use queuert::adapter::rank;
use queuert::adapter::rules::{Change, ErrorChange};
use queuert::{AttemptError, ChainId, JobId, JobStatus, Payload, StateError, Timestamp};
use uuid::Uuid;

use crate::connection::session::{Session, query};
use crate::row::{StoredJob, Table, status_number};
use crate::statements::{Filling, text};
use crate::store::{Store, integer};
use crate::verbs::create::keys;

/// The transition of a job whose chain the caller has locked.
#[derive(Clone, Debug)]
pub(crate) struct Transition {
    pub(crate) job: JobId,
    /// The table that has its row; `None` if no table has it yet, or its row was deleted already.
    pub(crate) from: Option<Table>,
    pub(crate) to: Destination,
    pub(crate) scheduled_at: Timestamp,
    /// The rank to keep; `None` for that of the scheduled time.
    pub(crate) rank: Option<i64>,
    pub(crate) attempt: u32,
    pub(crate) claims: u32,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) settled_fence: Option<Uuid>,
    pub(crate) awaited: bool,
    pub(crate) type_id: i32,
    pub(crate) priority: i16,
    pub(crate) chain: ChainId,
    pub(crate) chain_type_id: i32,
    pub(crate) chain_created_at: Timestamp,
    /// Whether the chain was started with a deduplication key.
    pub(crate) keyed: bool,
    /// A failure to store.
    pub(crate) error: Option<AttemptError>,
}

/// Where a job goes.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// Pending: due now or later, as the scheduled time says.
    Pending,
    /// Blocked, with this many edges to chains that have not completed.
    Blocked { remaining: i32 },
    /// Completed.
    Completed {
        ended_at: Timestamp,
        /// Whether the chain ends with it.
        is_final: bool,
        completed_by: Option<String>,
        output: Option<Payload>,
    },
    /// Dead or cancelled.
    Stopped { status: JobStatus, ended_at: Timestamp },
}

impl Transition {
    /// What a rule of the core has decided about a job.
    pub(crate) fn of_change(stored: &StoredJob, change: Change) -> Self {
        let ended_at = change.ended_at.unwrap_or(change.scheduled_at);
        let to = match change.status {
            // A blocked job that is settled from outside stays blocked.
            JobStatus::Blocked => Destination::Blocked {
                remaining: stored.remaining.unwrap_or_default(),
            },
            JobStatus::Pending | JobStatus::Running => Destination::Pending,
            JobStatus::Completed => Destination::Completed {
                ended_at,
                is_final: !change.chain_open,
                completed_by: change.completed_by.map(|worker| worker.as_str().to_owned()),
                output: change.output,
            },
            status @ (JobStatus::Dead | JobStatus::Cancelled) => Destination::Stopped { status, ended_at },
        };
        Self {
            scheduled_at: change.scheduled_at,
            attempt: change.attempt,
            settled_fence: change
                .settled_fence
                .map(|fence| fence.as_uuid())
                .or(stored.settled_fence),
            error: match change.error {
                ErrorChange::Set(error) => Some(error),
                ErrorChange::Keep | ErrorChange::Clear => None,
            },
            ..Self::of(stored, to)
        }
    }

    /// The job goes there, and is otherwise as it was, but for what the caller sets.
    pub(crate) fn of(stored: &StoredJob, to: Destination) -> Self {
        let job = &stored.job;
        Self {
            job: job.id,
            from: Some(stored.table),
            to,
            scheduled_at: job.scheduled_at,
            rank: None,
            attempt: job.attempt,
            claims: job.claims,
            started_at: job.started_at,
            settled_fence: stored.settled_fence,
            awaited: stored.awaited,
            type_id: stored.type_id,
            priority: job.priority,
            chain: job.chain_id,
            chain_type_id: stored.chain_type_id,
            chain_created_at: stored.chain_created_at,
            keyed: stored.keyed,
            error: None,
        }
    }
}

/// The columns that all six tables have, as arrays.
#[derive(Debug, Default)]
struct Rows {
    ids: Vec<Uuid>,
    scheduled_at: Vec<i64>,
    attempts: Vec<i32>,
    claims: Vec<i32>,
    started_at: Vec<Option<i64>>,
    settled_fences: Vec<Option<Uuid>>,
}

impl Rows {
    fn of<'a>(transitions: impl Iterator<Item = &'a Transition>) -> Self {
        let mut rows = Self::default();
        for transition in transitions {
            rows.ids.push(transition.job.as_uuid());
            rows.scheduled_at.push(transition.scheduled_at.as_micros());
            rows.attempts.push(integer(transition.attempt));
            rows.claims.push(integer(transition.claims));
            rows.started_at.push(transition.started_at.map(Timestamp::as_micros));
            rows.settled_fences.push(transition.settled_fence);
        }
        rows
    }

    fn bind(self, sql: &sqlx::SqlStr) -> crate::connection::session::Query {
        query(sql)
            .bind(self.ids)
            .bind(self.scheduled_at)
            .bind(self.attempts)
            .bind(self.claims)
            .bind(self.started_at)
            .bind(self.settled_fences)
    }
}

impl Store {
    /// Writes transitions of jobs, each job at most once. A job is due if it is scheduled not after `now`.
    pub(crate) async fn apply(
        &self,
        session: &mut Session<'_>,
        transitions: &[Transition],
        now: Timestamp,
    ) -> Result<(), StateError> {
        self.leave(session, transitions).await?;
        let going = |table: Table| {
            transitions
                .iter()
                .filter(move |transition| transition.table(now) == table)
        };
        for table in Table::ALL {
            let rows = Rows::of(going(table));
            if rows.ids.is_empty() {
                continue;
            }
            let insert = match table {
                Table::Ready | Table::Later | Table::Waiting => self.insert_open(table, rows, going(table)),
                Table::Result | Table::Stopped => self.insert_ended(table, rows, going(table)),
                // Only a claim makes a job run.
                Table::Running => continue,
            };
            session.execute(insert).await?;
        }
        self.store_failures(
            session,
            transitions
                .iter()
                .filter_map(|transition| Some((transition.job, transition.error.as_ref()?))),
        )
        .await?;
        self.change_keys(session, transitions).await
    }

    async fn leave(&self, session: &mut Session<'_>, transitions: &[Transition]) -> Result<(), StateError> {
        let mut leaving: BTreeMap<Table, Vec<Uuid>> = BTreeMap::new();
        for transition in transitions {
            if let Some(table) = transition.from {
                leaving.entry(table).or_default().push(transition.job.as_uuid());
            }
        }
        for (table, ids) in leaving {
            let delete = self.statement(text::DELETE_FROM, Filling::none().with("table", table.name()));
            session.execute(query(&delete).bind(ids)).await?;
        }
        Ok(())
    }

    fn insert_open<'a>(
        &self,
        table: Table,
        rows: Rows,
        transitions: impl Iterator<Item = &'a Transition>,
    ) -> crate::connection::session::Query {
        let (mut types, mut priorities, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
        let (mut remaining, mut ranks, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for transition in transitions {
            types.push(transition.type_id);
            priorities.push(transition.priority);
            awaited.push(transition.awaited);
            kept.push(transition.rank);
            let of_schedule = || rank(transition.scheduled_at, transition.priority, self.ageing_step);
            ranks.push(transition.rank.unwrap_or_else(of_schedule));
            if let Destination::Blocked { remaining: edges } = transition.to {
                remaining.push(edges);
            }
        }
        let sql = match table {
            Table::Ready => &self.sql.insert_ready,
            Table::Later => &self.sql.insert_later,
            _ => &self.sql.insert_waiting,
        };
        let insert = rows.bind(sql).bind(types).bind(priorities).bind(awaited);
        match table {
            Table::Ready => insert.bind(ranks),
            Table::Later => insert.bind(kept),
            _ => insert.bind(remaining),
        }
    }

    fn insert_ended<'a>(
        &self,
        table: Table,
        rows: Rows,
        transitions: impl Iterator<Item = &'a Transition>,
    ) -> crate::connection::session::Query {
        let (mut ends, mut chain_times, mut chain_types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut awaited, mut statuses, mut types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut finals, mut workers, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for transition in transitions {
            chain_times.push(transition.chain_created_at.as_micros());
            chain_types.push(transition.chain_type_id);
            match &transition.to {
                Destination::Completed {
                    ended_at,
                    is_final,
                    completed_by,
                    output,
                } => {
                    ends.push(ended_at.as_micros());
                    finals.push(*is_final);
                    workers.push(completed_by.clone());
                    outputs.push(output.as_ref().map(|output| output.as_str().to_owned()));
                }
                Destination::Stopped { status, ended_at } => {
                    ends.push(ended_at.as_micros());
                    awaited.push(transition.awaited);
                    types.push(transition.type_id);
                    statuses.push(i16::try_from(status_number(*status)).unwrap_or_default());
                }
                Destination::Pending | Destination::Blocked { .. } => {}
            }
        }
        match table {
            Table::Result => rows
                .bind(&self.sql.insert_result)
                .bind(ends)
                .bind(chain_times)
                .bind(chain_types)
                .bind(finals)
                .bind(workers)
                .bind(outputs),
            _ => rows
                .bind(&self.sql.insert_stopped)
                .bind(ends)
                .bind(chain_times)
                .bind(chain_types)
                .bind(awaited)
                .bind(statuses)
                .bind(types),
        }
    }

    async fn store_failures<'a>(
        &self,
        session: &mut Session<'_>,
        failures: impl Iterator<Item = (JobId, &'a AttemptError)>,
    ) -> Result<(), StateError> {
        let (mut ids, mut attempts, mut times, mut messages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (job, error) in failures {
            ids.push(job.as_uuid());
            attempts.push(integer(error.attempt));
            times.push(error.at.as_micros());
            messages.push(storable(&error.message));
        }
        if ids.is_empty() {
            return Ok(());
        }
        let insert = query(&self.sql.insert_failures)
            .bind(ids)
            .bind(attempts)
            .bind(times)
            .bind(messages);
        session.execute(insert).await
    }

    /// Frees the keys of chains that end, and takes the keys of chains that go on again.
    async fn change_keys(&self, session: &mut Session<'_>, transitions: &[Transition]) -> Result<(), StateError> {
        let (mut closed, mut opened) = (Vec::new(), Vec::new());
        for transition in transitions.iter().filter(|transition| transition.keyed) {
            match &transition.to {
                Destination::Completed { is_final: true, .. } | Destination::Stopped { .. } => {
                    closed.push(transition.chain.as_uuid());
                }
                Destination::Pending | Destination::Blocked { .. } if transition.from == Some(Table::Stopped) => {
                    opened.push(transition.chain.as_uuid());
                }
                _ => {}
            }
        }
        if !closed.is_empty() {
            session.execute(query(&self.sql.delete_keys).bind(closed)).await?;
        }
        if !opened.is_empty() {
            keys::retake(session, self, opened).await?;
        }
        Ok(())
    }
}

impl Transition {
    fn table(&self, now: Timestamp) -> Table {
        match self.to {
            Destination::Pending if self.scheduled_at <= now => Table::Ready,
            Destination::Pending => Table::Later,
            Destination::Blocked { .. } => Table::Waiting,
            Destination::Completed { .. } => Table::Result,
            Destination::Stopped { .. } => Table::Stopped,
        }
    }
}

/// A message as Postgres can keep it. It is for people to read, and losing it for one character would be worse.
pub(crate) fn storable(message: &str) -> String {
    message.replace('\0', "\u{FFFD}")
}
