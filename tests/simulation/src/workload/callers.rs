//! The callers: each makes random calls, some of which are dropped half-way.

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{ChainId, ChainRef, Deduplication, Error, JobType, Step, Transaction};

use super::{ACCOUNTS, OUTSIDE, SimulatedClient, account, acknowledged, cut, rolled_back, scripts};
use crate::invariants::ensure;
use crate::jobs::{After, Approval, Heir, Knot, Leaf, Merge, Pair, Transfer, Turn, Walk, Way, after_turn, after_walk};
use crate::world::World;

/// Makes calls until it has made enough. Errors are what callers must live with; the model sees what was committed.
pub async fn call(client: SimulatedClient, world: World, calls: usize) {
    for _ in 0..calls {
        let pause = world.draw(|rng| if rng.bool() { 0 } else { rng.u64(..500) });
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let dice = world.draw(|rng| rng.u8(..100));
        let result = match dice {
            0..=24 => cut(&world, start(&client, &world)).await,
            25..=44 => cut(&world, start_dependant(&client, &world)).await,
            45..=59 => cut(&world, transact(&client, &world)).await,
            60..=62 => cut(&world, adopt(&client, &world)).await,
            63..=72 => cut(&world, complete_outside(&client, &world)).await,
            73..=77 => cut(&world, on_chain(&client, &world, Change::Cancel)).await,
            78..=83 => cut(&world, on_chain(&client, &world, Change::Retry)).await,
            84..=88 => cut(&world, on_chain(&client, &world, Change::Delete)).await,
            89..=92 => cut(&world, on_chain(&client, &world, Change::Trigger)).await,
            _ => cut(&world, wait(&client, &world)).await,
        };
        if let Some(Err(error)) = result {
            world.log(format_args!("call fails: {error}"));
        }
    }
}

fn draw<T>(world: &World, draw: impl FnOnce(&mut fastrand::Rng, Duration) -> T) -> T {
    let state = &mut *world.lock();
    draw(&mut state.rng, state.weather.lease)
}

fn pick<J: JobType>(world: &World) -> Option<ChainRef<J>> {
    let state = &mut *world.lock();
    state.model.pick(&mut state.rng, Some(J::NAME)).map(ChainRef::new)
}

fn settings<J: JobType>(world: &World, step: Step<J>) -> Step<J> {
    let (kind, delay, priority) = world.draw(|rng| (rng.u8(..6), rng.u64(..2_000), rng.i16(-3..4)));
    match kind {
        0 => step.delay(Duration::from_millis(delay)),
        1 => step.priority(priority),
        2 => step.max_attempts(2),
        _ => step,
    }
}

fn key(world: &World) -> Deduplication {
    let (kind, name) = world.draw(|rng| (rng.u8(..4), format!("key-{}", rng.u8(..3))));
    match kind {
        0 => Deduplication::within(name, Duration::from_secs(1)),
        1 => Deduplication::forever(name),
        _ => Deduplication::while_open(name),
    }
}

async fn start(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let chain: ChainId = match world.draw(|rng| rng.u8(..12)) {
        0..=1 => {
            let step = settings(world, Step::new(draw(world, scripts::leaf)));
            client.start(step).await?.id()
        }
        2..=3 => {
            let step = settings(world, Step::new(draw(world, scripts::leaf)));
            client.start(step.deduplicate(key(world))).await?.id()
        }
        4..=6 => {
            let step = settings(world, Step::new(draw(world, scripts::walk)));
            client.start(step).await?.id()
        }
        7..=8 => client.start(draw(world, scripts::transfer)).await?.id(),
        9 => client.start(draw(world, scripts::approval)).await?.id(),
        10 => {
            let heir: Heir = draw(world, scripts::heir);
            let key = heir.key.clone();
            client.start(heir).deduplicate(key).await?.id()
        }
        _ => {
            let value = world.draw(|rng| rng.u64(..10));
            let script = draw(world, scripts::script);
            client.start(Knot { value, script }).await?.id()
        }
    };
    acknowledged(world, chain);
    Ok(())
}

