//! What happens to the processes: they are killed, stopped and started; the store goes away; its clock jumps.

use std::time::Duration;

use queuert::{Health, Workers};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{SimulatedClient, start_workers};
use crate::invariants::{broken, ensure};
use crate::store::Simulated;
use crate::world::World;

/// The longest that a stop may take: the longest grace, winding down, the last words to the store (for a claim in
/// flight, for what it claimed, for the ends of attempts), and a call that the simulation holds up for three leases.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The longest pause of a worker whose store fails, with its jitter.
const LONGEST_BACKOFF: Duration = Duration::from_secs(13);

/// The processes of a run: a client each, and the workers that run now.
#[derive(Debug)]
pub struct Processes {
    clients: Vec<SimulatedClient>,
    workers: Vec<(usize, Workers<Simulated>)>,
    stops: JoinSet<()>,
}

impl Processes {
    /// Processes without workers.
    pub fn new(clients: Vec<SimulatedClient>) -> Self {
        Self {
            clients,
            workers: Vec::new(),
            stops: JoinSet::new(),
        }
    }

    /// Starts workers in one of the processes.
    pub async fn start(&mut self, world: &World) {
        let process = world.draw(|rng| rng.usize(..self.clients.len()));
        match start_workers(&self.clients[process], world).await {
            Ok(workers) => self.workers.push((process, workers)),
            Err(error) => world.check(|_, _| broken!(Liveness, "workers do not start: {error}")),
        }
    }

    fn take(&mut self, world: &World) -> Option<Workers<Simulated>> {
        let count = self.workers.len();
        (count > 0).then(|| self.workers.swap_remove(world.draw(|rng| rng.usize(..count))).1)
    }

    /// Ends workers without a word to anybody.
    pub fn kill(&mut self, world: &World) {
        if let Some(workers) = self.take(world) {
            let name = world.lock().history.worker(workers.id());
            world.log(format_args!("{name} is killed"));
            world.count("worker killed");
            workers.abort();
        }
    }

    /// Asks workers to stop, and checks that they do.
    pub fn stop(&mut self, world: &World) {
        if let Some(workers) = self.take(world) {
            let name = world.lock().history.worker(workers.id());
            world.log(format_args!("{name} is asked to stop"));
            world.count("worker asked to stop");
            let world = world.clone();
            self.stops.spawn(async move {
                let since = Instant::now();
                workers.stop().await;
                let took = since.elapsed();
                world.log(format_args!("{name} stopped after {took:?}"));
                world.check(|state, _| {
                    ensure!(took <= STOP_LIMIT, Stop, "{name} took {took:?} to stop");
                    ensure!(
                        workers.health() == Health::Stopped,
                        Stop,
                        "{name} stopped and is {:?}",
                        workers.health()
                    );
                    state.model.stopped(workers.id().clone());
                    Ok(())
                });
            });
        }
    }

    /// Stops all, and waits for that.
    pub async fn stop_all(&mut self, world: &World) {
        while !self.workers.is_empty() {
            self.stop(world);
        }
        while self.stops.join_next().await.is_some() {}
    }

    /// Whether workers run that nobody asked to stop.
    pub fn are_working(&self) -> bool {
        !self.workers.is_empty()
    }

    /// Nobody who was not asked to stop has stopped.
    fn check_alive(&self, world: &World) {
        for (_, workers) in &self.workers {
            let health = workers.health();
            world.check(|_, _| {
                let alive = matches!(health, Health::Running | Health::Degraded { .. });
                ensure!(alive, Liveness, "workers that nobody stopped are {health:?}");
                Ok(())
            });
        }
    }

    /// Once the store answers again, all are well by the next time that they ask it for something.
    pub async fn check_recovered(&self, world: &World) {
        for (_, workers) in &self.workers {
            let well = |health: &Health| match health {
                Health::Running => true,
                // A settlement that was refused for good is the last word until there is another one.
                Health::Degraded { error } => error.contains("permission denied"),
                _ => false,
            };
            let recovered = tokio::time::timeout(LONGEST_BACKOFF, workers.wait_for_health(well)).await;
            world.check(|_, _| {
                let health = workers.health();
                ensure!(
                    recovered.is_ok(),
                    Liveness,
                    "workers are {health:?} though the store is well"
                );
                Ok(())
            });
        }
    }
}

/// Rages until told to stop.
pub async fn rage(processes: &mut Processes, world: &World) {
    loop {
        let pause = world.draw(|rng| rng.u64(50..800));
        tokio::time::sleep(Duration::from_millis(pause)).await;
        processes.check_alive(world);
        if world.chance("kill", |weather| weather.kill) {
            processes.kill(world);
        }
        if world.chance("stop", |weather| weather.stop) {
            processes.stop(world);
        }
        if world.chance("outage", |weather| weather.outage) {
            world.begin_outage(Duration::from_millis(world.draw(|rng| rng.u64(50..4_000))));
        }
        if world.chance("clock jump", |weather| weather.jump) {
            let jump = Duration::from_millis(world.draw(|rng| rng.u64(1..5_000)));
            world.log(format_args!("the clock jumps {jump:?} ahead"));
            world.memory().clock().advance(jump);
        }
        if processes.workers.len() < 3 && world.draw(|rng| rng.bool()) {
            processes.start(world).await;
        }
    }
}
