//! Decodes rows. Columns are found by their names, once for each answer, and each row is decoded by itself.

use queuert::adapter::rules::JobHead;
use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};
use sqlx::postgres::PgRow;
use sqlx::{Column as _, Decode, Postgres, Row};
use uuid::Uuid;

use crate::connection::session::Session;
use crate::error::{corrupt, translate};
use crate::store::Store;
use crate::type_ids::{TypeNames, nameless};

/// The table that holds the state of a job.
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
    /// In the order of the numbers that `fragments/state.sql` gives them.
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
    /// The type in its state, if it has one. A job that is moved stays in the queue that it was in, whatever became of its
    /// row of `job`: a processor of another type must never be given it.
    pub(crate) type_id: i32,
    pub(crate) chain_type_id: i32,
    pub(crate) chain_created_at: Timestamp,
    /// Whether its chain was started with a deduplication key.
    pub(crate) keyed: bool,
    /// How many chains it was created to wait for.
    pub(crate) blockers: u32,
    pub(crate) table: Table,
    /// Whether some job has its chain as blocker. Of a completed job: whether the chain went on.
    pub(crate) awaited: bool,
    pub(crate) settled_fence: Option<Uuid>,
    /// Of a blocked job: its edges to chains that have not completed.
    pub(crate) remaining: Option<i32>,
}

impl StoredJob {
    /// What the rules know of the job.
    pub(crate) fn head(&self) -> JobHead {
        JobHead::of(&self.job, self.settled_fence.map(Fence::from_uuid))
    }
}

/// A column of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    index: usize,
    name: &'static str,
}

impl Column {
    /// The column with this name.
    pub(crate) fn find(row: &PgRow, name: &'static str) -> Result<Self, StateError> {
        let index = row.try_column(name).map_err(translate)?.ordinal();
        Ok(Self { index, name })
    }
}

/// Declares the columns of an answer: a struct that has the place of each, found by name.
macro_rules! columns {
    ($(#[$doc:meta])* $visibility:vis struct $type:ident { $($name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $type {
            $($visibility $name: crate::row::Column,)+
        }

        impl $type {
            /// Finds the columns in a row of the answer; all of its rows have the same ones.
            $visibility fn of(row: &sqlx::postgres::PgRow) -> Result<Self, queuert::StateError> {
                Ok(Self {
                    $($name: crate::row::Column::find(row, stringify!($name))?,)+
                })
            }
        }
    };
}

pub(crate) use columns;

columns! {
    /// The columns of `fragments/job_columns.sql`.
    struct JobColumns {
        id, type_id, chain_id, chain_type_id, chain_index, input, priority, max_attempts, created_at, deduplication_key,
        trace_context, keyed, blockers, chain_created_at, table_number, state_type_id, status, attempt, claims,
        scheduled_at, started_at, ended_at, completed_by, output, owner, leased_until, fence, settled_fence, awaited,
        remaining, failure_attempt, failure_at, failure_message,
    }
}

columns! {
    /// The columns of `fragments/chain_columns.sql`.
    struct ChainColumns {
        id, type_id, chain_type_id, input, created_at, deduplication_key, trace_context, latest_id, latest_type_id,
        chain_index, state_type_id, status, output, ended_at, failure_attempt, failure_at, failure_message,
    }
}

/// Decodes the columns of one row. What cannot be read is noted, and a neutral value takes its place: one damaged row must
/// not keep the others from being read, and a person must be able to look at it and to delete it.
pub(crate) struct Decoder<'r> {
    row: &'r PgRow,
    problem: Option<String>,
    is_without_state: bool,
}

impl<'r> Decoder<'r> {
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

