//! Starts the processes, lets the faults befall them, and waits for the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use queuert::{ChainId, Client, Entry, IntoStep, JobStatus, JobTypes, Started};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::faults::clock;
use crate::jobs::{Jobs, Slow};
use crate::log::{self, Log};
use crate::oracle::Oracle;
use crate::plan::{Fault, Plan, Sabotage};
use crate::server::{Server, SmallDisk};
use crate::store::{self, Store, tables};
use crate::work::Orders;
use crate::{Result, backlog, check};

/// Without any chain ending for so long, the rest is taken to be stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(25);

/// Open chains are counted up to here.
const PAGE: usize = 1_000;

/// How long a process that has nothing to do with canaries may sleep.
const POLL: Duration = Duration::from_secs(1);

/// The sentry sleeps for longer than any run of which somebody waits for the end.
const SENTRY_POLL: Duration = Duration::from_secs(3_600);

/// Whether everything held.
pub(crate) async fn run<S: Store>(mut plan: Plan) -> Result<bool> {
    let directory = match &plan.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory)?;
            directory.canonicalize()?
        }
        None => tempfile::Builder::new().prefix("queuert-torture-").tempdir()?.keep(),
    };
    println!(
        "plan       {:?}, seed {}, {} of {}; {} processes of {} workers, {} that start chains, {} jobs of a backlog; in {}",
        plan.database,
        plan.seed,
        match plan.kills {
            Some(kills) => format!("{kills} kills"),
            None => format!("{:.0} s", plan.duration.as_secs_f64()),
        },
        match plan.faults.is_empty() {
            true => "peace".to_owned(),
            false => plan.names(),
        },
        plan.processes,
        plan.workers,
        plan.enqueuers,
        plan.jobs,
        directory.display()
    );
    let keep = plan.directory.is_some();
    let again = format!("run again with `--seed {} --faults {}`", plan.seed, plan.names());
    let units = backlog::units(plan.jobs);
    let ahead = units * 2 / 5;
    let disk = prepare_disk(&mut plan, &directory).await;
    let clock = clock::prepare(&mut plan).await;
    let server = Server::start(plan.database, &directory, disk).await;
    let client = prepare_tables::<S>(&server, plan.sabotage).await?;
    let mut torture = Torture::<S> {
        log: Log::create(&directory, "torture")?,
        random: fastrand::Rng::with_seed(plan.seed),
        oracle: Oracle::start::<S>(server.url()),
        processes: Vec::new(),
        births: 0,
        counts: BTreeMap::new(),
        happened: BTreeSet::new(),
        broken: Vec::new(),
        woken: Vec::new(),
        directory: directory.clone(),
        plan,
        server,
        client,
        clock,
    };
    let began = Instant::now();
    torture.log.note(format!("planned {}", torture.plan.names()))?;
    if units > 0 {
        torture.log.note(format!("backlog {units}"))?;
    }
    // A part of the work is there before any process is, so that priorities have something to decide.
    let mut repeated = backlog::start(torture.client.clone(), 0..ahead).await?;
    let starter = tokio::spawn(backlog::start(torture.client.clone(), ahead..units));
    torture.give_births().await?;
    torture.disturb().await?;
    torture.heal().await?;
    torture.check_that_all_happened()?;
    println!("disturbed  {:.1} s: {}", began.elapsed().as_secs_f64(), torture.said());
    repeated += starter.await??;
    if units > 0 {
        println!("backlog    all chains are started; {repeated} transactions were run again");
    }
    torture.stop(Role::Enqueuing).await?;
    torture.roll_call().await?;
    torture.wait_for_all_ends().await?;
    torture.stop(Role::Working).await?;
    for role in [Role::Sentry, Role::Recent, Role::Newer] {
        torture.stop(role).await?;
    }
    println!("ended      {:.1} s after the beginning", began.elapsed().as_secs_f64());
    let Torture {
        oracle,
        server,
        client,
        mut broken,
        woken,
        ..
    } = torture;
    broken.append(&mut oracle.stop().await);
    client.state().close().await;
    if !woken.is_empty() {
        println!("woken      {}", check::spread(&woken, "after its listener was cut off"));
    }
    for line in &broken {
        println!("BROKEN: {line}");
    }
    let rules = check::check::<S>(&server.url(), &directory).await?;
    let well = rules.is_empty() && broken.is_empty();
    drop(server);
    tell(well);
    match well {
        true if keep => {}
        true => std::fs::remove_dir_all(&directory)?,
        false => println!("{again}; the logs are in {}", directory.display()),
    }
    Ok(well)
}

/// The verdict.
pub(crate) fn tell(well: bool) {
    match well {
        true => println!("all well: nothing was lost, nothing was doubled, nothing is left that should not be"),
        false => println!("not well: see what is broken above"),
    }
}

