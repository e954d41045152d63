//! The processors: they follow the script of their input, then compute what the model expects.

use std::time::Duration;

use queuert::adapter::StateAdapter;
use queuert::{
    Attempt, AttemptContext, ChainId, ChainRef, Deduplication, Error, JobError, JobResult, JobType, Middleware, Next,
    Step, Transaction, WorkerBuilder,
};

use super::{account, acknowledged};
use crate::jobs::{
    Act, After, Approval, Gather, Heir, Knot, Leaf, Merge, Mode, Noose, Pair, Script, Tied, Transfer, Turn, Walk, Way,
    after_turn, after_walk, gather, leaf,
};
use crate::store::Simulated;
use crate::world::World;

type Job<J> = Attempt<J, Simulated>;
type Outcome = JobResult<Simulated>;

/// Adds a processor for every type.
pub(super) fn add(worker: WorkerBuilder<Simulated>, world: &World) -> WorkerBuilder<Simulated> {
    worker
        .process_with(world.clone(), run_leaf)
        .process_with(world.clone(), run_walk)
        .process_with(world.clone(), run_turn)
        .process_with(world.clone(), run_gather)
        .process_with(world.clone(), run_after)
        .process_with(world.clone(), run_pair)
        .process_with(world.clone(), run_merge)
        .process_with(world.clone(), run_transfer)
        .process_with(world.clone(), run_approval)
        .process_with(world.clone(), run_knot)
        .process_with(world.clone(), run_noose)
        .process_with(world.clone(), run_tied)
        .process_with(world.clone(), run_heir)
}

/// Whether to go on, or to come back later.
enum Go {
    On,
    Later(Duration),
}

/// Does what the script says.
async fn act<J: JobType>(job: &Job<J>, script: &Script, world: &World) -> Result<Go, JobError> {
    let doom = |name: &'static str| {
        let record = job.record();
        if let Some(lease) = &record.lease {
            world.lock().model.doom(record.id, lease.fence);
        }
        world.count(name);
    };
    match script.act(job.record().claims) {
        Act::Work => {}
        Act::Listen(millis) => {
            let signal = job.signal();
            tokio::select! {
                biased;
                reason = signal.aborted() => return Err(format!("stopped: {reason}").into()),
                () = tokio::time::sleep(Duration::from_millis(millis)) => {}
            }
        }
        Act::Ignore(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Act::Fail => {
            doom("processor fails");
            return Err("simulated failure".into());
        }
        Act::FailFor(millis) => {
            doom("processor chooses its retry");
            return Err(JobError::retry_after(
                Duration::from_millis(millis),
                "simulated failure",
            ));
        }
        Act::Fatal => {
            doom("processor fails for good");
            return Err(JobError::fatal("simulated fatal failure"));
        }
        Act::Panic => {
            doom("processor panics");
            // Does not call the panic hook, which would fill the output of the tests.
            std::panic::resume_unwind(Box::new("simulated panic"));
        }
        Act::Hang => {
            doom("processor times out");
            std::future::pending::<()>().await;
        }
        Act::Snooze(millis) => {
            world.count("processor snoozes");
            return Ok(Go::Later(Duration::from_millis(millis)));
        }
    }
    Ok(Go::On)
}

macro_rules! follow {
    ($job:ident, $world:ident) => {
        if let Go::Later(delay) = act(&$job, &$job.script, &$world).await? {
            return $job.snooze(delay);
        }
    };
}

async fn run_leaf(job: Job<Leaf>, world: World) -> Outcome {
    follow!(job, world);
    let output = leaf(job.value);
    job.finish(output)
}

async fn run_walk(job: Job<Walk>, world: World) -> Outcome {
    follow!(job, world);
    let way = after_walk(&job);
    if !job.transactional {
        return match way {
            Way::End(output) => job.finish(output),
            Way::Walk(next) => job.continue_with(next),
            Way::Turn(next) => job.continue_with(next),
            Way::Gather(_) => Err(JobError::fatal("a walk does not gather")),
        };
    }
    let mut tx = job.begin().await?;
    world.linger().await;
    visit(&mut tx, job.id()).await?;
    match way {
        Way::End(output) => tx.finish(output).await,
        Way::Walk(next) => tx.continue_with(next).await,
        Way::Turn(next) => tx.continue_with(next).await,
        Way::Gather(_) => Err(JobError::fatal("a walk does not gather")),
    }
}

