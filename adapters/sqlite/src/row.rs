//! Rows, decoded. Columns are read by position: the order here is the order of the lists in this file.

use queuert::adapter::NewJob;
use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use uuid::Uuid;

use crate::connection::{Column, Row};
use crate::error::corrupt;

/// The columns of a whole job, in the order in which [`job`] reads them.
pub(crate) const JOB: &[&str] = &[
    "seq",
    "id",
    "type",
    "chain_id",
    "chain_type",
    "chain_index",
    "input",
    "output",
    "status",
    "priority",
    "attempt",
    "claims",
    "max_attempts",
    "created_at",
    "scheduled_at",
    "started_at",
    "ended_at",
    "completed_by",
    "error_attempt",
    "error_at",
    "error",
    "lease_owner",
    "lease_until",
    "fence",
    "deduplication_key",
    "trace_context",
    "chain_keyed",
    "blockers",
    "rank",
];

/// A job with what only this store knows of it.
#[derive(Debug)]
pub(crate) struct StoredJob {
    pub(crate) seq: i64,
    pub(crate) keyed: bool,
    pub(crate) blockers: u32,
    pub(crate) rank: i64,
    pub(crate) job: JobRecord,
}

/// The columns of one row. What cannot be read is noted, and a neutral value takes its place: one damaged row must not keep
/// the others from being read, and a person must be able to look at it and to delete it.
struct Columns<'a, 'r> {
    row: &'a Row<'r>,
    problem: Option<String>,
}

impl<'a, 'r> Columns<'a, 'r> {
    const fn of(row: &'a Row<'r>) -> Self {
        Self { row, problem: None }
    }

    #[cold]
    fn note(&mut self, column: &str, problem: impl std::fmt::Display) {
        let noted = match self.problem.take() {
            Some(before) => format!("{before}, and `{column}` {problem}"),
            None => format!("`{column}` {problem}"),
        };
        self.problem = Some(noted);
    }

    fn get<T: Column<'r> + Default>(&mut self, index: usize, column: &str) -> T {
        self.row.get(index).unwrap_or_else(|error: StateError| {
            self.note(column, format_args!("is wrong ({error})"));
            T::default()
        })
    }

    /// A number that fits.
    fn number<T: TryFrom<i64> + Default>(&mut self, index: usize, column: &str) -> T {
        let number = self.get::<i64>(index, column);
        T::try_from(number).unwrap_or_else(|_| {
            self.note(column, format_args!("is {number}, which is out of range"));
            T::default()
        })
    }

    fn max_attempts(&mut self, index: usize) -> Option<u32> {
        self.get::<Option<i64>>(index, "max_attempts")?;
        Some(self.number(index, "max_attempts"))
    }

    fn time(&mut self, index: usize, column: &str) -> Timestamp {
        Timestamp::from_micros(self.get(index, column))
    }

    fn optional_time(&mut self, index: usize, column: &str) -> Option<Timestamp> {
        self.get::<Option<i64>>(index, column).map(Timestamp::from_micros)
    }

    fn payload(&mut self, index: usize, column: &str) -> Payload {
        Payload::from_text(self.get::<&str>(index, column))
    }

    fn type_name(&mut self, index: usize, column: &str) -> TypeName {
        TypeName::from(self.get::<String>(index, column))
    }

    fn status(&mut self, index: usize) -> JobStatus {
        let number = self.get(index, "status");
        status(number).unwrap_or_else(|| {
            self.note("status", format_args!("is {number}, which is no status"));
            JobStatus::Dead
        })
    }

    /// The attempt, time and text of an error, in three columns from this one on.
    fn attempt_error(&mut self, from: usize) -> Option<AttemptError> {
        let at = self.get::<Option<i64>>(from + 1, "error_at")?;
        Some(AttemptError {
            attempt: self.number(from, "error_attempt"),
            at: Timestamp::from_micros(at),
            message: self.get(from + 2, "error"),
        })
    }
}