async fn prepare_disk(plan: &mut Plan, directory: &std::path::Path) -> Option<SmallDisk> {
    if !plan.faults.contains(&Fault::Disk) {
        return None;
    }
    match SmallDisk::mount(directory, plan.database, plan.duration).await {
        Ok(disk) => Some(disk),
        Err(reason) => {
            println!("left out   disk: {reason}");
            plan.faults.remove(&Fault::Disk);
            None
        }
    }
}

async fn prepare_tables<S: Store>(server: &Server, sabotage: Option<Sabotage>) -> Result<Client<S>> {
    let state: S = store::open(&server.url()).await?;
    let notify = state.notify(&server.url())?;
    let client = Client::builder(state).notify(notify).build();
    let mut tx = client.begin().await?;
    tables::create::<S>(&mut tx).await?;
    let expression = match sabotage {
        Some(Sabotage::FunctionFences) => Some(r"AND r\.fence = [a-z_.]+"),
        Some(Sabotage::FunctionLocks) => Some("FOR UPDATE"),
        Some(Sabotage::EffectsApart) | None => None,
    };
    if let Some(expression) = expression
        && S::change_functions(&mut tx, expression).await? == 0
    {
        return Err(format!("no function in the database has `{expression}`").into());
    }
    tx.commit().await?;
    Ok(client)
}

/// What a process is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Working,
    Enqueuing,
    /// Waits for canaries, and has nothing else to do.
    Sentry,
    /// Runs the type that is new when the server dies.
    Recent,
    /// Runs the type that comes after a standby has taken over.
    Newer,
}

pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) child: Child,
    /// When a frozen one goes on.
    pub(crate) thaws_at: Option<Instant>,
}

pub(crate) struct Torture<S: Store> {
    pub(crate) plan: Plan,
    pub(crate) server: Server,
    pub(crate) directory: PathBuf,
    /// Goes the good way.
    pub(crate) client: Client<S>,
    pub(crate) log: Log,
    pub(crate) random: fastrand::Rng,
    pub(crate) processes: Vec<Process>,
    births: usize,
    /// How often what befell the processes.
    pub(crate) counts: BTreeMap<&'static str, u32>,
    /// The faults that have happened.
    pub(crate) happened: BTreeSet<Fault>,
    pub(crate) broken: Vec<String>,
    /// How long canaries took, in milliseconds.
    pub(crate) woken: Vec<u64>,
    clock: Option<clock::WrongClock>,
    oracle: Oracle,
}

impl<S: Store> Torture<S> {
    async fn give_births(&mut self) -> Result<()> {
        let sentries = usize::from(self.plan.faults.contains(&Fault::Deaf));
        for (role, count) in [
            (Role::Working, self.plan.processes),
            (Role::Enqueuing, self.plan.enqueuers),
            (Role::Sentry, sentries),
        ] {
            for _ in 0..count {
                let process = self.give_birth(role)?;
                self.processes.push(process);
            }
        }
        Ok(())
    }

