//! Moving a job from where it is to where it goes, for verbs that know the whole of it. The hot ones have statements of
//! their own.

use std::collections::BTreeMap;

use queuert::adapter::rank;
use queuert::{AttemptError, ChainId, JobId, JobStatus, Payload, StateError, Timestamp};
use uuid::Uuid;

use crate::core::{Core, integer};
use crate::keys;
use crate::row::{Place, StoredJob, status_number};
use crate::session::{Session, query};

/// What becomes of a job whose chain the caller has locked.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) job: JobId,
    /// Where its row is; `None` if it is nowhere yet, or was taken away already.
    pub(crate) from: Option<Place>,
    pub(crate) to: Destination,
    pub(crate) scheduled_at: Timestamp,
    /// The rank to keep; `None` for that of the scheduled time.
    pub(crate) rank: Option<i64>,
    pub(crate) attempt: u32,
    pub(crate) claims: u32,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) settled_fence: Option<Uuid>,
    pub(crate) awaited: bool,
    pub(crate) type_number: i32,
    pub(crate) priority: i16,
    pub(crate) chain: ChainId,
    pub(crate) chain_type_number: i32,
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

impl Change {
    /// The job goes there, and is otherwise as it was, but for what the caller sets.
    pub(crate) fn of(stored: &StoredJob, to: Destination) -> Self {
        let job = &stored.job;
        Self {
            job: job.id,
            from: Some(stored.place),
            to,
            scheduled_at: job.scheduled_at,
            rank: None,
            attempt: job.attempt,
            claims: job.claims,
            started_at: job.started_at,
            settled_fence: stored.settled_fence,
            awaited: stored.awaited,
            type_number: stored.type_number,
            priority: job.priority,
            chain: job.chain_id,
            chain_type_number: stored.chain_type_number,
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
    fn of<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let mut rows = Self::default();
        for change in changes {
            rows.ids.push(change.job.as_uuid());
            rows.scheduled_at.push(change.scheduled_at.as_micros());
            rows.attempts.push(integer(change.attempt));
            rows.claims.push(integer(change.claims));
            rows.started_at.push(change.started_at.map(Timestamp::as_micros));
            rows.settled_fences.push(change.settled_fence);
        }
        rows
    }

    fn bind(self, sql: &sqlx::SqlStr) -> crate::session::Query {
        query(sql)
            .bind(self.ids)
            .bind(self.scheduled_at)
            .bind(self.attempts)
            .bind(self.claims)
            .bind(self.started_at)
            .bind(self.settled_fences)
    }
}

impl Core {
    /// Writes changes of jobs, each at most once. Due is what is scheduled not after `now`.
    pub(crate) async fn change(
        &self,
        session: &mut Session<'_>,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), StateError> {
        self.leave(session, changes).await?;
        let going = |place: Place| changes.iter().filter(move |change| change.place(now) == place);
        for place in Place::ALL {
            let rows = Rows::of(going(place));
            if rows.ids.is_empty() {
                continue;
            }
            let insert = match place {
                Place::Ready | Place::Later | Place::Waiting => self.insert_open(place, rows, going(place)),
                Place::Result | Place::Stopped => self.insert_ended(place, rows, going(place)),
                // Only a claim makes a job run.
                Place::Running => continue,
            };
            session.execute(insert).await?;
        }
        self.store_failures(
            session,
            changes
                .iter()
                .filter_map(|change| Some((change.job, change.error.as_ref()?))),
        )
        .await?;
        self.change_keys(session, changes).await
    }

    async fn leave(&self, session: &mut Session<'_>, changes: &[Change]) -> Result<(), StateError> {
        let mut leaving: BTreeMap<Place, Vec<Uuid>> = BTreeMap::new();
        for change in changes {
            if let Some(place) = change.from {
                leaving.entry(place).or_default().push(change.job.as_uuid());
            }
        }
        for (place, ids) in leaving {
            let delete = self.render(&format!(
                "DELETE FROM {{schema}}.{} WHERE id = ANY ($1::uuid[])",
                place.table()
            ));
            session.execute(query(&delete).bind(ids)).await?;
        }
        Ok(())
    }

    fn insert_open<'a>(
        &self,
        place: Place,
        rows: Rows,
        changes: impl Iterator<Item = &'a Change>,
    ) -> crate::session::Query {
        let (mut types, mut priorities, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
        let (mut remaining, mut ranks, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes {
            types.push(change.type_number);
            priorities.push(change.priority);
            awaited.push(change.awaited);
            kept.push(change.rank);
            let of_schedule = || rank(change.scheduled_at, change.priority, self.ageing_step);
            ranks.push(change.rank.unwrap_or_else(of_schedule));
            if let Destination::Blocked { remaining: edges } = change.to {
                remaining.push(edges);
            }
        }
        let sql = match place {
            Place::Ready => &self.sql.insert_ready,
            Place::Later => &self.sql.insert_later,
            _ => &self.sql.insert_waiting,
        };
        let insert = rows.bind(sql).bind(types).bind(priorities).bind(awaited);
        match place {
            Place::Ready => insert.bind(ranks),
            Place::Later => insert.bind(kept),
            _ => insert.bind(remaining),
        }
    }

    fn insert_ended<'a>(
        &self,
        place: Place,
        rows: Rows,
        changes: impl Iterator<Item = &'a Change>,
    ) -> crate::session::Query {
        let (mut ends, mut chain_times, mut chain_types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut awaited, mut statuses, mut types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut finals, mut workers, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes {
            chain_times.push(change.chain_created_at.as_micros());
            chain_types.push(change.chain_type_number);
            match &change.to {
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
                    awaited.push(change.awaited);
                    types.push(change.type_number);
                    statuses.push(i16::try_from(status_number(*status)).unwrap_or_default());
                }
                Destination::Pending | Destination::Blocked { .. } => {}
            }
        }
        match place {
            Place::Result => rows
                .bind(&self.sql.insert_results)
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

    /// The keys of chains that end are free, those of chains that go on again are taken.
    async fn change_keys(&self, session: &mut Session<'_>, changes: &[Change]) -> Result<(), StateError> {
        let (mut closed, mut opened) = (Vec::new(), Vec::new());
        for change in changes.iter().filter(|change| change.keyed) {
            match &change.to {
                Destination::Completed { is_final: true, .. } | Destination::Stopped { .. } => {
                    closed.push(change.chain.as_uuid());
                }
                Destination::Pending | Destination::Blocked { .. } if change.from == Some(Place::Stopped) => {
                    opened.push(change.chain.as_uuid());
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

impl Change {
    fn place(&self, now: Timestamp) -> Place {
        match self.to {
            Destination::Pending if self.scheduled_at <= now => Place::Ready,
            Destination::Pending => Place::Later,
            Destination::Blocked { .. } => Place::Waiting,
            Destination::Completed { .. } => Place::Result,
            Destination::Stopped { .. } => Place::Stopped,
        }
    }
}

/// A message as Postgres can keep it. It is for people to read, and losing it for one character would be worse.
pub(crate) fn storable(message: &str) -> String {
    message.replace('\0', "\u{FFFD}")
}