pub(crate) fn job(row: &Row<'_>) -> Result<StoredJob, StateError> {
    let seq = row.get(0)?;
    let mut columns = Columns::of(row);
    let status = columns.status(8);
    let lease = (status == JobStatus::Running).then(|| Lease {
        owner: WorkerId::new(columns.get::<&str>(21, "lease_owner")),
        until: columns.time(22, "lease_until"),
        fence: Fence::from_uuid(columns.get(23, "fence")),
    });
    let mut stored = StoredJob {
        seq,
        keyed: columns.get::<i64>(26, "chain_keyed") != 0,
        blockers: columns.number(27, "blockers"),
        rank: columns.get(28, "rank"),
        job: JobRecord {
            id: JobId::from_uuid(columns.get(1, "id")),
            type_name: columns.type_name(2, "type"),
            chain_id: ChainId::from_uuid(columns.get(3, "chain_id")),
            chain_type: columns.type_name(4, "chain_type"),
            chain_index: columns.number(5, "chain_index"),
            input: columns.payload(6, "input"),
            output: columns.get::<Option<&str>>(7, "output").map(Payload::from_text),
            status,
            priority: columns.number(9, "priority"),
            attempt: columns.number(10, "attempt"),
            claims: columns.number(11, "claims"),
            max_attempts: columns.max_attempts(12),
            created_at: columns.time(13, "created_at"),
            scheduled_at: columns.time(14, "scheduled_at"),
            started_at: columns.optional_time(15, "started_at"),
            ended_at: columns.optional_time(16, "ended_at"),
            completed_by: columns.get::<Option<&str>>(17, "completed_by").map(WorkerId::new),
            last_error: columns.attempt_error(18),
            lease,
            deduplication_key: columns.get(24, "deduplication_key"),
            trace_context: columns.get(25, "trace_context"),
            unreadable: None,
        },
    };
    stored.job.unreadable = named(columns, seq);
    Ok(stored)
}

/// What could not be read, with the number of the row: its id may be what is wrong.
fn named(columns: Columns<'_, '_>, seq: i64) -> Option<String> {
    columns.problem.map(|problem| format!("{problem} (`seq` {seq})"))
}

/// The columns of a job that is about to be claimed, in the order in which [`claimed`] reads them.
pub(crate) const CLAIMED: &str = "id, type, chain_id, chain_type, chain_index, input, priority, attempt, claims, \
     max_attempts, created_at, scheduled_at, error_attempt, error_at, error, deduplication_key, trace_context, blockers, \
     rank, seq";

/// A job that is about to be claimed, as it will be then.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) seq: i64,
    pub(crate) blockers: u32,
    pub(crate) job: JobRecord,
}

/// Reads a claimed job; `lease` gives the lease of a type, and its name, which need not be made anew for every job.
pub(crate) fn claimed(
    row: &Row<'_>,
    started_at: Timestamp,
    lease: impl FnOnce(&str) -> Option<(TypeName, Lease)>,
) -> Result<Claimed, StateError> {
    let seq = row.get(19)?;
    let claimed = lease(row.get(1)?);
    let (type_name, lease) = claimed.ok_or_else(|| corrupt(format!("row {seq} was claimed for another type")))?;
    let mut columns = Columns::of(row);
    let chain_type = columns.get::<&str>(3, "chain_type");
    let mut job = JobRecord {
        id: JobId::from_uuid(columns.get(0, "id")),
        chain_id: ChainId::from_uuid(columns.get(2, "chain_id")),
        chain_type: match chain_type == type_name.as_str() {
            true => type_name.clone(),
            false => TypeName::from(chain_type.to_owned()),
        },
        chain_index: columns.number(4, "chain_index"),
        type_name,
        input: columns.payload(5, "input"),
        output: None,
        status: JobStatus::Running,
        priority: columns.number(6, "priority"),
        attempt: columns.number::<u32>(7, "attempt").saturating_add(1),
        claims: columns.number::<u32>(8, "claims").saturating_add(1),
        max_attempts: columns.max_attempts(9),
        created_at: columns.time(10, "created_at"),
        scheduled_at: columns.time(11, "scheduled_at"),
        started_at: Some(started_at),
        ended_at: None,
        completed_by: None,
        last_error: columns.attempt_error(12),
        lease: Some(lease),
        deduplication_key: columns.get(15, "deduplication_key"),
        trace_context: columns.get(16, "trace_context"),
        unreadable: None,
    };
    let blockers = columns.number(17, "blockers");
    job.unreadable = named(columns, seq);
    Ok(Claimed { seq, blockers, job })
}

/// The columns of a chain: `f` is its first job, `l` its latest. In the order in which [`chain`] reads them.
pub(crate) const CHAIN: &str = "f.id, f.type, f.input, l.status, l.output, l.id, l.type, l.chain_index, f.created_at, \
     l.ended_at, l.error_attempt, l.error_at, l.error, f.deduplication_key, f.trace_context";

