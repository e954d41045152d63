//! Rows, decoded. Columns are read by position: the order here is the order of the lists in this file.

use queuert::adapter::NewJob;
use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite};
use uuid::Uuid;

use crate::error::{corrupt, translate};

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
];

/// A job with what only this store knows of it.
#[derive(Debug)]
pub(crate) struct StoredJob {
    pub(crate) seq: i64,
    pub(crate) keyed: bool,
    pub(crate) blockers: u32,
    pub(crate) job: JobRecord,
}

pub(crate) fn job(row: &SqliteRow) -> Result<StoredJob, StateError> {
    let id = JobId::from_uuid(uuid(row, 1)?);
    let status = status(get(row, 8)?).ok_or_else(|| corrupt(format!("job {id} has an unknown status")))?;
    let lease = match (status, get::<Option<&str>>(row, 21)?) {
        (JobStatus::Running, Some(owner)) => Some(Lease {
            owner: WorkerId::new(owner),
            until: Timestamp::from_micros(get(row, 22)?),
            fence: Fence::from_uuid(uuid(row, 23)?),
        }),
        (JobStatus::Running, None) => return Err(corrupt(format!("job {id} runs without a lease"))),
        _ => None,
    };
    let job = JobRecord {
        id,
        type_name: TypeName::from(get::<String>(row, 2)?),
        chain_id: ChainId::from_uuid(uuid(row, 3)?),
        chain_type: TypeName::from(get::<String>(row, 4)?),
        chain_index: small(row, 5)?,
        input: Payload::from_text(get::<&str>(row, 6)?),
        output: get::<Option<&str>>(row, 7)?.map(Payload::from_text),
        status,
        priority: priority(row, 9, id)?,
        attempt: small(row, 10)?,
        claims: small(row, 11)?,
        max_attempts: optional_small(row, 12)?,
        created_at: Timestamp::from_micros(get(row, 13)?),
        scheduled_at: Timestamp::from_micros(get(row, 14)?),
        started_at: time(row, 15)?,
        ended_at: time(row, 16)?,
        completed_by: get::<Option<&str>>(row, 17)?.map(WorkerId::new),
        last_error: attempt_error(row, 18)?,
        lease,
        deduplication_key: get(row, 24)?,
        trace_context: get(row, 25)?,
    };
    Ok(StoredJob {
        seq: get(row, 0)?,
        keyed: get::<i64>(row, 26)? != 0,
        blockers: small(row, 27)?,
        job,
    })
}

/// The columns of a job that has just been claimed, in the order in which [`claimed`] reads them. What the claim itself
/// says is not read back: sqlx copies every column of every row.
pub(crate) const CLAIMED: &str = "id, type, chain_id, chain_type, chain_index, input, priority, attempt, claims, \
     max_attempts, created_at, scheduled_at, error_attempt, error_at, error, deduplication_key, trace_context, blockers, \
     rank";

/// How many columns [`CLAIMED`] has; another answer of the same call has another number.
pub(crate) const CLAIMED_COLUMNS: usize = 19;

/// A job that has just been claimed.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) rank: i64,
    pub(crate) blockers: u32,
    pub(crate) job: JobRecord,
}

/// Reads a claimed job; `lease` is the lease that its type has been given.
pub(crate) fn claimed(
    row: &SqliteRow,
    started_at: Timestamp,
    lease: impl FnOnce(&TypeName) -> Option<Lease>,
) -> Result<Claimed, StateError> {
    let id = JobId::from_uuid(uuid(row, 0)?);
    let type_name = TypeName::from(get::<String>(row, 1)?);
    let lease = lease(&type_name).ok_or_else(|| corrupt(format!("job {id} was claimed for another type")))?;
    let job = JobRecord {
        id,
        chain_id: ChainId::from_uuid(uuid(row, 2)?),
        chain_type: TypeName::from(get::<String>(row, 3)?),
        chain_index: small(row, 4)?,
        type_name,
        input: Payload::from_text(get::<&str>(row, 5)?),
        output: None,
        status: JobStatus::Running,
        priority: priority(row, 6, id)?,
        attempt: small(row, 7)?,
        claims: small(row, 8)?,
        max_attempts: optional_small(row, 9)?,
        created_at: Timestamp::from_micros(get(row, 10)?),
        scheduled_at: Timestamp::from_micros(get(row, 11)?),
        started_at: Some(started_at),
        ended_at: None,
        completed_by: None,
        last_error: attempt_error(row, 12)?,
        lease: Some(lease),
        deduplication_key: get(row, 15)?,
        trace_context: get(row, 16)?,
    };
    Ok(Claimed {
        blockers: small(row, 17)?,
        rank: get(row, 18)?,
        job,
    })
}

/// The attempt, time and text of an error, in three columns from this one on.
fn attempt_error(row: &SqliteRow, from: usize) -> Result<Option<AttemptError>, StateError> {
    let Some(at) = get::<Option<i64>>(row, from + 1)? else {
        return Ok(None);
    };
    Ok(Some(AttemptError {
        attempt: small(row, from)?,
        at: Timestamp::from_micros(at),
        message: get(row, from + 2)?,
    }))
}

