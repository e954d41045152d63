//! Rows, decoded. Columns are read by position: the order here is the order of the lists in this file.

use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use sqlx::postgres::PgRow;
use sqlx::{Decode, Postgres, Row};
use uuid::Uuid;

use crate::core::Core;
use crate::error::{corrupt, translate};
use crate::session::Session;

/// Where the state of job `j` is: one row, whichever table it is in. `j` must stand before it in the `FROM` list.
pub(crate) const STATE: &str = "LATERAL (\
     SELECT 0 AS place, 1 AS status, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL::bigint AS ended_at, \
     NULL::text AS completed_by, NULL::text AS owner, NULL::bigint AS leased_until, NULL::uuid AS fence, \
     x.settled_fence, x.awaited, NULL::text AS output, NULL::integer AS remaining \
     FROM {schema}.ready AS x WHERE x.id = j.id \
     UNION ALL SELECT 1, 1, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, NULL, NULL, NULL, \
     x.settled_fence, x.awaited, NULL, NULL FROM {schema}.later AS x WHERE x.id = j.id \
     UNION ALL SELECT 2, 0, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, NULL, NULL, NULL, \
     x.settled_fence, x.awaited, NULL, x.remaining FROM {schema}.waiting AS x WHERE x.id = j.id \
     UNION ALL SELECT 3, 2, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, x.owner, x.leased_until, \
     x.fence, x.settled_fence, x.awaited, NULL, NULL FROM {schema}.running AS x WHERE x.id = j.id \
     UNION ALL SELECT 4, 3, x.attempt, x.claims, x.scheduled_at, x.started_at, x.ended_at, x.completed_by, NULL, NULL, \
     NULL, x.settled_fence, NOT x.final, x.output, NULL FROM {schema}.result AS x WHERE x.id = j.id \
     UNION ALL SELECT 5, x.status, x.attempt, x.claims, x.scheduled_at, x.started_at, x.ended_at, NULL, NULL, NULL, \
     NULL, x.settled_fence, x.awaited, NULL, NULL FROM {schema}.stopped AS x WHERE x.id = j.id) AS s";

/// The latest failure of job `j` in state `s`, as `e`. Follows [`STATE`].
pub(crate) const FAILURE: &str = "LEFT JOIN {schema}.failure AS e ON e.id = j.id AND s.status <> 3";

/// The columns of a whole job, in the order in which [`jobs`] reads them: `j` is the job, `s` its [`STATE`], `e` its
/// [`FAILURE`].
pub(crate) const JOB: &str = "j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, s.output, s.status, \
     j.priority, s.attempt, s.claims, j.max_attempts, j.created_at, s.scheduled_at, s.started_at, s.ended_at, \
     s.completed_by, e.attempt, e.at, e.message, s.owner, s.leased_until, s.fence, j.dedup_key, j.trace_context, \
     j.keyed, j.blockers, s.place, s.awaited, s.settled_fence, j.chain_created_at, s.remaining";

/// How many columns [`JOB`] has; what a query adds comes after them.
pub(crate) const JOB_COLUMNS: usize = 32;

/// Which table holds the state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Ready,
    Later,
    Waiting,
    Running,
    Result,
    Stopped,
}

impl Place {
    pub(crate) const ALL: [Self; 6] = [
        Self::Ready,
        Self::Later,
        Self::Waiting,
        Self::Running,
        Self::Result,
        Self::Stopped,
    ];

    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Later => "later",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Result => "result",
            Self::Stopped => "stopped",
        }
    }

    fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|number| Self::ALL.get(number).copied())
    }
}

/// A job with what only this store knows of it.
#[derive(Clone, Debug)]
pub(crate) struct StoredJob {
    pub(crate) job: JobRecord,
    pub(crate) type_number: i32,
    pub(crate) chain_type_number: i32,
    pub(crate) chain_created_at: Timestamp,
    /// Whether its chain was started with a deduplication key.
    pub(crate) keyed: bool,
    /// How many chains it was created to wait for.
    pub(crate) blockers: u32,
    pub(crate) place: Place,
    /// Whether some job has its chain as blocker. Of a completed job: whether the chain went on, which is the same for
    /// everyone who asks.
    pub(crate) awaited: bool,
    pub(crate) settled_fence: Option<Uuid>,
    /// Of a blocked job: its edges to chains that have not completed.
    pub(crate) remaining: Option<i32>,
}

/// Decodes rows that begin with the columns of [`JOB`].
pub(crate) async fn jobs(session: &mut Session<'_>, core: &Core, rows: &[PgRow]) -> Result<Vec<StoredJob>, StateError> {
    let mut numbers = Vec::with_capacity(rows.len() * 2);
    for row in rows {
        numbers.push(get(row, 1)?);
        numbers.push(get(row, 3)?);
    }
    core.name_types(session, numbers).await?;
    rows.iter().map(|row| job(core, row)).collect()
}

