//! Starts the processes, kills and freezes them, starts them again.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use queuert::__task::Lock;
use queuert::JobStatus;
use queuert_sqlite::{Client, SqliteState};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::jobs::Sabotage;
use crate::process::{Result, WORKERS};
use crate::{FILE, check};

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
    /// `None` for one that is removed if all is well.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) sabotage: Sabotage,
}

/// Processes that run jobs, with [`WORKERS`] workers each.
const WORKING: usize = 4;
/// Processes that start chains.
const ENQUEUING: usize = 2;

/// Open chains are counted up to here.
const PAGE: usize = 1_000;

/// Without any chain ending for so long, the rest is taken to be stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Whether everything held.
pub(crate) async fn run(plan: Plan) -> Result<bool> {
    let directory = match &plan.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory)?;
            directory.clone()
        }
        None => tempfile::Builder::new().prefix("sqlite-kill-").tempdir()?.keep(),
    };
    println!(
        "seed       {}; {} kills among {WORKING} processes of {WORKERS} workers and {ENQUEUING} enqueuing ones, in {}",
        plan.seed,
        plan.kills,
        directory.display()
    );
    let mut torture = Torture {
        random: fastrand::Rng::with_seed(plan.seed),
        sabotage: plan.sabotage,
        processes: Vec::new(),
        births: 0,
        heard: Arc::default(),
        directory: directory.clone(),
    };
    let broken = torture.run(plan.kills).await?;
    let heard = std::mem::take(&mut *torture.heard.lock());
    let reaped = heard.iter().filter(|line| line.starts_with("reaped ")).count();
    println!("taken over {reaped} attempts whose processes were dead or frozen, when their leases had expired");
    // Whoever is frozen may hold the lock, and its own calls do not come back in time.
    let (late, failures): (Vec<&String>, Vec<&String>) = heard
        .iter()
        .filter(|line| !line.starts_with("reaped "))
        .partition(|line| line.contains("did not answer"));
    println!(
        "waited     {} calls of workers were not answered in time, because a process was frozen",
        late.len()
    );
    for line in failures.iter().take(10) {
        println!("BROKEN: the store works for every process: {line}");
    }
    for line in &broken {
        println!("BROKEN: {line}");
    }
    let well = check::run(&directory).await? && broken.is_empty() && failures.is_empty();
    match well {
        true if plan.directory.is_none() => std::fs::remove_dir_all(&directory)?,
        true => {}
        false => println!("run again with `torture --kills {} --seed {}`", plan.kills, plan.seed),
    }
    Ok(well)
}

struct Torture {
    random: fastrand::Rng,
    sabotage: Sabotage,
    processes: Vec<Process>,
    births: u64,
    /// What the processes said.
    heard: Arc<Lock<Vec<String>>>,
    directory: PathBuf,
}

struct Process {
    number: usize,
    child: Child,
    /// When a frozen process goes on.
    thaws_at: Option<Instant>,
}

impl Process {
    /// Sends a signal for which tokio has no method, with the `kill` of the shell.
    async fn signal(&self, name: &str) -> Result<()> {
        if let Some(id) = self.child.id() {
            let kill = format!("kill -{name} {id}");
            Command::new("sh").args(["-c", &kill]).status().await?;
        }
        Ok(())
    }
}

