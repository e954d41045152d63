//! The ends of attempts.

use std::collections::BTreeSet;

use queuert::adapter::{Applied, Authority, NewJob, Outcome, Settlement};
use queuert::{ChainId, JobId, JobStatus, Schedule, Timestamp, WorkerId};

use super::{Credit, JobState, Model, resolve};
use crate::invariants::{Checked, broken, ensure};
use crate::jobs::{Expected, expected};
use crate::workload::{SHORTEST_BACKOFF, is_outside_output};

impl Model {
    pub(super) fn settle(&mut self, settlement: &Settlement, applied: &Applied, at: Timestamp) -> Checked {
        let id = settlement.job;
        let (worker, was_running) = match &settlement.authority {
            Authority::Fence { fence, worker } => {
                self.running_under(id, *fence, "settled")?;
                self.check_doom(settlement)?;
                (Some(worker.clone()), true)
            }
            Authority::Outside => {
                let Some(job) = self.jobs.get(&id).filter(|job| job.status.is_open()) else {
                    return broken!(Successor, "job {id} was completed from outside but is not open");
                };
                let running = job.fence.is_some();
                ensure!(
                    applied.interrupted == running,
                    Fence,
                    "completing {id} from outside said that an attempt was interrupted: {}",
                    applied.interrupted
                );
                if running {
                    self.allow(Credit::LeaseLostNotice(id));
                }
                (None, running)
            }
        };
        let Some(job) = self.jobs.get(&id) else {
            return broken!(Fence, "job {id} does not exist and was settled");
        };
        let (chain, index, type_name) = (job.chain, job.index, job.type_name.clone());
        let latest = self.latest(chain).map(|(latest, _)| latest);
        ensure!(
            latest == Some(id),
            Successor,
            "job {id} was settled but {latest:?} follows it"
        );
        self.check_expected(settlement)?;
        match &settlement.outcome {
            Outcome::Finish { output } => {
                if worker.is_some() {
                    self.transferred(id);
                }
                self.finished.insert(chain, output.clone());
                self.complete(id, worker, |job| job.output = Some(output.clone()));
                self.allow(Credit::ChainCompleted(chain));
                self.allow(Credit::ChainEndedNotice(chain));
                self.unblock(chain, applied, at)?;
            }
            Outcome::Continue { next } => {
                ensure!(
                    !self.jobs.contains_key(&next.id),
                    Successor,
                    "job {} was created twice",
                    next.id
                );
                self.complete(id, worker, |_| {});
                let mut state = self.new_job(next, chain, index + 1, at);
                self.hand_over(next, &mut state, applied, at)?;
                self.created(next.id, state, applied.next.unwrap_or(JobStatus::Dead))?;
                self.chains.entry(chain).or_default().push(next.id);
            }
            Outcome::Retry { schedule, error } => {
                self.check_backoff(id, *schedule)?;
                self.give_back(id, |job| {
                    job.scheduled_at = resolve(*schedule, at);
                    job.place = None;
                    job.error = Some(error.clone());
                });
                ensure!(!error.is_empty(), Failure, "job {id} failed without an error");
                self.allow(Credit::AttemptFailed(id));
                self.allow_jobs(&type_name);
            }
            Outcome::Bury { error } => {
                ensure!(!error.is_empty(), Failure, "job {id} died without an error");
                self.give_back(id, |job| {
                    job.status = JobStatus::Dead;
                    job.error = Some(error.clone());
                });
                self.allow(Credit::AttemptFailed(id));
                self.died(id, chain);
            }
            Outcome::Release => {
                self.give_back(id, |job| job.attempt -= u32::from(was_running));
                self.allow_jobs(&type_name);
            }
            Outcome::Snooze { schedule } => {
                self.give_back(id, |job| {
                    job.attempt -= u32::from(was_running);
                    job.scheduled_at = resolve(*schedule, at);
                    job.place = None;
                });
                self.allow(Credit::AttemptSnoozed(id));
                self.allow_jobs(&type_name);
            }
        }
        Ok(())
    }

    /// A next job is handed over only to who asks for it, and only if it could have been claimed.
    fn hand_over(&mut self, next: &NewJob, state: &mut JobState, applied: &Applied, at: Timestamp) -> Checked {
        ensure!(
            applied.handed_over.is_some() == (applied.next == Some(JobStatus::Running)),
            Claim,
            "job {} was created {:?} and handed over: {:?}",
            next.id,
            applied.next,
            applied.handed_over
        );
        if applied.handed_over.is_none() {
            return Ok(());
        }
        let Some(hand_over) = next.hand_over else {
            return broken!(Claim, "job {} was handed over to nobody", next.id);
        };
        ensure!(
            state.status == JobStatus::Pending && state.scheduled_at <= at,
            Claim,
            "job {} was handed over at {at} while {}, for {}",
            next.id,
            state.status,
            state.scheduled_at
        );
        state.status = JobStatus::Running;
        (state.attempt, state.claims) = (1, 1);
        state.fence = Some(hand_over.fence);
        state.fences.insert(hand_over.fence);
        state.lease_until = at.saturating_add(hand_over.lease);
        self.allow(Credit::AttemptStarted(next.id));
        Ok(())
    }