fn priority(row: &SqliteRow, index: usize, job: JobId) -> Result<i16, StateError> {
    i16::try_from(get::<i64>(row, index)?).map_err(|_| corrupt(format!("job {job} has a wild priority")))
}

/// The columns of a chain: `f` is its first job, `l` its latest. In the order in which [`chain`] reads them.
pub(crate) const CHAIN: &str = "f.id, f.type, f.input, l.status, l.output, l.id, l.type, l.chain_index, f.created_at, \
     l.ended_at, l.error_attempt, l.error_at, l.error, f.deduplication_key, f.trace_context";

/// How many columns [`CHAIN`] has; what a query adds comes after them.
pub(crate) const CHAIN_COLUMNS: usize = 15;

pub(crate) fn chain(row: &SqliteRow) -> Result<ChainRecord, StateError> {
    let id = ChainId::from_uuid(uuid(row, 0)?);
    let status = status(get(row, 3)?).ok_or_else(|| corrupt(format!("chain {id} has an unknown status")))?;
    Ok(ChainRecord {
        id,
        type_name: TypeName::from(get::<String>(row, 1)?),
        input: Payload::from_text(get::<&str>(row, 2)?),
        status,
        output: get::<Option<&str>>(row, 4)?.map(Payload::from_text),
        latest_job: JobId::from_uuid(uuid(row, 5)?),
        latest_type: TypeName::from(get::<String>(row, 6)?),
        length: small(row, 7)?.saturating_add(1),
        created_at: Timestamp::from_micros(get(row, 8)?),
        ended_at: if status.is_open() { None } else { time(row, 9)? },
        last_error: attempt_error(row, 10)?,
        deduplication_key: get(row, 13)?,
        trace_context: get(row, 14)?,
    })
}

/// The columns of a job that is about to be settled, in the order in which [`head`] reads them: no payload and no error
/// text, which may be large and which no decision needs. `j` is the job.
pub(crate) const HEAD: &str = "j.seq, j.chain_id, j.chain_index, j.chain_type, j.chain_created_at, j.chain_keyed, \
     j.status, j.priority, j.attempt, j.scheduled_at, j.fence, j.settled_fence";

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
}

/// Reads a [`Head`] that starts at column `from`; `None` if the row has none there.
pub(crate) fn head(row: &SqliteRow, from: usize) -> Result<Option<Head>, StateError> {
    let Some(seq) = get::<Option<i64>>(row, from)? else {
        return Ok(None);
    };
    let status = status(get(row, from + 6)?).ok_or_else(|| corrupt(format!("row {seq} has an unknown status")))?;
    Ok(Some(Head {
        seq,
        chain_id: ChainId::from_uuid(uuid(row, from + 1)?),
        chain_index: small(row, from + 2)?,
        chain_type: TypeName::from(get::<String>(row, from + 3)?),
        chain_created_at: Timestamp::from_micros(get(row, from + 4)?),
        keyed: get::<i64>(row, from + 5)? != 0,
        status,
        priority: i16::try_from(get::<i64>(row, from + 7)?).unwrap_or_default(),
        attempt: small(row, from + 8)?,
        scheduled_at: Timestamp::from_micros(get(row, from + 9)?),
        fence: optional_uuid(row, from + 10)?,
        settled_fence: optional_uuid(row, from + 11)?,
    }))
}

pub(crate) fn get<'r, T: Decode<'r, Sqlite>>(row: &'r SqliteRow, index: usize) -> Result<T, StateError> {
    // Unchecked: the tables are STRICT, so the types are the declared ones, and checking every column of every row
    // costs.
    row.try_get_unchecked(index).map_err(translate)
}

pub(crate) fn uuid(row: &SqliteRow, index: usize) -> Result<Uuid, StateError> {
    optional_uuid(row, index)?.ok_or_else(|| corrupt(format!("an id is missing in column {index}")))
}

pub(crate) fn optional_uuid(row: &SqliteRow, index: usize) -> Result<Option<Uuid>, StateError> {
    let Some(bytes) = get::<Option<&[u8]>>(row, index)? else {
        return Ok(None);
    };
    let id = Uuid::from_slice(bytes);
    id.map(Some)
        .map_err(|error| corrupt(format!("column {index} does not hold an id")).with_source(error))
}

pub(crate) fn small(row: &SqliteRow, index: usize) -> Result<u32, StateError> {
    let number = get::<i64>(row, index)?;
    u32::try_from(number).map_err(|_| corrupt(format!("column {index} holds {number}, which is out of range")))
}

fn optional_small(row: &SqliteRow, index: usize) -> Result<Option<u32>, StateError> {
    match get::<Option<i64>>(row, index)? {
        Some(_) => small(row, index).map(Some),
        None => Ok(None),
    }
}

fn time(row: &SqliteRow, index: usize) -> Result<Option<Timestamp>, StateError> {
    Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_micros))
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
