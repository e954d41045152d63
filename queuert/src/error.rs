//! Every public error.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::error_text::{Provided, Standing};
use crate::id::{ChainId, JobId};
use crate::job::{AttemptError, JobRecord, JobStatus, TypeName};
use crate::payload::PayloadError;
use crate::time::{Schedule, Timestamp};
use crate::worker::AbortReason;

type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What a client or worker call may fail with: one variant per thing that a caller can act on.
///
/// `{}` says what to do. So does `{:?}`, with all sources: it is what `unwrap()` and a `main` that returns this error show.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such job: it never existed or was deleted.
    #[error("job {0} was not found: it was deleted, or the transaction that made it has not been committed")]
    JobNotFound(JobId),
    /// No such chain: it never existed or was deleted.
    #[error("chain {0} was not found: it was deleted, or the transaction that started it has not been committed")]
    ChainNotFound(ChainId),
    /// The job or chain is of another type than the caller said.
    #[error("job {id} is of type `{actual}`, not `{expected}`")]
    TypeMismatch {
        /// The job, or the first job of the chain.
        id: JobId,
        /// The type that the caller named.
        expected: TypeName,
        /// The type that is stored.
        actual: TypeName,
    },
    /// A stored input or output is not what its type says.
    #[error(
        "the {part} of job {id} is not that of `{type_name}`: {message}; deploy a build that can read it and retry the chain, or delete it"
    )]
    Undecodable {
        /// The job whose row it is.
        id: JobId,
        /// Its type.
        type_name: TypeName,
        /// `input` or `output`.
        part: &'static str,
        /// What the decoder said.
        message: String,
    },
    /// A value could not be written as JSON.
    #[error("the {part} of `{type_name}` cannot be written as JSON: {message}")]
    Unencodable {
        /// Its type.
        type_name: TypeName,
        /// `input` or `output`.
        part: &'static str,
        /// What the encoder said.
        message: String,
    },
    /// A supplied id exists.
    #[error("a job with the id {0} exists; leave the id out, or use deduplication to start a chain once")]
    IdTaken(JobId),
    /// A chain given as blocker does not exist.
    #[error(
        "job {job} cannot wait for chain {chain}: there is no such chain; start it first, or in the same transaction"
    )]
    BlockerNotFound {
        /// The job that was to be created.
        job: JobId,
        /// The chain that is not there.
        chain: ChainId,
    },
    /// A job would wait for its own chain, directly or through others.
    #[error("job {job} cannot wait for chain {chain}: that chain waits for the chain of this job")]
    BlockerCycle {
        /// The job that was to be created.
        job: JobId,
        /// The chain that waits for it.
        chain: ChainId,
    },
    /// A stored job has fewer blockers than its type declares.
    #[error("blocker number {index} is missing: the job type declares a chain of `{expected}` there")]
    BlockerMissing {
        /// The place in the declaration, from zero.
        index: usize,
        /// The declared entry type.
        expected: TypeName,
    },
    /// The chain cannot be deleted while jobs of other chains wait for it or may have to read it.
    #[error("chain {} is a blocker of job {}{}; delete the dependent chains too, or let them end", .0[0].chain, .0[0].job, Others(.0.len() - 1))]
    BlockerReference(Vec<BlockerReference>),
    /// Only a pending job can be triggered.
    #[error("job {job} is {status}; only a pending job can be triggered")]
    NotTriggerable {
        /// The job.
        job: JobId,
        /// Its status.
        status: JobStatus,
    },
    /// The chain has ended, so it can be neither completed nor cancelled.
    #[error("chain {chain} is {status}, it cannot be changed any more")]
    ChainEnded {
        /// The chain.
        chain: ChainId,
        /// How it ended.
        status: JobStatus,
    },
    /// Only a dead or cancelled chain can be retried.
    #[error("chain {chain} is {status}; only a dead or cancelled chain can be retried")]
    NotRetryable {
        /// The chain.
        chain: ChainId,
        /// Its status.
        status: JobStatus,
    },
    /// A chain cannot be retried while another open chain has its deduplication key.
    #[error(
        "chain {chain} cannot be retried: the open chain {holder} has its deduplication key; wait for that one or cancel it"
    )]
    KeyTaken {
        /// The chain that was to be retried.
        chain: ChainId,
        /// The open chain with the same type and key.
        holder: ChainId,
    },
    /// The chain died; retry it to continue.
    #[error(
        "chain {chain} is dead{}; once that is mended, `retry` sends it on its way again",
        Because(last_error)
    )]
    ChainDead {
        /// The chain.
        chain: ChainId,
        /// The failure that it died of.
        last_error: Option<AttemptError>,
    },
    /// The chain was cancelled.
    #[error("chain {0} was cancelled; `retry` sends it on its way again")]
    ChainCancelled(ChainId),
    /// The chain did not end in time. It goes on.
    #[error("chain {chain} did not end within {timeout:?}{}; it goes on", Standing(latest.as_deref()))]
    WaitTimeout {
        /// The chain.
        chain: ChainId,
        /// How long was waited.
        timeout: Duration,
        /// Its latest job when the wait was over, if the store answered.
        latest: Option<Box<JobRecord>>,
    },
    /// The attempt no longer holds its job: nothing that it writes can be committed.
    #[error("the attempt lost job {job}: {reason}; nothing that it wrote was committed")]
    LeaseLost {
        /// The job.
        job: JobId,
        /// Why.
        reason: AbortReason,
    },
    /// Something was asked for that cannot be: a setting, a key, a name, a limit.
    #[error("{what}: {problem}")]
    Invalid {
        /// What was given.
        what: &'static str,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// Two processors of one worker are for the same job type.
    #[error("two processors for `{0}`: a worker takes one per job type; remove one, or start a second worker")]
    DuplicateProcessor(TypeName),
    /// A worker has no processor.
    #[error("the worker has no processor: add at least one with `.process(..)`")]
    NoProcessor,
    /// A page cursor that is not one, or belongs to another query.
    #[error("the page cursor does not fit: {0}")]
    InvalidCursor(&'static str),
    /// A value that a processor or middleware asks for was never provided.
    #[error(
        "no `{wanted}` was provided: add it with `.provide(..)` on the worker or `insert` in a middleware{}",
        Provided(provided)
    )]
    MissingValue {
        /// The type that was asked for.
        wanted: &'static str,
        /// The types that were provided.
        provided: Vec<&'static str>,
    },
    /// The state adapter failed.
    #[error("the state adapter failed")]
    State(#[source] StateError),
    /// The notify adapter failed.
    #[error("the notify adapter failed")]
    Notify(#[source] NotifyError),
}

impl Error {
    pub(crate) fn undecodable_input(job: &JobRecord, error: &PayloadError) -> Self {
        Self::Undecodable {
            id: job.id,
            type_name: job.type_name.clone(),
            part: "input",
            message: error.to_string(),
        }
    }

    /// Whether trying again later may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::State(error) => matches!(error.kind(), StateErrorKind::Transient | StateErrorKind::Conflict),
            Self::Notify(_) | Self::WaitTimeout { .. } => true,
            _ => false,
        }
    }
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

