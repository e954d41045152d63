//! What must be true when everything has settled.

use std::collections::BTreeSet;

use queuert::{ChainId, ChainRecord, JobId, JobRecord, JobStatus};

use super::{JobState, Model};
use crate::invariants::{Checked, broken, ensure};

impl Model {
    /// Whether something can still happen by itself.
    pub fn is_busy(&self) -> bool {
        self.jobs.iter().any(|(_, job)| match job.status {
            JobStatus::Pending | JobStatus::Running => true,
            JobStatus::Blocked => self.why_blocked(job).is_none(),
            _ => false,
        })
    }

    /// What can still happen by itself, for the message when it does not.
    ///
    /// # Errors
    ///
    /// When there is any.
    pub fn check_settled(&self) -> Checked {
        let open = self.jobs.iter().find(|(_, job)| match job.status {
            JobStatus::Pending | JobStatus::Running => true,
            JobStatus::Blocked => self.why_blocked(job).is_none(),
            _ => false,
        });
        match open {
            Some((id, job)) => broken!(Liveness, "job {id} should have ended: {job:?}"),
            None => Ok(()),
        }
    }

    /// The dead or cancelled chain that a blocked job waits for, directly or through others.
    fn why_blocked(&self, job: &JobState) -> Option<ChainId> {
        let mut seen = BTreeSet::new();
        let mut ahead = job.blockers.clone();
        while let Some(chain) = ahead.pop() {
            let Some((_, latest)) = self.latest(chain).filter(|_| seen.insert(chain)) else {
                continue;
            };
            match latest.status {
                JobStatus::Dead | JobStatus::Cancelled => return Some(chain),
                JobStatus::Blocked => ahead.extend(latest.blockers.iter().copied()),
                _ => {}
            }
        }
        None
    }

    /// The store holds what was committed: no more, no less, nothing else.
    ///
    /// # Errors
    ///
    /// At the first difference.
    pub fn compare(&self, jobs: &[JobRecord], chains: &[ChainRecord]) -> Checked {
        let stored: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
        if let Some(missing) = self.jobs.keys().find(|id| !stored.contains(id)) {
            return broken!(Store, "job {missing} is committed but not there");
        }
        for record in jobs {
            let Some(job) = self.jobs.get(&record.id) else {
                return broken!(Store, "job {} is there but was never committed", record.id);
            };
            compare_job(record, job)?;
        }
        ensure!(
            chains.len() == self.chains.len(),
            Store,
            "{} chains are there, not {}",
            chains.len(),
            self.chains.len()
        );
        for record in chains {
            self.compare_chain(record)?;
        }
        for (chain, jobs) in &self.chains {
            for (index, id) in (0..).zip(jobs) {
                let Some(job) = self.jobs.get(id) else {
                    return broken!(Successor, "place {index} of chain {chain} is empty");
                };
                let last = jobs.last() == Some(id);
                ensure!(
                    job.index == index && (last || job.status == JobStatus::Completed),
                    Successor,
                    "job {id} at place {index} of chain {chain} is {} and has a successor",
                    job.status
                );
            }
        }
        Ok(())
    }

    fn compare_chain(&self, record: &ChainRecord) -> Checked {
        let Some((latest, job)) = self.latest(record.id) else {
            return broken!(Store, "chain {} is there but was never committed", record.id);
        };
        let length = self.chains.get(&record.id).map_or(0, Vec::len);
        let same = record.latest_job == latest
            && record.status == job.status
            && record.output == job.output
            && usize::try_from(record.length) == Ok(length)
            && record.ended_at.is_none() == job.status.is_open();
        ensure!(same, Store, "chain {} is {record:?}, not {job:?}", record.id);
        Ok(())
    }
}

fn compare_job(record: &JobRecord, job: &JobState) -> Checked {
    let id = record.id;
    ensure!(
        (record.lease.is_some()) == (record.status == JobStatus::Running),
        Claim,
        "job {id} is {} with the lease {:?}",
        record.status,
        record.lease
    );
    ensure!(
        (record.attempt, record.claims) == (job.attempt, job.claims),
        Failure,
        "job {id} counts {} attempts and {} claims, not {} and {}",
        record.attempt,
        record.claims,
        job.attempt,
        job.claims
    );
    let error = record.last_error.as_ref().map(|error| &error.message);
    let same = record.status == job.status
        && record.chain_id == job.chain
        && record.chain_index == job.index
        && record.type_name == job.type_name
        && record.input == job.input
        && record.output == job.output
        && error == job.error.as_ref()
        && record.lease.as_ref().map(|lease| lease.fence) == job.fence
        && record.created_at == job.created_at;
    ensure!(same, Store, "job {id} is {record:?}, not {job:?}");
    Ok(())
}
