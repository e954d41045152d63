//! One run: one seed, from the first call to the last check.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use queuert::Client;
use queuert::adapter::{ChainQuery, JobQuery, StateAdapter};
use queuert::memory::{MemoryClock, MemoryState, Sabotage};
use tokio::task::JoinSet;

use crate::faults::Coverage;
use crate::invariants::{Violation, broken, ensure};
use crate::notify::SimulatedNotify;
use crate::observe::Observer;
use crate::store::Simulated;
use crate::workload::{ACCOUNTS, OPENING_BALANCE, Processes, account, call, rage};
use crate::world::World;

/// What to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// The seed.
    pub seed: u64,
    /// A bug of the memory store to switch on.
    pub sabotage: Option<Sabotage>,
    /// A bug of the wrapper to switch on.
    pub breakage: Option<Breakage>,
}

/// A way in which the wrapper lies to the code under test or to the model, to show that the checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// The last unblocked job of an end is not mentioned.
    ForgetsUnblocked,
    /// Each settlement takes effect twice.
    SettlesTwice,
    /// A chain is announced inside its transaction.
    AnnouncesEarly,
    /// Some commits succeed and do nothing.
    LosesCommits,
    /// Some writes of the application succeed and do nothing.
    LosesWrites,
    /// Deduplication is ignored.
    ForgetsKeys,
    /// Nothing is reaped.
    NeverReaps,
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first broken rule.
    pub violation: Option<Violation>,
    /// The hash of the history.
    pub hash: u64,
    /// The history.
    pub lines: Vec<String>,
    /// What happened how often.
    pub coverage: Coverage,
    /// Calls to the store.
    pub calls: u64,
}

/// Lines of the history that a failure shows.
const TAIL: usize = 120;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.lines.len().saturating_sub(TAIL);
        writeln!(f, "… {skipped} lines")?;
        for line in &self.lines[skipped..] {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(violation) => writeln!(f, "seed {} breaks {violation}", self.seed)?,
            None => writeln!(f, "seed {} holds", self.seed)?,
        }
        write!(
            f,
            "replay: QUEUERT_SEED={} cargo test -p queuert-simulation replay -- --nocapture",
            self.seed
        )
    }
}

/// How long callers may take, and how long everything may take to settle, by the paused clock.
const CALLERS_LIMIT: Duration = Duration::from_secs(300);
const SETTLE_LIMIT: Duration = Duration::from_secs(600);
const STORE_GONE: Duration = Duration::from_secs(200);

/// Runs a seed.
///
/// # Panics
///
/// If there is no runtime to be had.
pub fn simulate(setup: Setup) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a current-thread runtime needs no more than memory");
    let world = runtime.block_on(run(setup));
    drop(runtime);
    let mut state = world.lock();
    Report {
        seed: setup.seed,
        violation: state.violation().cloned(),
        hash: state.history.hash(),
        lines: state.history.lines().to_vec(),
        coverage: std::mem::take(&mut state.coverage),
        calls: state.calls(),
    }
}

async fn run(setup: Setup) -> World {
    let memory = MemoryState::with_clock(MemoryClock::tokio());
    if let Some(bug) = setup.sabotage {
        memory.sabotage(bug);
    }
    let world = World::new(memory, Rng::with_seed(setup.seed), setup.breakage);
    let weather = world.lock().weather.clone();
    world.log(format_args!("seed {}: {weather:?}", setup.seed));
    open_accounts(&world).await;
    let processes = 2;
    let clients: Vec<_> = (0..processes)
        .map(|process| {
            Client::builder(Simulated::new(world.clone()))
                .notify(SimulatedNotify::new(world.clone()))
                .observability(Observer::new(world.clone()))
                .seed(setup.seed.wrapping_mul(31).wrapping_add(process))
                .build()
        })
        .collect();
    let mut callers = JoinSet::new();
    let (count, calls) = world.draw(|rng| (rng.usize(2..5), rng.usize(4..14)));
    for caller in 0..count {
        callers.spawn(call(clients[caller % clients.len()].clone(), world.clone(), calls));
    }
    let mut processes = Processes::new(clients);
    for _ in 0..world.draw(|rng| rng.u8(1..3)) {
        processes.start(&world).await;
    }
    storm(&world, &mut callers, &mut processes).await;
    if world.draw(|rng| rng.u8(..4) == 0) && world.violation().is_none() {
        stop_without_store(&world, &mut processes).await;
    }
    settle(&world, &mut processes).await;
    if world.violation().is_none() {
        audit(&world).await;
    }
    world
}

