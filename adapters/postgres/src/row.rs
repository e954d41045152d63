//! Rows, decoded. Columns are read by position: the order here is the order of the lists in this file.

use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use sqlx::postgres::PgRow;
use sqlx::{Decode, Postgres, Row};
use uuid::Uuid;

use crate::connection::session::Session;
use crate::error::{corrupt, translate};
use crate::store::Store;
use crate::type_ids::{Names, nameless};

/// Where the state of job `j` is: one row, whichever table it is in. `j` must stand before it in the `FROM` list. All but
/// that of a completed job have the number of the type, as the job has it, so that damage to one of the two is noticed.
pub(crate) const STATE: &str = "LATERAL (\
     SELECT 0 AS place, 1 AS status, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL::bigint AS ended_at, \
     NULL::text AS completed_by, NULL::text AS owner, NULL::bigint AS leased_until, NULL::uuid AS fence, \
     x.settled_fence, x.awaited, NULL::text AS output, NULL::integer AS remaining, x.type_id \
     FROM {schema}.ready AS x WHERE x.id = j.id \
     UNION ALL SELECT 1, 1, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, NULL, NULL, NULL, \
     x.settled_fence, x.awaited, NULL, NULL, x.type_id FROM {schema}.later AS x WHERE x.id = j.id \
     UNION ALL SELECT 2, 0, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, NULL, NULL, NULL, \
     x.settled_fence, x.awaited, NULL, x.remaining, x.type_id FROM {schema}.waiting AS x WHERE x.id = j.id \
     UNION ALL SELECT 3, 2, x.attempt, x.claims, x.scheduled_at, x.started_at, NULL, NULL, x.owner, x.leased_until, \
     x.fence, x.settled_fence, x.awaited, NULL, NULL, x.type_id FROM {schema}.running AS x WHERE x.id = j.id \
     UNION ALL SELECT 4, 3, x.attempt, x.claims, x.scheduled_at, x.started_at, x.ended_at, x.completed_by, NULL, NULL, \
     NULL, x.settled_fence, NOT x.final, x.output, NULL, NULL FROM {schema}.result AS x WHERE x.id = j.id \
     UNION ALL SELECT 5, x.status, x.attempt, x.claims, x.scheduled_at, x.started_at, x.ended_at, NULL, NULL, NULL, \
     NULL, x.settled_fence, x.awaited, NULL, NULL, x.type_id FROM {schema}.stopped AS x WHERE x.id = j.id) AS s";

/// The latest failure of job `j` in state `s`, as `e`. Follows [`STATE`].
pub(crate) const FAILURE: &str = "LEFT JOIN {schema}.failure AS e ON e.id = j.id AND s.status <> 3";

/// The columns of a whole job, in the order in which [`jobs`] reads them: `j` is the job, `s` its [`STATE`], `e` its
/// [`FAILURE`].
pub(crate) const JOB: &str = "j.id, j.type_id, j.chain_id, j.chain_type_id, j.chain_index, j.input, s.output, s.status, \
     j.priority, s.attempt, s.claims, j.max_attempts, j.created_at, s.scheduled_at, s.started_at, s.ended_at, \
     s.completed_by, e.attempt, e.at, e.message, s.owner, s.leased_until, s.fence, j.dedup_key, j.trace_context, \
     j.keyed, j.blockers, s.place, s.awaited, s.settled_fence, j.chain_created_at, s.remaining, s.type_id";

/// How many columns [`JOB`] has; what a query adds comes after them.
pub(crate) const JOB_COLUMNS: usize = 33;

/// Which table holds the state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Table {
    Ready,
    Later,
    Waiting,
    Running,
    Result,
    Stopped,
}