impl Torture {
    /// Says what broke while it ran; what is in the file comes later.
    async fn run(&mut self, kills: u32) -> Result<Vec<String>> {
        for number in 0..WORKING + ENQUEUING {
            let process = self.give_birth(number)?;
            self.processes.push(process);
        }
        let began = Instant::now();
        let mut broken = Vec::new();
        let (mut killed, mut several, mut frozen) = ([0_u32, 0], 0, 0);
        while killed[0] + killed[1] < kills {
            tokio::time::sleep(Duration::from_millis(self.random.u64(5..350))).await;
            broken.append(&mut self.ended_by_themselves(0..WORKING + ENQUEUING)?);
            if !broken.is_empty() {
                break;
            }
            self.thaw(Instant::now()).await?;
            // A process that is frozen for longer than its leases last goes on with attempts that others have taken over:
            // none of what it writes then may count.
            if self.random.u8(0..10) == 0 {
                let process = &mut self.processes[self.random.usize(0..WORKING)];
                process.signal("STOP").await?;
                process.thaws_at = Some(Instant::now() + Duration::from_millis(self.random.u64(1_200..2_500)));
                frozen += 1;
            }
            // Now and then everything dies in the same moment, as when a container is stopped.
            let mut victims: Vec<usize> = match self.random.u8(0..20) {
                0 => (0..self.processes.len()).collect(),
                1..4 => vec![self.random.usize(0..WORKING), WORKING + self.random.usize(0..ENQUEUING)],
                _ => vec![self.random.usize(0..self.processes.len())],
            };
            // A frozen process lives on: what it does when it thaws is what it was frozen for.
            victims.retain(|victim| self.processes[*victim].thaws_at.is_none());
            victims.truncate((kills - killed[0] - killed[1]) as usize);
            several += u32::from(victims.len() > 1);
            for victim in &victims {
                self.processes[*victim].child.start_kill()?;
                killed[usize::from(*victim >= WORKING)] += 1;
            }
            for victim in victims {
                self.processes[victim].child.wait().await?;
                self.processes[victim] = self.give_birth(victim)?;
            }
        }
        let last = self.processes.iter().filter_map(|process| process.thaws_at).max();
        if let Some(last) = last {
            tokio::time::sleep_until(last).await;
            self.thaw(last).await?;
        }
        println!(
            "killed     {} working and {} enqueuing processes in {:.1} s, {several} times several at once; froze {frozen}",
            killed[0],
            killed[1],
            began.elapsed().as_secs_f64()
        );
        broken.append(&mut self.stop(WORKING..WORKING + ENQUEUING).await?);
        broken.append(&mut self.wait_for_all_ends().await?);
        broken.append(&mut self.ended_by_themselves(0..WORKING)?);
        broken.append(&mut self.stop(0..WORKING).await?);
        Ok(broken)
    }

    fn give_birth(&mut self, number: usize) -> Result<Process> {
        self.births += 1;
        let mut command = Command::new(std::env::current_exe()?);
        match number < WORKING {
            true => command.arg("work").arg(&self.directory).arg(match self.sabotage {
                Sabotage::None => "none",
                Sabotage::EffectOutside => "effect-outside",
            }),
            false => {
                let name = format!("enqueuer-{number}-{}", self.births);
                let seed = self.random.u64(..).to_string();
                command.arg("enqueue").arg(&self.directory).arg(name).arg(seed)
            }
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(output) = child.stdout.take() {
            let heard = Arc::clone(&self.heard);
            let mut lines = BufReader::new(output).lines();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    heard.lock().push(line);
                }
            });
        }
        Ok(Process {
            number,
            child,
            thaws_at: None,
        })
    }

    /// Lets frozen processes go on whose time has come.
    async fn thaw(&mut self, now: Instant) -> Result<()> {
        for process in &mut self.processes {
            if process.thaws_at.is_some_and(|time| time <= now) {
                process.thaws_at = None;
                process.signal("CONT").await?;
            }
        }
        Ok(())
    }

    /// No process ends unless it is killed or told to; whoever does has said why.
    fn ended_by_themselves(&mut self, which: Range<usize>) -> Result<Vec<String>> {
        let mut ended = Vec::new();
        for process in &mut self.processes[which] {
            if let Some(status) = process.child.try_wait()? {
                ended.push(format!("process {} ended by itself: {status}", process.number));
            }
        }
        Ok(ended)
    }

    /// Ends processes gracefully.
    async fn stop(&mut self, which: Range<usize>) -> Result<Vec<String>> {
        let mut broken = Vec::new();
        for process in &mut self.processes[which] {
            drop(process.child.stdin.take());
            match tokio::time::timeout(STUCK, process.child.wait()).await {
                Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => {}
                Ok(status) => broken.push(format!("process {} stopped with {status:?}", process.number)),
                Err(_) => broken.push(format!("process {} does not stop", process.number)),
            }
        }
        Ok(broken)
    }

    async fn wait_for_all_ends(&mut self) -> Result<Vec<String>> {
        let began = Instant::now();
        let client = Client::new(SqliteState::open(self.directory.join(FILE)).await?);
        let at_first = open_chains(&client).await?;
        let (mut open, mut since) = (at_first, Instant::now());
        while open > 0 {
            if since.elapsed() > STUCK {
                return Ok(vec![format!(
                    "{open} chains do not end; no chain has ended for {STUCK:?}"
                )]);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = open_chains(&client).await?;
            if now != open {
                (open, since) = (now, Instant::now());
            }
        }
        client.state().close().await?;
        println!(
            "afterwards {at_first}{} chains were open, and ended within {:.1} s",
            if at_first == PAGE { " or more" } else { "" },
            began.elapsed().as_secs_f64()
        );
        Ok(Vec::new())
    }
}

/// How many chains have not ended, as far as a page goes.
async fn open_chains(client: &Client) -> Result<usize> {
    let open = [JobStatus::Blocked, JobStatus::Pending, JobStatus::Running];
    Ok(client.list_chains().statuses(open).limit(PAGE).await?.items.len())
}