struct Others(usize);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

struct Because<'a>(&'a Option<AttemptError>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(error) => write!(f, ": {}", error.message),
            None => Ok(()),
        }
    }
}

/// A job that keeps a chain from being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockerReference {
    /// The chain that was to be deleted.
    pub chain: ChainId,
    /// The job of another chain that waits for it, or may have to read its output again.
    pub job: JobId,
}

/// What a state adapter fails with: the answer to "may I try again?", and the driver's error.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    kind: StateErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// What kind of failure it is, from the caller's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateErrorKind {
    /// The store cannot be reached or is overloaded; nothing is wrong with the request.
    Transient,
    /// The transaction collided with another one (deadlock, serialisation); run it again.
    Conflict,
    /// The store refuses: wrong credentials, missing rights, wrong schema. A person must act.
    Misconfigured,
    /// A row is not what it should be.
    Corrupt,
}

impl StateError {
    /// A failure with a message that says what to do.
    pub fn new(kind: StateErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Attaches the driver's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    pub const fn kind(&self) -> StateErrorKind {
        self.kind
    }
}

/// What a notify adapter fails with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct NotifyError {
    message: String,
    source: Option<BoxError>,
}

impl NotifyError {
    /// A failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// Attaches the driver's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Why an attempt failed. Any error becomes one through `?`, and means: retry by policy.
///
/// It deliberately does not implement [`std::error::Error`]: that is what lets every error convert into it.
///
/// ```
/// use std::time::Duration;
/// use queuert::JobError;
/// use queuert::memory::{Attempt, JobResult};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { card: String }
/// # #[derive(queuert::JobTypes)] enum Orders { #[job(entry, output = u64)] Charge(Charge) }
///
/// async fn charge(job: Attempt<Charge>) -> JobResult {
///     match job.card.as_str() {
///         "stolen" => Err(JobError::fatal("the card is stolen")), // dead at once
///         "busy" => Err(JobError::retry_after(Duration::from_secs(60), "the bank is busy")),
///         number => {
///             let number: u64 = number.parse()?; // retried by policy
///             job.finish(number)
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct JobError {
    pub(crate) verdict: Verdict,
    source: BoxError,
}

/// What is to happen after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    RetryByPolicy,
    Retry(Schedule),
    Fatal,
    LeaseLost(AbortReason),
}

