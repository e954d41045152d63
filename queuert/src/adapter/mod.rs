//! The three seams. An adapter implements one of them; the core knows nothing else about databases, brokers or
//! telemetry.
//!
//! - [`StateAdapter`] keeps jobs and chains: the only one that the system cannot do without, and the only type
//!   parameter that users carry.
//! - [`NotifyAdapter`] carries hints between processes. Losing all of them costs latency, never work.
//! - [`ObservabilityAdapter`] is told what happened.
//!
//! The crate `queuert-conformance` runs the contract of the first two against any adapter, one named test per rule.

mod backoff;
mod forward;
mod general;
mod notify;
mod observability;
mod records;
pub mod rules;
mod state;
mod subscribers;

pub use backoff::Backoff;
pub use general::General;
pub use notify::{Demand, Notice, NoticeSender, NotifyAdapter, Subscription, Topic, Wake};
pub use observability::{
    AttemptSpan, AttemptStart, Commit, CommitSpan, Continued, Creation, Delivery, ObservabilityAdapter,
    OutsideCompletion,
};
pub use records::{Find, LockKey, Records, StoredJob};
pub use rules::reap::{ReapCause, ReapLeases, ReapType, ReapedJob, TakenBack};
pub use state::{
    AGEING_STEP, Applied, Authority, BlockerOutputs, ChainQuery, ClaimJobs, ClaimType, Claimed, ClaimedJob,
    CreatedChain, DeleteChains, ExpiredChain, HandOver, JobQuery, JobSort, Maintain, Maintained, NewChain, NewJob,
    Order, Outcome, Pauses, Position, QueueSample, Refusal, RenewLease, Renewal, Repeated, SampleQueues, Settled,
    Settlement, StateAdapter, StoppedChain, UnblockedJob, rank,
};
pub use subscribers::{Subscriber, Subscribers};

use std::future::Future;
use std::pin::Pin;

/// A boxed future, as the object-safe seams return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
