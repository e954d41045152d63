//! Whether what is said was done: each committed fact allows what may be said about it, once.

use queuert::adapter::Notice;
use queuert::{AttemptOutcome, ChainId, Event, JobId, JobTypes, TypeName};

use super::Model;
use crate::invariants::{Checked, broken, ensure};
use crate::jobs::Jobs;

/// Something that may be said once for each time that it was done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "notices and events, by what they are about")]
pub enum Credit {
    JobsAvailable(String),
    ChainEndedNotice(ChainId),
    LeaseLostNotice(JobId),
    ChainCreated(ChainId),
    ChainCompleted(ChainId),
    ChainDead(ChainId),
    ChainCancelled(ChainId),
    ChainRetried(ChainId),
    ChainDeleted(ChainId),
    JobCreated(JobId),
    JobBlocked(JobId),
    JobUnblocked(JobId),
    JobTriggered(JobId),
    JobCompleted(JobId),
    JobDead(JobId),
    JobReaped(JobId),
    AttemptStarted(JobId),
    AttemptFailed(JobId),
    AttemptSnoozed(JobId),
}

impl Model {
    pub(super) fn allow(&mut self, credit: Credit) {
        *self.credits.entry(credit).or_default() += 1;
    }

    pub(super) fn allow_jobs(&mut self, type_name: &TypeName) {
        self.allow(Credit::JobsAvailable(type_name.as_str().to_owned()));
    }

    fn spend(&mut self, credit: Credit, times: usize) -> Checked {
        let times = i64::try_from(times).unwrap_or(i64::MAX);
        let left = self.credits.entry(credit.clone()).or_default();
        *left -= times;
        ensure!(*left >= 0, Announcement, "{credit:?} was said but not committed");
        Ok(())
    }

    /// A notice is about to be announced.
    ///
    /// # Errors
    ///
    /// When nothing was committed that it tells of.
    pub fn announced(&mut self, notice: &Notice) -> Checked {
        match notice {
            Notice::JobsAvailable { type_name, count } => {
                self.spend(Credit::JobsAvailable(type_name.as_str().to_owned()), *count)
            }
            Notice::ChainEnded(chain) => self.spend(Credit::ChainEndedNotice(*chain), 1),
            Notice::LeaseLost(job) => self.spend(Credit::LeaseLostNotice(*job), 1),
            other => broken!(Announcement, "the model does not know {other:?}"),
        }
    }

    /// An event was emitted.
    ///
    /// # Errors
    ///
    /// When nothing was committed that it tells of.
    pub fn emitted(&mut self, event: &Event) -> Checked {
        let credit = match event {
            Event::ChainCreated { chain, .. } => Credit::ChainCreated(*chain),
            Event::ChainDeduplicated { chain, .. } => {
                ensure!(self.knows(*chain), Announcement, "{chain} is a duplicate of nothing");
                return Ok(());
            }
            Event::ChainCompleted { chain, .. } => Credit::ChainCompleted(*chain),
            Event::ChainDead { chain, .. } => Credit::ChainDead(*chain),
            Event::ChainCancelled { chain, .. } => Credit::ChainCancelled(*chain),
            Event::ChainRetried { chain, .. } => Credit::ChainRetried(*chain),
            Event::ChainDeleted { chain, .. } => Credit::ChainDeleted(*chain),
            Event::JobCreated(job) => Credit::JobCreated(job.id),
            Event::JobBlocked(job) => Credit::JobBlocked(job.id),
            Event::JobUnblocked { job, .. } => Credit::JobUnblocked(*job),
            Event::JobTriggered(job) => Credit::JobTriggered(job.id),
            Event::JobCompleted { job, .. } => Credit::JobCompleted(job.id),
            Event::JobDead { job, .. } => Credit::JobDead(job.id),
            Event::JobReaped { job, .. } => Credit::JobReaped(job.id),
            Event::AttemptStarted(attempt) => Credit::AttemptStarted(attempt.job.id),
            Event::AttemptEnded { attempt, outcome, .. } => {
                let job = attempt.job.id;
                match outcome {
                    AttemptOutcome::Finished | AttemptOutcome::Continued { .. } => {
                        ensure!(
                            self.completed.get(&job) == Some(&Some(attempt.worker.clone())),
                            Announcement,
                            "{outcome:?} of job {job} by {} is said but not committed",
                            attempt.worker
                        );
                        return Ok(());
                    }
                    AttemptOutcome::Failed { .. } | AttemptOutcome::Died { .. } => Credit::AttemptFailed(job),
                    AttemptOutcome::Snoozed => Credit::AttemptSnoozed(job),
                    _ => return Ok(()),
                }
            }
            // A worker set that stops makes others look once for jobs of each of its types.
            Event::WorkerStopping { .. } => {
                for job_type in &Jobs::graph().types {
                    self.allow(Credit::JobsAvailable(job_type.name.to_owned()));
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.spend(credit, 1)
    }
}
