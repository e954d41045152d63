//! The requests of a [`Client`](crate::Client): values that are awaited, or run inside a transaction.
//!
//! You rarely name these types: `client.start(..)`, `client.list_chains()` and similar calls return them.

pub use crate::client::{
    Call, CallRequest, Delete, Follow, ListBlockedJobs, ListChainJobs, ListChains, ListJobs, Open, Operation, Request,
    Start, StepTuple, Wait,
};