    pub(crate) fn get<T: Decode<'r, Postgres> + Default>(&mut self, column: Column) -> T {
        match self.row.try_get_unchecked(column.index) {
            Ok(value) => value,
            Err(_) if self.is_without_state => T::default(),
            Err(sqlx::Error::ColumnDecode { source, .. }) => {
                self.note(column.name, format_args!("is wrong ({source})"));
                T::default()
            }
            Err(error) => {
                self.note(column.name, format_args!("is wrong ({error})"));
                T::default()
            }
        }
    }

    /// A number that is never negative.
    pub(crate) fn small(&mut self, column: Column) -> u32 {
        let number = self.get::<i32>(column);
        u32::try_from(number).unwrap_or_else(|_| {
            self.note(column.name, format_args!("is {number}, which is negative"));
            0
        })
    }

    pub(crate) fn max_attempts(&mut self, column: Column) -> Option<u32> {
        let number = self.get::<Option<i64>>(column)?;
        if number < 0 {
            self.note(column.name, format_args!("is {number}, which is negative"));
            return None;
        }
        Some(u32::try_from(number).unwrap_or(u32::MAX))
    }

    pub(crate) fn time(&mut self, column: Column) -> Timestamp {
        Timestamp::from_micros(self.get(column))
    }

    fn optional_time(&mut self, column: Column) -> Option<Timestamp> {
        self.get::<Option<i64>>(column).map(Timestamp::from_micros)
    }

    pub(crate) fn payload(&mut self, column: Column) -> Payload {
        Payload::from_text(self.get::<&str>(column))
    }

    /// The name of a type whose number has been looked up.
    pub(crate) fn type_name(&mut self, names: &mut TypeNames<'_>, column: Column) -> TypeName {
        let number = self.get(column);
        names.of(number).unwrap_or_else(|| {
            self.note(
                column.name,
                format_args!("is {number}, and no job type has that number"),
            );
            nameless(number)
        })
    }

    /// The same of a job whose state, in the given table, has a number of its own. That number is the one of the queue which
    /// the job is in, or was in before it stopped, so it goes first if it has a name.
    fn queue_name(
        &mut self,
        names: &mut TypeNames<'_>,
        column: Column,
        of_state: Column,
        table: Option<Table>,
    ) -> TypeName {
        let number = self.get(column);
        match self.get::<Option<i32>>(of_state) {
            Some(queue) if queue != number => {
                let table = table.map_or_else(
                    || "the table of its state".to_owned(),
                    |table| format!("`{}`", table.name()),
                );
                self.note("type_id", format_args!("is {number} in `job` and {queue} in {table}"));
                let name = names.of(queue).or_else(|| names.of(number));
                name.unwrap_or_else(|| nameless(queue))
            }
            _ => self.type_name(names, column),
        }
    }

    /// A chain has the type of its first job, which has the number twice.
    pub(crate) fn compare_chain_type(&mut self, chain_index: u32, type_id: i32, chain_type_id: i32) {
        if chain_index == 0 && type_id != chain_type_id {
            let problem = format_args!("is {chain_type_id}, and `type_id` of the chain's first job is {type_id}");
            self.note("chain_type_id", problem);
        }
    }

    fn status(&mut self, column: Column) -> JobStatus {
        if self.is_without_state {
            return JobStatus::Dead;
        }
        let number = self.get(column);
        status(number).unwrap_or_else(|| {
            self.note(column.name, format_args!("is {number}, which is no status"));
            JobStatus::Dead
        })
    }

    /// A failure, if there is one.
    pub(crate) fn failure(&mut self, attempt: Column, at: Column, message: Column) -> Option<AttemptError> {
        let at = self.get::<Option<i64>>(at)?;
        Some(AttemptError {
            attempt: self.small(attempt),
            at: Timestamp::from_micros(at),
            message: self.get(message),
        })
    }
}

/// Decodes rows that have the columns of `fragments/job_columns.sql`.
pub(crate) async fn jobs(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[PgRow],
) -> Result<Vec<StoredJob>, StateError> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let at = JobColumns::of(first)?;
    let types = type_ids(rows, [at.type_id, at.chain_type_id, at.state_type_id]);
    store.name_types(session, types).await?;
    let mut names = TypeNames::new(store);
    rows.iter().map(|row| job(&mut names, at, row)).collect()
}

/// The numbers of types in these columns, as far as they can be read.
fn type_ids(rows: &[PgRow], columns: [Column; 3]) -> Vec<i32> {
    let mut type_ids = Vec::with_capacity(rows.len() * columns.len());
    for row in rows {
        let readable = |column: Column| row.try_get_unchecked::<i32, _>(column.index).ok();
        type_ids.extend(columns.into_iter().filter_map(readable));
    }
    type_ids
}

