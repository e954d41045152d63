//! Rows of the job table, decoded one by one.
//!
//! The columns of the statements that the hot verbs run are read by position: to look up the name of each column of each row
//! would cost. A list of this file is both the text that a statement selects and the positions, so the two cannot differ.
//! Everything else is read by name.

use queuert::adapter::NewJob;
use queuert::{AttemptError, ChainId, ChainRecord, Fence, JobId, JobRecord, JobStatus, Lease, Payload, StateError};
use queuert::{Timestamp, TypeName, WorkerId};

use crate::connection::{FromColumn, Row};
use crate::error::corrupt;

/// Columns that a statement selects in this order.
pub(crate) trait ColumnList: Copy {
    const EXPRESSIONS: &'static [&'static str];

    fn index(self) -> usize;

    /// The name of the column without its table.
    fn name(self) -> &'static str {
        let expression = Self::EXPRESSIONS.get(self.index()).copied().unwrap_or_default();
        expression.rsplit('.').next().unwrap_or(expression)
    }

    /// The text for a statement.
    fn sql() -> String {
        Self::EXPRESSIONS.join(", ")
    }
}

macro_rules! columns {
    ($(#[$doc:meta])* $list:ident { $($column:ident = $expression:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $list {
            $($column,)*
        }

        impl ColumnList for $list {
            const EXPRESSIONS: &'static [&'static str] = &[$($expression,)*];

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

columns! {
    /// A whole job, of the table alias `job`. [`job`] reads it.
    JobColumn {
        Seq = "job.seq",
        Id = "job.id",
        Type = "job.type",
        ChainId = "job.chain_id",
        ChainType = "job.chain_type",
        ChainIndex = "job.chain_index",
        Input = "job.input",
        Output = "job.output",
        Status = "job.status",
        Priority = "job.priority",
        Attempt = "job.attempt",
        Claims = "job.claims",
        MaxAttempts = "job.max_attempts",
        CreatedAt = "job.created_at",
        ScheduledAt = "job.scheduled_at",
        StartedAt = "job.started_at",
        EndedAt = "job.ended_at",
        CompletedBy = "job.completed_by",
        ErrorAttempt = "job.error_attempt",
        ErrorAt = "job.error_at",
        Error = "job.error",
        LeaseOwner = "job.lease_owner",
        LeaseUntil = "job.lease_until",
        Fence = "job.fence",
        DeduplicationKey = "job.deduplication_key",
        TraceContext = "job.trace_context",
        ChainKeyed = "job.chain_keyed",
        Blockers = "job.blockers",
        Rank = "job.rank",
    }
}

columns! {
    /// A pending job that a claim may take, without a table alias. [`claimed`] reads it.
    ClaimColumn {
        Id = "id",
        Type = "type",
        ChainId = "chain_id",
        ChainType = "chain_type",
        ChainIndex = "chain_index",
        Input = "input",
        Priority = "priority",
        Attempt = "attempt",
        Claims = "claims",
        MaxAttempts = "max_attempts",
        CreatedAt = "created_at",
        ScheduledAt = "scheduled_at",
        ErrorAttempt = "error_attempt",
        ErrorAt = "error_at",
        Error = "error",
        DeduplicationKey = "deduplication_key",
        TraceContext = "trace_context",
        Blockers = "blockers",
        Seq = "seq",
    }
}

columns! {
    /// A chain, of the table aliases `first_job` and `latest_job`. [`chain`] reads it.
    ChainColumn {
        Id = "first_job.id",
        Type = "first_job.type",
        Input = "first_job.input",
        Status = "latest_job.status",
        Output = "latest_job.output",
        LatestId = "latest_job.id",
        LatestType = "latest_job.type",
        LatestIndex = "latest_job.chain_index",
        CreatedAt = "first_job.created_at",
        EndedAt = "latest_job.ended_at",
        ErrorAttempt = "latest_job.error_attempt",
        ErrorAt = "latest_job.error_at",
        Error = "latest_job.error",
        DeduplicationKey = "first_job.deduplication_key",
        TraceContext = "first_job.trace_context",
    }
}

columns! {
    /// What `jobs_to_settle.sql` selects. [`job_to_settle`] reads it.
    SettleColumn {
        Place = "place",
        Seq = "seq",
        ChainId = "chain_id",
        ChainIndex = "chain_index",
        ChainType = "chain_type",
        ChainCreatedAt = "chain_created_at",
        ChainKeyed = "chain_keyed",
        Status = "status",
        Priority = "priority",
        Attempt = "attempt",
        ScheduledAt = "scheduled_at",
        Fence = "fence",
        SettledFence = "settled_fence",
        Rank = "rank",
        Awaited = "awaited",
        NextExists = "next_exists",
    }
}

/// Reads the columns of one row. It notes a column that cannot be read, and goes on with a neutral value: one damaged row must
/// not keep others from being read, and an operator must be able to look at the row and to delete it.
struct Reader<'a, 'r> {
    row: &'a Row<'r>,
    problem: Option<String>,
}

impl<'a, 'r> Reader<'a, 'r> {
    const fn of(row: &'a Row<'r>) -> Self {
        Self { row, problem: None }
    }

    #[cold]
    fn note(&mut self, column: impl ColumnList, problem: impl std::fmt::Display) {
        let column = column.name();
        let noted = match self.problem.take() {
            Some(before) => format!("{before}, and `{column}` {problem}"),
            None => format!("`{column}` {problem}"),
        };
        self.problem = Some(noted);
    }

    fn get<T: FromColumn<'r> + Default>(&mut self, column: impl ColumnList) -> T {
        self.row.at(column).unwrap_or_else(|error: StateError| {
            self.note(column, format_args!("is wrong ({error})"));
            T::default()
        })
    }

    /// A number that fits.
    fn number<T: TryFrom<i64> + Default>(&mut self, column: impl ColumnList) -> T {
        let number = self.get::<i64>(column);
        T::try_from(number).unwrap_or_else(|_| {
            self.note(column, format_args!("is {number}, which is out of range"));
            T::default()
        })
    }

    fn flag(&mut self, column: impl ColumnList) -> bool {
        self.get::<i64>(column) != 0
    }

    fn optional_number<T: TryFrom<i64> + Default>(&mut self, column: impl ColumnList) -> Option<T> {
        self.get::<Option<i64>>(column)?;
        Some(self.number(column))
    }

    fn time(&mut self, column: impl ColumnList) -> Timestamp {
        Timestamp::from_micros(self.get(column))
    }

    fn optional_time(&mut self, column: impl ColumnList) -> Option<Timestamp> {
        self.get::<Option<i64>>(column).map(Timestamp::from_micros)
    }

    fn payload(&mut self, column: impl ColumnList) -> Payload {
        Payload::from_text(self.get::<&str>(column))
    }

    fn optional_payload(&mut self, column: impl ColumnList) -> Option<Payload> {
        self.get::<Option<&str>>(column).map(Payload::from_text)
    }

    fn type_name(&mut self, column: impl ColumnList) -> TypeName {
        TypeName::from(self.get::<String>(column))
    }

    fn job_id(&mut self, column: impl ColumnList) -> JobId {
        JobId::from_uuid(self.get(column))
    }

    fn chain_id(&mut self, column: impl ColumnList) -> ChainId {
        ChainId::from_uuid(self.get(column))
    }

    fn optional_fence(&mut self, column: impl ColumnList) -> Option<Fence> {
        self.get::<Option<_>>(column).map(Fence::from_uuid)
    }

    fn status(&mut self, column: impl ColumnList) -> JobStatus {
        let number = self.get(column);
        status(number).unwrap_or_else(|| {
            self.note(column, format_args!("is {number}, which is no status"));
            JobStatus::Dead
        })
    }

    fn error<C: ColumnList>(&mut self, attempt: C, at: C, message: C) -> Option<AttemptError> {
        let at = self.optional_time(at)?;
        Some(AttemptError {
            attempt: self.number(attempt),
            at,
            message: self.get(message),
        })
    }

    /// What could not be read, with the number of the row: the id may be what is wrong.
    fn problem_of_row(self, seq: i64) -> Option<String> {
        self.problem.map(|problem| format!("{problem} (`seq` {seq})"))
    }
}

/// A job, with the columns that only this store knows.
#[derive(Debug)]
pub(crate) struct StoredJob {
    pub(crate) seq: i64,
    /// Whether the chain has a deduplication key.
    pub(crate) keyed: bool,
    pub(crate) blockers: u32,
    pub(crate) rank: i64,
    pub(crate) job: JobRecord,
}

/// Reads a row of [`JobColumn`]s.
pub(crate) fn job(row: &Row<'_>) -> Result<StoredJob, StateError> {
    use JobColumn as C;
    let seq = row.at(C::Seq)?;
    let mut reader = Reader::of(row);
    let status = reader.status(C::Status);
    let lease = (status == JobStatus::Running).then(|| Lease {
        owner: WorkerId::new(reader.get::<&str>(C::LeaseOwner)),
        until: reader.time(C::LeaseUntil),
        fence: Fence::from_uuid(reader.get(C::Fence)),
    });
    let mut stored = StoredJob {
        seq,
        keyed: reader.flag(C::ChainKeyed),
        blockers: reader.number(C::Blockers),
        rank: reader.get(C::Rank),
        job: JobRecord {
            id: reader.job_id(C::Id),
            type_name: reader.type_name(C::Type),
            chain_id: reader.chain_id(C::ChainId),
            chain_type: reader.type_name(C::ChainType),
            chain_index: reader.number(C::ChainIndex),
            input: reader.payload(C::Input),
            output: reader.optional_payload(C::Output),
            status,
            priority: reader.number(C::Priority),
            attempt: reader.number(C::Attempt),
            claims: reader.number(C::Claims),
            max_attempts: reader.optional_number(C::MaxAttempts),
            created_at: reader.time(C::CreatedAt),
            scheduled_at: reader.time(C::ScheduledAt),
            started_at: reader.optional_time(C::StartedAt),
            ended_at: reader.optional_time(C::EndedAt),
            completed_by: reader.get::<Option<&str>>(C::CompletedBy).map(WorkerId::new),
            last_error: reader.error(C::ErrorAttempt, C::ErrorAt, C::Error),
            lease,
            deduplication_key: reader.get(C::DeduplicationKey),
            trace_context: reader.get(C::TraceContext),
            unreadable: None,
        },
    };
    stored.job.unreadable = reader.problem_of_row(seq);
    Ok(stored)
}

/// A job that is about to be claimed, as it is after the claim.
#[derive(Debug)]
pub(crate) struct ClaimedRow {
    pub(crate) seq: i64,
    pub(crate) blockers: u32,
    pub(crate) job: JobRecord,
}

/// Reads a row of [`ClaimColumn`]s. `lease` gives the lease of a type, and its name, which is cloned instead of allocated.
pub(crate) fn claimed(
    row: &Row<'_>,
    started_at: Timestamp,
    lease: impl FnOnce(&str) -> Option<(TypeName, Lease)>,
) -> Result<ClaimedRow, StateError> {
    use ClaimColumn as C;
    let seq = row.at(C::Seq)?;
    let claimed = lease(row.at(C::Type)?);
    let (type_name, lease) = claimed.ok_or_else(|| corrupt(format!("row {seq} was claimed for another type")))?;
    let mut reader = Reader::of(row);
    let chain_type = reader.get::<&str>(C::ChainType);
    let mut job = JobRecord {
        id: reader.job_id(C::Id),
        chain_id: reader.chain_id(C::ChainId),
        chain_type: if chain_type == type_name.as_str() {
            type_name.clone()
        } else {
            TypeName::from(chain_type.to_owned())
        },
        chain_index: reader.number(C::ChainIndex),
        type_name,
        input: reader.payload(C::Input),
        output: None,
        status: JobStatus::Running,
        priority: reader.number(C::Priority),
        attempt: reader.number::<u32>(C::Attempt).saturating_add(1),
        claims: reader.number::<u32>(C::Claims).saturating_add(1),
        max_attempts: reader.optional_number(C::MaxAttempts),
        created_at: reader.time(C::CreatedAt),
        scheduled_at: reader.time(C::ScheduledAt),
        started_at: Some(started_at),
        ended_at: None,
        completed_by: None,
        last_error: reader.error(C::ErrorAttempt, C::ErrorAt, C::Error),
        lease: Some(lease),
        deduplication_key: reader.get(C::DeduplicationKey),
        trace_context: reader.get(C::TraceContext),
        unreadable: None,
    };
    let blockers = reader.number(C::Blockers);
    job.unreadable = reader.problem_of_row(seq);
    Ok(ClaimedRow { seq, blockers, job })
}

/// Reads a row of [`ChainColumn`]s.
pub(crate) fn chain(row: &Row<'_>) -> Result<ChainRecord, StateError> {
    use ChainColumn as C;
    let mut reader = Reader::of(row);
    let status = reader.status(C::Status);
    let mut chain = ChainRecord {
        id: reader.chain_id(C::Id),
        type_name: reader.type_name(C::Type),
        input: reader.payload(C::Input),
        status,
        output: reader.optional_payload(C::Output),
        latest_job: reader.job_id(C::LatestId),
        latest_type: reader.type_name(C::LatestType),
        length: reader.number::<u32>(C::LatestIndex).saturating_add(1),
        created_at: reader.time(C::CreatedAt),
        ended_at: reader.optional_time(C::EndedAt).filter(|_| !status.is_open()),
        last_error: reader.error(C::ErrorAttempt, C::ErrorAt, C::Error),
        deduplication_key: reader.get(C::DeduplicationKey),
        trace_context: reader.get(C::TraceContext),
        unreadable: None,
    };
    chain.unreadable = reader.problem;
    Ok(chain)
}

/// A job that is about to be settled by the general way.
#[derive(Debug)]
pub(crate) struct JobToSettle {
    /// The place of its settlement.
    pub(crate) place: i64,
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
    pub(crate) fence: Option<Fence>,
    pub(crate) settled_fence: Option<Fence>,
    pub(crate) rank: i64,
    /// Whether jobs wait for its chain.
    pub(crate) awaited: bool,
    /// Whether there is a job with the id of the next job.
    pub(crate) next_exists: bool,
}

/// Reads a row of [`SettleColumn`]s. What cannot be read does not matter here: the claim of the job has reported it.
pub(crate) fn job_to_settle(row: &Row<'_>) -> Result<JobToSettle, StateError> {
    use SettleColumn as C;
    let mut reader = Reader::of(row);
    Ok(JobToSettle {
        place: row.at(C::Place)?,
        seq: row.at(C::Seq)?,
        chain_id: reader.chain_id(C::ChainId),
        chain_index: reader.number(C::ChainIndex),
        chain_type: reader.type_name(C::ChainType),
        chain_created_at: reader.time(C::ChainCreatedAt),
        keyed: reader.flag(C::ChainKeyed),
        status: reader.status(C::Status),
        priority: reader.number(C::Priority),
        attempt: reader.number(C::Attempt),
        scheduled_at: reader.time(C::ScheduledAt),
        fence: reader.optional_fence(C::Fence),
        settled_fence: reader.optional_fence(C::SettledFence),
        rank: reader.get(C::Rank),
        awaited: reader.flag(C::Awaited),
        next_exists: reader.flag(C::NextExists),
    })
}

/// The number of a status in the table.
pub(crate) const fn status_number(status: JobStatus) -> i64 {
    match status {
        JobStatus::Blocked => 0,
        JobStatus::Pending => 1,
        JobStatus::Running => 2,
        JobStatus::Completed => 3,
        JobStatus::Dead => 4,
        JobStatus::Cancelled => 5,
    }
}

/// The status with this number.
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
    /// Whether the chain has a deduplication key.
    pub(crate) keyed: bool,
}
