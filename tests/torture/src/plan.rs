//! What is done to a queue.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::Result;
use crate::enqueue::ROUNDS;

/// Where the queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// In a file.
    Sqlite,
    /// On a private server.
    Postgres,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL of one process, of two, or of all.
    Kill,
    /// SIGSTOP, and SIGCONT when the leases are over: what the process writes then is stale.
    Freeze,
    /// The server is restarted in good order.
    Restart,
    /// The server crashes, and recovers.
    Crash,
    /// Sessions are ended by the server.
    Connections,
    /// The database accepts no connections for a while, and the sessions end: as after a mistake with its rights.
    Login,
    /// The network delays, cuts, and forgets connections without closing them.
    Network,
    /// Listeners lose their connection, and what is announced meanwhile.
    Deaf,
    /// The clocks of processes are wrong.
    Clock,
    /// A reader holds an old snapshot.
    Snapshot,
    /// The disk is full for a while.
    Disk,
    /// Wake-ups are lost and doubled.
    WakeUps,
    /// The server dies, and a standby that has all of its acknowledged commits takes its place.
    Failover,
    /// The server dies, and a standby that lags behind takes its place: what was acknowledged last is gone.
    LossyFailover,
}

impl Fault {
    /// All of them.
    pub(crate) const ALL: [Self; 14] = [
        Self::Kill,
        Self::Freeze,
        Self::Restart,
        Self::Crash,
        Self::Connections,
        Self::Login,
        Self::Network,
        Self::Deaf,
        Self::Clock,
        Self::Snapshot,
        Self::Disk,
        Self::WakeUps,
        Self::Failover,
        Self::LossyFailover,
    ];

    /// Its name on the command line and in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Restart => "restart",
            Self::Crash => "crash",
            Self::Connections => "connections",
            Self::Login => "login",
            Self::Network => "network",
            Self::Deaf => "deaf",
            Self::Clock => "clock",
            Self::Snapshot => "snapshot",
            Self::Disk => "disk",
            Self::WakeUps => "wake-ups",
            Self::Failover => "failover",
            Self::LossyFailover => "lossy-failover",
        }
    }

    /// Whether a file can suffer it: it has no server, no sessions and no network.
    pub(crate) const fn befalls(self, database: Database) -> bool {
        match database {
            Database::Postgres => true,
            Database::Sqlite => !matches!(
                self,
                Self::Restart
                    | Self::Crash
                    | Self::Connections
                    | Self::Login
                    | Self::Network
                    | Self::Deaf
                    | Self::Failover
                    | Self::LossyFailover
            ),
        }
    }

    /// Whether calls to the store may fail because of it.
    pub(crate) const fn excuses_failures(self) -> bool {
        matches!(
            self,
            Self::Freeze
                | Self::Restart
                | Self::Crash
                | Self::Connections
                | Self::Login
                | Self::Network
                | Self::Disk
                | Self::Failover
                | Self::LossyFailover
        )
    }

    /// Whether the store may forget what it has acknowledged because of it.
    pub(crate) const fn forgets(self) -> bool {
        matches!(self, Self::LossyFailover)
    }

    /// Whether it is in a plan that names no faults. One that makes the store forget excuses too much.
    const fn is_usual(self) -> bool {
        !self.forgets()
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// A mistake that is made on purpose, to see that the oracle finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The processors commit their effects some time before their jobs complete.
    EffectsApart,
    /// The functions in the database end a job under any fence.
    FunctionFences,
    /// The functions in the database do not lock a chain before they read which jobs wait for it.
    FunctionLocks,
}

impl Sabotage {
    fn named(name: &str) -> Result<Self> {
        match name {
            "effects-apart" => Ok(Self::EffectsApart),
            "function-fences" => Ok(Self::FunctionFences),
            "function-locks" => Ok(Self::FunctionLocks),
            _ => Err(USAGE.into()),
        }
    }
}

/// What is done to a queue, for how long, and to how many processes.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) database: Database,
    pub(crate) seed: u64,
    /// Faults happen for at least this long.
    pub(crate) duration: Duration,
    pub(crate) faults: BTreeSet<Fault>,
    /// At least so many kills happen, and the other faults in proportion.
    pub(crate) kills: Option<u32>,
    /// Jobs of a backlog: two fifths are there before the first process is.
    pub(crate) jobs: u64,
    /// Processes that run jobs.
    pub(crate) processes: usize,
    /// Workers in each of them.
    pub(crate) workers: usize,
    /// Processes that start chains.
    pub(crate) enqueuers: usize,
    /// Which rounds these make; all if it is empty.
    pub(crate) rounds: Vec<usize>,
    pub(crate) lease: Duration,
    pub(crate) sabotage: Option<Sabotage>,
    /// `None` for one that is removed if all is well.
    pub(crate) directory: Option<PathBuf>,
}

