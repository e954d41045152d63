//! Jobs whose ends came upon a lock of somebody else's, for as long as they are tried again.

use std::collections::HashSet;

use queuert::__task::Lock;
use queuert::JobId;

/// So many ends at once are locked by nobody who means well. Ends that are never tried again, because their worker is
/// gone, must not add up.
const MANY: usize = 10_000;

/// What this process remembers of them. Losing it costs a short wait, and nothing else.
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
    pub(crate) fn remember(&self, jobs: impl Iterator<Item = (JobId, bool)>) {
        let mut known = self.0.lock();
        for (job, locked) in jobs {
            match locked {
                true => known.insert(job),
                // Most of the time there is nothing to look for.
                false => !known.is_empty() && known.remove(&job),
            };
        }
        if known.len() > MANY {
            known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn job(number: usize) -> JobId {
        JobId::from_uuid(Uuid::from_u128(number as u128))
    }

    #[test]
    fn a_job_is_known_until_its_end_was_not_in_anybodys_way() {
        let (known, one, other) = (LockedJobs::default(), job(1), job(2));
        known.remember([(one, true), (other, false)].into_iter());
        assert!(known.contains(one) && !known.contains(other));
        known.remember(std::iter::once((one, false)));
        assert!(!known.contains(one));
    }

    #[test]
    fn what_is_never_tried_again_is_forgotten_in_time() {
        let known = LockedJobs::default();
        let first = job(MANY);
        known.remember(std::iter::once((first, true)));
        known.remember((0..MANY).map(|number| (job(number), true)));
        assert!(!known.contains(first));
    }
}
