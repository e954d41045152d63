//! The end of an attempt as a state machine without I/O: it decides, and the settler carries out.
//!
//! ```text
//!  the processor ends ── begin() ──┬── Commit ── the store answers ── committed() ──┐
//!                                  └──────────────────► NextStep ◄──────────────────┘
//!                                                        ├── Write ── the store answers ── resume() ──► NextStep
//!                                                        └── Done, Lost, Recover: the attempt is over
//! ```
//!
//! Most attempts take one write. A second one follows when the first is refused, or when it is unknown whether a completion
//! was committed: then the attempt writes its failure, and the fence tells. A store that has committed the completion answers
//! that the job is completed; a store that has not takes the failure.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::{Applied, Outcome, Settled, StateAdapter};
use crate::effects::Effects;
use crate::error::{Error, JobError, StateError, Verdict, shorten};
use crate::event::AttemptOutcome;
use crate::event_hub::HeldSpan;
use crate::id::{Entropy, Fence, JobId};
use crate::job::JobStatus;
use crate::settings::RetryPolicy;
use crate::time::Schedule;
use crate::worker::attempt::claim_next::{ClaimedNext, requested};
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::contained::panic_message;
use crate::worker::user::abort::AbortReason;
use crate::worker::user::completion::{Completion, CompletionKind, How, JobResult, WrittenTransaction};

/// How the processor of an attempt ended.
pub(crate) enum ProcessorEnd<S: StateAdapter> {
    Returned(JobResult<S>),
    Panicked(String),
    TimedOut(Duration),
    /// Dropped because the abort signal fired.
    Dropped(AbortReason),
    /// Dropped because the grace period of a stop is over.
    Killed,
}

/// The facts about an attempt that the decisions depend on.
pub(crate) struct Facts<'a> {
    pub(crate) job: JobId,
    pub(crate) fence: Fence,
    /// The number of the attempt, from one.
    pub(crate) attempt: u32,
    pub(crate) is_last_attempt: bool,
    pub(crate) retry: &'a RetryPolicy,
    /// Where the jitter of a retry comes from.
    pub(crate) entropy: &'a Entropy,
    /// Why the abort signal has fired, if it has.
    pub(crate) aborted: Option<AbortReason>,
}

impl<'a> Facts<'a> {
    pub(crate) fn of<S: StateAdapter>(attempt: &'a ClaimedAttempt<S>) -> Self {
        let shared = &attempt.shared;
        Self {
            job: shared.record.id,
            fence: shared.fence,
            attempt: shared.record.attempt,
            is_last_attempt: shared.is_last_attempt(),
            retry: &attempt.job_type.retry,
            entropy: shared.client().entropy(),
            aborted: shared.abort.reason(),
        }
    }
}

/// The first step after the processor.
pub(crate) enum Begun<S: StateAdapter> {
    Next(NextStep),
    /// Commit the transaction in which the processor has completed its job, then call [`committed`].
    Commit(CompletionKind, Box<WrittenTransaction<S>>),
}

/// The next step.
pub(crate) enum NextStep {
    /// Write the outcome, then call [`resume`] with the pending state and the answer.
    Write(Outcome, Pending),
    /// The attempt is over. The answer that would have brought the next job of the chain is lost: look for a job that was
    /// claimed under this fence.
    Recover(AttemptOutcome, Fence),
    /// The attempt is over: it has lost its job, and wrote nothing.
    Lost(AbortReason),
    /// The attempt is over, and this process has the next job of the chain if the store claimed it.
    Done(AttemptOutcome, Option<ClaimedNext>),
}

/// The state of an attempt while the store writes.
pub(crate) enum Pending {
    /// A completion that is written together with the ends of other attempts.
    Completion {
        kind: CompletionKind,
        /// The span of the next job's creation.
        span: Option<HeldSpan>,
    },
    /// A failure. Once it is written, the attempt ended in this way.
    Failure(AttemptOutcome),
    /// The failure that follows a completion of which it is unknown whether the store has committed it.
    Doubt(Box<Doubt>),
    /// The job goes back as it was.
    Release,
}

/// A completion of which it is unknown whether the store has committed it.
pub(crate) struct Doubt {
    kind: CompletionKind,
    pub(crate) completion: Unanswered,
    /// How the attempt ended if the store has not committed the completion.
    failed: AttemptOutcome,
}

/// The call whose answer is unknown.
pub(crate) enum Unanswered {
    /// A settlement with this outcome, and the span of the next job's creation.
    Settlement(Outcome, Option<HeldSpan>),
    /// A commit of the processor's transaction, which has these effects if it has happened.
    Commit(Option<Effects>),
}