impl Table {
    pub(crate) const ALL: [Self; 6] = [
        Self::Ready,
        Self::Later,
        Self::Waiting,
        Self::Running,
        Self::Result,
        Self::Stopped,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Later => "later",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Result => "result",
            Self::Stopped => "stopped",
        }
    }

    /// The same as messages have it.
    const fn quoted(self) -> &'static str {
        match self {
            Self::Ready => "`ready`",
            Self::Later => "`later`",
            Self::Waiting => "`waiting`",
            Self::Running => "`running`",
            Self::Result => "`result`",
            Self::Stopped => "`stopped`",
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
    /// That of its state, if it has one. A job that is moved stays in the queue that it was in, whatever became of its row of
    /// `job`: a processor of another type must never be given it.
    pub(crate) type_id: i32,
    pub(crate) chain_type_id: i32,
    pub(crate) chain_created_at: Timestamp,
    /// Whether its chain was started with a deduplication key.
    pub(crate) keyed: bool,
    /// How many chains it was created to wait for.
    pub(crate) blockers: u32,
    pub(crate) table: Table,
    /// Whether some job has its chain as blocker. Of a completed job: whether the chain went on, which is the same for
    /// everyone who asks.
    pub(crate) awaited: bool,
    pub(crate) settled_fence: Option<Uuid>,
    /// Of a blocked job: its edges to chains that have not completed.
    pub(crate) remaining: Option<i32>,
}

/// The columns of one row. What cannot be read is noted, and a neutral value takes its place: one damaged row must not keep
/// the others from being read, and a person must be able to look at it and to delete it.
pub(crate) struct Columns<'r> {
    row: &'r PgRow,
    problem: Option<String>,
    is_without_state: bool,
}

impl<'r> Columns<'r> {
    pub(crate) const fn of(row: &'r PgRow) -> Self {
        Self {
            row,
            problem: None,
            is_without_state: false,
        }
    }

    /// What could not be read.
    pub(crate) fn problem(self) -> Option<String> {
        self.problem
    }

    /// For a job that has no row of state: the columns of the state are null, which is noted once.
    #[cold]
    fn without_state(&mut self) {
        self.note("state", "is missing: none of its tables has the job; delete the chain");
        self.is_without_state = true;
    }

    #[cold]
    pub(crate) fn note(&mut self, column: &str, problem: impl std::fmt::Display) {
        let noted = match self.problem.take() {
            Some(before) => format!("{before}, and `{column}` {problem}"),
            None => format!("`{column}` {problem}"),
        };
        self.problem = Some(noted);
    }

    pub(crate) fn get<T: Decode<'r, Postgres> + Default>(&mut self, index: usize, column: &str) -> T {
        match self.row.try_get_unchecked(index) {
            Ok(value) => value,
            Err(_) if self.is_without_state => T::default(),
            Err(sqlx::Error::ColumnDecode { source, .. }) => {
                self.note(column, format_args!("is wrong ({source})"));
                T::default()
            }
            Err(error) => {
                self.note(column, format_args!("is wrong ({error})"));
                T::default()
            }
        }
    }

    /// A number that is never negative.
    pub(crate) fn small(&mut self, index: usize, column: &str) -> u32 {
        let number = self.get::<i32>(index, column);
        u32::try_from(number).unwrap_or_else(|_| {
            self.note(column, format_args!("is {number}, which is negative"));
            0
        })
    }

    pub(crate) fn max_attempts(&mut self, index: usize) -> Option<u32> {
        let number = self.get::<Option<i64>>(index, "max_attempts")?;
        if number < 0 {
            self.note("max_attempts", format_args!("is {number}, which is negative"));
            return None;
        }
        Some(u32::try_from(number).unwrap_or(u32::MAX))
    }

    pub(crate) fn time(&mut self, index: usize, column: &str) -> Timestamp {
        Timestamp::from_micros(self.get(index, column))
    }

    fn optional_time(&mut self, index: usize, column: &str) -> Option<Timestamp> {
        self.get::<Option<i64>>(index, column).map(Timestamp::from_micros)
    }

    pub(crate) fn payload(&mut self, index: usize, column: &str) -> Payload {
        Payload::from_text(self.get::<&str>(index, column))
    }

    /// The name of a type whose number has been looked up.
    pub(crate) fn type_name(&mut self, names: &mut Names<'_>, index: usize, column: &str) -> TypeName {
        let number = self.get(index, column);
        names.of(number).unwrap_or_else(|| {
            self.note(column, format_args!("is {number}, and no job type has that number"));
            nameless(number)
        })
    }

    /// The same of a job whose state is in this table, as messages have it, and has a number of its own. It is that of the queue which the job is
    /// in, or was in before it stopped, so it goes first if it has a name.
    fn queue_name(&mut self, names: &mut Names<'_>, index: usize, state: usize, table: &str) -> TypeName {
        let number = self.get(index, "type_id");
        match self.get::<Option<i32>>(state, "type_id") {
            Some(queue) if queue != number => {
                self.note("type_id", format_args!("is {number} in `job` and {queue} in {table}"));
                let name = names.of(queue).or_else(|| names.of(number));
                name.unwrap_or_else(|| nameless(queue))
            }
            _ => self.type_name(names, index, "type_id"),
        }
    }

    /// A chain has the type of its first job, which has the number twice.
    pub(crate) fn compare_chain_type(&mut self, chain_index: u32, number: i32, chain_type: i32) {
        if chain_index == 0 && number != chain_type {
            let problem = format_args!("is {chain_type}, and `type_id` of the chain's first job is {number}");
            self.note("chain_type_id", problem);
        }
    }

    fn status(&mut self, index: usize) -> JobStatus {
        if self.is_without_state {
            return JobStatus::Dead;
        }
        let number = self.get(index, "status");
        status(number).unwrap_or_else(|| {
            self.note("status", format_args!("is {number}, which is no status"));
            JobStatus::Dead
        })
    }

    /// Attempt, time and message of a failure, from column `from` on.
    pub(crate) fn failure(&mut self, from: usize) -> Option<AttemptError> {
        let at = self.get::<Option<i64>>(from + 1, "failure.at")?;
        Some(AttemptError {
            attempt: self.small(from, "failure.attempt"),
            at: Timestamp::from_micros(at),
            message: self.get(from + 2, "failure.message"),
        })
    }
}

