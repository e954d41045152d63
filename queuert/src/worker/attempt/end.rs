//! From the end of an attempt's processor to what the store makes of it.
//!
//! There are two ways: to wait for the answer of the store, as a single worker does whose jobs happen one after the other,
//! and to leave the rest to whoever hears it ([`Behind`](crate::worker::attempt::behind::Behind)). Both decide in the same places: [`Attempt::way`] what to
//! write, [`Attempt::told`] what came of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::adapter::{Applied, Authority, Commit, Outcome, Repeated, Settled, Settlement, StateAdapter};
use crate::client::report;
use crate::effects::Effects;
use crate::error::{Error, JobError, StateError, StateErrorKind, Verdict, shorten};
use crate::event::AttemptOutcome;
use crate::event_hub::HeldSpan;
use crate::job::JobStatus;
use crate::time::Schedule;
use crate::worker::attempt::executor::{Attempt, End};
use crate::worker::attempt::settler::{Answer, Open, Reply, stands, tell_completed};
use crate::worker::context::{Runtime, contained, panic_message};
use crate::worker::user::abort::AbortReason;
use crate::worker::user::completion::{Completion, CompletionKind, How, WrittenTransaction};

/// What is to be done for the end of an attempt.
pub(crate) enum Way<S: StateAdapter> {
    /// Nothing: nobody may write any more.
    Over(AttemptOutcome),
    /// To write this.
    Write(Outcome, Then),
    /// To commit the processor's own transaction.
    Commit(CompletionKind, Box<WrittenTransaction<S>>),
}

/// What a write is for.
pub(crate) enum Then {
    /// A completion that goes to the store with others.
    Completed(Grouped),
    /// A failure that leads to this.
    Failed(AttemptOutcome),
    /// The failure of a commit that may have happened all the same.
    Uncommitted(Box<Uncommitted>),
    /// The job goes back as it was.
    Released,
}

pub(crate) struct Grouped {
    kind: CompletionKind,
    /// That of the next job's creation.
    span: Option<HeldSpan>,
    /// Whether the next job was asked for.
    asked: bool,
}

impl Grouped {
    /// It has been written.
    fn told(self) -> AttemptOutcome {
        if let Some(span) = self.span {
            span.committed(Commit::Created);
        }
        completed(self.kind)
    }
}

pub(crate) struct Uncommitted {
    kind: CompletionKind,
    effects: Effects,
    ended: AttemptOutcome,
}

/// What the store made of the end of an attempt.
pub(crate) enum Written {
    /// With the moment before it was sent: a lease that it gave cannot end before that plus the lease's duration.
    Done(Applied, Instant),
    Lost(AbortReason),
    Refused(Error),
    Failed(StateError),
    /// An earlier write under the same fence stands.
    Before(Repeated),
}

impl Written {
    /// What the completion did that stands under the fence, if one does.
    fn completed_before(&self) -> Option<&Repeated> {
        match self {
            Self::Before(repeated) if repeated.status == JobStatus::Completed => Some(repeated),
            _ => None,
        }
    }

    pub(crate) fn new(answer: Result<Settled, StateError>, sent_at: Instant) -> Self {
        match answer {
            Ok(Settled::Applied(applied)) => Self::Done(applied, sent_at),
            Ok(Settled::Repeated(repeated)) => Self::Before(repeated),
            Ok(Settled::Lost(reason)) => Self::Lost(reason),
            Ok(Settled::Refused(refusal)) => Self::Refused(refusal.into()),
            Ok(Settled::Busy) => Self::Lost(AbortReason::Shutdown),
            Err(error) => Self::Failed(error),
        }
    }
}

/// How an attempt ended, with the next job of its chain if it was handed over.
type Told<S> = (AttemptOutcome, Option<Attempt<S>>);

