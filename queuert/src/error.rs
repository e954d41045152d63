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

/// The error of a client or worker call: one variant for each cause that a caller can act on.
///
/// `{}` says what to do. `{:?}` also shows all sources; it is what `unwrap()` and a `main` that returns this error
/// print.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job does not exist: it never existed or was deleted.
    #[error("job {0} was not found: it was deleted, or the transaction that made it has not been committed")]
    JobNotFound(JobId),
    /// The chain does not exist: it never existed or was deleted.
    #[error("chain {0} was not found: it was deleted, or the transaction that started it has not been committed")]
    ChainNotFound(ChainId),
    /// The current job of the chain is of another type than the one to be opened: the chain has not reached that job
    /// yet, or has passed it.
    #[error(
        "chain {chain} stands at a job of type `{actual}`, not `{expected}`: it has not come there yet, or has gone on; look \
         at it with `get_chain`, and open it when it is there"
    )]
    AtAnotherJob {
        /// The chain that was to be opened.
        chain: ChainId,
        /// The type of job that the caller asked for.
        expected: TypeName,
        /// The type of the chain's current job.
        actual: TypeName,
    },
    /// The job or chain is of another type than the caller named.
    #[error(
        "job {id} is of type `{actual}`, not `{expected}`; name the type `{actual}`, or use the id of a chain or job of type \
         `{expected}`"
    )]
    TypeMismatch {
        /// The id of the job, or of the first job of the chain.
        id: JobId,
        /// The type that the caller named.
        expected: TypeName,
        /// The stored type.
        actual: TypeName,
    },
    /// The stored row of a job is damaged: another program wrote it, or the database lost a part of it.
    #[error("the row of job {id} cannot be read: {problem}; mend the row and retry the chain, or delete the chain")]
    Unreadable {
        /// The id of the job whose row is damaged.
        id: JobId,
        /// The columns, and what is wrong with each.
        problem: String,
    },
    /// A stored input or output cannot be read as its type.
    #[error(
        "the {part} of job {id} is not that of `{type_name}`: {message}; deploy a build that can read it and retry the chain, or delete it"
    )]
    Undecodable {
        /// The id of the job.
        id: JobId,
        /// The type of the job.
        type_name: TypeName,
        /// `input` or `output`: the part that cannot be read.
        part: &'static str,
        /// The decoder's message.
        message: String,
    },
    /// A value cannot be written as JSON, or could not be read back.
    #[error("the {part} of `{type_name}` cannot be stored as JSON: {message}")]
    Unencodable {
        /// The type of the job.
        type_name: TypeName,
        /// `input` or `output`: the part that cannot be written.
        part: &'static str,
        /// The encoder's message.
        message: String,
    },
    /// The caller's own id for a new job is taken.
    #[error("a job with the id {0} exists; leave the id out, or use deduplication to start a chain once")]
    IdTaken(JobId),
    /// A chain that was given as blocker does not exist.
    #[error(
        "job {job} cannot wait for chain {chain}: there is no such chain; start it first, or in the same transaction"
    )]
    BlockerNotFound {
        /// The job that was to be created.
        job: JobId,
        /// The chain that does not exist.
        chain: ChainId,
    },
    /// The new job would wait for its own chain, directly or through other chains.
    #[error(
        "job {job} cannot wait for chain {chain}: that chain waits for the chain of this job; leave {chain} out of the \
         blockers, or start a chain of its own for this job"
    )]
    BlockerCycle {
        /// The job that was to be created.
        job: JobId,
        /// The blocker that waits for the chain of the new job.
        chain: ChainId,
    },
    /// A stored job has fewer blockers than its type declares.
    #[error(
        "blocker number {index} is missing: the job type declares a chain of `{expected}` there; deploy a build that declares \
         the blockers with which the job was created, or cancel the chain and start it again"
    )]
    BlockerMissing {
        /// The index in the declaration, from zero.
        index: usize,
        /// The declared entry type.
        expected: TypeName,
    },
    /// The chain cannot be deleted while a job of another chain waits for it or may have to read its output.
    #[error("chain {} is a blocker of job {}{}; delete the dependent chains too, or let them end", .0[0].chain, .0[0].job, Others(.0.len() - 1))]
    BlockerReference(Vec<BlockerReference>),
    /// Only a pending job can be triggered.
    #[error(
        "job {job} is {status}; only a pending job can be triggered: let it run, or `retry` its chain if that is dead or cancelled"
    )]
    NotTriggerable {
        /// The job that was to be triggered.
        job: JobId,
        /// The status of the job.
        status: JobStatus,
    },
    /// The chain has ended, so it can be neither completed nor cancelled.
    #[error(
        "chain {chain} is {status}, it cannot be changed any more; look at it with `get_chain`, or start another chain"
    )]
    ChainEnded {
        /// The chain that was to be changed.
        chain: ChainId,
        /// The status with which it ended.
        status: JobStatus,
    },
    /// Only a dead or cancelled chain can be retried.
    #[error(
        "chain {chain} is {status}; only a dead or cancelled chain can be retried: wait for it if it is open, start another chain if it is completed"
    )]
    NotRetryable {
        /// The chain that was to be retried.
        chain: ChainId,
        /// The status of the chain.
        status: JobStatus,
    },
    /// The store has lost the state of the chain's latest job; another program must have deleted it. The chain can only
    /// be deleted.
    #[error(
        "chain {0} has lost the state of its latest job in the store, so it can neither run nor be changed; delete it"
    )]
    ChainDamaged(ChainId),
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
    /// The chain that was waited for is dead; retry it to continue.
    #[error(
        "chain {chain} is dead{}; once that is mended, `retry` sends it on its way again",
        Because(last_error)
    )]
    ChainDead {
        /// The chain that was waited for.
        chain: ChainId,
        /// The failure of the last attempt.
        last_error: Option<AttemptError>,
    },
    /// The chain that was waited for was cancelled.
    #[error("chain {0} was cancelled; `retry` sends it on its way again")]
    ChainCancelled(ChainId),
    /// The chain did not end within the timeout of the wait. It goes on.
    #[error("chain {chain} did not end within {timeout:?}{}; it goes on", Standing(latest.as_deref()))]
    WaitTimeout {
        /// The chain that was waited for.
        chain: ChainId,
        /// The timeout of the wait.
        timeout: Duration,
        /// The latest job of the chain when the wait ended; `None` if the store did not answer.
        latest: Option<Box<JobRecord>>,
    },
    /// The attempt has lost its job. Nothing that it wrote can be committed.
    #[error(
        "the attempt lost job {job}: {reason}; nothing that it wrote was committed, so return the error from the processor, \
         and the worker ends the attempt"
    )]
    LeaseLost {
        /// The job that was lost.
        job: JobId,
        /// Why it was lost.
        reason: AbortReason,
    },
    /// One item of a batch was refused, so nothing was done for any item.
    #[error("item {index} of the batch, {id}, was refused, so nothing was done for any: {source}")]
    InBatch {
        /// The index of the item in the batch, from zero.
        index: usize,
        /// The id of the job, or of the chain's first job. For a chain that was to be started without an id of the
        /// caller's own, it is the id that the client chose.
        id: JobId,
        /// Why the item was refused.
        #[source]
        source: Box<Error>,
    },
    /// The transaction can only be rolled back.
    #[error("the transaction cannot be used any more: {0}")]
    TransactionUnusable(TransactionFault),
    /// The attempt has an open transaction. A second one would wait for the locks of the first for ever.
    #[error(
        "the attempt of job {job} has an open transaction, and a second one would wait for its locks: {}",
        if *.written { "the completion is written in it, so return it from the processor, or drop it to roll back" }
        else { "use the open one, or end it first with `rollback`" }
    )]
    TransactionOpen {
        /// The job of the attempt.
        job: JobId,
        /// Whether the completion of the job is written in the open transaction.
        written: bool,
    },
    /// A value given by the caller is invalid: a setting, a key, a name, a limit.
    #[error("{what}: {problem}")]
    Invalid {
        /// The value that is invalid.
        what: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A job type was named that the store has never seen.
    #[error(
        "the store has no job of type `{0}`, so nothing was changed; check the spelling, or name the type in code with \
         `pause::<J>()`"
    )]
    UnknownType(TypeName),
    /// Two processors of one worker are for the same job type.
    #[error("two processors for `{0}`: a worker takes one per job type; remove one, or start a second worker")]
    DuplicateProcessor(TypeName),
    /// A worker has no processor.
    #[error("the worker has no processor: add at least one with `.process(..)`")]
    NoProcessor,
    /// The text is not a page cursor, or the cursor belongs to another query.
    #[error("the page cursor does not fit: {0}")]
    InvalidCursor(&'static str),
    /// A processor or middleware asked for a value that was not provided.
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
    #[error("the store failed; the cause says what to do")]
    State(#[source] StateError),
    /// The notify adapter failed.
    #[error("the notify adapter failed, so jobs are found by polling; the cause says what to do")]
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

    /// That of an item of a batch.
    pub(crate) fn in_batch(self, index: usize, id: JobId) -> Self {
        let source = Box::new(self);
        Self::InBatch { index, id, source }
    }

    /// The error of the only item of a batch.
    pub(crate) fn alone(self) -> Self {
        match self {
            Self::InBatch { source, .. } => *source,
            error => error,
        }
    }

    /// Whether no repetition with the same values can succeed, whatever else happens in the store.
    fn is_permanent(&self) -> bool {
        match self {
            Self::BlockerCycle { .. }
            | Self::BlockerMissing { .. }
            | Self::TypeMismatch { .. }
            | Self::Unencodable { .. } => true,
            Self::InBatch { source, .. } => source.is_permanent(),
            _ => false,
        }
    }

    /// Whether a later try may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::InBatch { source, .. } => source.is_transient(),
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

/// Why a transaction can only be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionFault {
    /// The future of a request in it, or of a savepoint, was dropped before it was complete.
    #[error(
        "the future of a request in it was dropped before the request was complete, and half of it may be written; roll the \
         transaction back, or to a savepoint from before the request, and await what runs in a transaction to its end"
    )]
    Interrupted,
    /// The store failed in the middle of a request.
    #[error(
        "the store failed in the middle of a request in it, and half of the request may be written; roll the transaction \
         back, or to a savepoint from before the request, and run it again"
    )]
    Failed,
    /// The transaction has ended without [`Transaction::commit`](crate::Transaction::commit) or
    /// [`Transaction::rollback`](crate::Transaction::rollback).
    #[error(
        "it has ended already: the store rolled it back because of an error (a full disk, `INSERT OR ROLLBACK`, \
         `RAISE(ROLLBACK)`), or `COMMIT` or `ROLLBACK` was executed on its connection; nothing more is written in it, run it \
         again from the beginning and end it with `commit` or `rollback` only"
    )]
    Ended,
}

