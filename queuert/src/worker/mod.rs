//! Runs jobs: claims them for idle workers, keeps their leases, commits what they did, and never dies.
//!
//! One set of workers is a handful of loops over one [`Runtime`]: the claimer asks for as many jobs as there are idle
//! workers and lines them up; the crew are the workers, a task each, that run them one after the other; the settler
//! group-commits their ends, and does what is left to do for most of them; the renewer keeps all leases in one call; the reaper takes back what others lost; the maintainer offers the store time for its upkeep; the sampler looks
//! at how much waits; the listeners turn notices into wake-ups. No transaction is held across user code unless the user opened it.

mod advice;
mod attempt;
mod attempt_transaction;
mod behind;
mod builder;
mod claimer;
mod completion;
mod crew;
mod drain;
mod ending;
mod flights;
mod hand_over;
mod handle;
mod health;
mod line;
mod listener;
mod maintainer;
mod middleware;
mod pace;
mod processor;
mod reaper;
mod renewer;
mod run;
mod runtime;
mod sampler;
mod settler;
mod signal;
mod values;

pub(crate) use attempt::SHORTEST_SNOOZE;
pub use attempt::{Attempt, RawAttempt};
pub use attempt_transaction::AttemptTransaction;
pub use builder::{TypeSettings, WorkerBuilder};
pub(crate) use completion::How;
pub use completion::{Completion, CompletionKind, JobResult};
pub use drain::{Drained, DrainedAttempt};
pub use handle::Workers;
pub use health::Health;
#[cfg(feature = "tower")]
pub(crate) use middleware::OwnedNext;
pub use middleware::{AttemptContext, Middleware, Next};
pub use processor::Processor;
pub(crate) use runtime::panic_message;
pub use signal::{AbortReason, AbortSignal};