/// Counts what a transactional attempt of a job has committed: once, or never.
async fn visit(
    connection: &mut <Simulated as StateAdapter>::Connection,
    job: queuert::JobId,
) -> Result<(), queuert::StateError> {
    let key = format!("visits:{job}");
    let visits: u32 = connection.get(&key).await?.unwrap_or(0);
    connection.put(&key, visits + 1).await
}

async fn run_turn(job: Job<Turn>, world: World) -> Outcome {
    follow!(job, world);
    let next = match after_turn(&job) {
        Way::Walk(next) => return job.continue_with(next),
        Way::Gather(next) => next,
        _ => return Err(JobError::fatal("a turn does not end")),
    };
    match job.mode {
        Mode::Plain => {
            let started = job.client().start_many(children(&job)).await?;
            started.iter().for_each(|chain| acknowledged(&world, chain.id()));
            let blockers: Vec<ChainRef<Leaf>> = started.iter().map(|chain| chain.chain()).collect();
            job.continue_with(next.blocked_by(blockers))
        }
        Mode::Within => {
            let mut tx = job.begin().await?;
            let started = job.client().start_many(children(&job)).within(&mut tx).await?;
            world.linger().await;
            visit(&mut tx, job.id()).await?;
            let blockers: Vec<ChainRef<Leaf>> = started.iter().map(|chain| chain.chain()).collect();
            tx.continue_with(next.blocked_by(blockers)).await
        }
        Mode::Prepared => {
            let key = format!("children:{}", job.id());
            let blockers = job
                .prepare(async |tx: &mut Transaction<Simulated>| {
                    if let Some(ids) = tx.get::<Vec<String>>(&key).await? {
                        return Ok::<_, Error>(ids.iter().filter_map(|id| id.parse().ok()).collect());
                    }
                    let started = job.client().start_many(children(&job)).within(tx).await?;
                    let ids: Vec<ChainId> = started.iter().map(|chain| chain.id()).collect();
                    let text: Vec<String> = ids.iter().map(ToString::to_string).collect();
                    tx.put(&key, text).await?;
                    Ok(ids)
                })
                .await?;
            blockers.iter().for_each(|chain| acknowledged(&world, *chain));
            world.linger().await;
            let blockers: Vec<ChainRef<Leaf>> = blockers.into_iter().map(ChainRef::new).collect();
            job.continue_with(next.blocked_by(blockers))
        }
    }
}

/// The chains that a turn starts; with a key, other turns share them.
fn children(job: &Job<Turn>) -> Vec<Step<Leaf>> {
    let child = |number: u8| {
        let step = Step::new(Leaf {
            value: u64::from(number),
            script: Script::default(),
        });
        match &job.key {
            Some(key) => step.deduplicate(Deduplication::while_open(format!("{key}-{}", number % 2))),
            None => step,
        }
    };
    (0..job.children).map(child).collect()
}

async fn run_gather(job: Job<Gather>, world: World) -> Outcome {
    follow!(job, world);
    let output = gather(job.acc, job.blockers());
    job.finish(output)
}

async fn sum<J>(job: Job<J>, world: World, transactional: bool, output: u64) -> Outcome
where
    J: JobType,
    u64: queuert::OutputOf<J>,
{
    if !transactional {
        return job.finish(output);
    }
    let mut tx = job.begin().await?;
    visit(&mut tx, job.id()).await?;
    world.linger().await;
    tx.finish(output).await
}

async fn run_after(job: Job<After>, world: World) -> Outcome {
    follow!(job, world);
    let output = gather(job.base, &[*job.blockers()]);
    let transactional = job.transactional;
    sum(job, world, transactional, output).await
}

async fn run_pair(job: Job<Pair>, world: World) -> Outcome {
    follow!(job, world);
    let (one, two) = *job.blockers();
    let output = gather(job.base, &[one, two]);
    let transactional = job.transactional;
    sum(job, world, transactional, output).await
}