impl JobError {
    /// The job is dead: no retry would help.
    pub fn fatal(error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Fatal,
            source: error.into(),
        }
    }

    /// Retry after a delay of the caller's choice. The attempt is spent.
    pub fn retry_after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Retry(Schedule::After(delay)),
            source: error.into(),
        }
    }

    /// Retry at a time of the caller's choice. The attempt is spent.
    pub fn retry_at(time: impl Into<Timestamp>, error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Retry(Schedule::At(time.into())),
            source: error.into(),
        }
    }

    /// Whether the job is dead after this.
    pub fn is_fatal(&self) -> bool {
        self.verdict == Verdict::Fatal
    }

    /// Why the attempt lost its job, if that is what happened.
    pub fn lease_lost(&self) -> Option<AbortReason> {
        match self.verdict {
            Verdict::LeaseLost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The error itself.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// The whole source chain as text, as it is stored with the job: at most 10,000 characters.
    pub fn report(&self) -> String {
        let mut report = self.source.to_string();
        let mut next = self.source.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors print their source as well; saying it twice helps nobody.
            if !report.contains(&text) {
                report.push_str(": ");
                report.push_str(&text);
            }
            next = cause.source();
        }
        shorten(report)
    }
}

const MAX_REPORT_LENGTH: usize = 10_000;

/// Cuts a text that is stored with a job to a size that a row can bear.
pub(crate) fn shorten(mut text: String) -> String {
    if let Some((cut, _)) = text.char_indices().nth(MAX_REPORT_LENGTH) {
        text.truncate(cut);
        text.push_str(" … (cut)");
    }
    text
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report())
    }
}

impl<E: Into<BoxError>> From<E> for JobError {
    fn from(error: E) -> Self {
        let source = error.into();
        // A lost lease stays one on its way through a processor's `?`, so that nothing is written for it.
        let verdict = match source.downcast_ref::<Error>() {
            Some(Error::LeaseLost { reason, .. }) => Verdict::LeaseLost(*reason),
            _ => Verdict::RetryByPolicy,
        };
        Self { verdict, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_report_holds_the_whole_source_chain_once() {
        let error = JobError::from(Outer(std::io::Error::other("disk on fire")));
        assert_eq!(error.report(), "outer: disk on fire");
        assert_eq!(JobError::from("plain text").report(), "plain text");
        assert_eq!(JobError::from(AbortReason::Shutdown).report(), "the worker is stopping");
    }

    #[test]
    fn a_report_is_cut_at_a_character() {
        let report = JobError::from("ü".repeat(20_000)).report();
        assert_eq!(report.chars().filter(|c| *c == 'ü').count(), MAX_REPORT_LENGTH);
        assert!(report.ends_with("(cut)"));
    }

    #[test]
    fn debug_shows_the_message_and_its_sources() {
        let error = StateError::new(StateErrorKind::Transient, "the database cannot be reached");
        let error = Error::State(error.with_source("connection refused"));
        let shown = "State: the state adapter failed: the database cannot be reached: connection refused";
        assert_eq!(format!("{error:?}"), shown);
        assert_eq!(
            format!("{:?}", Error::NoProcessor),
            format!("NoProcessor: {}", Error::NoProcessor)
        );
    }

    #[test]
    fn a_lost_lease_survives_the_question_mark() {
        let reason = AbortReason::TakenByAnotherWorker;
        let job = JobId::from_uuid(uuid::Uuid::nil());
        let error = JobError::from(Error::LeaseLost { job, reason });
        assert_eq!(error.lease_lost(), Some(reason));
        assert_eq!(JobError::from("x").lease_lost(), None);
    }
}
