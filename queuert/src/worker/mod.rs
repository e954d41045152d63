//! Runs jobs: claims them for idle workers, keeps their leases, commits what they did, and never dies.
//!
//! One set of workers is a handful of loops over one [`Runtime`]: the claimer asks for as many jobs as there are idle
//! workers and spawns an attempt for each; the settler group-commits their ends; the renewer keeps all leases in one
//! call; the reaper takes back what others lost; the maintainer offers the store time for its upkeep; the listeners turn
//! notices into wake-ups. No transaction is held across user code unless the user opened it.

mod attempt;
mod attempt_transaction;
mod builder;
mod claimer;
mod completion;
mod drain;
mod hand_over;
mod handle;
mod health;
mod listener;
mod maintainer;
mod middleware;
mod pace;
mod processor;
mod reaper;
mod renewer;
mod run;
mod runtime;
mod settler;
mod signal;
mod slots;
mod values;

pub use attempt::{Attempt, RawAttempt};
pub use attempt_transaction::AttemptTransaction;
pub use builder::{TypeSettings, WorkerBuilder};
pub use completion::{Completion, CompletionKind, JobResult};
pub use drain::{Drained, DrainedAttempt};
pub use handle::Workers;
pub use health::Health;
pub use middleware::{AttemptContext, Middleware, Next};
pub use processor::Processor;
pub use signal::{AbortReason, AbortSignal};