    fn complete(&mut self, id: JobId, worker: Option<WorkerId>, write: impl FnOnce(&mut JobState)) {
        self.completed.insert(id, worker);
        self.allow(Credit::JobCompleted(id));
        self.give_back(id, |job| {
            job.status = JobStatus::Completed;
            job.error = None;
            write(job);
        });
    }

    fn give_back(&mut self, id: JobId, write: impl FnOnce(&mut JobState)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.status = JobStatus::Pending;
            job.fence = None;
            write(job);
        }
    }

    /// The dependants that this end was the last to hold up are unblocked, and no others.
    fn unblock(&mut self, chain: ChainId, applied: &Applied, at: Timestamp) -> Checked {
        let blocked = self
            .dependants(chain)
            .filter(|(_, job)| job.status == JobStatus::Blocked);
        let ready: BTreeSet<_> = blocked
            .filter(|(_, job)| self.waiting_status(&job.blockers) == JobStatus::Pending)
            .map(|(id, _)| id)
            .collect();
        let said: BTreeSet<_> = applied.unblocked.iter().map(|unblocked| unblocked.job).collect();
        ensure!(
            ready == said && said.len() == applied.unblocked.len(),
            FanIn,
            "the end of {chain} should unblock {ready:?} and unblocked {:?}",
            applied.unblocked
        );
        for id in ready {
            self.allow(Credit::JobUnblocked(id));
            if let Some(job) = self.jobs.get_mut(&id) {
                job.status = JobStatus::Pending;
                job.scheduled_at = job.scheduled_at.max(at);
                let type_name = job.type_name.clone();
                self.allow_jobs(&type_name);
            }
        }
        Ok(())
    }

    /// An attempt that failed in its processor may only be written as failed; or as given back, if it was told to stop.
    fn check_doom(&self, settlement: &Settlement) -> Checked {
        let Authority::Fence { fence, .. } = settlement.authority else {
            return Ok(());
        };
        let counted = matches!(
            settlement.outcome,
            Outcome::Retry { .. } | Outcome::Bury { .. } | Outcome::Release
        );
        ensure!(
            counted || !self.doomed.contains(&(settlement.job, fence)),
            Failure,
            "the attempt {fence:?} of job {} failed but was written as {:?}",
            settlement.job,
            settlement.outcome
        );
        Ok(())
    }

    /// A failed attempt comes back no sooner than the policy, or the processor, says.
    fn check_backoff(&self, id: JobId, schedule: Schedule) -> Checked {
        let delay = match schedule {
            Schedule::After(delay) => delay,
            other => return broken!(Failure, "job {id} is retried {other:?}"),
        };
        ensure!(
            delay >= SHORTEST_BACKOFF,
            Failure,
            "job {id} is retried after {delay:?}: a hot loop"
        );
        Ok(())
    }

    fn check_expected(&self, settlement: &Settlement) -> Checked {
        let id = settlement.job;
        let Some(job) = self.jobs.get(&id) else {
            return Ok(());
        };
        let outputs: Vec<u64> = job
            .blockers
            .iter()
            .filter_map(|chain| self.output_number(*chain))
            .collect();
        let wanted = expected(job.type_name.as_str(), &job.input, &outputs);
        let outside = settlement.authority == Authority::Outside;
        match &settlement.outcome {
            Outcome::Finish { output } if outside => {
                ensure!(
                    is_outside_output(output),
                    Output,
                    "job {id} was completed from outside with {output:?}"
                );
            }
            Outcome::Finish { output } => {
                ensure!(
                    wanted == Some(Expected::Finish(output.clone())),
                    Output,
                    "job {id} was finished with {output:?}, not {wanted:?}"
                );
            }
            Outcome::Continue { next } => {
                let NewJob { type_name, input, .. } = &**next;
                let fits = match &wanted {
                    Some(Expected::Continue(name, expected)) => type_name.as_str() == *name && input == expected,
                    _ => false,
                };
                ensure!(
                    fits,
                    Output,
                    "job {id} was continued with {type_name:?} {input:?}, not {wanted:?}"
                );
            }
            _ => {}
        }
        Ok(())
    }
}