impl<S: StateAdapter> Attempt<S> {
    /// What to do for this end of the processor.
    pub(crate) fn way(&self, runtime: &Runtime<S>, end: End<S>) -> Way<S> {
        match end {
            End::Returned(Ok(completion)) => self.complete(runtime, completion),
            End::Returned(Err(error)) => self.fail(&error),
            End::Panicked(message) => self.fail(&JobError::from(format!("panicked: {message}"))),
            End::TimedOut(timeout) => self.fail(&JobError::from(format!("timed out after {timeout:?}"))),
            End::Dropped(AbortReason::Shutdown) | End::Killed => self.give_back(),
            End::Dropped(reason) => Way::Over(AttemptOutcome::Aborted(reason)),
        }
    }

    fn complete(&self, runtime: &Runtime<S>, completion: Completion<S>) -> Way<S> {
        let Completion {
            job, fence, kind, how, ..
        } = completion;
        if job != self.shared.record.id || fence != self.shared.fence {
            let message = format!("the processor returned the completion of another attempt, of job {job}");
            return self.fail(&JobError::from(message));
        }
        match how {
            How::Grouped(mut outcome, span) => {
                // Snoozing may well follow a look that was not worth keeping.
                if self.shared.abandoned.load(Ordering::Relaxed) && kind != CompletionKind::Snooze {
                    let hub = self.shared.client().hub();
                    self.job_type
                        .advice
                        .dropped_transaction(hub, &self.info().job.type_name);
                }
                let asked = self.ask_for_next(runtime, &mut outcome);
                Way::Write(outcome, Then::Completed(Grouped { kind, span, asked }))
            }
            How::Written(transaction) => Way::Commit(kind, transaction),
        }
    }

    fn fail(&self, error: &JobError) -> Way<S> {
        if let Some(reason) = error.lease_lost() {
            return Way::Over(self.lost(reason));
        }
        match self.shared.abort.reason() {
            // A processor that stops because it was told to has not failed.
            Some(AbortReason::Shutdown) => return self.give_back(),
            None | Some(AbortReason::TimedOut | AbortReason::Error) => {}
            Some(reason) => return Way::Over(self.lost(reason)),
        }
        let (outcome, ended) = self.judge(error);
        Way::Write(outcome, Then::Failed(ended))
    }

    /// Gives the job back as it was.
    pub(crate) fn give_back(&self) -> Way<S> {
        self.shared.abort.abort(AbortReason::Shutdown);
        Way::Write(Outcome::Release, Then::Released)
    }

    fn lost(&self, reason: AbortReason) -> AttemptOutcome {
        self.shared.lost(reason);
        AttemptOutcome::Aborted(reason)
    }

    /// What a failure leads to: a retry, or death.
    fn judge(&self, error: &JobError) -> (Outcome, AttemptOutcome) {
        let record = &self.shared.record;
        let retry = &self.job_type.retry;
        // The text of an error is the user's code too.
        let report = std::panic::catch_unwind(AssertUnwindSafe(|| error.report()));
        let report = shorten(report.unwrap_or_else(|panic| {
            format!(
                "an error that cannot be told: its text panicked: {}",
                panic_message(&*panic)
            )
        }));
        let (schedule, retry_in) = match error.verdict {
            Verdict::Retry(schedule) => (schedule, None),
            _ => {
                let delay = retry.delay_after(record.attempt);
                let delay = self.shared.client().entropy().jittered(delay, retry.jitter);
                (Schedule::After(delay), Some(delay))
            }
        };
        if error.is_fatal() || self.shared.is_last_attempt() {
            let outcome = Outcome::Bury { error: report.clone() };
            return (outcome, AttemptOutcome::Died { error: report });
        }
        let outcome = Outcome::Retry {
            schedule,
            error: report.clone(),
        };
        let ended = AttemptOutcome::Failed {
            error: report,
            retry_in,
        };
        (outcome, ended)
    }

