//! Rows, decoded. Columns are read by position: the order here is the order of the lists in this file.

use queuert::adapter::NewJob;
use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use uuid::Uuid;

use crate::db::Row;
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
];

/// A job with what only this store knows of it.
#[derive(Debug)]
pub(crate) struct StoredJob {
    pub(crate) seq: i64,
    pub(crate) keyed: bool,
    pub(crate) blockers: u32,
    pub(crate) job: JobRecord,
}

pub(crate) fn job(row: &Row<'_>) -> Result<StoredJob, StateError> {
    let id = JobId::from_uuid(row.get(1)?);
    let status = status(row.get(8)?).ok_or_else(|| corrupt(format!("job {id} has an unknown status")))?;
    let lease = match (status, row.get::<Option<&str>>(21)?) {
        (JobStatus::Running, Some(owner)) => Some(Lease {
            owner: WorkerId::new(owner),
            until: Timestamp::from_micros(row.get(22)?),
            fence: Fence::from_uuid(row.get(23)?),
        }),
        (JobStatus::Running, None) => return Err(corrupt(format!("job {id} runs without a lease"))),
        _ => None,
    };
    let job = JobRecord {
        id,
        type_name: TypeName::from(row.get::<String>(2)?),
        chain_id: ChainId::from_uuid(row.get(3)?),
        chain_type: TypeName::from(row.get::<String>(4)?),
        chain_index: small(row, 5)?,
        input: Payload::from_text(row.get::<&str>(6)?),
        output: row.get::<Option<&str>>(7)?.map(Payload::from_text),
        status,
        priority: priority(row, 9, id)?,
        attempt: small(row, 10)?,
        claims: small(row, 11)?,
        max_attempts: optional_small(row, 12)?,
        created_at: Timestamp::from_micros(row.get(13)?),
        scheduled_at: Timestamp::from_micros(row.get(14)?),
        started_at: time(row, 15)?,
        ended_at: time(row, 16)?,
        completed_by: row.get::<Option<&str>>(17)?.map(WorkerId::new),
        last_error: attempt_error(row, 18)?,
        lease,
        deduplication_key: row.get(24)?,
        trace_context: row.get(25)?,
    };
    Ok(StoredJob {
        seq: row.get(0)?,
        keyed: row.get::<i64>(26)? != 0,
        blockers: small(row, 27)?,
        job,
    })
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
    let id = JobId::from_uuid(row.get(0)?);
    let named = lease(row.get(1)?);
    let (type_name, lease) = named.ok_or_else(|| corrupt(format!("job {id} was claimed for another type")))?;
    let chain_type = row.get::<&str>(3)?;
    let job = JobRecord {
        id,
        chain_id: ChainId::from_uuid(row.get(2)?),
        chain_type: match chain_type == type_name.as_str() {
            true => type_name.clone(),
            false => TypeName::from(chain_type.to_owned()),
        },
        chain_index: small(row, 4)?,
        type_name,
        input: Payload::from_text(row.get::<&str>(5)?),
        output: None,
        status: JobStatus::Running,
        priority: priority(row, 6, id)?,
        attempt: small(row, 7)?.saturating_add(1),
        claims: small(row, 8)?.saturating_add(1),
        max_attempts: optional_small(row, 9)?,
        created_at: Timestamp::from_micros(row.get(10)?),
        scheduled_at: Timestamp::from_micros(row.get(11)?),
        started_at: Some(started_at),
        ended_at: None,
        completed_by: None,
        last_error: attempt_error(row, 12)?,
        lease: Some(lease),
        deduplication_key: row.get(15)?,
        trace_context: row.get(16)?,
    };
    Ok(Claimed {
        blockers: small(row, 17)?,
        seq: row.get(19)?,
        job,
    })
}

/// The attempt, time and text of an error, in three columns from this one on.
fn attempt_error(row: &Row<'_>, from: usize) -> Result<Option<AttemptError>, StateError> {
    let Some(at) = row.get::<Option<i64>>(from + 1)? else {
        return Ok(None);
    };
    Ok(Some(AttemptError {
        attempt: small(row, from)?,
        at: Timestamp::from_micros(at),
        message: row.get(from + 2)?,
    }))
}

fn priority(row: &Row<'_>, index: usize, job: JobId) -> Result<i16, StateError> {
    i16::try_from(row.get::<i64>(index)?).map_err(|_| corrupt(format!("job {job} has a wild priority")))
}

/// The columns of a chain: `f` is its first job, `l` its latest. In the order in which [`chain`] reads them.
pub(crate) const CHAIN: &str = "f.id, f.type, f.input, l.status, l.output, l.id, l.type, l.chain_index, f.created_at, \
     l.ended_at, l.error_attempt, l.error_at, l.error, f.deduplication_key, f.trace_context";

/// How many columns [`CHAIN`] has; what a query adds comes after them.
pub(crate) const CHAIN_COLUMNS: usize = 15;

pub(crate) fn chain(row: &Row<'_>) -> Result<ChainRecord, StateError> {
    let id = ChainId::from_uuid(row.get(0)?);
    let status = status(row.get(3)?).ok_or_else(|| corrupt(format!("chain {id} has an unknown status")))?;
    Ok(ChainRecord {
        id,
        type_name: TypeName::from(row.get::<String>(1)?),
        input: Payload::from_text(row.get::<&str>(2)?),
        status,
        output: row.get::<Option<&str>>(4)?.map(Payload::from_text),
        latest_job: JobId::from_uuid(row.get(5)?),
        latest_type: TypeName::from(row.get::<String>(6)?),
        length: small(row, 7)?.saturating_add(1),
        created_at: Timestamp::from_micros(row.get(8)?),
        ended_at: if status.is_open() { None } else { time(row, 9)? },
        last_error: attempt_error(row, 10)?,
        deduplication_key: row.get(13)?,
        trace_context: row.get(14)?,
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

/// Reads a [`Head`] that starts at column `from`.
pub(crate) fn head(row: &Row<'_>, from: usize) -> Result<Head, StateError> {
    let seq = row.get::<i64>(from)?;
    let status = status(row.get(from + 6)?).ok_or_else(|| corrupt(format!("row {seq} has an unknown status")))?;
    Ok(Head {
        seq,
        chain_id: ChainId::from_uuid(row.get(from + 1)?),
        chain_index: small(row, from + 2)?,
        chain_type: TypeName::from(row.get::<String>(from + 3)?),
        chain_created_at: Timestamp::from_micros(row.get(from + 4)?),
        keyed: row.get::<i64>(from + 5)? != 0,
        status,
        priority: i16::try_from(row.get::<i64>(from + 7)?).unwrap_or_default(),
        attempt: small(row, from + 8)?,
        scheduled_at: Timestamp::from_micros(row.get(from + 9)?),
        fence: row.get(from + 10)?,
        settled_fence: row.get(from + 11)?,
    })
}

pub(crate) fn small(row: &Row<'_>, index: usize) -> Result<u32, StateError> {
    let number = row.get::<i64>(index)?;
    u32::try_from(number).map_err(|_| corrupt(format!("column {index} holds {number}, which is out of range")))
}

fn optional_small(row: &Row<'_>, index: usize) -> Result<Option<u32>, StateError> {
    match row.get::<Option<i64>>(index)? {
        Some(_) => small(row, index).map(Some),
        None => Ok(None),
    }
}

fn time(row: &Row<'_>, index: usize) -> Result<Option<Timestamp>, StateError> {
    Ok(row.get::<Option<i64>>(index)?.map(Timestamp::from_micros))
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
