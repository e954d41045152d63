//! Durable, typed job chains that live in your own database.

#[doc(hidden)]
pub mod __private;
pub mod adapter;
mod blockers;
mod chain;
mod deduplication;
mod error;
mod event;
mod graph;
mod id;
mod job;
mod job_type;
mod payload;
mod settings;
mod step;
mod time;
mod worker;

pub use blockers::{BlockerSpec, Blockers, Many, One};
pub use chain::{Chain, ChainHandle, ChainRecord, ChainRef, Started};
pub use deduplication::{Deduplication, DeduplicationScope};
pub use error::{BlockerReference, Error, JobError, NotifyError, StateError, StateErrorKind};
pub use event::{AttemptInfo, AttemptOutcome, Event, JobInfo};
pub use graph::{Graph, GraphBlockers, GraphType};
pub use id::{ChainId, Fence, JobId, WorkerId};
pub use job::{AttemptError, Job, JobRecord, JobStatus, Lease, TypeName};
pub use job_type::{
    AwaitedBy, BlockerOf, ContinuationOf, Entry, JobInput, JobOutput, JobType, JobTypes, OutputOf, Unblocked,
};
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
pub use settings::{JobDefaults, LeaseSettings, RetryPolicy};
pub use step::{IntoStep, Step};
pub use time::{Schedule, Timestamp};
pub use worker::{AbortReason, AbortSignal, Attempt, RawAttempt};