/// Decodes rows that begin with the columns of [`JOB`].
pub(crate) async fn jobs(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[PgRow],
) -> Result<Vec<StoredJob>, StateError> {
    store
        .name_types(session, numbers(rows, [1, 3, JOB_COLUMNS - 1]))
        .await?;
    let mut names = Names::new(store);
    rows.iter().map(|row| job(&mut names, row)).collect()
}

/// The numbers of types in these columns, as far as they can be read.
fn numbers(rows: &[PgRow], columns: [usize; 3]) -> Vec<i32> {
    let mut numbers = Vec::with_capacity(rows.len() * columns.len());
    for row in rows {
        numbers.extend(columns.into_iter().filter_map(|column| get::<i32>(row, column).ok()));
    }
    numbers
}

/// Decodes one row whose types are known.
fn job(names: &mut Names<'_>, row: &PgRow) -> Result<StoredJob, StateError> {
    let id = JobId::from_uuid(get(row, 0)?);
    let mut columns = Columns::of(row);
    let table = match get::<Option<i32>>(row, 27)? {
        Some(number) => Table::from_number(number).ok_or_else(|| {
            corrupt(format!(
                "the statement named a table for job {id} that does not exist: {number}"
            ))
        })?,
        // Only reads by id find such a job, and it is only shown.
        None => {
            columns.without_state();
            Table::Stopped
        }
    };
    let (number, chain_type_id): (i32, i32) = (columns.get(1, "type_id"), columns.get(3, "chain_type_id"));
    let type_id = columns.get::<Option<i32>>(JOB_COLUMNS - 1, "type_id").unwrap_or(number);
    let lease = columns.get::<Option<Uuid>>(22, "fence").map(|fence| Lease {
        owner: WorkerId::new(columns.get::<&str>(20, "owner")),
        until: columns.time(21, "leased_until"),
        fence: Fence::from_uuid(fence),
    });
    let mut stored = StoredJob {
        job: JobRecord {
            id,
            type_name: columns.queue_name(names, 1, JOB_COLUMNS - 1, table.quoted()),
            chain_id: ChainId::from_uuid(columns.get(2, "chain_id")),
            chain_type: columns.type_name(names, 3, "chain_type_id"),
            chain_index: columns.small(4, "chain_index"),
            input: columns.payload(5, "input"),
            output: columns.get::<Option<&str>>(6, "output").map(Payload::from_text),
            status: columns.status(7),
            priority: columns.get(8, "priority"),
            attempt: columns.small(9, "attempt"),
            claims: columns.small(10, "claims"),
            max_attempts: columns.max_attempts(11),
            created_at: columns.time(12, "created_at"),
            scheduled_at: columns.time(13, "scheduled_at"),
            started_at: columns.optional_time(14, "started_at"),
            ended_at: columns.optional_time(15, "ended_at"),
            completed_by: columns.get::<Option<&str>>(16, "completed_by").map(WorkerId::new),
            last_error: columns.failure(17),
            lease,
            deduplication_key: columns.get(23, "dedup_key"),
            trace_context: columns.get(24, "trace_context"),
            unreadable: None,
        },
        type_id,
        chain_type_id,
        keyed: columns.get(25, "keyed"),
        blockers: columns.small(26, "blockers"),
        table,
        awaited: columns.get(28, "awaited"),
        settled_fence: columns.get(29, "settled_fence"),
        chain_created_at: columns.time(30, "chain_created_at"),
        remaining: columns.get(31, "remaining"),
    };
    columns.compare_chain_type(stored.job.chain_index, number, chain_type_id);
    stored.job.unreadable = columns.problem();
    Ok(stored)
}

