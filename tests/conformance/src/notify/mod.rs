//! The contract of [`NotifyAdapter`](queuert::adapter::NotifyAdapter), one case per rule.
//!
//! Notices are hints that may be lost; these cases assume that nothing is lost while everybody is well. `(N5)` and the
//! like name the case of the original that a case covers; `CASES.md` has the table.

mod ear;

pub mod chains;
pub mod hints;
pub mod jobs;
pub mod leases;
pub mod pauses;
pub mod resilience;