/// A job that keeps a chain from being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockerReference {
    /// The chain that was to be deleted.
    pub chain: ChainId,
    /// The job of another chain that waits for it, or may have to read its output again.
    pub job: JobId,
}

/// The error of a state adapter: its kind says whether to try again, and its source is the driver's error.
///
/// `{:?}` shows the messages of all sources and not their own `Debug` output: that of a driver may contain the row that
/// the database refused, with all its columns.
#[derive(thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    kind: StateErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// The kind of a failure, from the point of view of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateErrorKind {
    /// The store cannot be reached or is overloaded. Nothing is wrong with the request; try again.
    Transient,
    /// The transaction collided with another one (a deadlock, a serialisation failure). Run it again.
    Conflict,
    /// The store refuses: wrong credentials, missing rights, a wrong schema, a damaged or read-only database. A person
    /// must act. Workers keep the results that they have to write until the store accepts them.
    Misconfigured,
    /// One row is damaged, or one value cannot be stored. Trying again does not help, and no other row is affected.
    /// This is the only kind after which a worker stops trying to write the result of an attempt.
    Corrupt,
    /// The transaction has ended before this call: the store rolled it back because of an error, or a statement of the
    /// caller's ended it. The call has written and committed nothing.
    TransactionEnded,
}