pub(crate) const USAGE: &str = "usage: queuert-torture sqlite|postgres [--minutes n | --seconds n] [--seed n]
                       [--faults kill,freeze,restart,crash,connections,login,network,deaf,clock,snapshot,disk,wake-ups,
                                 failover,lossy-failover] [--kills n]
                       [--processes n] [--workers n] [--enqueuers n] [--rounds late,slow,..] [--jobs n]
                       [--sabotage effects-apart|function-fences|function-locks] [--directory path]
       queuert-torture check sqlite|postgres <url> <directory>    looks again at what a run has left
       queuert-torture measure restart|snapshot [--minutes n]     how fast a fleet is back; what an old snapshot costs";

impl Plan {
    pub(crate) fn parse(database: &str, mut settings: &[&str]) -> Result<Self> {
        let database = match database {
            "sqlite" => Database::Sqlite,
            "postgres" => Database::Postgres,
            _ => return Err(USAGE.into()),
        };
        let (mut duration, mut workers, mut enqueuers) = (None, None, None);
        let mut plan = Self {
            database,
            seed: fastrand::u64(..),
            duration: Duration::ZERO,
            faults: Fault::ALL
                .into_iter()
                .filter(|fault| fault.is_usual() && fault.befalls(database))
                .collect(),
            kills: None,
            jobs: 0,
            processes: 4,
            workers: 0,
            enqueuers: 0,
            rounds: Vec::new(),
            lease: Duration::ZERO,
            sabotage: None,
            directory: None,
        };
        while let [name, value, rest @ ..] = settings {
            match *name {
                "--minutes" => duration = Some(Duration::from_secs_f64(value.parse::<f64>()? * 60.0)),
                "--seconds" => duration = Some(Duration::from_secs_f64(value.parse()?)),
                "--seed" => plan.seed = value.parse()?,
                "--faults" => plan.faults = faults(database, value)?,
                "--kills" => plan.kills = Some(value.parse()?),
                "--jobs" => plan.jobs = value.parse()?,
                "--processes" => plan.processes = value.parse()?,
                "--workers" => workers = Some(value.parse()?),
                "--enqueuers" => enqueuers = Some(value.parse()?),
                "--sabotage" => plan.sabotage = Some(Sabotage::named(value)?),
                "--rounds" => plan.rounds = rounds(value)?,
                "--directory" => plan.directory = Some(PathBuf::from(value)),
                _ => return Err(USAGE.into()),
            }
            settings = rest;
        }
        // A backlog keeps many workers busy, and nothing else is started.
        let backlog = plan.jobs > 0;
        plan.workers = workers.unwrap_or(if backlog { 10 } else { 3 });
        plan.enqueuers = enqueuers.unwrap_or(if backlog { 0 } else { 2 });
        plan.lease = Duration::from_millis(if backlog { 6_000 } else { 1_500 });
        let counted = plan.kills.is_some();
        plan.duration = duration.unwrap_or(Duration::from_secs(if counted { 0 } else { 60 }));
        if counted {
            plan.faults.insert(Fault::Kill);
        }
        match settings {
            [] if plan.processes > 0 && (plan.enqueuers > 0 || backlog) => Ok(plan),
            _ => Err(USAGE.into()),
        }
    }

    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        names.join(",")
    }
}

fn rounds(names: &str) -> Result<Vec<usize>> {
    let named = |name: &str| {
        let place = ROUNDS.iter().position(|round| *round == name);
        place.ok_or_else(|| format!("the rounds are {}", ROUNDS.join(",")).into())
    };
    names.split(',').map(named).collect()
}

/// A list of names, which may be empty.
pub(crate) fn faults(database: Database, names: &str) -> Result<BTreeSet<Fault>> {
    let named = |name: &str| match Fault::named(name) {
        None => Err(USAGE.into()),
        Some(fault) if !fault.befalls(database) => {
            Err(format!("`{name}` cannot befall a file: it has no server, no sessions and no network").into())
        }
        Some(fault) => Ok(fault),
    };
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(named).collect()
}
