//! The workload: every shape of a chain, and every way in which an attempt can end.

use std::time::Duration;

use queuert::{Error, JobId, JobType, JobTypes};
use queuert_sqlite::{Attempt, JobResult};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

use crate::tables;

macro_rules! inputs {
    ($($name:ident),+) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) n: u64,
        }
    )+};
}

inputs!(
    Single, First, Middle, Last, Fork, Left, Right, Gather, Spread, Collect, Keyed, Staged
);

#[derive(JobTypes)]
pub(crate) enum Jobs {
    #[job(entry, output = u64)]
    Single(Single),
    #[job(entry, continues = [Middle])]
    First(First),
    #[job(continues = [Last])]
    Middle(Middle),
    #[job(output = u64)]
    Last(Last),
    #[job(entry, continues = [Left, Right])]
    Fork(Fork),
    #[job(output = u64)]
    Left(Left),
    #[job(output = u64)]
    Right(Right),
    /// Waits for chains that were started in the same transaction.
    #[job(entry, output = u64, blockers = [Single])]
    Gather(Gather),
    /// Starts chains in the transaction in which it completes, and continues with a job that waits for them.
    #[job(entry, continues = [Collect])]
    Spread(Spread),
    #[job(output = u64, blockers = [Single])]
    Collect(Collect),
    #[job(entry, output = u64)]
    Keyed(Keyed),
    /// Long enough for its lease to be renewed, or to be lost while its process is frozen.
    #[job(entry, output = u64)]
    Staged(Staged),
}

/// What every input carries.
#[derive(Debug, Deserialize)]
pub(crate) struct Number {
    pub(crate) n: u64,
}

/// A mistake that is made on purpose, to see that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    None,
    /// Effects are committed by themselves, some time before their job completes.
    EffectOutside,
}

/// How many chains a `Spread` starts.
pub(crate) fn parts(n: u64) -> u64 {
    1 + n % 3
}

/// What a chain that starts with `n` ends with, unless it adds up others.
pub(crate) fn result(n: u64) -> u64 {
    n * 2 + 1
}

/// Whether the first attempt fails, so that retries are part of everything.
fn fails_first(n: u64) -> bool {
    n % 7 == 3
}

async fn short_work() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..15))).await;
}

pub(crate) async fn run(job: JobsAttempt<queuert_sqlite::SqliteState>) -> JobResult {
    match job {
        JobsAttempt::Single(job) => {
            short_work().await;
            if fails_first(job.n) && job.number() == 1 {
                return Err("planned".into());
            }
            // Snoozing spends no attempt, so the number of claims tells the first time.
            if job.n % 11 == 5 && job.record().claims == 1 {
                return job.snooze(Duration::from_millis(30));
            }
            let output = result(job.n);
            job.finish(output)
        }
        JobsAttempt::First(job) => {
            let n = job.n;
            job.continue_with(Middle { n })
        }
        JobsAttempt::Middle(job) => {
            short_work().await;
            let n = job.n;
            job.continue_with(Last { n })
        }
        JobsAttempt::Last(job) => finish_with_effect(job, |last| last.n).await,
        JobsAttempt::Fork(job) => {
            short_work().await;
            let n = job.n;
            let mut tx = job.begin().await?;
            tables::effect(&mut tx, job.id(), job.chain_id(), job.info(), n).await?;
            match n % 2 {
                0 => tx.continue_with(Left { n }).await,
                _ => tx.continue_with(Right { n }).await,
            }
        }
        JobsAttempt::Left(job) => finish_with_effect(job, |left| left.n).await,
        JobsAttempt::Right(job) => {
            let output = result(job.n);
            job.finish(output)
        }
        JobsAttempt::Gather(job) => {
            let sum = job.blockers().iter().sum();
            let mut tx = job.begin().await?;
            tables::effect(&mut tx, job.id(), job.chain_id(), job.info(), job.n).await?;
            tx.finish::<u64>(sum).await
        }
        JobsAttempt::Spread(job) => spread(job).await,
        JobsAttempt::Collect(job) => {
            let sum: u64 = job.blockers().iter().sum();
            job.finish(sum)
        }
        JobsAttempt::Keyed(job) => finish_with_effect(job, |keyed| keyed.n).await,
        JobsAttempt::Staged(job) => staged(job).await,
    }
}

/// The usual transactional processor. The first attempt of some fails after it has written, which must leave no trace.
async fn finish_with_effect<J>(job: Attempt<J>, n: fn(&J) -> u64) -> JobResult
where
    J: JobType,
    u64: queuert::OutputOf<J>,
{
    let n = n(&job);
    short_work().await;
    if *job.get::<Sabotage>()? == Sabotage::EffectOutside {
        let mut tx = job.client().begin().await?;
        tables::effect(&mut tx, job.id(), job.chain_id(), job.info(), n).await?;
        tx.commit().await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        return job.finish(result(n));
    }
    let mut tx = job.begin().await?;
    tables::effect(&mut tx, job.id(), job.chain_id(), job.info(), n).await?;
    if fails_first(n) && job.number() == 1 {
        return Err("planned, after the write".into());
    }
    tx.finish(result(n)).await
}

async fn spread(job: Attempt<Spread>) -> JobResult {
    short_work().await;
    let n = job.n;
    let client = job.client().clone();
    let mut tx = job.begin().await?;
    tables::effect(&mut tx, job.id(), job.chain_id(), job.info(), n).await?;
    let steps = (0..parts(n)).map(|part| Single { n: n + part });
    let chains = client.start_many(steps).within(&mut tx).await?;
    for chain in &chains {
        tables::started(&mut tx, chain.id(), "single", "spread", false).await?;
    }
    tx.continue_with(Collect { n }.blocked_by(&chains)).await
}

/// Reserves in a transaction of its own, works for a while, then completes in another one.
async fn staged(job: Attempt<Staged>) -> JobResult {
    let id: JobId = job.id();
    job.prepare(async |tx| {
        let connection: &mut SqliteConnection = tx;
        tables::reserve(connection, id).await.map_err(|error| {
            Error::State(queuert::StateError::new(
                queuert::StateErrorKind::Transient,
                error.to_string(),
            ))
        })
    })
    .await?;
    tokio::time::sleep(Duration::from_millis(fastrand::u64(200..1_200))).await;
    finish_with_effect(job, |staged| staged.n).await
}