    /// Commits the processor's transaction. What is left to do is to write that it failed, if it did.
    pub(crate) async fn commit(
        &self,
        runtime: &Runtime<S>,
        kind: CompletionKind,
        transaction: Box<WrittenTransaction<S>>,
    ) -> Way<S> {
        let (transaction, _open) = transaction.into_parts();
        let (inner, effects, usable) = transaction.into_parts();
        if let Err(unusable) = usable {
            // Not committed, and no answer was lost. The end of the attempt would meet its locks before the rollback.
            let _ = contained(runtime.client.state().rollback(inner)).await;
            return self.fail(&JobError::from(unusable));
        }
        match contained(runtime.client.state().commit(inner)).await {
            Ok(()) => {
                runtime.flush(effects).await;
                Way::Over(completed(kind))
            }
            Err(error) => {
                let ended = error.kind() == StateErrorKind::TransactionEnded;
                let report = report(&error);
                let error = JobError::from(format!("the transaction could not be committed: {report}"));
                if ended {
                    // Not committed, and no answer was lost.
                    return self.fail(&error);
                }
                let (outcome, ended) = self.judge(&error);
                let uncommitted = Uncommitted { kind, effects, ended };
                Way::Write(outcome, Then::Uncommitted(Box::new(uncommitted)))
            }
        }
    }

    /// Does what is to be done for this end of the processor, and waits for it.
    pub(crate) async fn settle(&self, runtime: &Arc<Runtime<S>>, end: End<S>) -> Told<S> {
        let way = match self.way(runtime, end) {
            Way::Commit(kind, transaction) => self.commit(runtime, kind, transaction).await,
            way => way,
        };
        self.go(runtime, way).await
    }

    async fn go(&self, runtime: &Arc<Runtime<S>>, way: Way<S>) -> Told<S> {
        match way {
            Way::Over(outcome) => (outcome, None),
            Way::Write(outcome, then) => {
                let hands_over = matches!(&then, Then::Completed(grouped) if grouped.asked);
                let (written, outcome) = self.write(runtime, outcome, hands_over).await;
                match self.told(runtime, then, written, outcome) {
                    Ok(told) => told,
                    Err(rare) => Box::pin(self.told_otherwise(runtime, *rare)).await,
                }
            }
            Way::Commit(kind, _) => (completed(kind), None),
        }
    }

    /// Gives the job back as it was, and waits until that is written.
    pub(crate) async fn release(&self, runtime: &Arc<Runtime<S>>) {
        let way = self.give_back();
        self.go(runtime, way).await;
    }

    /// How the attempt ended, where that is clear from what the store made of it. `wrote` is what was to be written.
    pub(crate) fn told(
        &self,
        runtime: &Runtime<S>,
        then: Then,
        written: Written,
        wrote: Outcome,
    ) -> Result<Told<S>, Box<Rare>> {
        let outcome = match (then, written) {
            (Then::Completed(grouped), Written::Done(applied, sent_at)) => {
                let next = self.handed_over(runtime, wrote, &applied);
                let next = next.and_then(|next| Self::new(runtime, next, sent_at, self.steps_left));
                return Ok((grouped.told(), next));
            }
            (Then::Completed(_), Written::Lost(reason)) => self.lost(reason),
            (Then::Failed(ended), written) => self.failed(&written, ended),
            (Then::Uncommitted(uncommitted), written) if written.completed_before().is_none() => {
                self.failed(&written, uncommitted.ended)
            }
            (Then::Released, Written::Lost(reason)) => AttemptOutcome::Aborted(reason),
            (Then::Released, _) => AttemptOutcome::Aborted(AbortReason::Shutdown),
            (then, written) => return Err(Box::new(Rare { then, written, wrote })),
        };
        Ok((outcome, None))
    }

