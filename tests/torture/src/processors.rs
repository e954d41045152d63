//! What the workers do with the jobs: every way in which an attempt can end.

use std::time::Duration;

use queuert::{Attempt, JobError, JobResult, JobType, OutputOf};

use crate::jobs::{
    Canary, Collect, Fork, Gather, Hanging, JobsAttempt, Left, Long, Newer, Panicking, Recent, Right, Single, Slow,
    Spread, Staged, Transfer, length, parts, result, result_of,
};
use crate::log::Log;
use crate::store::Store;
use crate::store::tables::{self, Movement};
use crate::work::EffectsApart;

/// Whether the first attempt fails, so that retries are part of everything.
fn fails_first(n: u64) -> bool {
    n % 7 == 3
}

async fn short_work() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..15))).await;
}

/// About as long as a lease, so that whoever takes a job over still runs it when the process that had it thaws.
async fn long_work() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(200..1_500))).await;
}

/// Until somebody has seen that it runs, and killed its process.
const LONG_RECENT: Duration = Duration::from_secs(1);

/// The name of an attempt in the logs.
fn name<J: JobType, S: Store>(job: &Attempt<J, S>) -> String {
    let started = job.record().started_at.map_or(0, queuert::Timestamp::as_micros);
    format!("{} {started}", job.id())
}

/// Notes that the attempt was run, before it can have done anything, and what it came to, before anybody else knows.
async fn noted<J, S, F>(job: Attempt<J, S>, work: impl FnOnce(Attempt<J, S>) -> F + Send) -> JobResult<S>
where
    J: JobType,
    S: Store,
    F: Future<Output = JobResult<S>> + Send,
{
    let log = job.get::<Log>()?.clone();
    let (attempt, number) = (name(&job), job.number());
    log.note(format!("begun {attempt} {}", job.record().claims))?;
    let result = work(job).await;
    // An end that is refused later was a stale write; so is an error that says so.
    match &result {
        Ok(_) => log.note(format!("returned {attempt}"))?,
        Err(error) if error.to_string().contains("lost job") => log.note(format!("refused {attempt}"))?,
        // What it would write may be written by then, and its process be killed.
        Err(_) => log.note(format!("failing {attempt} {number}"))?,
    }
    result
}

pub(crate) async fn run<S: Store>(job: JobsAttempt<S>) -> JobResult<S> {
    match job {
        JobsAttempt::Single(job) => noted(job, single).await,
        JobsAttempt::Long(job) => noted(job, long).await,
        JobsAttempt::Fork(job) => noted(job, fork).await,
        JobsAttempt::Left(job) => noted(job, |job| finish_with_effect(job, |left| left.n)).await,
        JobsAttempt::Right(job) => noted(job, |job| finish(job, |right| right.n)).await,
        JobsAttempt::Gather(job) => noted(job, gather).await,
        JobsAttempt::Root(job) => {
            let sum: u64 = job.blockers().iter().sum();
            noted(job, async move |job| job.finish(sum)).await
        }
        JobsAttempt::Spread(job) => noted(job, spread).await,
        JobsAttempt::Collect(job) => {
            let sum: u64 = job.blockers().iter().sum();
            noted(job, async move |job| job.finish(sum)).await
        }
        JobsAttempt::Keyed(job) => noted(job, |job| finish_with_effect(job, |keyed| keyed.n)).await,
        JobsAttempt::Staged(job) => noted(job, staged).await,
        JobsAttempt::Slow(job) => noted(job, slow).await,
        JobsAttempt::Transfer(job) => noted(job, transfer).await,
        JobsAttempt::Approval(job) => noted(job, |job| finish(job, |approval| approval.n)).await,
        JobsAttempt::Contested(job) => noted(job, |job| finish_with_effect(job, |contested| contested.n)).await,
        JobsAttempt::Doomed(job) => noted(job, |job| finish(job, |doomed| doomed.n)).await,
        JobsAttempt::Failing(job) => noted(job, async |_| Err("planned, every time".into())).await,
        JobsAttempt::Panicking(job) => noted(job, panicking).await,
        JobsAttempt::Hanging(job) => noted(job, hanging).await,
    }
}

pub(crate) async fn canary<S: Store>(job: Attempt<Canary, S>) -> JobResult<S> {
    noted(job, async |job| {
        let output = result(job.n);
        job.finish(output)
    })
    .await
}

pub(crate) async fn recent<S: Store>(job: Attempt<Recent, S>) -> JobResult<S> {
    noted(job, async |job| {
        if !job.n.is_multiple_of(2) {
            tokio::time::sleep(LONG_RECENT).await;
        }
        finish(job, |recent| recent.n).await
    })
    .await
}

pub(crate) async fn newer<S: Store>(job: Attempt<Newer, S>) -> JobResult<S> {
    noted(job, async |job| {
        let output = result_of(Newer::NAME, job.n);
        job.finish(output)
    })
    .await
}

