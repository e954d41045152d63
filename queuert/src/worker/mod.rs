//! Runs jobs: claims them for idle workers, keeps their leases, commits what they did, and never dies.
//!
//! One set of workers is a handful of loops over one [`Runtime`]: the claimer asks for as many jobs as there are idle
//! workers and lines them up; the crew are the workers, a task each, that run them one after the other; the settler
//! group-commits their ends, and does what is left to do for most of them; the renewer keeps all leases in one call; the reaper takes back what others lost; the maintainer offers the store time for its upkeep; the sampler looks
//! at how much waits; the listeners turn notices into wake-ups. No transaction is held across user code unless the user opened it.

mod attempt;
mod builder;
mod context;
mod dispatch;
mod drain;
mod health;
mod upkeep;
mod user;
mod workers;

pub use builder::{TypeSettings, WorkerBuilder};
pub(crate) use context::panic_message;
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
