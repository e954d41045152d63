//! What must be in the store, by the rules of the design and the facts that were committed. It shares no code with the
//! store under test.

mod apply;
mod audit;
mod credit;
mod describe;
mod money;
mod settle;

use std::collections::{BTreeMap, BTreeSet};

use queuert::adapter::{
    Applied, ClaimJobs, ClaimedJob, CreatedChain, NewChain, NewJob, ReapLeases, ReapedJob, Settlement, StoppedChain,
};
use queuert::{ChainId, Fence, JobId, JobRecord, JobStatus, Payload, Schedule, Timestamp, TypeName, WorkerId};

pub use credit::Credit;

/// Something that was committed.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the verbs of the state adapter, with what they answered")]
pub enum Fact {
    Created {
        new: Box<NewChain>,
        created: CreatedChain,
        at: Timestamp,
    },
    Claimed {
        claim: Box<ClaimJobs>,
        jobs: Vec<ClaimedJob>,
        at: Timestamp,
    },
    Renewed {
        job: JobId,
        fence: Fence,
        until: Timestamp,
    },
    Held {
        job: JobId,
        fence: Fence,
    },
    Settled {
        settlement: Box<Settlement>,
        applied: Applied,
        at: Timestamp,
    },
    Reaped {
        reap: Box<ReapLeases>,
        jobs: Vec<ReapedJob>,
        at: Timestamp,
    },
    Triggered {
        jobs: Vec<JobRecord>,
        at: Timestamp,
    },
    Cancelled {
        chains: Vec<StoppedChain>,
    },
    Retried {
        jobs: Vec<JobRecord>,
        at: Timestamp,
    },
    Deleted {
        chains: Vec<StoppedChain>,
    },
}

/// The model of one store.
#[derive(Debug, Default)]
pub struct Model {
    jobs: BTreeMap<JobId, JobState>,
    chains: BTreeMap<ChainId, Vec<JobId>>,
    credits: BTreeMap<Credit, i64>,
    /// Every id that was ever committed, also if it was deleted since.
    known: BTreeSet<JobId>,
    /// Who completed what, also if it was deleted since.
    completed: BTreeMap<JobId, Option<WorkerId>>,
    /// Attempts that their processors are about to fail.
    doomed: BTreeSet<(JobId, Fence)>,
    /// What chains were finished with, also if they were deleted since.
    finished: BTreeMap<ChainId, Payload>,
    ledger: money::Ledger,
}

#[derive(Clone, Debug)]
struct JobState {
    chain: ChainId,
    index: u32,
    type_name: TypeName,
    input: Payload,
    blockers: Vec<ChainId>,
    status: JobStatus,
    attempt: u32,
    claims: u32,
    max_attempts: Option<u32>,
    fence: Option<Fence>,
    lease_until: Timestamp,
    fences: BTreeSet<Fence>,
    scheduled_at: Timestamp,
    /// The time that decides its place in line, where it was taken back and has kept that.
    place: Option<Timestamp>,
    created_at: Timestamp,
    output: Option<Payload>,
    error: Option<String>,
    key: Option<String>,
}

impl Model {
    fn latest(&self, chain: ChainId) -> Option<(JobId, &JobState)> {
        let id = *self.chains.get(&chain)?.last()?;
        Some((id, self.jobs.get(&id)?))
    }

    fn chain_status(&self, chain: ChainId) -> Option<JobStatus> {
        self.latest(chain).map(|(_, job)| job.status)
    }

    fn is_completed(&self, chain: ChainId) -> bool {
        self.chain_status(chain) == Some(JobStatus::Completed)
    }

    fn waiting_status(&self, blockers: &[ChainId]) -> JobStatus {
        match blockers.iter().all(|chain| self.is_completed(*chain)) {
            true => JobStatus::Pending,
            false => JobStatus::Blocked,
        }
    }

    /// Jobs that have the chain as blocker.
    fn dependants(&self, chain: ChainId) -> impl Iterator<Item = (JobId, &JobState)> {
        let jobs = self.jobs.iter().filter(move |(_, job)| job.blockers.contains(&chain));
        jobs.map(|(id, job)| (*id, job))
    }

    /// Open chains of a type with a key.
    fn open_with_key(&self, type_name: &TypeName, key: &str) -> Vec<ChainId> {
        let firsts = self.jobs.values().filter(|job| job.index == 0);
        firsts
            .filter(|job| job.type_name == *type_name && job.key.as_deref() == Some(key))
            .filter(|job| self.chain_status(job.chain).is_some_and(JobStatus::is_open))
            .map(|job| job.chain)
            .collect()
    }

    fn new_job(&self, new: &NewJob, chain: ChainId, index: u32, at: Timestamp) -> JobState {
        JobState {
            chain,
            index,
            type_name: new.type_name.clone(),
            input: new.input.clone(),
            blockers: new.blockers.clone(),
            status: self.waiting_status(&new.blockers),
            attempt: 0,
            claims: 0,
            max_attempts: new.max_attempts,
            fence: None,
            lease_until: at,
            fences: BTreeSet::new(),
            scheduled_at: resolve(new.schedule, at),
            place: None,
            created_at: at,
            output: None,
            error: None,
            key: None,
        }
    }

    /// The attempt is about to fail: nothing but a failure may be written for it.
    pub fn doom(&mut self, job: JobId, fence: Fence) {
        self.doomed.insert((job, fence));
    }

    /// Whether the chain was ever committed.
    pub fn knows(&self, chain: ChainId) -> bool {
        self.known.contains(&chain.first_job())
    }

    /// The ids of the chains that exist.
    pub fn chains(&self) -> impl Iterator<Item = ChainId> {
        self.chains.keys().copied()
    }

    /// A random chain that exists, of a type if one is given, newer ones more likely.
    pub fn pick(&self, rng: &mut fastrand::Rng, of: Option<&str>) -> Option<ChainId> {
        let fits = |chain: &&ChainId| {
            let first = self.jobs.get(&chain.first_job());
            of.is_none_or(|name| first.is_some_and(|job| job.type_name.as_str() == name))
        };
        let chains: Vec<_> = self.chains.keys().filter(fits).collect();
        let recent = chains.len().min(if rng.bool() { 5 } else { chains.len() });
        (recent > 0).then(|| *chains[chains.len() - 1 - rng.usize(..recent)])
    }

    /// The latest job of a chain.
    pub fn latest_job(&self, chain: ChainId) -> Option<JobId> {
        self.latest(chain).map(|(id, _)| id)
    }

    /// The output of a chain, as a number where it is one.
    fn output_number(&self, chain: ChainId) -> Option<u64> {
        self.latest(chain)?.1.output.as_ref()?.decode().ok()
    }
}

fn resolve(schedule: Schedule, at: Timestamp) -> Timestamp {
    match schedule {
        Schedule::Now => at,
        Schedule::After(delay) => at.saturating_add(delay),
        Schedule::At(time) => time.max(at),
    }
}
