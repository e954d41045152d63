//! What this process remembers of locks that it has met. Each memory is a guess: if it is wrong or lost, the next statement
//! does more work than necessary, and nothing else.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use queuert::__task::Lock;
use queuert::JobId;

/// Whether something was met in one of the last `CALLS` calls, so that it is to be expected again.
#[derive(Debug, Default)]
pub(crate) struct Recently<const CALLS: u32>(AtomicU32);

/// Whether other transactions were in the way of one of the last large claims.
pub(crate) type Contention = Recently<64>;

/// Whether one of the last batches finished chains that jobs wait for. Where there were some there will be more, and they
/// need not meet the statement first that cannot finish them. A wrong guess costs that statement, or rows that are locked
/// one by one.
pub(crate) type AwaitedEnds = Recently<16>;

impl<const CALLS: u32> Recently<CALLS> {
    pub(crate) fn is_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Takes note of one more call, and whether it met what is remembered.
    pub(crate) fn note(&self, met: bool) {
        let next = if met {
            CALLS
        } else {
            self.0.load(Ordering::Relaxed).saturating_sub(1)
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

/// More locked ends than this at once are not remembered. Ends that are never written again, because their worker is gone,
/// must not add up.
const MOST_LOCKED_JOBS: usize = 10_000;

/// Jobs whose ends met a lock of another transaction, for as long as workers try to write them again.
#[derive(Debug, Default)]
pub(crate) struct LockedJobs(Lock<HashSet<JobId>>);

impl LockedJobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.0.lock().contains(&job)
    }

    /// Takes note of jobs, each with whether it was locked.
    pub(crate) fn note(&self, jobs: impl Iterator<Item = (JobId, bool)>) {
        let mut locked_jobs = self.0.lock();
        for (job, is_locked) in jobs {
            if is_locked {
                locked_jobs.insert(job);
            } else if !locked_jobs.is_empty() {
                locked_jobs.remove(&job);
            }
        }
        if locked_jobs.len() > MOST_LOCKED_JOBS {
            locked_jobs.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_was_met_is_expected_for_some_calls() {
        let recently = Recently::<16>::default();
        assert!(!recently.is_expected());
        recently.note(true);
        for _ in 0..16 {
            assert!(recently.is_expected());
            recently.note(false);
        }
        assert!(!recently.is_expected());
        recently.note(false);
        assert!(!recently.is_expected());
    }

    fn job(number: usize) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number as u128))
    }

    #[test]
    fn a_locked_job_is_remembered_until_its_end_meets_no_lock() {
        let (known, one, other) = (LockedJobs::default(), job(1), job(2));
        known.note([(one, true), (other, false)].into_iter());
        assert!(known.contains(one) && !known.contains(other));
        known.note(std::iter::once((one, false)));
        assert!(!known.contains(one));
    }

    #[test]
    fn locked_jobs_that_are_never_tried_again_are_forgotten() {
        let known = LockedJobs::default();
        let first = job(MOST_LOCKED_JOBS);
        known.note(std::iter::once((first, true)));
        known.note((0..MOST_LOCKED_JOBS).map(|number| (job(number), true)));
        assert!(!known.contains(first));
    }
}