async fn open_accounts(world: &World) {
    let memory = world.memory();
    if let Ok(mut tx) = memory.begin().await {
        for number in 0..ACCOUNTS {
            let _ = tx.put(&account(number), OPENING_BALANCE).await;
        }
        let _ = memory.commit(tx).await;
    }
}

/// Callers call while chaos rages.
async fn storm(world: &World, callers: &mut JoinSet<()>, processes: &mut Processes) {
    let called = async { while callers.join_next().await.is_some() {} };
    let called = tokio::time::timeout(CALLERS_LIMIT, called);
    tokio::select! {
        biased;
        in_time = called => {
            if in_time.is_err() && world.violation().is_none() {
                world.check(|_, _| broken!(Liveness, "a call hangs"));
            }
        }
        () = rage(processes, world) => {}
    }
}

/// Nobody waits for a store that has gone, however much there is left to tell it.
async fn stop_without_store(world: &World, processes: &mut Processes) {
    world.count("stopped during an outage");
    world.begin_outage(STORE_GONE);
    let stopped = tokio::time::timeout(STORE_GONE, processes.stop_all(world)).await;
    if stopped.is_err() && world.violation().is_none() {
        world.check(|_, _| broken!(Stop, "workers do not stop while the store is away"));
    }
}

/// The storm is over: what can end must end.
async fn settle(world: &World, processes: &mut Processes) {
    world.clear_up();
    let survivors = processes.are_working() && world.draw(|rng| rng.bool());
    if !survivors {
        world.count("settled by fresh workers");
        while processes.are_working() {
            processes.kill(world);
        }
        processes.start(world).await;
    } else {
        world.count("settled by survivors");
    }
    let mut left = SETTLE_LIMIT.as_secs();
    // A while longer than it seems to need: what looks settled may have a zombie or a late wake-up to come.
    let mut quiet = 0;
    while left > 0 && quiet < 3 && world.violation().is_none() {
        left -= 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        quiet = if world.lock().model.is_busy() { 0 } else { quiet + 1 };
    }
    if world.violation().is_some() {
        return;
    }
    world.check(|state, _| state.model.check_settled());
    processes.check_recovered(world).await;
    let stopped = tokio::time::timeout(Duration::from_secs(120), processes.stop_all(world)).await;
    if stopped.is_err() && world.violation().is_none() {
        world.check(|_, _| broken!(Stop, "workers do not stop"));
    }
}

/// Compares the store with the model, and looks for leftovers.
async fn audit(world: &World) {
    let memory = world.memory();
    let mut jobs_query = JobQuery::default();
    jobs_query.limit = usize::MAX;
    let mut chains_query = ChainQuery::default();
    chains_query.limit = usize::MAX;
    let jobs = memory.list_jobs(None, &jobs_query).await.unwrap_or_default();
    let chains = memory.list_chains(None, &chains_query).await.unwrap_or_default();
    world.check(|state, _| state.model.compare(&jobs, &chains));
    world.check(|state, _| state.model.check_money(memory));
    let all: Vec<_> = world.lock().model.chains().collect();
    let Ok(mut tx) = memory.begin().await else {
        return;
    };
    for chain in all {
        let free = at_once(memory.lock_chain(&mut tx, chain)).await.is_some();
        world.check(|_, _| {
            ensure!(free, Lock, "chain {chain} is still locked");
            Ok(())
        });
    }
    for number in 0..ACCOUNTS {
        let free = at_once(tx.get::<i64>(&account(number))).await.is_some();
        world.check(|_, _| {
            ensure!(free, Lock, "account {number} is still locked");
            Ok(())
        });
    }
}

/// The result of a call that does not wait.
async fn at_once<T>(call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
