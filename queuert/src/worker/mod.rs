//! Runs jobs: claims them for idle workers, keeps their leases, commits their ends, and survives failures of the store.
//!
//! # The way of a job
//!
//! ```text
//!                  claim_jobs                          settle_jobs (many ends)
//!   store ◄──────────────┐                        ┌──────────────► store
//!                        │                        │                  │ answers
//!   listener ─ wake ─► claimer                 settler ◄─────────────┘
//!                        │ ▲                      ▲ │
//!           claimed jobs │ │ demand         ends  │ │ next job of the chain, if the end has claimed it
//!                        ▼ │                      │ ▼
//!                     local queue ── job ──► worker of the pool ── executor ── end::begin ──┐
//!                        ▲                                            │                     │
//!                        └───────── next job ───── settler ◄──────────┼──── post ◄──────────┘
//!                                                                     ▼
//!                                                       middlewares and processor
//! ```
//!
//! 1. The **claimer** waits until the local queue wants jobs, claims them in one call, and queues them.
//! 2. The **local queue** holds claimed jobs until a worker takes one, and knows how many more to claim ([`prefetch`]).
//! 3. The **pool** has a task for each worker. A worker takes a job and runs the **executor**: middlewares, processor.
//! 4. [`end`] decides what the end of the processor means, without I/O. A completion in the processor's own transaction is
//!    committed by the worker; every other end is posted to the settler, and the worker takes its next job.
//! 5. The **settler** writes all ends that have arrived in one call. With each answer of the store it asks [`end`] for the next
//!    step: mostly the attempt is over, sometimes there is a second write, which is posted like the first. If the end has
//!    claimed the next job of its chain, the settler puts that job into the local queue.
//!
//! With `concurrency(1)`, and in [`drain`], the worker passes a `oneshot` with the end and waits for it, so that its jobs run
//! strictly one after the other.
//!
//! # Beside the way
//!
//! | service | does | wakes |
//! |---|---|---|
//! | renewer | renews the leases of all attempts in flight in one call | aborts attempts whose lease is lost |
//! | reaper | takes back jobs of other processes whose lease has expired or whose owner has died | other claimers, by notices |
//! | listener for jobs | subscribes to notices of new jobs | the claimer |
//! | listener for leases | subscribes to notices of lost leases | the renewer |
//! | maintenance | offers the store time for its upkeep | |
//! | queue depth | counts waiting jobs for the observability adapter | |
//!
//! The [`supervisor`] lists the services, and starts one again that panics. On a stop the claimer claims no more, waits for the
//! attempts in flight, aborts them when the grace period is over, and returns; then the supervisor ends the services.
//!
//! No transaction is held across user code unless the processor opened it, and no lock is held across an await.
//!
//! # Rooms
//!
//! Imports point one way, and `tests/documents/tests/worker_arrows.rs` enforces it:
//!
//! ```text
//! user ◄── context ◄── attempt ◄─┬─ dispatch ◄─┬─ supervisor ◄── workers ◄── builder
//!                                └─ upkeep   ◄─┘       drain  ◄──────────────┘
//! ```
//!
//! - [`user`]: the types that processors and middlewares touch.
//! - [`context`]: what all parts of the set share: settings, job types, signals. [`health`] and [`contained`] are below it, and
//!   know nothing of jobs.
//! - [`attempt`]: from a worker to the commit.
//! - [`dispatch`]: from a claim to a worker.
//! - [`upkeep`]: the services beside the way.
//!
//! [`prefetch`]: dispatch::prefetch
//! [`end`]: attempt::end

mod attempt;
mod builder;
mod contained;
mod context;
mod dispatch;
mod drain;
mod health;
mod supervisor;
mod upkeep;
mod user;
mod workers;

pub use builder::WorkerBuilder;
pub(crate) use contained::panic_message;
pub use drain::{Drained, DrainedAttempt};
pub use health::Health;
pub use user::abort::{AbortReason, AbortSignal};
pub(crate) use user::attempt::SHORTEST_SNOOZE;
pub use user::attempt::{Attempt, RawAttempt};
pub(crate) use user::completion::How;
pub use user::completion::{Completion, CompletionKind, JobResult};
#[cfg(feature = "tower")]
pub(crate) use user::middleware::OwnedNext;
pub use user::middleware::{AttemptContext, Middleware, Next};
pub use user::processor::Processor;
pub use user::transaction::AttemptTransaction;
pub use workers::Workers;
