//! The work on an order: the job types, their processors, and the worker that runs them.
//!
//! ```text
//! take-paper ──► print ──┐ ──► ship ──► shipped
//!     │            ▲─────┘
//!     └──► out of paper
//! ```

use std::time::Duration;

use queuert::{Attempt, Client, JobResult, JobTypes, LeaseSettings, WorkerBuilder};
use serde::{Deserialize, Serialize};

use crate::store::Store;
use crate::trace::TraceAttempts;

/// Takes the paper for an order from the stock.
#[derive(Serialize, Deserialize)]
pub(crate) struct TakePaper {
    pub(crate) copies: i64,
}

/// Prints one copy.
#[derive(Serialize, Deserialize)]
pub(crate) struct Print {
    pub(crate) copy: i64,
    pub(crate) copies: i64,
}

/// Hands the parcel over.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ship;

/// How an order ends.
#[derive(Serialize, Deserialize)]
pub(crate) enum Outcome {
    Shipped { parcel: String },
    OutOfPaper,
}

#[derive(JobTypes)]
pub(crate) enum PrintShop {
    #[job(entry, continues = [Print], output = Outcome)]
    TakePaper(TakePaper),
    #[job(continues = [Print, Ship], timeout = "1m", retry(initial = "1s"))]
    Print(Print),
    #[job(output = Outcome)]
    Ship(Ship),
}

/// How long a copy takes. A value that the worker provides.
#[derive(Clone, Copy)]
pub(crate) struct PrintTime(pub(crate) Duration);

/// The worker of the shop, for any process that is to have one.
pub(crate) fn worker<S: Store>(
    client: &Client<S>,
    name: &str,
    print_time: PrintTime,
    lease: Duration,
) -> WorkerBuilder<S> {
    client
        .worker()
        .process(take_paper)
        .process(print)
        .process(ship)
        .provide(print_time)
        .middleware(TraceAttempts)
        .name(name)
        .lease(LeaseSettings::new(lease))
        .grace(Duration::from_secs(10))
}

/// Every order has the id of its chain, so no input needs to name it.
async fn take_paper<S: Store>(job: Attempt<TakePaper, S>) -> JobResult<S> {
    let copies = job.copies;
    let mut tx = job.begin().await?;
    match S::take_paper(&mut tx, copies).await? {
        true => tx.continue_with(Print { copy: 1, copies }).await,
        false => tx.finish(Outcome::OutOfPaper).await,
    }
}

/// One job per copy: a process that is killed costs one copy, not the whole order.
async fn print<S: Store>(job: Attempt<Print, S>) -> JobResult<S> {
    let PrintTime(print_time) = *job.get::<PrintTime>()?;
    tracing::info!(copy = job.copy, copies = job.copies, "prints");
    tokio::time::sleep(print_time).await; // stands for the printer; no transaction is open meanwhile

    let Print { copy, copies } = *job;
    let mut tx = job.begin().await?;
    S::count_copy(&mut tx, job.chain_id()).await?;
    match copy < copies {
        true => tx.continue_with(Print { copy: copy + 1, copies }).await,
        false => tx.continue_with(Ship).await,
    }
}

async fn ship<S: Store>(job: Attempt<Ship, S>) -> JobResult<S> {
    let id = job.chain_id().to_string();
    let parcel = format!("P-{}", &id[id.len() - 6..]);
    let mut tx = job.begin().await?;
    S::ship(&mut tx, job.chain_id(), &parcel).await?;
    tx.finish(Outcome::Shipped { parcel }).await
}
