//! Claims the next job of a chain in the statement that ends the job before. That saves a claim, and the next job does not
//! wait in the store's queue. (`HandOver` in the contract of the store.)
//!
//! Limits keep one chain from delaying other jobs: the next job must be due, must wait for no blocker and must have no lower
//! priority than the job before, its type must not be paused, and after [`STEPS_IN_A_ROW`](crate::worker::attempt::claimed::STEPS_IN_A_ROW) jobs the next
//! one is claimed like any other.

use tokio::time::Instant;

use crate::adapter::{Applied, ClaimedJob, HandOver, NewJob, Outcome, StateAdapter};
use crate::id::WorkerId;
use crate::job::{JobRecord, JobStatus, Lease};
use crate::time::{Schedule, Timestamp};
use crate::worker::attempt::claimed::ClaimedAttempt;
use crate::worker::context::Context;

/// Asks the store to claim the next job together with the end of this attempt, if this process may run it now.
pub(crate) fn request<S: StateAdapter>(context: &Context<S>, attempt: &ClaimedAttempt<S>, outcome: &mut Outcome) {
    let Outcome::Continue { next } = outcome else {
        return;
    };
    let Some(job_type) = context.types.get(&next.type_name) else {
        return;
    };
    let may_run = attempt.steps_left > 0
        && next.schedule == Schedule::Now
        && next.blockers.is_empty()
        && next.priority >= attempt.shared.record.priority
        // Knowledge that is too old is renewed by the claim that takes the next job instead.
        && context.pauses.allow_hand_over(&next.type_name)
        && !context.stop.is_cancelled();
    if may_run {
        next.hand_over = Some(HandOver {
            fence: context.client.entropy().fence(),
            lease: job_type.lease.duration,
        });
    }
}

/// How an end asks for the next job, if it does.
pub(crate) fn requested(outcome: &Outcome) -> Option<HandOver> {
    match outcome {
        Outcome::Continue { next } => next.hand_over,
        _ => None,
    }
}

/// The next job of a chain, which the store has claimed for this process with the end of the job before.
#[derive(Debug)]
pub(crate) struct ClaimedNext {
    next: Box<NewJob>,
    claim: HandOver,
    /// When the store created and claimed it.
    at: Timestamp,
    /// The moment before the end was sent: the lease cannot end before it plus the lease's duration.
    pub(crate) sent_at: Instant,
}

impl ClaimedNext {
    /// `None` if the store did not claim the next job. `wrote` is the end that asked for it.
    pub(crate) fn new(wrote: Outcome, applied: &Applied, sent_at: Instant) -> Option<Self> {
        let Outcome::Continue { next } = wrote else {
            return None;
        };
        let (claim, at) = (next.hand_over?, applied.handed_over?);
        Some(Self {
            next,
            claim,
            at,
            sent_at,
        })
    }

    /// The job as a claim of its own would have returned it. `before` is the job that it continues.
    pub(crate) fn into_claimed_job(self, before: &JobRecord, worker: &WorkerId) -> ClaimedJob {
        let Self { next, claim, at, .. } = self;
        let job = JobRecord {
            id: next.id,
            type_name: next.type_name,
            chain_id: before.chain_id,
            chain_type: before.chain_type.clone(),
            chain_index: before.chain_index.saturating_add(1),
            input: next.input,
            output: None,
            status: JobStatus::Running,
            priority: next.priority,
            attempt: 1,
            claims: 1,
            max_attempts: next.max_attempts,
            created_at: at,
            scheduled_at: at,
            started_at: Some(at),
            ended_at: None,
            completed_by: None,
            last_error: None,
            lease: Some(Lease {
                owner: worker.clone(),
                until: at.saturating_add(claim.lease),
                fence: claim.fence,
            }),
            deduplication_key: None,
            trace_context: next.trace_context,
            unreadable: None,
        };
        ClaimedJob {
            job,
            blockers: Vec::new(),
        }
    }
}