async fn single<S: Store>(job: Attempt<Single, S>) -> JobResult<S> {
    short_work().await;
    if fails_first(job.n) && job.number() == 1 {
        return Err("planned".into());
    }
    // Snoozing spends no attempt, so the number of claims tells the first time.
    if job.n % 11 == 5 && job.record().claims == 1 {
        job.get::<Log>()?.note(format!("snoozing {}", name(&job)))?;
        return job.snooze(Duration::from_millis(30));
    }
    // Ends in a transaction wait for locks, ends of their own do not: others wait for both kinds.
    if job.n.is_multiple_of(2) {
        let output = result(job.n);
        let tx = job.begin().await?;
        return tx.finish(output).await;
    }
    finish(job, |single| single.n).await
}

async fn long<S: Store>(job: Attempt<Long, S>) -> JobResult<S> {
    let (n, left) = (job.n, job.left);
    match left {
        0 => finish(job, |long| long.n).await,
        _ => job.continue_with(Long { n, left: left - 1 }),
    }
}

async fn gather<S: Store>(job: Attempt<Gather, S>) -> JobResult<S> {
    let sum: u64 = job.blockers().iter().sum();
    let mut tx = job.begin().await?;
    tables::effect::<S>(&mut tx, job.info()).await?;
    tx.finish(sum).await
}

async fn slow<S: Store>(job: Attempt<Slow, S>) -> JobResult<S> {
    long_work().await;
    finish(job, |slow| slow.n).await
}

async fn panicking<S: Store>(job: Attempt<Panicking, S>) -> JobResult<S> {
    short_work().await;
    assert!(job.number() > 1, "planned");
    finish(job, |panicking| panicking.n).await
}

async fn hanging<S: Store>(job: Attempt<Hanging, S>) -> JobResult<S> {
    if job.number() == 1 {
        std::future::pending::<()>().await;
    }
    finish(job, |hanging| hanging.n).await
}

async fn fork<S: Store>(job: Attempt<Fork, S>) -> JobResult<S> {
    short_work().await;
    let n = job.n;
    let mut tx = job.begin().await?;
    tables::effect::<S>(&mut tx, job.info()).await?;
    match n % 2 {
        0 => tx.continue_with(Left { n }).await,
        _ => tx.continue_with(Right { n }).await,
    }
}

async fn finish<J: JobType, S: Store>(job: Attempt<J, S>, n: fn(&J) -> u64) -> JobResult<S>
where
    u64: OutputOf<J>,
{
    let output = result(n(&job));
    job.finish(output)
}

/// The usual transactional processor. The first attempt of some fails after it has written, which must leave no trace.
async fn finish_with_effect<J: JobType, S: Store>(job: Attempt<J, S>, n: fn(&J) -> u64) -> JobResult<S>
where
    u64: OutputOf<J>,
{
    let n = n(&job);
    short_work().await;
    if job.get::<EffectsApart>()?.0 {
        let mut tx = job.client().begin().await?;
        tables::effect::<S>(&mut tx, job.info()).await?;
        tx.commit().await?;
        long_work().await;
        return job.finish(result(n));
    }
    let mut tx = job.begin().await?;
    tables::effect::<S>(&mut tx, job.info()).await?;
    if fails_first(n) && job.number() == 1 {
        return Err("planned, after the write".into());
    }
    tx.finish(result(n)).await
}

async fn transfer<S: Store>(job: Attempt<Transfer, S>) -> JobResult<S> {
    let n = job.n;
    let mut tx = job.begin().await?;
    tables::effect::<S>(&mut tx, job.info()).await?;
    tables::transfer::<S>(&mut tx, Movement::of(n)).await?;
    if fails_first(n) && job.number() == 1 {
        return Err("planned, after the money was moved".into());
    }
    tx.finish(result(n)).await
}

async fn spread<S: Store>(job: Attempt<Spread, S>) -> JobResult<S> {
    short_work().await;
    let n = job.n;
    let client = job.client().clone();
    let mut tx = job.begin().await?;
    tables::effect::<S>(&mut tx, job.info()).await?;
    let steps = (0..parts(n)).map(|part| Single { n: n + part });
    let chains = client.start_many(steps).within(&mut tx).await?;
    for chain in &chains {
        tables::started::<S>(&mut tx, chain.id(), Single::NAME, "spread", false).await?;
    }
    tx.continue_with(Collect { n }.blocked_by(&chains)).await
}

/// Reserves in a transaction of its own, works for a while, then completes in another one.
async fn staged<S: Store>(job: Attempt<Staged, S>) -> JobResult<S> {
    let id = job.id();
    job.prepare(async |tx| {
        let done = tables::reserve::<S>(tx, id).await;
        done.map_err(|error| JobError::from(error.to_string()))
    })
    .await?;
    long_work().await;
    finish_with_effect(job, |staged| staged.n).await
}

/// The first step of a long chain.
pub(crate) fn long_chain(n: u64) -> Long {
    Long { n, left: length(n) }
}
