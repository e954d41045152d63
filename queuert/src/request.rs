//! The requests of a [`Client`](crate::Client): values that are awaited, or run inside a transaction.
//!
//! You rarely name these types: `client.start(..)`, `client.list_chains()` and similar calls return them.

pub use crate::client::{
    Cancel, CancelMany, Delete, Follow, GetBlockers, GetChain, GetChainRecord, GetJob, GetJobRecord, ListBlockedJobs,
    ListChainJobs, ListChains, ListJobs, ListPauses, Open, Operation, PauseType, Request, ResumeType, RetryChain,
    RetryMany, StartEach, StartMany, StartOne, StepTuple, Trigger, TriggerMany, Wait,
};