/// Decodes one row whose types are known.
pub(crate) fn job(core: &Core, row: &PgRow) -> Result<StoredJob, StateError> {
    let id = JobId::from_uuid(get(row, 0)?);
    let status = status(get(row, 7)?).ok_or_else(|| corrupt(format!("job {id} has an unknown status")))?;
    let place = Place::from_number(get(row, 27)?).ok_or_else(|| corrupt(format!("job {id} is nowhere")))?;
    let lease = match get::<Option<Uuid>>(row, 22)? {
        Some(fence) => Some(Lease {
            owner: WorkerId::new(get::<&str>(row, 20)?),
            until: Timestamp::from_micros(get(row, 21)?),
            fence: Fence::from_uuid(fence),
        }),
        None => None,
    };
    let job = JobRecord {
        id,
        type_name: type_name(core, row, 1)?,
        chain_id: ChainId::from_uuid(get(row, 2)?),
        chain_type: type_name(core, row, 3)?,
        chain_index: small(row, 4)?,
        input: Payload::from_text(get::<&str>(row, 5)?),
        output: get::<Option<&str>>(row, 6)?.map(Payload::from_text),
        status,
        priority: get(row, 8)?,
        attempt: small(row, 9)?,
        claims: small(row, 10)?,
        max_attempts: get::<Option<i64>>(row, 11)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)),
        created_at: Timestamp::from_micros(get(row, 12)?),
        scheduled_at: Timestamp::from_micros(get(row, 13)?),
        started_at: time(row, 14)?,
        ended_at: time(row, 15)?,
        completed_by: get::<Option<&str>>(row, 16)?.map(WorkerId::new),
        last_error: failure(row, 17)?,
        lease,
        deduplication_key: get(row, 23)?,
        trace_context: get(row, 24)?,
    };
    Ok(StoredJob {
        job,
        type_number: get(row, 1)?,
        chain_type_number: get(row, 3)?,
        keyed: get(row, 25)?,
        blockers: small(row, 26)?,
        place,
        awaited: get(row, 28)?,
        settled_fence: get(row, 29)?,
        chain_created_at: Timestamp::from_micros(get(row, 30)?),
        remaining: get(row, 31)?,
    })
}

/// The latest job of the chain that starts with `f`, as `j`. `f` must stand before it in the `FROM` list.
pub(crate) const LATEST: &str = "LATERAL (SELECT coalesce((SELECT n.id FROM {schema}.job AS n WHERE n.chain_id = f.id \
     AND n.chain_index > 0 ORDER BY n.chain_index DESC LIMIT 1), f.id) AS id) AS latest \
     JOIN {schema}.job AS j ON j.id = latest.id";

/// The columns of a chain, in the order in which [`chains`] reads them: `f` is its first job, `j` its latest one, `s`
/// and `e` the latter's [`STATE`] and [`FAILURE`].
pub(crate) const CHAIN: &str = "f.id, f.type_id, f.input, s.status, s.output, j.id, j.type_id, j.chain_index, \
     f.created_at, s.ended_at, e.attempt, e.at, e.message, f.dedup_key, f.trace_context";

/// How many columns [`CHAIN`] has; what a query adds comes after them.
pub(crate) const CHAIN_COLUMNS: usize = 15;

/// Decodes rows that begin with the columns of [`CHAIN`].
pub(crate) async fn chains(
    session: &mut Session<'_>,
    core: &Core,
    rows: &[PgRow],
) -> Result<Vec<ChainRecord>, StateError> {
    let mut numbers = Vec::with_capacity(rows.len() * 2);
    for row in rows {
        numbers.push(get(row, 1)?);
        numbers.push(get(row, 6)?);
    }
    core.name_types(session, numbers).await?;
    rows.iter().map(|row| chain(core, row)).collect()
}

fn chain(core: &Core, row: &PgRow) -> Result<ChainRecord, StateError> {
    let id = ChainId::from_uuid(get(row, 0)?);
    let status = status(get(row, 3)?).ok_or_else(|| corrupt(format!("chain {id} has an unknown status")))?;
    Ok(ChainRecord {
        id,
        type_name: type_name(core, row, 1)?,
        input: Payload::from_text(get::<&str>(row, 2)?),
        status,
        output: get::<Option<&str>>(row, 4)?.map(Payload::from_text),
        latest_job: JobId::from_uuid(get(row, 5)?),
        latest_type: type_name(core, row, 6)?,
        length: small(row, 7)?.saturating_add(1),
        created_at: Timestamp::from_micros(get(row, 8)?),
        ended_at: time(row, 9)?,
        last_error: failure(row, 10)?,
        deduplication_key: get(row, 13)?,
        trace_context: get(row, 14)?,
    })
}

/// Attempt, time and message of a failure, from column `from` on.
pub(crate) fn failure(row: &PgRow, from: usize) -> Result<Option<AttemptError>, StateError> {
    let Some(at) = get::<Option<i64>>(row, from + 1)? else {
        return Ok(None);
    };
    Ok(Some(AttemptError {
        attempt: small(row, from)?,
        at: Timestamp::from_micros(at),
        message: get(row, from + 2)?,
    }))
}

fn type_name(core: &Core, row: &PgRow, index: usize) -> Result<TypeName, StateError> {
    let number = get(row, index)?;
    core.types
        .name(number)
        .ok_or_else(|| corrupt(format!("there is no job type with the number {number}")))
}

pub(crate) fn get<'r, T: Decode<'r, Postgres>>(row: &'r PgRow, index: usize) -> Result<T, StateError> {
    // Unchecked: the statements are ours and so are the tables, and checking every column of every row costs.
    row.try_get_unchecked(index).map_err(translate)
}

/// A number that is never negative.
pub(crate) fn small(row: &PgRow, index: usize) -> Result<u32, StateError> {
    let number = get::<i32>(row, index)?;
    u32::try_from(number).map_err(|_| corrupt(format!("column {index} holds {number}, which is out of range")))
}

pub(crate) fn time(row: &PgRow, index: usize) -> Result<Option<Timestamp>, StateError> {
    Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_micros))
}

pub(crate) const fn status_number(status: JobStatus) -> i32 {
    match status {
        JobStatus::Blocked => 0,
        JobStatus::Pending => 1,
        JobStatus::Running => 2,
        JobStatus::Completed => 3,
        JobStatus::Dead => 4,
        JobStatus::Cancelled => 5,
    }
}

pub(crate) fn status(number: i32) -> Option<JobStatus> {
    JobStatus::ALL
        .into_iter()
        .find(|status| status_number(*status) == number)
}
