//! The requests that a [`Client`](crate::Client) makes: values that are awaited, or run inside a transaction.
//!
//! You rarely name these types; they are what `client.start(..)`, `client.list_chains()` and the like return.

pub use crate::client::{
    Cancel, CancelMany, Delete, Follow, GetBlockers, GetChain, GetChainRecord, GetJob, GetJobRecord, ListBlockedJobs,
    ListChainJobs, ListChains, ListJobs, Open, Operation, Request, RetryChain, RetryMany, StartEach, StartMany,
    StartOne, StepTuple, Trigger, TriggerMany, Wait,
};