impl StateErrorKind {
    /// Whether the failure is about one row or value, so that trying again cannot help. Failures of all other kinds are
    /// about the store, and end when the store answers again or a person has acted.
    pub const fn concerns_one_row(self) -> bool {
        matches!(self, Self::Corrupt)
    }
}

impl StateError {
    /// Makes an error. The message should say what to do.
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

    /// The kind of the failure.
    pub const fn kind(&self) -> StateErrorKind {
        self.kind
    }
}

/// The error of a notify adapter. `{:?}` shows the messages of all sources.
#[derive(thiserror::Error)]
#[error("{message}")]
pub struct NotifyError {
    message: String,
    source: Option<BoxError>,
}

impl NotifyError {
    /// Makes an error.
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

/// Why an attempt failed. `?` converts any error into one, which means: retry by policy.
///
/// An [`Error`] that no retry can fix makes the job dead at once: [`Error::BlockerCycle`], [`Error::BlockerMissing`],
/// [`Error::TypeMismatch`] and [`Error::Unencodable`].
///
/// This type does not implement [`std::error::Error`], because every error converts into it.
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
///
/// `{:?}` shows the messages of all sources, as [`report`](Self::report) does.
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
    /// Makes the job dead: no retry would help.
    pub fn fatal(error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Fatal,
            source: error.into(),
        }
    }

    /// Retries after the given delay. The attempt is spent.
    pub fn retry_after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Retry(Schedule::After(delay)),
            source: error.into(),
        }
    }

    /// Retries at the given time. The attempt is spent.
    pub fn retry_at(time: impl Into<Timestamp>, error: impl Into<BoxError>) -> Self {
        Self {
            verdict: Verdict::Retry(Schedule::At(time.into())),
            source: error.into(),
        }
    }

    /// Whether the job is dead after this error.
    pub fn is_fatal(&self) -> bool {
        self.verdict == Verdict::Fatal
    }

    /// Whether a call to the store failed in a way that may pass.
    pub(crate) fn is_of_store(&self) -> bool {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.source);
        while let Some(cause) = next {
            let state = match cause.downcast_ref::<Error>() {
                Some(Error::State(state)) => Some(state),
                _ => cause.downcast_ref::<StateError>(),
            };
            if let Some(state) = state {
                return state.kind() == StateErrorKind::Transient;
            }
            next = cause.source();
        }
        false
    }

    /// Why the attempt lost its job, if this error says so.
    pub fn lease_lost(&self) -> Option<AbortReason> {
        match self.verdict {
            Verdict::LeaseLost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The error that failed the attempt.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// The error with all its sources as text, as it is stored with the job: at most 10,000 characters.
    pub fn report(&self) -> String {
        shorten(cause_chain(&*self.source))
    }
}

/// An error with all its sources as text. Some errors print their source as well; what has been said is not repeated.
pub(crate) fn cause_chain(error: &(dyn StdError + 'static)) -> String {
    let mut report = error.to_string();
    let mut before = report.clone();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // At its end, as `…: {source}` puts it: a text that merely holds the same words says something else.
        if !before.ends_with(&text) {
            report.push_str(": ");
            report.push_str(&text);
        }
        before = text;
        next = cause.source();
    }
    report
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
            Some(error) if error.is_permanent() => Verdict::Fatal,
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

    #[derive(Debug, thiserror::Error)]
    #[error("write failed: {0}")]
    struct Twice(#[source] Outer);

    #[derive(Debug, thiserror::Error)]
    #[error("the statement_timeout was reached")]
    struct Limit(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("a row breaks a rule")]
    struct Refused {
        row: &'static str,
    }

    #[test]
    fn a_report_holds_the_whole_source_chain_once() {
        let error = JobError::from(Outer(std::io::Error::other("disk on fire")));
        assert_eq!(error.report(), "outer: disk on fire");
        // An error that prints its source as well, as many drivers do.
        let twice = Twice(Outer(std::io::Error::other("disk on fire")));
        assert_eq!(JobError::from(twice).report(), "write failed: outer: disk on fire");
        // A source whose words merely occur in what was said is another thing to say.
        let within = Limit(std::io::Error::other("timeout"));
        assert_eq!(
            JobError::from(within).report(),
            "the statement_timeout was reached: timeout"
        );
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
        let shown =
            "State: the store failed; the cause says what to do: the database cannot be reached: connection refused";
        assert_eq!(format!("{error:?}"), shown);
        // Whatever the `Debug` of a source shows.
        let (refused, shown) = (
            || Refused { row: "secret" },
            "the database refused it: a row breaks a rule",
        );
        let state = StateError::new(StateErrorKind::Corrupt, "the database refused it").with_source(refused());
        assert_eq!(format!("{state:?}"), format!("StateError(Corrupt): {shown}"));
        let notify = NotifyError::new("the database refused it").with_source(refused());
        assert_eq!(format!("{notify:?}"), format!("NotifyError: {shown}"));
        assert_eq!(
            format!("{:?}", JobError::from(state)),
            format!("JobError(RetryByPolicy): {shown}")
        );
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

    #[test]
    fn an_error_that_no_retry_can_mend_is_fatal_behind_the_question_mark() {
        let job = JobId::from_uuid(uuid::Uuid::nil());
        let chain = job.as_chain();
        let cycle = || Error::BlockerCycle { job, chain };
        assert!(JobError::from(cycle()).is_fatal());
        assert!(JobError::from(cycle().in_batch(3, job)).is_fatal());
        // The chain may be committed a moment later.
        assert!(!JobError::from(Error::BlockerNotFound { job, chain }).is_fatal());
        assert!(!JobError::from(Error::JobNotFound(job).in_batch(0, job)).is_fatal());
        let (expected, actual) = (TypeName::from("pay"), TypeName::from("pick"));
        let early = Error::AtAnotherJob {
            chain,
            expected,
            actual,
        };
        assert!(!JobError::from(early).is_fatal(), "the chain may come there");
    }
}