    /// How an attempt ended whose failure was to be written as `ended`.
    fn failed(&self, written: &Written, ended: AttemptOutcome) -> AttemptOutcome {
        match written {
            Written::Done(..) | Written::Before(_) => ended,
            Written::Lost(reason) => self.lost(*reason),
            // Nothing was written, so nothing may be claimed: the lease will expire, and that counts the attempt.
            Written::Refused(_) | Written::Failed(_) => AttemptOutcome::Aborted(AbortReason::Error),
        }
    }

    /// The same where more has to be asked or written.
    pub(crate) async fn told_otherwise(&self, runtime: &Arc<Runtime<S>>, rare: Rare) -> Told<S> {
        let Rare { then, written, wrote } = rare;
        match (then, written) {
            (Then::Completed(grouped), Written::Before(repeated)) if stands(&wrote, repeated.status) => {
                self.completed_before(runtime, grouped, wrote).await
            }
            // The job was given back while its processor went on.
            (Then::Completed(_), Written::Before(_)) => (self.lost(AbortReason::Shutdown), None),
            (Then::Completed(_), Written::Refused(error)) => {
                let way = self.fail(&error.into());
                Box::pin(self.go(runtime, way)).await
            }
            (Then::Completed(grouped), Written::Failed(error)) => {
                let (outcome, ended) = self.judge(&error.into());
                let written = self.write(runtime, outcome, false).await.0;
                let Some(repeated) = written.completed_before() else {
                    return (self.failed(&written, ended), None);
                };
                // The store had taken the completion and only its answer was lost.
                tell_completed(runtime, &self.shared, &wrote, repeated).await;
                self.completed_before(runtime, grouped, wrote).await
            }
            // The store had committed and only its answer was lost.
            (Then::Uncommitted(uncommitted), _) => {
                runtime.flush(uncommitted.effects).await;
                (completed(uncommitted.kind), None)
            }
            (then, written) => match self.told(runtime, then, written, wrote) {
                Ok(told) => told,
                Err(_) => (AttemptOutcome::Aborted(AbortReason::Error), None),
            },
        }
    }

    /// The store had taken the completion before, and what else it said then is lost.
    async fn completed_before(&self, runtime: &Arc<Runtime<S>>, grouped: Grouped, wrote: Outcome) -> Told<S> {
        let outcome = grouped.told();
        (outcome, self.find_next(runtime, wrote).await)
    }

    pub(crate) fn settlement(&self, outcome: Outcome) -> Settlement {
        Settlement {
            job: self.shared.record.id,
            authority: Authority::Fence {
                fence: self.shared.fence,
                worker: self.info().worker.clone(),
            },
            outcome,
        }
    }

    /// Writes an end, and returns it with what came of it. `hands_over` is whether it asks for a next job.
    async fn write(&self, runtime: &Arc<Runtime<S>>, outcome: Outcome, hands_over: bool) -> (Written, Outcome) {
        let (sender, answer) = oneshot::channel();
        // A single worker that will have a next job with the answer has no need of another.
        let _ending = (!hands_over || !runtime.line.strict()).then(|| runtime.line.ending());
        let open = Open {
            ages: self.shared.ages(),
            reply: Reply::Awaited(Arc::clone(&self.shared), sender),
        };
        // Whatever is dropped on the way is answered: the settler has quit, and with it the worker.
        drop(runtime.settlements.send(self.settlement(outcome), open));
        match answer.await {
            Ok(Answer {
                settled,
                outcome,
                sent_at,
            }) => (Written::new(settled, sent_at), outcome),
            Err(_) => (Written::Lost(AbortReason::Shutdown), Outcome::Release),
        }
    }
}

/// An answer of the store that leaves more to do than to tell of it.
pub(crate) struct Rare {
    then: Then,
    written: Written,
    wrote: Outcome,
}

fn completed(kind: CompletionKind) -> AttemptOutcome {
    match kind {
        CompletionKind::Finish => AttemptOutcome::Finished,
        CompletionKind::Continue { next, next_type } => AttemptOutcome::Continued { next, next_type },
        CompletionKind::Snooze => AttemptOutcome::Snoozed,
    }
}
