//! The job: its statuses, its stored record, and its typed view.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::Error;
use crate::id::{ChainId, Fence, JobId, WorkerId};
use crate::job_type::JobType;
use crate::payload::Payload;
use crate::time::Timestamp;

/// The stable name under which a job type is stored. Clones share it.
#[derive(Clone)]
pub struct TypeName(Name);

#[derive(Clone)]
enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

impl TypeName {
    /// The longest name that is accepted, in bytes.
    pub const MAX_LENGTH: usize = 200;

    /// A name that is known at compile time.
    pub const fn from_static(name: &'static str) -> Self {
        Self(Name::Static(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Static(name) => name,
            Name::Shared(name) => name,
        }
    }
}

impl PartialEq for TypeName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for TypeName {}

impl PartialOrd for TypeName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TypeName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// As text: maps are asked with a `str`.
impl Hash for TypeName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&'static str> for TypeName {
    fn from(name: &'static str) -> Self {
        Self(Name::Static(name))
    }
}

impl From<String> for TypeName {
    fn from(name: String) -> Self {
        Self(Name::Shared(name.into()))
    }
}

impl std::borrow::Borrow<str> for TypeName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The status of a job.
///
/// A chain has the status of its latest job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobStatus {
    /// The job waits for other chains.
    Blocked,
    /// The job waits for its due time, or for a worker.
    Pending,
    /// An attempt has the lease of the job.
    Running,
    /// The job was ended by its processor or from outside.
    Completed,
    /// The job is not retried by itself: its attempts are exhausted, its error was fatal, or its input cannot be read.
    Dead,
    /// The chain was cancelled.
    Cancelled,
}

impl JobStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::Blocked,
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Dead,
        Self::Cancelled,
    ];

    /// Whether the job may still change by itself: blocked, pending or running.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Blocked | Self::Pending | Self::Running)
    }

    /// Whether [`Client::retry`](crate::Client::retry) accepts it: dead or cancelled.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Dead | Self::Cancelled)
    }

    /// The lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The right of one attempt to write the result of its job until a given time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The set of workers that has the lease.
    pub owner: WorkerId,
    /// When the lease expires, by the store's clock; the reaper may take the job back then.
    pub until: Timestamp,
    /// The value that every write of the attempt must name.
    pub fence: Fence,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    /// The number of the attempt, from one.
    pub attempt: u32,
    /// When it failed, by the store's clock.
    pub at: Timestamp,
    /// The error with all its sources, as text.
    pub message: String,
}

/// A job as it is stored, with input and output as JSON. [`Job`] is its typed view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The job's id.
    pub id: JobId,
    /// The job's type.
    pub type_name: TypeName,
    /// The chain that it belongs to.
    pub chain_id: ChainId,
    /// The type of the chain's first job.
    pub chain_type: TypeName,
    /// The position of the job in its chain, from zero.
    pub chain_index: u32,
    /// The input.
    pub input: Payload,
    /// The output of the chain, if this job finished it.
    pub output: Option<Payload>,
    /// The status of the job.
    pub status: JobStatus,
    /// The priority; jobs with a larger one go first. See [`rank`](crate::adapter::rank).
    pub priority: i16,
    /// The number of attempts since the job was created or last retried by an operator. Attempts that ended with a
    /// snooze or a graceful stop are not counted.
    pub attempt: u32,
    /// The number of claims since the job was created. It is never reset.
    pub claims: u32,
    /// The number of attempts after which the job is dead, if the caller chose one when creating it.
    pub max_attempts: Option<u32>,
    /// When the job was created, by the store's clock.
    pub created_at: Timestamp,
    /// The earliest time for the next attempt. It also decides the place in line, except for a job that was taken back
    /// from a dead process: that job keeps the place that it had.
    pub scheduled_at: Timestamp,
    /// When the latest attempt was claimed, by the store's clock.
    pub started_at: Option<Timestamp>,
    /// When the job completed, died or was cancelled, by the store's clock.
    pub ended_at: Option<Timestamp>,
    /// The set of workers that completed the job; `None` if it was completed from outside.
    pub completed_by: Option<WorkerId>,
    /// The latest failure. A completion removes it; a retry by an operator keeps it.
    pub last_error: Option<AttemptError>,
    /// The lease; set exactly while the job is running.
    pub lease: Option<Lease>,
    /// The deduplication key with which the chain was started; set on first jobs only.
    pub deduplication_key: Option<String>,
    /// The W3C trace context of the caller or attempt that created the job.
    pub trace_context: Option<String>,
    /// The columns of the stored row that cannot be read, and why: the row was damaged or changed by hand. `None` if
    /// the row can be read. The fields for such columns have neutral values. A worker does not run the job: it makes
    /// the job dead with an error that repeats this text. Mend the row and retry the chain, or delete the chain.
    pub unreadable: Option<String>,
}

impl JobRecord {
    /// Reads the record as a job of type `J`.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if the stored row is damaged, [`Error::TypeMismatch`] if it is of another type,
    /// [`Error::Undecodable`] if its input is not a `J`.
    pub fn typed<J: JobType>(self) -> Result<Job<J>, Error> {
        if let Some(problem) = self.unreadable {
            return Err(Error::Unreadable { id: self.id, problem });
        }
        if self.type_name.as_str() != J::NAME {
            return Err(Error::TypeMismatch {
                id: self.id,
                expected: J::NAME.into(),
                actual: self.type_name,
            });
        }
        match J::decode(&self.input) {
            Ok(input) => Ok(Job { input, record: self }),
            Err(error) => Err(Error::undecodable_input(&self, &error)),
        }
    }
}

/// A job of type `J` as it was when it was read. Dereferences to its [`JobRecord`].
#[derive(Clone, Debug)]
pub struct Job<J> {
    /// The decoded input.
    pub input: J,
    record: JobRecord,
}

impl<J> Job<J> {
    /// The stored record.
    pub fn into_record(self) -> JobRecord {
        self.record
    }

    /// The input and the stored record.
    pub fn into_parts(self) -> (J, JobRecord) {
        (self.input, self.record)
    }
}

impl<J> std::ops::Deref for Job<J> {
    type Target = JobRecord;

    fn deref(&self) -> &JobRecord {
        &self.record
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_name_is_its_text_whatever_memory_it_is_in() {
        let (fixed, owned) = (TypeName::from_static("a"), TypeName::from("a".to_owned()));
        assert_eq!(fixed, owned);
        assert_eq!(fixed.cmp(&owned), Ordering::Equal);
        assert!(owned < TypeName::from_static("b"));
        assert_eq!(format!("{owned} {owned:?}"), "a \"a\"");
        let names = HashMap::from([(owned.clone(), 1)]);
        assert_eq!((names.get(&fixed), names.get("a")), (Some(&1), Some(&1)));
        // Every event of a job has a clone.
        assert!(std::ptr::eq(owned.as_str(), owned.clone().as_str()));
    }
}