/// The answer of the store to the commit of a processor's transaction.
pub(crate) enum CommitAnswer {
    Committed,
    /// It is certain that nothing was committed.
    RolledBack(JobError),
    /// The commit may have happened, with these effects.
    Unknown(JobError, Effects),
}

/// The answer of the store to a write.
pub(crate) enum Answer {
    /// Written; with the moment before it was sent.
    Applied(Applied, Instant),
    /// Another write under the same fence was applied before. The job has this status now.
    Repeated(JobStatus),
    /// The job is not this attempt's any more.
    Lost(AbortReason),
    /// The next job cannot be created.
    Refused(Error),
    /// The row of the job cannot be written.
    Failed(StateError),
}

impl Answer {
    /// `None` if the store could not write because of another transaction: the settler asks again.
    pub(crate) fn new(settled: Settled, sent_at: Instant) -> Option<Self> {
        Some(match settled {
            Settled::Applied(applied) => Self::Applied(applied, sent_at),
            Settled::Repeated(repeated) => Self::Repeated(repeated.status),
            Settled::Lost(reason) => Self::Lost(reason),
            Settled::Refused(refusal) => Self::Refused(refusal.into()),
            Settled::Busy => return None,
        })
    }
}

/// Decides what to do when the processor has ended.
pub(crate) fn begin<S: StateAdapter>(facts: &Facts<'_>, end: ProcessorEnd<S>) -> Begun<S> {
    Begun::Next(match end {
        ProcessorEnd::Returned(Ok(completion)) => return complete(facts, completion),
        ProcessorEnd::Returned(Err(error)) => fail(facts, &error),
        ProcessorEnd::Panicked(message) => fail(facts, &JobError::from(format!("panicked: {message}"))),
        ProcessorEnd::TimedOut(timeout) => fail(facts, &JobError::from(format!("timed out after {timeout:?}"))),
        ProcessorEnd::Dropped(AbortReason::Shutdown) | ProcessorEnd::Killed => release(),
        ProcessorEnd::Dropped(reason) => NextStep::Lost(reason),
    })
}

/// Decides what to do when the store has answered the commit of the processor's transaction.
pub(crate) fn committed(facts: &Facts<'_>, kind: CompletionKind, answer: CommitAnswer) -> NextStep {
    match answer {
        CommitAnswer::Committed => NextStep::Done(completed(kind), None),
        CommitAnswer::RolledBack(error) => fail(facts, &error),
        CommitAnswer::Unknown(error, effects) => doubt(facts, kind, Unanswered::Commit(Some(effects)), &error),
    }
}

/// Decides what to do when the store has answered a write. `wrote` is the outcome that was to be written.
pub(crate) fn resume(facts: &Facts<'_>, pending: Pending, wrote: Outcome, answer: Answer) -> NextStep {
    match (pending, answer) {
        (Pending::Completion { kind, .. }, Answer::Applied(applied, sent_at)) => {
            NextStep::Done(completed(kind), ClaimedNext::new(wrote, &applied, sent_at))
        }
        (Pending::Completion { kind, .. }, Answer::Repeated(status)) if stands(&wrote, status) => {
            completed_before(kind, &wrote)
        }
        // A worker that stops gave the job back while its processor went on.
        (Pending::Completion { .. }, Answer::Repeated(_)) => NextStep::Lost(AbortReason::Shutdown),
        (Pending::Completion { .. }, Answer::Refused(error)) => fail(facts, &error.into()),
        (Pending::Completion { kind, span }, Answer::Failed(error)) => {
            doubt(facts, kind, Unanswered::Settlement(wrote, span), &error.into())
        }
        (Pending::Doubt(doubt), Answer::Repeated(JobStatus::Completed)) => match doubt.completion {
            Unanswered::Settlement(wrote, _) => completed_before(doubt.kind, &wrote),
            Unanswered::Commit(_) => NextStep::Done(completed(doubt.kind), None),
        },
        (Pending::Doubt(doubt), answer) => failed(doubt.failed, &answer),
        (Pending::Failure(outcome), answer) => failed(outcome, &answer),
        (Pending::Completion { .. } | Pending::Release, Answer::Lost(reason)) => NextStep::Lost(reason),
        (Pending::Release, _) => NextStep::Done(AttemptOutcome::Aborted(AbortReason::Shutdown), None),
    }
}

/// Gives the job back as it was.
pub(crate) fn release() -> NextStep {
    NextStep::Write(Outcome::Release, Pending::Release)
}