    pub(crate) fn give_birth(&mut self, role: Role) -> Result<Process> {
        self.births += 1;
        let (word, kind) = match role {
            Role::Working => ("work", "worker"),
            Role::Sentry => ("work", "sentry"),
            Role::Recent => ("work", "recent"),
            Role::Newer => ("work", "newer"),
            Role::Enqueuing => ("enqueue", "enqueuer"),
        };
        let name = format!("{kind}-{}", self.births);
        let sentry = role == Role::Sentry;
        let orders = Orders {
            // Only its listener is to be cut off: a failed call would let it look by itself.
            url: match sentry {
                true => self.server.url(),
                false => self.server.network_url(),
            },
            ears: self.server.ears_url(),
            directory: self.directory.clone(),
            name: name.clone(),
            seed: self.random.u64(..),
            rounds: self.plan.rounds.clone(),
            unreliable: if self.plan.faults.contains(&Fault::WakeUps) {
                30
            } else {
                0
            },
            workers: self.plan.workers,
            lease: self.plan.lease,
            poll: if sentry { SENTRY_POLL } else { POLL },
            role,
            effects_apart: self.plan.sabotage == Some(Sabotage::EffectsApart),
        };
        self.log.note(format!("born {name}"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(word).arg(serde_json::to_string(&orders)?);
        if let Some(clock) = &self.clock
            && self.births.is_multiple_of(2)
        {
            let ahead = clock.set(&mut command, self.births, self.plan.database);
            self.log.note(format!("skewed {name} {ahead}"))?;
            self.count(Fault::Clock, "wrong clocks");
        }
        let child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        Ok(Process {
            name,
            role,
            child,
            thaws_at: None,
        })
    }

    fn said(&self) -> String {
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        match counts.is_empty() {
            true => "nothing happened".to_owned(),
            false => counts.join(", "),
        }
    }

    /// No process ends unless it is killed or told to.
    pub(crate) fn ended_by_themselves(&mut self) -> Result<bool> {
        let mut any = false;
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait()? {
                any = true;
                self.broken.push(format!(
                    "workers do not die: {} ended by itself: {status}",
                    process.name
                ));
            }
        }
        Ok(any)
    }

    /// Ends processes gracefully.
    async fn stop(&mut self, role: Role) -> Result<()> {
        let leaving: Vec<usize> = (0..self.processes.len())
            .filter(|place| self.processes[*place].role == role)
            .collect();
        for place in &leaving {
            drop(self.processes[*place].child.stdin.take());
        }
        for place in leaving.into_iter().rev() {
            let mut process = self.processes.swap_remove(place);
            match tokio::time::timeout(STUCK, process.child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(status) => self
                    .broken
                    .push(format!("stop is prompt: {} ended with {status:?}", process.name)),
                Err(_) => {
                    self.broken
                        .push(format!("stop is prompt: {} does not stop", process.name));
                    // Noted before: what is missing in its log is not another broken rule.
                    self.log.note(format!("killed {}", process.name))?;
                    process.child.kill().await?;
                }
            }
        }
        Ok(())
    }

    /// Starts a chain, with its row. The connections of a pool may all have been ended: then it is tried again.
    pub(crate) async fn start<J, T>(&self, step: impl Fn() -> T) -> Result<Started<J>>
    where
        J: Entry,
        T: IntoStep<Job = J>,
    {
        self.start_by(&self.client, step).await
    }

    /// The same by another client.
    pub(crate) async fn start_by<J, T>(&self, client: &Client<S>, step: impl Fn() -> T) -> Result<Started<J>>
    where
        J: Entry,
        T: IntoStep<Job = J>,
    {
        let deadline = Instant::now() + store::PATIENCE;
        loop {
            let once = async {
                let mut tx = client.begin().await?;
                let chain = client.start(step()).within(&mut tx).await?;
                tables::started::<S>(&mut tx, chain.id(), J::NAME, "torture", false).await?;
                tx.commit().await?;
                Ok(chain)
            };
            match once.await {
                Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                done => return done,
            }
        }
    }

    /// When everything is well again, every process that is there runs jobs.
    async fn roll_call(&mut self) -> Result<()> {
        let since = crate::clock::now();
        let deadline = Instant::now() + STUCK;
        let mut n = 0;
        loop {
            let lines = log::read(&self.directory)?;
            let here = |name: &str| {
                let mut lines = lines.iter().filter(|line| line.at > since && line.process == name);
                lines.any(|line| line.words.first().is_some_and(|word| word == "begun"))
            };
            let working = self.processes.iter().filter(|process| process.role == Role::Working);
            let missing: Vec<&str> = working
                .map(|process| &*process.name)
                .filter(|name| !here(name))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.broken.push(format!(
                    "every process carries on: {} run nothing any more",
                    missing.join(", ")
                ));
                return Ok(());
            }
            for part in 0..self.plan.processes as u64 {
                self.start(|| Slow { n: n + part }).await?;
            }
            n += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn wait_for_all_ends(&mut self) -> Result<()> {
        let began = Instant::now();
        let at_first = self.open_chains().await?;
        let (mut open, mut since) = (at_first.clone(), Instant::now());
        while !open.is_empty() && !self.ended_by_themselves()? {
            // Who has seen something that is broken need not wait for what will not come.
            let patience = match self.oracle.has_seen_something() {
                true => STUCK / 8,
                false => STUCK,
            };
            if since.elapsed() > patience {
                let count = open.len();
                self.broken.push(format!(
                    "every chain ends: {count} do not, and none has for {patience:?}"
                ));
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.open_chains().await?;
            if now != open {
                (open, since) = (now, Instant::now());
            }
        }
        println!(
            "afterwards {}{} chains were open, and ended within {:.1} s",
            at_first.len(),
            if at_first.len() == PAGE { " or more" } else { "" },
            began.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// The oldest chains that have not ended, as far as a page goes; those that wait for a person are left out.
    async fn open_chains(&self) -> Result<Vec<ChainId>> {
        let graph = Jobs::graph();
        let types = graph
            .types
            .iter()
            .map(|one| one.name)
            .filter(|name| *name != "approval");
        let open = [JobStatus::Blocked, JobStatus::Pending, JobStatus::Running];
        let list = || {
            let list = self.client.list_chains().types(types.clone()).statuses(open);
            list.oldest_first().limit(PAGE)
        };
        let deadline = Instant::now() + store::PATIENCE;
        loop {
            match list().await {
                Ok(page) => return Ok(page.items.iter().map(|chain| chain.id).collect()),
                // A pool that nobody used during a restart learns of its dead connections one by one.
                Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