/// How many columns [`CHAIN`] has; what a query adds comes after them.
pub(crate) const CHAIN_COLUMNS: usize = 15;

pub(crate) fn chain(row: &Row<'_>) -> Result<ChainRecord, StateError> {
    let mut columns = Columns::of(row);
    let status = columns.status(3);
    let mut chain = ChainRecord {
        id: ChainId::from_uuid(columns.get(0, "id")),
        type_name: columns.type_name(1, "type"),
        input: columns.payload(2, "input"),
        status,
        output: columns.get::<Option<&str>>(4, "output").map(Payload::from_text),
        latest_job: JobId::from_uuid(columns.get(5, "id")),
        latest_type: columns.type_name(6, "type"),
        length: columns.number::<u32>(7, "chain_index").saturating_add(1),
        created_at: columns.time(8, "created_at"),
        ended_at: columns.optional_time(9, "ended_at").filter(|_| !status.is_open()),
        last_error: columns.attempt_error(10),
        deduplication_key: columns.get(13, "deduplication_key"),
        trace_context: columns.get(14, "trace_context"),
        unreadable: None,
    };
    chain.unreadable = columns.problem;
    Ok(chain)
}

/// The columns of a job that is about to be settled, in the order in which [`head`] reads them: no payload and no error
/// text, which may be large and which no decision needs. `j` is the job.
pub(crate) const HEAD: &str = "j.seq, j.chain_id, j.chain_index, j.chain_type, j.chain_created_at, j.chain_keyed, \
     j.status, j.priority, j.attempt, j.scheduled_at, j.fence, j.settled_fence, j.rank";

/// What decides about the end of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) seq: i64,
    pub(crate) chain_id: ChainId,
    pub(crate) chain_index: u32,
    pub(crate) chain_type: TypeName,
    pub(crate) chain_created_at: Timestamp,
    pub(crate) keyed: bool,
    pub(crate) status: JobStatus,
    pub(crate) priority: i16,
    pub(crate) attempt: u32,
    pub(crate) scheduled_at: Timestamp,
    pub(crate) fence: Option<Uuid>,
    pub(crate) settled_fence: Option<Uuid>,
    pub(crate) rank: i64,
}

/// Reads a [`Head`] that starts at column `from`. The end of an attempt is written whatever else its row says: what cannot
/// be read of it has been told when the job was claimed.
pub(crate) fn head(row: &Row<'_>, from: usize) -> Result<Head, StateError> {
    let mut columns = Columns::of(row);
    Ok(Head {
        seq: row.get(from)?,
        chain_id: ChainId::from_uuid(columns.get(from + 1, "chain_id")),
        chain_index: columns.number(from + 2, "chain_index"),
        chain_type: columns.type_name(from + 3, "chain_type"),
        chain_created_at: columns.time(from + 4, "chain_created_at"),
        keyed: columns.get::<i64>(from + 5, "chain_keyed") != 0,
        status: columns.status(from + 6),
        priority: columns.number(from + 7, "priority"),
        attempt: columns.number(from + 8, "attempt"),
        scheduled_at: columns.time(from + 9, "scheduled_at"),
        fence: columns.get(from + 10, "fence"),
        settled_fence: columns.get(from + 11, "settled_fence"),
        rank: columns.get(from + 12, "rank"),
    })
}

pub(crate) const BLOCKED: i64 = 0;
pub(crate) const PENDING: i64 = 1;
pub(crate) const RUNNING: i64 = 2;
pub(crate) const COMPLETED: i64 = 3;

pub(crate) const fn status_number(status: JobStatus) -> i64 {
    match status {
        JobStatus::Blocked => BLOCKED,
        JobStatus::Pending => PENDING,
        JobStatus::Running => RUNNING,
        JobStatus::Completed => COMPLETED,
        JobStatus::Dead => 4,
        JobStatus::Cancelled => 5,
    }
}

pub(crate) fn status(number: i64) -> Option<JobStatus> {
    JobStatus::ALL
        .into_iter()
        .find(|status| status_number(*status) == number)
}

/// A job to be inserted: what the caller asked for, and what the store decided.
#[derive(Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) job: &'a NewJob,
    pub(crate) chain_id: ChainId,
    pub(crate) chain_type: &'a TypeName,
    pub(crate) chain_index: u32,
    pub(crate) chain_created_at: Timestamp,
    pub(crate) status: JobStatus,
    pub(crate) deduplication_key: Option<&'a str>,
    pub(crate) keyed: bool,
}