/// The latest job of the chain that starts with `f`, as `j`. `f` must stand before it in the `FROM` list.
pub(crate) const LATEST: &str = "LATERAL (SELECT coalesce((SELECT n.id FROM {schema}.job AS n WHERE n.chain_id = f.id \
     AND n.chain_index > 0 ORDER BY n.chain_index DESC LIMIT 1), f.id) AS id) AS latest \
     JOIN {schema}.job AS j ON j.id = latest.id";

/// The columns of a chain, in the order in which [`chains`] reads them: `f` is its first job, `j` its latest one, `s`
/// and `e` the latter's [`STATE`] and [`FAILURE`].
pub(crate) const CHAIN: &str = "f.id, f.type_id, f.input, s.status, s.output, j.id, j.type_id, j.chain_index, \
     f.created_at, s.ended_at, e.attempt, e.at, e.message, f.dedup_key, f.trace_context, s.type_id, f.chain_type_id";

/// How many columns [`CHAIN`] has; what a query adds comes after them.
pub(crate) const CHAIN_COLUMNS: usize = 17;

/// Decodes rows that begin with the columns of [`CHAIN`].
pub(crate) async fn chains(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[PgRow],
) -> Result<Vec<ChainRecord>, StateError> {
    store.name_types(session, numbers(rows, [1, 6, 15])).await?;
    let mut names = Names::new(store);
    rows.iter().map(|row| chain(&mut names, row)).collect()
}

fn chain(names: &mut Names<'_>, row: &PgRow) -> Result<ChainRecord, StateError> {
    let id = ChainId::from_uuid(get(row, 0)?);
    let mut columns = Columns::of(row);
    if get::<Option<i32>>(row, 3)?.is_none() {
        columns.without_state();
    }
    let mut chain = ChainRecord {
        id,
        type_name: columns.type_name(names, 1, "type_id"),
        input: columns.payload(2, "input"),
        status: columns.status(3),
        output: columns.get::<Option<&str>>(4, "output").map(Payload::from_text),
        latest_job: JobId::from_uuid(columns.get(5, "id")),
        latest_type: columns.queue_name(names, 6, 15, "the table of its state"),
        length: columns.small(7, "chain_index").saturating_add(1),
        created_at: columns.time(8, "created_at"),
        ended_at: columns.optional_time(9, "ended_at"),
        last_error: columns.failure(10),
        deduplication_key: columns.get(13, "dedup_key"),
        trace_context: columns.get(14, "trace_context"),
        unreadable: None,
    };
    let (number, chain_type) = (columns.get(1, "type_id"), columns.get(16, "chain_type_id"));
    columns.compare_chain_type(0, number, chain_type);
    chain.unreadable = columns.problem();
    Ok(chain)
}

pub(crate) fn get<'r, T: Decode<'r, Postgres>>(row: &'r PgRow, index: usize) -> Result<T, StateError> {
    // Unchecked: the statements are ours and so are the tables, and checking every column of every row costs.
    row.try_get_unchecked(index).map_err(translate)
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
