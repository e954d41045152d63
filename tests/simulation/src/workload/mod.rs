//! What the simulated services do: processors that work and fail, and callers that start, change and wait for chains.

mod callers;
mod chaos;
mod processors;
mod scripts;

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use queuert::{ChainId, Client, Error, LeaseSettings, Payload, RetryPolicy, WorkerBuilder, Workers};

pub use callers::call;
pub use chaos::{Processes, rage};

use crate::invariants::ensure;
use crate::store::Simulated;
use crate::world::World;

/// A client of the simulation.
pub type SimulatedClient = Client<Simulated>;

/// How many accounts there are, and what is in each at the start.
pub const ACCOUNTS: u8 = 4;
/// See [`ACCOUNTS`].
pub const OPENING_BALANCE: i64 = 1_000;

/// No failed attempt may come back sooner.
pub const SHORTEST_BACKOFF: Duration = Duration::from_millis(270);
const RETRY: RetryPolicy = RetryPolicy::new()
    .max_attempts(6)
    .initial(Duration::from_millis(300))
    .maximum(Duration::from_secs(5))
    .jitter(0.1);
/// How long an attempt may run.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a completion from outside gives.
pub const OUTSIDE: u64 = 7_777_777;

/// Whether an output was given from outside.
pub fn is_outside_output(output: &Payload) -> bool {
    output.decode::<u64>() == Ok(OUTSIDE) || output.decode::<bool>() == Ok(true)
}

/// The name of an account.
pub fn account(number: u8) -> String {
    format!("account:{number}")
}

/// Starts workers for a client, with settings that the seed chooses.
///
/// # Errors
///
/// Never: the settings are valid.
pub async fn start_workers(client: &SimulatedClient, world: &World) -> Result<Workers<Simulated>, Error> {
    let (concurrency, poll, grace, drop_on_abort) = world.draw(|rng| {
        (
            rng.usize(1..5),
            Duration::from_millis(rng.u64(100..2_000)),
            Duration::from_millis(rng.u64(..1_500)),
            rng.bool(),
        )
    });
    let lease = world.lock().weather.lease;
    let mut worker = processors::add(client.worker(), world)
        .middleware(processors::Meddler(world.clone()))
        .concurrency(concurrency)
        .poll_interval(poll)
        .grace(grace)
        .lease(LeaseSettings::new(lease))
        .retry(RETRY)
        .timeout(TIMEOUT);
    if drop_on_abort {
        worker = WorkerBuilder::drop_on_abort(worker);
    }
    let workers = worker.start().await?;
    let name = world.lock().history.worker(workers.id());
    world.log(format_args!("{name} starts: {concurrency} at a time, grace {grace:?}"));
    Ok(workers)
}

/// Runs a call, or drops it after some polls, wherever that is. `None` if it was dropped.
pub async fn cut<T>(world: &World, call: impl Future<Output = T>) -> Option<T> {
    if !world.chance("dropped future", |weather| weather.cut) {
        return Some(call.await);
    }
    let mut left = world.draw(|rng| rng.u8(..8));
    let mut call = pin!(call);
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        call.as_mut().poll(cx).map(Some)
    })
    .await
}

/// The caller was told that the chain is started: so it is.
pub fn acknowledged(world: &World, chain: ChainId) {
    world.check(|state, _| {
        ensure!(
            state.model.knows(chain),
            Transactional,
            "chain {chain} is said to be started but is not committed"
        );
        Ok(())
    });
}

/// The transaction in which the chain was started is gone: so is the chain.
pub fn rolled_back(world: &World, chain: ChainId) {
    world.check(|state, _| {
        ensure!(
            !state.model.knows(chain),
            Transactional,
            "chain {chain} was rolled back but is committed"
        );
        Ok(())
    });
}