fn complete<S: StateAdapter>(facts: &Facts<'_>, completion: Completion<S>) -> Begun<S> {
    let Completion {
        job, fence, kind, how, ..
    } = completion;
    if job != facts.job || fence != facts.fence {
        let message = format!("the processor returned the completion of another attempt, of job {job}");
        return Begun::Next(fail(facts, &JobError::from(message)));
    }
    match how {
        How::Grouped(outcome, span) => Begun::Next(NextStep::Write(outcome, Pending::Completion { kind, span })),
        How::Written(transaction) => Begun::Commit(kind, transaction),
    }
}

fn fail(facts: &Facts<'_>, error: &JobError) -> NextStep {
    if let Some(reason) = error.lease_lost() {
        return NextStep::Lost(reason);
    }
    match facts.aborted {
        // A processor that stops because it was told to has not failed.
        Some(AbortReason::Shutdown) => release(),
        None | Some(AbortReason::TimedOut | AbortReason::Error) => {
            let (outcome, ended) = judge(facts, error);
            NextStep::Write(outcome, Pending::Failure(ended))
        }
        Some(reason) => NextStep::Lost(reason),
    }
}

/// Writes the failure of an attempt whose completion may be committed.
fn doubt(facts: &Facts<'_>, kind: CompletionKind, completion: Unanswered, error: &JobError) -> NextStep {
    let (outcome, failed) = judge(facts, error);
    let doubt = Doubt {
        kind,
        completion,
        failed,
    };
    NextStep::Write(outcome, Pending::Doubt(Box::new(doubt)))
}

/// How an attempt ended whose failure was to be written.
fn failed(ended: AttemptOutcome, answer: &Answer) -> NextStep {
    match answer {
        Answer::Applied(..) | Answer::Repeated(_) => NextStep::Done(ended, None),
        Answer::Lost(reason) => NextStep::Lost(*reason),
        // Nothing was written, so nothing may be claimed: the lease will expire, and that counts the attempt.
        Answer::Refused(_) | Answer::Failed(_) => NextStep::Done(AttemptOutcome::Aborted(AbortReason::Error), None),
    }
}

/// The store had committed the completion, and the rest of its answer is lost.
fn completed_before(kind: CompletionKind, wrote: &Outcome) -> NextStep {
    match requested(wrote) {
        Some(claim) => NextStep::Recover(completed(kind), claim.fence),
        None => NextStep::Done(completed(kind), None),
    }
}

fn completed(kind: CompletionKind) -> AttemptOutcome {
    match kind {
        CompletionKind::Finish => AttemptOutcome::Finished,
        CompletionKind::Continue { next, next_type } => AttemptOutcome::Continued { next, next_type },
        CompletionKind::Snooze => AttemptOutcome::Snoozed,
    }
}

/// Whether the end that stands under the fence of an attempt is this one. An attempt writes one end, with two exceptions: a
/// completion of which it is unknown whether it was committed is followed by the failure of the attempt, which then finds
/// the job completed; and a worker that stops gives back the job of a processor that may complete it afterwards, and then
/// finds the job open. A completed job stays completed; the status of an open job does not tell which write left it open.
pub(crate) fn stands(outcome: &Outcome, status: JobStatus) -> bool {
    let completes = matches!(outcome, Outcome::Finish { .. } | Outcome::Continue { .. });
    completes == (status == JobStatus::Completed)
}

/// Decides what a failure leads to: a retry, or a dead job.
fn judge(facts: &Facts<'_>, error: &JobError) -> (Outcome, AttemptOutcome) {
    // The text of an error is the user's code too.
    let report = std::panic::catch_unwind(AssertUnwindSafe(|| error.report()));
    let report = shorten(report.unwrap_or_else(|panic| {
        format!(
            "an error that cannot be told: its text panicked: {}",
            panic_message(&*panic)
        )
    }));
    if error.is_fatal() || facts.is_last_attempt {
        let outcome = Outcome::Bury { error: report.clone() };
        return (outcome, AttemptOutcome::Died { error: report });
    }
    let (schedule, retry_in) = match error.verdict {
        Verdict::Retry(schedule) => (schedule, None),
        _ => {
            let delay = facts.retry.delay_after(facts.attempt);
            let delay = facts.entropy.jittered(delay, facts.retry.jitter);
            (Schedule::After(delay), Some(delay))
        }
    };
    let outcome = Outcome::Retry {
        schedule,
        error: report.clone(),
    };
    let ended = AttemptOutcome::Failed {
        error: report,
        retry_in,
        by_store: std::panic::catch_unwind(AssertUnwindSafe(|| error.is_of_store())).unwrap_or(false),
    };
    (outcome, ended)
}

#[cfg(test)]
mod tests;
