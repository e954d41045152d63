//! One attempt of a job, as a worker holds it.

use queuert::adapter::{Authority, ClaimedJob, Outcome, Settlement};
use queuert::{ChainId, ChainRecord, Fence, JobId, JobRecord, WorkerId};

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) job: JobRecord,
    pub(crate) blockers: Vec<ChainRecord>,
    pub(crate) fence: Fence,
    pub(crate) worker: WorkerId,
}

impl Attempt {
    pub(crate) fn new(claimed: ClaimedJob) -> Self {
        let lease = claimed.job.lease.clone().expect("a claimed job has a lease");
        Self {
            job: claimed.job,
            blockers: claimed.blockers,
            fence: lease.fence,
            worker: lease.owner,
        }
    }

    pub(crate) fn id(&self) -> JobId {
        self.job.id
    }

    pub(crate) fn chain(&self) -> ChainId {
        self.job.chain_id
    }

    pub(crate) fn settlement(&self, outcome: Outcome) -> Settlement {
        Settlement {
            job: self.job.id,
            authority: Authority::Fence {
                fence: self.fence,
                worker: self.worker.clone(),
            },
            outcome,
        }
    }
}