async fn run_merge(job: Job<Merge>, world: World) -> Outcome {
    follow!(job, world);
    let output = gather(job.base, job.blockers());
    let transactional = job.transactional;
    sum(job, world, transactional, output).await
}

/// Why a savepoint is rolled back.
enum Undo {
    Wanted,
    Failed(Error),
}

impl From<Error> for Undo {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<queuert::StateError> for Undo {
    fn from(error: queuert::StateError) -> Self {
        Self::Failed(error.into())
    }
}

async fn run_transfer(job: Job<Transfer>, world: World) -> Outcome {
    follow!(job, world);
    let (from, to) = (account(job.from), account(job.to));
    let mut tx = job.begin().await?;
    if job.savepoint {
        let undone: Result<(), Undo> = tx
            .savepoint(async |tx: &mut Transaction<Simulated>| {
                let balance: i64 = tx.get(&from).await?.unwrap_or(0);
                tx.put(&from, balance + 1_000_000).await?;
                Err(Undo::Wanted)
            })
            .await;
        if let Err(Undo::Failed(error)) = undone {
            return Err(error.into());
        }
    }
    let balance: i64 = tx.get(&from).await?.unwrap_or(0);
    tx.put(&from, balance - job.amount).await?;
    world.linger().await;
    let balance: i64 = tx.get(&to).await?.unwrap_or(0);
    tx.put(&to, balance + job.amount).await?;
    visit(&mut tx, job.id()).await?;
    tx.finish(job.amount).await
}

async fn run_approval(job: Job<Approval>, world: World) -> Outcome {
    follow!(job, world);
    if job.record().claims <= u32::from(job.patience) {
        return job.snooze(Duration::from_millis(400));
    }
    job.finish(false)
}

async fn run_knot(job: Job<Knot>, world: World) -> Outcome {
    follow!(job, world);
    let own = ChainRef::<Knot>::new(job.chain_id());
    let noose = Noose {
        base: job.value,
        script: Script::default(),
    };
    let noose = job.client().start(noose.blocked_by(own)).await?;
    acknowledged(&world, noose.id());
    let tied = Tied {
        value: job.value,
        script: Script::default(),
    };
    job.continue_with(tied.blocked_by([noose.chain()]))
}

async fn run_noose(job: Job<Noose>, world: World) -> Outcome {
    follow!(job, world);
    let output = gather(job.base, &[*job.blockers()]);
    job.finish(output)
}

async fn run_tied(_: Job<Tied>, _: World) -> Outcome {
    Err(JobError::fatal("nobody can get here"))
}

async fn run_heir(job: Job<Heir>, world: World) -> Outcome {
    follow!(job, world);
    let generation = job.generation;
    if generation >= 3 {
        return job.finish(generation);
    }
    let own = ChainRef::<Heir>::new(job.chain_id());
    let mut tx = job.begin().await?;
    let next = Heir {
        generation: generation + 1,
        key: job.key.clone(),
        script: Script::default(),
    };
    let key = Deduplication::while_open(job.key.clone()).except(own);
    job.client().start(next).deduplicate(key).within(&mut tx).await?;
    world.linger().await;
    visit(&mut tx, job.id()).await?;
    tx.finish(generation).await
}

/// A middleware that sometimes spoils what the processor did.
#[derive(Debug)]
pub(super) struct Meddler(pub(super) World);

impl Middleware<Simulated> for Meddler {
    async fn attempt(&self, job: &mut AttemptContext<Simulated>, next: Next<'_, Simulated>) -> Outcome {
        let result = next.run(job).await;
        if self.0.chance("middleware fails", |weather| weather.meddle) {
            let record = job.job();
            if let Some(lease) = &record.lease {
                self.0.lock().model.doom(record.id, lease.fence);
            }
            if self.0.draw(|rng| rng.bool()) {
                std::panic::resume_unwind(Box::new("simulated panic of a middleware"));
            }
            return Err("the middleware does not like it".into());
        }
        result
    }
}
