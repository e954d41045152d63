//! Durable, typed job chains that live in your own database.

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
pub mod memory;
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
    BlockerOf, ContinuationOf, Entry, JobInput, JobOutput, JobType, JobTypes, OutputOf, Unblocked, WaitsFor,
};
pub use payload::{Payload, PayloadError};
#[cfg(feature = "derive")]
pub use queuert_derive::JobTypes;
pub use settings::{JobDefaults, LeaseSettings, RetryPolicy};
pub use step::{IntoStep, Step};
pub use time::{Schedule, Timestamp};
pub use worker::{AbortReason, AbortSignal, Attempt, RawAttempt};