/// Decodes one row whose types are known.
fn job(names: &mut TypeNames<'_>, at: JobColumns, row: &PgRow) -> Result<StoredJob, StateError> {
    let id = JobId::from_uuid(at.id.get(row)?);
    let mut columns = Decoder::of(row);
    let table = match at.table_number.get::<Option<i32>>(row)? {
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
    let (type_id, chain_type_id) = (columns.get(at.type_id), columns.get(at.chain_type_id));
    let state_type_id = columns.get::<Option<i32>>(at.state_type_id);
    let lease = columns.get::<Option<Uuid>>(at.fence).map(|fence| Lease {
        owner: WorkerId::new(columns.get::<&str>(at.owner)),
        until: columns.time(at.leased_until),
        fence: Fence::from_uuid(fence),
    });
    let mut stored = StoredJob {
        job: JobRecord {
            id,
            type_name: columns.queue_name(names, at.type_id, at.state_type_id, Some(table)),
            chain_id: ChainId::from_uuid(columns.get(at.chain_id)),
            chain_type: columns.type_name(names, at.chain_type_id),
            chain_index: columns.small(at.chain_index),
            input: columns.payload(at.input),
            output: columns.get::<Option<&str>>(at.output).map(Payload::from_text),
            status: columns.status(at.status),
            priority: columns.get(at.priority),
            attempt: columns.small(at.attempt),
            claims: columns.small(at.claims),
            max_attempts: columns.max_attempts(at.max_attempts),
            created_at: columns.time(at.created_at),
            scheduled_at: columns.time(at.scheduled_at),
            started_at: columns.optional_time(at.started_at),
            ended_at: columns.optional_time(at.ended_at),
            completed_by: columns.get::<Option<&str>>(at.completed_by).map(WorkerId::new),
            last_error: columns.failure(at.failure_attempt, at.failure_at, at.failure_message),
            lease,
            deduplication_key: columns.get(at.deduplication_key),
            trace_context: columns.get(at.trace_context),
            unreadable: None,
        },
        type_id: state_type_id.unwrap_or(type_id),
        chain_type_id,
        keyed: columns.get(at.keyed),
        blockers: columns.small(at.blockers),
        table,
        awaited: columns.get(at.awaited),
        settled_fence: columns.get(at.settled_fence),
        chain_created_at: columns.time(at.chain_created_at),
        remaining: columns.get(at.remaining),
    };
    columns.compare_chain_type(stored.job.chain_index, type_id, chain_type_id);
    stored.job.unreadable = columns.problem();
    Ok(stored)
}

/// Decodes rows that have the columns of `fragments/chain_columns.sql`.
pub(crate) async fn chains(
    session: &mut Session<'_>,
    store: &Store,
    rows: &[PgRow],
) -> Result<Vec<ChainRecord>, StateError> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let at = ChainColumns::of(first)?;
    let types = type_ids(rows, [at.type_id, at.latest_type_id, at.state_type_id]);
    store.name_types(session, types).await?;
    let mut names = TypeNames::new(store);
    rows.iter().map(|row| chain(&mut names, at, row)).collect()
}

fn chain(names: &mut TypeNames<'_>, at: ChainColumns, row: &PgRow) -> Result<ChainRecord, StateError> {
    let id = ChainId::from_uuid(at.id.get(row)?);
    let mut columns = Decoder::of(row);
    if at.status.get::<Option<i32>>(row)?.is_none() {
        columns.without_state();
    }
    let mut chain = ChainRecord {
        id,
        type_name: columns.type_name(names, at.type_id),
        input: columns.payload(at.input),
        status: columns.status(at.status),
        output: columns.get::<Option<&str>>(at.output).map(Payload::from_text),
        latest_job: JobId::from_uuid(columns.get(at.latest_id)),
        latest_type: columns.queue_name(names, at.latest_type_id, at.state_type_id, None),
        length: columns.small(at.chain_index).saturating_add(1),
        created_at: columns.time(at.created_at),
        ended_at: columns.optional_time(at.ended_at),
        last_error: columns.failure(at.failure_attempt, at.failure_at, at.failure_message),
        deduplication_key: columns.get(at.deduplication_key),
        trace_context: columns.get(at.trace_context),
        unreadable: None,
    };
    let (type_id, chain_type_id) = (columns.get(at.type_id), columns.get(at.chain_type_id));
    columns.compare_chain_type(0, type_id, chain_type_id);
    chain.unreadable = columns.problem();
    Ok(chain)
}

impl Column {
    /// Decodes the column of a row.
    pub(crate) fn get<'r, T: Decode<'r, Postgres>>(self, row: &'r PgRow) -> Result<T, StateError> {
        // Unchecked: the statements and the tables are this library's, and to check every column of every row costs.
        row.try_get_unchecked(self.index).map_err(translate)
    }
}

/// Decodes a column by its name. For answers of few rows: the name is looked up each time.
pub(crate) fn get<'r, T: Decode<'r, Postgres>>(row: &'r PgRow, column: &str) -> Result<T, StateError> {
    row.try_get_unchecked(column).map_err(translate)
}

/// The same of a time that may be null.
pub(crate) fn time(row: &PgRow, column: &str) -> Result<Option<Timestamp>, StateError> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
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
