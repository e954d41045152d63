//! The next job of a chain, handed over to the worker that creates it: it is claimed in the statement that ends the job
//! before, which saves a claim, and the way through the queue.
//!
//! It keeps to limits, so that one chain does not keep others from their turn: the next job must be due, wait for
//! nothing and be no less urgent than the one before, and after [`STEPS_IN_A_TURN`](crate::worker::attempt::executor::STEPS_IN_A_TURN) jobs in a
//! row the chain gets in line.

use tokio::time::Instant;

use crate::adapter::{Applied, ClaimedJob, HandOver, Outcome, StateAdapter};
use crate::job::{JobRecord, JobStatus, Lease};
use crate::time::Schedule;
use crate::worker::attempt::executor::Attempt;
use crate::worker::context::Runtime;
use crate::worker::health::Backoff;

impl<S: StateAdapter> Attempt<S> {
    /// Asks for the next job in the end of this one, if it is this process's to run now. Says whether it did.
    pub(crate) fn ask_for_next(&self, runtime: &Runtime<S>, outcome: &mut Outcome) -> bool {
        let Outcome::Continue { next } = outcome else {
            return false;
        };
        let Some(job_type) = runtime.types.get(&next.type_name) else {
            return false;
        };
        let its_turn = self.steps_left > 0
            && next.schedule == Schedule::Now
            && next.blockers.is_empty()
            && next.priority >= self.shared.record.priority
            && !runtime.stop.is_cancelled();
        if its_turn {
            next.hand_over = Some(HandOver {
                fence: runtime.client.entropy().fence(),
                lease: job_type.lease.duration,
            });
        }
        its_turn
    }

    /// The next job, if the store says that it was handed over. `wrote` is the end in which it was asked for.
    pub(crate) fn handed_over(&self, runtime: &Runtime<S>, wrote: Outcome, applied: &Applied) -> Option<ClaimedJob> {
        let Outcome::Continue { next } = wrote else {
            return None;
        };
        let (hand_over, at) = (next.hand_over?, applied.handed_over?);
        let before = &self.shared.record;
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
                owner: runtime.worker.clone(),
                until: at.saturating_add(hand_over.lease),
                fence: hand_over.fence,
            }),
            deduplication_key: None,
            trace_context: next.trace_context,
            unreadable: None,
        };
        Some(ClaimedJob {
            job,
            blockers: Vec::new(),
        })
    }

    /// The next job, if it was handed over and the answer that said so was lost: nobody else would run it before its lease
    /// has expired.
    pub(crate) async fn find_next(&self, runtime: &Runtime<S>, wrote: Outcome) -> Option<Self> {
        let Outcome::Continue { next } = wrote else {
            return None;
        };
        let fence = next.hand_over?.fence;
        let mut backoff = Backoff::new(runtime.client.entropy());
        loop {
            match runtime.recover(fence).await {
                Ok((jobs, since)) => {
                    let next = jobs.into_iter().next()?;
                    return Self::new(runtime, next, since, self.steps_left);
                }
                // What cannot be read is left to its lease.
                Err(error) if error.kind().concerns_one_row() => return None,
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = runtime.stop.cancelled() => return None,
                () = tokio::time::sleep_until(Instant::now() + backoff.next_pause()) => {}
            }
        }
    }
}
