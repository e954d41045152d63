//! The next job of a chain, handed over to the worker that creates it: it is claimed in the statement that ends the job
//! before, which saves a claim, and the way through the queue.
//!
//! It keeps to limits, so that one chain does not keep others from their turn: the next job must be due, wait for
//! nothing and be no less urgent than the one before, and after [`STEPS_IN_A_TURN`](super::run::STEPS_IN_A_TURN) jobs in a
//! row the chain gets in line.

use tokio::time::Instant;

use super::health::Backoff;
use super::run::Attempt;
use crate::adapter::{ClaimedJob, HandOver, NewJob, Outcome, StateAdapter};
use crate::error::StateErrorKind;
use crate::job::{JobRecord, JobStatus, Lease};
use crate::time::{Schedule, Timestamp};

impl<S: StateAdapter> Attempt<S> {
    /// Asks for the next job in the end of this one, if it is this process's to run now. Returns what was asked for.
    pub(super) fn ask_for_next(&self, outcome: &mut Outcome) -> Option<Box<NewJob>> {
        let Outcome::Continue { next } = outcome else {
            return None;
        };
        let job_type = self.runtime.types.get(&next.type_name)?;
        let its_turn = self.steps_left > 0
            && next.schedule == Schedule::Now
            && next.blockers.is_empty()
            && next.priority >= self.shared.record.priority
            && !self.runtime.stop.is_cancelled();
        if !its_turn {
            return None;
        }
        next.hand_over = Some(HandOver {
            fence: self.runtime.client.entropy().fence(),
            lease: job_type.lease.duration,
        });
        Some(next.clone())
    }

    /// The next job, if the store says that it was handed over.
    pub(super) fn handed_over(&self, next: Option<Box<NewJob>>, at: Option<Timestamp>) -> Option<ClaimedJob> {
        let (next, at) = (next?, at?);
        let hand_over = next.hand_over?;
        let before = &self.shared.record;
        let job = JobRecord {
            id: next.id,
            type_name: next.type_name,
            chain_id: before.chain_id,
            chain_type: before.chain_type.clone(),
            chain_index: before.chain_index + 1,
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
                owner: self.runtime.worker.clone(),
                until: at.saturating_add(hand_over.lease),
                fence: hand_over.fence,
            }),
            deduplication_key: None,
            trace_context: next.trace_context,
        };
        Some(ClaimedJob {
            job,
            blockers: Vec::new(),
        })
    }

    /// The next job, if it was handed over and the answer that said so was lost: nobody else would run it before its lease
    /// has expired.
    pub(super) async fn find_next(&self, next: Option<Box<NewJob>>) -> Option<Self> {
        let fence = next?.hand_over?.fence;
        let mut backoff = Backoff::new(self.runtime.client.entropy());
        loop {
            match self.runtime.recover(fence).await {
                Ok((jobs, since)) => {
                    let next = jobs.into_iter().next()?;
                    return Self::new(&self.runtime, next, since, self.steps_left);
                }
                Err(error) if error.kind() == StateErrorKind::Transient => {}
                // What cannot be read is left to its lease.
                Err(_) => return None,
            }
            tokio::select! {
                biased;
                () = self.runtime.stop.cancelled() => return None,
                () = tokio::time::sleep_until(Instant::now() + backoff.next_pause()) => {}
            }
        }
    }
}
