//! The events, notices and spans of an end that the store has committed.

use crate::adapter::{Applied, Commit, Outcome, Repeated, Settled, StateAdapter};
use crate::effects::Effects;
use crate::event::Ages;
use crate::job::{JobStatus, TypeName};
use crate::worker::attempt::end::{Pending, Unanswered, stands};
use crate::worker::attempt::settle_queue::PostedEnd;
use crate::worker::user::shared::SharedAttempt;

/// Adds to `effects` everything that is known to be committed since the store has answered. `wrote` is the outcome that was
/// to be written.
pub(crate) fn collect<S: StateAdapter>(
    effects: &mut Effects,
    wrote: &Outcome,
    posted: &mut PostedEnd<S>,
    settled: &Settled,
) {
    let attempt = &*posted.ending.attempt.shared;
    let ages = posted.ages;
    match (settled, &mut posted.pending) {
        (Settled::Applied(applied), pending) => {
            written(effects, attempt, ages, wrote, applied);
            if let Pending::Completion { span, .. } = pending {
                effects.span(span.take(), Commit::Created);
            }
        }
        // The attempt has written its failure, and the store says that it had committed the completion.
        (Settled::Repeated(repeated), Pending::Doubt(doubt)) if repeated.status == JobStatus::Completed => {
            match &mut doubt.completion {
                Unanswered::Settlement(completion, span) => {
                    written(effects, attempt, ages, completion, &recalled(completion, repeated));
                    effects.span(span.take(), Commit::Created);
                }
                Unanswered::Commit(held) => {
                    if let Some(held) = held.take() {
                        effects.append(held);
                    }
                }
            }
        }
        // The end was written before, and only the answer was lost.
        (Settled::Repeated(repeated), pending) if stands(wrote, repeated.status) => {
            written(effects, attempt, ages, wrote, &recalled(wrote, repeated));
            if let Pending::Completion { span, .. } = pending {
                effects.span(span.take(), Commit::Created);
            }
        }
        (Settled::Repeated(_) | Settled::Lost(_) | Settled::Refused(_) | Settled::Busy, _) => {}
    }
}

/// The changes of an end whose answer was lost, as far as the store still knows them.
fn recalled(outcome: &Outcome, repeated: &Repeated) -> Applied {
    let next = match outcome {
        Outcome::Continue { .. } if repeated.next_blocked => Some(JobStatus::Blocked),
        Outcome::Continue { next } if next.hand_over.is_some() => Some(JobStatus::Running),
        Outcome::Continue { .. } => Some(JobStatus::Pending),
        _ => None,
    };
    Applied {
        next,
        unblocked: repeated.unblocked.clone(),
        ..Applied::default()
    }
}

fn written<S: StateAdapter>(
    effects: &mut Effects,
    attempt: &SharedAttempt<S>,
    ages: Ages,
    outcome: &Outcome,
    applied: &Applied,
) {
    let (job, worker) = (&attempt.info.job, Some(&attempt.info.worker));
    match outcome {
        Outcome::Finish { .. } => effects.completed(job, ages, worker, None, applied),
        Outcome::Continue { next } => {
            let next: Option<(_, TypeName)> = Some((next.id, next.type_name.clone()));
            effects.completed(job, ages, worker, next, applied);
        }
        Outcome::Bury { error } => effects.died(job, ages, error.clone()),
        // Claimers that sleep until the next job is due must learn that this one may be due sooner.
        Outcome::Retry { .. } | Outcome::Release | Outcome::Snooze { .. } => {
            effects.jobs_available(&job.type_name, 1);
        }
    }
}
