//! Durable, typed job chains that live in your own database.
//!
//! ```
//! use queuert::memory::{Attempt, MemoryState};
//! use queuert::{Client, JobTypes};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Fetch { url: String }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Store { body: String }
//!
//! #[derive(JobTypes)]
//! enum Import {
//!     #[job(entry, continues = [Store])]
//!     Fetch(Fetch),
//!     #[job(output = usize)]
//!     Store(Store),
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), queuert::Error> {
//! let client = Client::new(MemoryState::new());
//! let workers = client
//!     .worker()
//!     .process(|job: Attempt<Fetch>| async move {
//!         job.continue_with(Store { body: format!("what {} says", job.url) })
//!     })
//!     .process(|job: Attempt<Store>| async move { job.finish(job.body.len()) })
//!     .start()
//!     .await?;
//!
//! let chain = client.start(Fetch { url: "it".into() }).await?;
//! assert_eq!(client.wait(&chain).await?, 12);
//! workers.stop().await;
//! # Ok(()) }
//! ```
//!
//! This crate has the types, the client, the workers and a store in memory, for tests. For durable jobs add the crate
//! of your database: `queuert-sqlite` or `queuert-postgres`. Each exports `Attempt`, `JobResult` and `Client` with its
//! store filled in, so that your signatures need no extra type parameter.
//!
//! # Concepts
//!
//! - A **job** is a unit of work of one **job type**, with typed input. A **chain** is the jobs that follow one another
//!   from an **entry**; its id is that of its first job. A job *finishes* its chain with a typed output or *continues*
//!   it with the next typed job. A job may wait for other chains, its **blockers**, and read their outputs. Derive
//!   [`JobTypes`] on an enum to declare all of that.
//! - The [`Client`] starts, reads, waits for and changes chains, inside the caller's own transaction wherever it
//!   writes.
//! - [Workers](WorkerBuilder) run jobs in this process. An [`Attempt`] has a **lease**. When it loses the lease, its
//!   [signal](AbortSignal) fires, and nothing that it writes can be committed.
//! - [Middlewares](Middleware) wrap attempts; [`middleware`] has ready-made ones.
//! - [Events](Event) report what happened. A `tracing` subscriber sees them as structured lines, and a span per
//!   attempt.
//! - Adapters implement three interfaces, in [`adapter`]: the store of jobs, the wake-ups between processes, and
//!   observability. [`memory`] has adapters that need no database.
//! - [`testing`] is for your own tests.
//!
//! # Both ends in one transaction
//!
//! The start of a chain and the completion of a job commit together with your own writes, or not at all.
//!
//! ```
//! use queuert::memory::{Attempt, JobResult, MemoryState};
//! use queuert::{Client, Error, JobTypes};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
//! # #[derive(JobTypes)] enum Orders { #[job(entry, output = u64)] Charge(Charge) }
//!
//! async fn charge(job: Attempt<Charge>) -> JobResult {
//!     // Slow work goes here: no transaction is open, the lease is renewed.
//!     let mut tx = job.begin().await?; // `?` means: the attempt failed, retry by policy
//!     tx.put("charged", job.order).await?; // with a database: your SQL on `&mut *tx`
//!     tx.finish(job.order).await // committed with the write, and only if the lease still holds
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let client = Client::new(MemoryState::new());
//! let mut tx = client.begin().await?;
//! tx.put("order:7", "placed").await?;
//! let chain = client.start(Charge { order: 7 }).within(&mut tx).await?;
//! tx.commit().await?; // now the chain exists, and workers are woken
//!
//! client.worker().process(charge).drain().await?;
//! assert_eq!(client.wait(&chain).await?, 7);
//! # Ok(()) }
//! ```
//!
//! [`Client::begin`] and [`Client::transaction`] open a transaction, [`Client::adopt`] takes one that another library
//! commits, [`Attempt::begin`] opens the transaction of a processor, and [`Attempt::prepare`] runs a short one before
//! slow work.
//!
//! # When something goes wrong
//!
//! An error through `?`, a panic, a timeout and a failed commit are failed attempts: stored, counted, and retried with
//! a backoff by the [`RetryPolicy`]. After the last attempt the job is dead, until [`Client::retry`]. A [`JobError`]
//! can choose otherwise; [`Attempt::snooze`] spends no attempt. The jobs of a process that dies run again when their
//! [leases](LeaseSettings) expire, or sooner where the store knows of the death. An attempt that lost its job gets
//! [`Error::LeaseLost`] and cannot commit. Workers survive outages of the store; [`Workers::health`] and [`Event`]s
//! report them.
//!
//! Effects outside the store happen at least once: use [`Attempt::id`] as idempotency key.
//!
//! # Reading an error
//!
//! Every [`Error`] says what to do, in `{}` and in `{:?}`. [`Error::State`] contains the store's own error, with a
//! [kind](StateErrorKind) that says whether to try again.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `derive` | yes | `#[derive(JobTypes)]` |
//! | `tower` | no | layers of tower around attempts: `middleware::TowerMiddleware` |
//!
//! The library runs on tokio.
//!
//! # Where next
//!
//! [`JobTypes`](macro@JobTypes) lists what can be declared, [`WorkerBuilder`] what can be configured, [`Step`] and
//! [`request::Request`] how a job is started, [`Deduplication`] how it is started once, [`testing`] how it is tested,
//! [`adapter`] what a store must do. The repository has a book, from getting started to internals.

#[doc(hidden)]
pub mod __private;
#[doc(hidden)]
pub mod __task;
pub mod adapter;
mod blockers;
mod chain;
mod client;
mod deduplication;
mod effects;
mod error;
mod error_text;
mod event;
mod event_hub;
mod event_log;
mod graph;
mod id;
mod job;
mod job_type;
mod log_limit;
pub mod memory;
pub mod middleware;
mod pagination;
mod payload;
pub mod request;
mod settings;
mod step;
pub mod testing;
mod time;
mod worker;

pub use blockers::{BlockerSpec, Blockers, Many, One};
pub use chain::{Chain, ChainHandle, ChainRecord, ChainRef, Started};
pub use client::{Client, ClientBuilder, ForeignTransaction, HeldEffects, OpenJob, Transaction, TransactionScope};
pub use deduplication::{Deduplication, DeduplicationScope};
pub use error::{BlockerReference, Error, JobError, NotifyError, StateError, StateErrorKind, TransactionFault};
pub use event::{AttemptInfo, AttemptOutcome, Event, JobInfo};
pub use event_hub::EventStream;
pub use graph::{Graph, GraphBlockers, GraphType};
pub use id::{ChainId, Fence, JobId, WorkerId};
pub use job::{AttemptError, Job, JobRecord, JobStatus, Lease, TypeName};
pub use job_type::{
    AwaitedBy, BlockerOf, ContinuationOf, Entry, JobInput, JobOutput, JobType, JobTypes, OutputOf, Unblocked,
};
pub use pagination::{Cursor, FollowedPage, Page};
pub use payload::{Payload, PayloadError};
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] struct Provision { user: u64 }
/// # #[derive(Serialize, Deserialize)] struct SendWelcome { user: u64 }
/// # #[derive(Serialize, Deserialize)] struct Report;
/// # #[derive(Serialize, Deserialize)] struct Sent;
/// #[derive(queuert::JobTypes)]
/// enum Onboarding {
///     #[job(entry, continues = [SendWelcome], retry(max_attempts = 5, initial = "10s"))]
///     Provision(Provision),
///     #[job(output = Sent, name = "welcome", timeout = "30s")]
///     SendWelcome(SendWelcome),
///     #[job(entry, blockers = [Provision], output = u32, priority = -5)]
///     Report(Report),
/// }
/// ```
#[cfg(feature = "derive")]
pub use queuert_derive::JobTypes;
pub use settings::{JobSettings, LeaseSettings, RetryPolicy};
pub use step::{IntoStep, Step};
pub use time::{Schedule, Timestamp};
pub use worker::{
    AbortReason, AbortSignal, Attempt, AttemptContext, AttemptTransaction, Completion, CompletionKind, Drained,
    DrainedAttempt, Health, JobResult, Middleware, Next, Processor, RawAttempt, WorkerBuilder, Workers,
};
