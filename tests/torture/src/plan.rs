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

/// What is done to a queue, for how long, and to how many processes.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) database: Database,
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    pub(crate) faults: BTreeSet<Fault>,
    /// Processes that run jobs.
    pub(crate) processes: usize,
    /// Workers in each of them.
    pub(crate) workers: usize,
    /// Processes that start chains.
    pub(crate) enqueuers: usize,
    /// Which rounds these make; all if it is empty.
    pub(crate) rounds: Vec<usize>,
    pub(crate) lease: Duration,
    /// `None` for one that is removed if all is well.
    pub(crate) directory: Option<PathBuf>,
}

pub(crate) const USAGE: &str = "usage: queuert-torture sqlite|postgres [--minutes n | --seconds n] [--seed n]
                       [--faults kill,freeze,restart,crash,connections,login,network,deaf,clock,snapshot,disk,wake-ups,
                                 failover,lossy-failover]
                       [--processes n] [--workers n] [--enqueuers n] [--rounds late,slow,..] [--directory path]
       queuert-torture check sqlite|postgres <url> <directory>    looks again at what a run has left
       queuert-torture measure restart|snapshot [--minutes n]     how fast a fleet is back; what an old snapshot costs";

impl Plan {
    pub(crate) fn parse(database: &str, mut settings: &[&str]) -> Result<Self> {
        let database = match database {
            "sqlite" => Database::Sqlite,
            "postgres" => Database::Postgres,
            _ => return Err(USAGE.into()),
        };
        let mut plan = Self {
            database,
            seed: fastrand::u64(..),
            duration: Duration::from_secs(60),
            faults: Fault::ALL
                .into_iter()
                .filter(|fault| fault.is_usual() && fault.befalls(database))
                .collect(),
            processes: 4,
            workers: 3,
            enqueuers: 2,
            rounds: Vec::new(),
            lease: Duration::from_millis(1_500),
            directory: None,
        };
        while let [name, value, rest @ ..] = settings {
            match *name {
                "--minutes" => plan.duration = Duration::from_secs_f64(value.parse::<f64>()? * 60.0),
                "--seconds" => plan.duration = Duration::from_secs_f64(value.parse()?),
                "--seed" => plan.seed = value.parse()?,
                "--faults" => plan.faults = faults(database, value)?,
                "--processes" => plan.processes = value.parse()?,
                "--workers" => plan.workers = value.parse()?,
                "--enqueuers" => plan.enqueuers = value.parse()?,
                "--rounds" => plan.rounds = rounds(value)?,
                "--directory" => plan.directory = Some(PathBuf::from(value)),
                _ => return Err(USAGE.into()),
            }
            settings = rest;
        }
        match settings {
            [] if plan.processes > 0 && plan.enqueuers > 0 => Ok(plan),
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
