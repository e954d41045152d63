//! What is stored, and what the processes remember.

/// The jobs: two steps of a chain, a chain of one step, and a job that waits for both chains.
pub(crate) const FIRST: usize = 0;
pub(crate) const SECOND: usize = 1;
pub(crate) const SINGLE: usize = 2;
pub(crate) const DEPENDANT: usize = 3;
pub(crate) const JOBS: usize = 4;

/// The chains of these jobs.
pub(crate) const CHAIN_OF: [usize; JOBS] = [0, 0, 1, 2];
pub(crate) const CHAIN_OF_DEPENDANT: usize = 2;
pub(crate) const CHAINS: usize = 3;

/// Attempts after which a job is dead.
pub(crate) const MOST_ATTEMPTS: u8 = 2;

/// A small number.
pub type Number = u8;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the status of the same name")]
pub enum Status {
    Absent,
    Blocked,
    Pending,
    Running,
    Completed,
    Dead,
    Cancelled,
}

impl Status {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Blocked | Self::Pending | Self::Running)
    }
}

/// How long a lease still lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum Lease {
    Valid,
    Expired,
}

/// A job as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Where it stands.
    pub status: Status,
    /// Attempts since it was started or retried.
    pub attempt: Number,
    /// Claims ever.
    pub claims: Number,
    /// The attempt that has it, while it runs.
    pub lease: Option<(Attempt, Lease)>,
    /// How often it was created.
    pub created: Number,
    /// How often it completed.
    pub completed: Number,
    /// How often its last blocker made it pending.
    pub unblocked: Number,
}

/// One run of a job, as its process remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Which job.
    pub job: usize,
    /// Never used twice for the job.
    pub fence: Number,
    /// Its number, counted from the last retry.
    pub number: Number,
    /// Who runs it.
    pub worker: usize,
    /// Which life of that worker's process.
    pub life: Number,
}

/// A transaction that ends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct End {
    pub(crate) job: usize,
    pub(crate) by: By,
    pub(crate) stage: Stage,
    /// Whether a dependant was seen, and whether its other blocker was seen to have completed.
    pub(crate) dependant: bool,
    pub(crate) others_completed: bool,
}

/// By what right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By {
    Attempt(Attempt),
    Outside,
}

/// How far a transaction that ends a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Its first statement has begun, and waits for the lock of the chain.
    Begun,
    /// It has the lock, and the right.
    Locked,
    /// It knows whether somebody waits for the chain.
    Looked,
    /// It has the lock of the dependant too.
    DependantLocked,
    /// It knows whether the dependant waits for others.
    Decided,
}

/// How far the transaction that starts the dependant has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    NotYet,
    /// It has the locks of so many of the blockers.
    Locked(usize),
    /// It knows whether all of them have completed.
    Looked {
        completed: bool,
    },
    Done,
}

/// A worker's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    /// How often it has crashed.
    pub life: Number,
    /// What it believes to run.
    pub attempts: Vec<Attempt>,
    pub(crate) end: Option<End>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The jobs.
    pub jobs: [Job; JOBS],
    /// The workers.
    pub workers: [Worker; 2],
    pub(crate) start: Start,
    /// What somebody completes from outside, once.
    pub(crate) outside: Option<End>,
    pub(crate) outside_done: bool,
    /// Who has which chain locked.
    pub(crate) locks: [Option<Party>; CHAINS],
    /// How much has gone wrong.
    pub(crate) disturbances: Number,
    /// What must never have happened.
    pub(crate) wrongs: Wrongs,
}

/// Who can have a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A worker's transaction.
    Worker(usize),
    /// Whoever starts the dependant.
    Starter,
    /// Whoever completes from outside.
    Outside,
}

/// What is seen when it happens, and not in what it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wrongs {
    /// An attempt has ended a job that was not its own any more.
    pub(crate) stale_write: bool,
    /// A completed job was changed.
    pub(crate) completed_changed: bool,
    /// The dependant was pending while it waited for somebody.
    pub(crate) pending_early: bool,
}

impl State {
    pub(crate) fn new(steps: usize) -> Self {
        let job = |status, created| Job {
            status,
            attempt: 0,
            claims: 0,
            lease: None,
            created,
            completed: 0,
            unblocked: 0,
        };
        let worker = || Worker {
            life: 0,
            attempts: Vec::new(),
            end: None,
        };
        let (first, second) = match steps {
            1 => (job(Status::Absent, 0), job(Status::Pending, 1)),
            _ => (job(Status::Pending, 1), job(Status::Absent, 0)),
        };
        Self {
            jobs: [first, second, job(Status::Pending, 1), job(Status::Absent, 0)],
            workers: [worker(), worker()],
            start: Start::NotYet,
            outside: None,
            outside_done: false,
            locks: [None; CHAINS],
            disturbances: 0,
            wrongs: Wrongs::default(),
        }
    }

    /// The latest job of a chain, if the chain exists.
    pub(crate) fn latest(&self, chain: usize) -> Option<usize> {
        let jobs = (0..JOBS).rev().filter(|job| CHAIN_OF[*job] == chain);
        jobs.into_iter().find(|job| self.jobs[*job].status != Status::Absent)
    }

    /// Whether a chain that the dependant waits for has completed.
    pub(crate) fn has_completed(&self, chain: usize) -> bool {
        let last = if chain == 0 { SECOND } else { SINGLE };
        self.jobs[last].status == Status::Completed
    }

    pub(crate) fn all_completed(&self) -> bool {
        self.has_completed(0) && self.has_completed(1)
    }

    pub(crate) fn is_unlocked(&self, chain: usize) -> bool {
        self.locks[chain].is_none()
    }

    /// Takes a lock; `false` if somebody else has it.
    pub(crate) fn lock(&mut self, chain: usize, party: Party) -> bool {
        let free = self.is_unlocked(chain) || self.locks[chain] == Some(party);
        if free {
            self.locks[chain] = Some(party);
        }
        free
    }

    pub(crate) fn unlock_all(&mut self, party: Party) {
        for lock in &mut self.locks {
            if *lock == Some(party) {
                *lock = None;
            }
        }
    }

    pub(crate) fn end_of(&mut self, party: Party) -> Option<&mut Option<End>> {
        match party {
            Party::Worker(worker) => Some(&mut self.workers[worker].end),
            Party::Outside => Some(&mut self.outside),
            Party::Starter => None,
        }
    }
}