/// A leaf that is there, or a new one.
async fn some_leaf(client: &SimulatedClient, world: &World) -> Result<ChainRef<Leaf>, Error> {
    if world.draw(|rng| rng.bool())
        && let Some(leaf) = pick::<Leaf>(world)
    {
        return Ok(leaf);
    }
    let step = settings(world, Step::new(draw(world, scripts::leaf)));
    let leaf = client.start(step).await?;
    acknowledged(world, leaf.id());
    Ok(leaf.chain())
}

async fn start_dependant(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let (kind, base, transactional) = world.draw(|rng| (rng.u8(..4), rng.u64(..100), rng.bool()));
    let script = draw(world, scripts::script);
    let chain = match kind {
        0 => {
            let leaf = some_leaf(client, world).await?;
            let job = After {
                base,
                transactional,
                script,
            };
            client.start(job.blocked_by(leaf)).await?.id()
        }
        1 => {
            let leaf = some_leaf(client, world).await?;
            let walk = match pick::<Walk>(world) {
                Some(walk) => walk,
                None => client.start(draw(world, scripts::walk)).await?.chain(),
            };
            let job = Pair {
                base,
                transactional,
                script,
            };
            client.start(job.blocked_by((leaf, walk))).await?.id()
        }
        _ => {
            let mut leaves = Vec::new();
            for _ in 0..world.draw(|rng| rng.u8(1..4)) {
                leaves.push(some_leaf(client, world).await?);
            }
            if world.draw(|rng| rng.u8(..3) == 0) {
                leaves.push(leaves[0]);
                world.count("same blocker twice");
            }
            let job = Merge {
                base,
                transactional,
                script,
            };
            client.start(job.blocked_by(leaves)).await?.id()
        }
    };
    acknowledged(world, chain);
    Ok(())
}

/// A transaction of the caller's: moves money, starts a chain, holds its locks for a while, and ends in some way.
async fn transact(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let mut tx = client.begin().await?;
    let number = {
        let state = &mut *world.lock();
        state.model.next_move()
    };
    let chain = match fill(client, world, &mut tx, number).await {
        Ok(chain) => chain,
        Err(error) => {
            // Dropping rolls back.
            drop(tx);
            return Err(error);
        }
    };
    world.lock().model.ordered(chain, number);
    match world.draw(|rng| rng.u8(..8)) {
        0 => {
            world.count("dropped transaction");
            drop(tx);
            rolled_back(world, chain);
        }
        1..=2 => {
            let result = tx.rollback().await;
            rolled_back(world, chain);
            result?;
        }
        _ => {
            tx.commit().await?;
            acknowledged(world, chain);
        }
    }
    Ok(())
}

async fn fill(
    client: &SimulatedClient,
    world: &World,
    tx: &mut Transaction<crate::store::Simulated>,
    number: u64,
) -> Result<ChainId, Error> {
    let (from, to, amount) = world.draw(|rng| (rng.u8(..ACCOUNTS), rng.u8(1..ACCOUNTS), rng.i64(1..50)));
    let to = (from + to) % ACCOUNTS;
    let chain = client.start(draw(world, scripts::leaf)).within(tx).await?.id();
    if world.draw(|rng| rng.bool()) {
        let mut inside = Vec::new();
        let undone = tx
            .savepoint(async |tx: &mut Transaction<_>| {
                inside.push(client.start(draw(world, scripts::leaf)).within(tx).await?.id());
                if let Some(chain) = {
                    let state = &mut *world.lock();
                    state.model.pick(&mut state.rng, None)
                } {
                    client.cancel(chain).within(tx).await?;
                }
                Err::<(), _>(Error::NoProcessor)
            })
            .await;
        match undone {
            // What it was rolled back for, or a refusal inside; the transaction goes on.
            Err(Error::State(error)) => return Err(Error::State(error)),
            _ => inside.iter().for_each(|chain| rolled_back(world, *chain)),
        }
    }
    let balance: i64 = tx.get(&account(from)).await?.unwrap_or(0);
    tx.put(&account(from), balance - amount).await?;
    if world.draw(|rng| rng.u8(..4) == 0) {
        world.count("transaction held open");
        let hold = world.draw(|rng| rng.u64(..4_000));
        tokio::time::sleep(Duration::from_millis(hold)).await;
    }
    let balance: i64 = tx.get(&account(to)).await?.unwrap_or(0);
    tx.put(&account(to), balance + amount).await?;
    tx.put(&format!("move:{number}"), (from, to, amount)).await?;
    Ok(chain)
}

