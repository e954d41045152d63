//! The contract of [`StateAdapter`](queuert::adapter::StateAdapter), one case per rule, one module per operation.
//!
//! Each case takes a fixture and panics if its rule is broken. `(S12)` and the like name the case of the original
//! that it covers, `(H3)` the hole in the original that it keeps shut, `(I6)` the invariant of the design; `CASES.md`
//! has the table.

pub mod blockers;
pub mod cancel;
pub mod claim;
pub mod claim_bytes;
pub mod claim_order;
pub mod concurrency;
pub mod continuation;
pub mod create_chains;
pub mod cycles;
pub mod damaged;
pub mod deduplication;
pub mod delete;
pub mod fan_in;
pub mod fencing;
pub mod get;
pub mod give_back;
pub mod hand_over;
pub mod hold_lease;
pub mod isolation;
pub mod list_chains;
pub mod list_jobs;
pub mod lock_chain;
pub mod maintain;
pub mod many_types;
pub mod outside;
pub mod owners;
pub mod pages;
pub mod pauses;
pub mod reap;
pub mod renew;
pub mod repetition;
pub mod retry;
pub mod sample;
pub mod savepoints;
pub mod settle;
pub mod transactions;
pub mod trigger;
pub mod watermark;