/// A transaction that the library does not commit.
async fn adopt(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let mut own = client.state().begin().await?;
    let mut foreign = client.adopt(&mut own);
    let chain = client
        .start(draw(world, scripts::leaf))
        .within(&mut foreign)
        .await?
        .id();
    let held = foreign.into_effects();
    client.state().commit(own).await?;
    acknowledged(world, chain);
    held.publish().await;
    Ok(())
}

async fn complete_outside(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let mut tx = client.begin().await?;
    match world.draw(|rng| rng.u8(..6)) {
        0 => {
            let Some(chain) = pick::<Leaf>(world) else {
                return Ok(());
            };
            let job = client.open::<Leaf>(chain).within(&mut tx).await?;
            job.finish(OUTSIDE).await?;
        }
        1 => {
            let Some(chain) = pick::<Walk>(world) else {
                return Ok(());
            };
            let job = client.open::<Walk>(chain).within(&mut tx).await?;
            match after_walk(&job) {
                Way::Walk(next) => drop(job.continue_with(next).await?),
                Way::Turn(next) => drop(job.continue_with(next).await?),
                _ => job.finish(OUTSIDE).await?,
            }
        }
        2 => {
            let Some(chain) = pick::<Walk>(world) else {
                return Ok(());
            };
            let job = client.open::<Turn>(chain).within(&mut tx).await?;
            if let Way::Walk(next) = after_turn(&job) {
                drop(job.continue_with(next).await?);
            }
        }
        3 => {
            let Some(chain) = pick::<Merge>(world) else {
                return Ok(());
            };
            let job = client.open::<Merge>(chain).within(&mut tx).await?;
            job.finish(OUTSIDE).await?;
        }
        4 => {
            let Some(chain) = pick::<Transfer>(world) else {
                return Ok(());
            };
            let job = client.open::<Transfer>(chain).within(&mut tx).await?;
            job.finish(i64::try_from(OUTSIDE).unwrap_or(0)).await?;
        }
        _ => {
            let Some(chain) = pick::<Approval>(world) else {
                return Ok(());
            };
            let job = client.open::<Approval>(chain).within(&mut tx).await?;
            job.finish(true).await?;
        }
    }
    world.linger().await;
    tx.commit().await?;
    world.count("completion from outside");
    Ok(())
}

enum Change {
    Cancel,
    Retry,
    Delete,
    Trigger,
}

async fn on_chain(client: &SimulatedClient, world: &World, change: Change) -> Result<(), Error> {
    let (chain, job, coin) = {
        let state = &mut *world.lock();
        let Some(chain) = state.model.pick(&mut state.rng, None) else {
            return Ok(());
        };
        (chain, state.model.latest_job(chain), state.rng.bool())
    };
    match (change, coin) {
        (Change::Cancel, true) => client.cancel(chain).await.map(drop),
        (Change::Cancel, false) => {
            let mut tx = client.begin().await?;
            client.cancel(chain).within(&mut tx).await?;
            world.linger().await;
            tx.commit().await
        }
        (Change::Retry, true) => client.retry(chain).await.map(drop),
        (Change::Retry, false) => {
            let mut tx = client.begin().await?;
            client.retry(chain).within(&mut tx).await?;
            world.linger().await;
            tx.commit().await
        }
        (Change::Delete, true) => client.delete(chain).await.map(drop),
        (Change::Delete, false) => client.delete(chain).cascade().await.map(drop),
        (Change::Trigger, _) => match job {
            Some(job) => client.trigger(job).await.map(drop),
            None => Ok(()),
        },
    }
}

/// Waits for a chain, and believes only the output that was committed.
async fn wait(client: &SimulatedClient, world: &World) -> Result<(), Error> {
    let Some(chain) = pick::<Walk>(world) else {
        return Ok(());
    };
    let timeout = Duration::from_millis(world.draw(|rng| rng.u64(..5_000)));
    let output = client.wait(chain).timeout(timeout).await?;
    world.check(|state, _| {
        let committed = state.model.finished_with(chain.id());
        ensure!(
            committed == Some(output),
            Transactional,
            "waiting for {} gave {output}, committed is {committed:?}",
            chain.id()
        );
        Ok(())
    });
    Ok(())
}
