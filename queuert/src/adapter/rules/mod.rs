//! The decisions that every store makes alike, as pure functions: a store finds the facts, a function of this module
//! decides, and the store writes the decision.
//!
//! | question | answered by |
//! |---|---|
//! | does the job run under this fence, and why not | [`held`], [`lost`] |
//! | may this settlement be applied | [`authorise`], [`interrupts`] |
//! | what does it change on the job | [`settle`] |
//! | is the next job claimed by the worker that creates it | [`hand_over`], [`claim`] |
//! | may the next job be created | [`check_new_job`], [`check_circle`], [`closing_blocker`], [`waits_for_blockers`] |
//! | is a new or a retried job blocked | [`waiting_status`] |
//! | is a dependant unblocked by the end of a chain | [`unblock`] |
//! | which chains of a call are created, and which repeat another | [`plan_starts`], [`counts`] |
//! | what do trigger, cancel and retry change, and when are they refused | [`trigger`], [`cancel`], [`retry`] |
//! | what does pausing a job type write | [`pause`](pause()) |
//! | which jobs and chains are on a page | [`JobFilter`], [`ChainFilter`], [`chain_record`] |
//! | does a job keep its blocker from being deleted | [`keeps_blocker`] |
//! | what becomes of a job whose lease is taken back | [`ReapLeases::take_back`](super::ReapLeases::take_back) |
//!
//! No function of this module reads a clock, a store or a random number. The order of checks is part of the contract: all
//! stores refuse a call for the same reason.

mod change;
mod create;
mod cycle;
mod operate;
mod pause;
mod query;
pub(super) mod reap;
mod settle;

pub use change::{Change, ErrorChange, JobHead, RankChange};
pub use create::{KeysOfCall, PlannedStart, StartPlan, check_new_job, counts, new_job, plan_starts, waiting_status};
pub use cycle::{check_circle, closing_blocker, waits_for_blockers};
pub use operate::{KeysOfRetry, cancel, keeps_blocker, retry, trigger};
pub use pause::pause;
pub use query::{ChainFilter, JobFilter, chain_record};
pub use settle::{authorise, claim, hand_over, held, interrupts, lost, settle, unblock};

#[cfg(test)]
mod tests {
    //! What the tables of the rules are made of.

    use uuid::Uuid;

    use super::JobHead;
    use crate::adapter::{Authority, NewJob, Outcome, Settlement};
    use crate::id::{Fence, JobId, WorkerId};
    use crate::job::JobStatus;
    use crate::payload::Payload;
    use crate::time::Timestamp;

    pub(super) const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    pub(super) const FENCE: Fence = Fence::from_uuid(Uuid::from_u128(1));
    pub(super) const OTHER: Fence = Fence::from_uuid(Uuid::from_u128(2));

    pub(super) fn worker() -> WorkerId {
        WorkerId::new("worker")
    }

    /// A job in its second attempt, under [`FENCE`] if it runs.
    pub(super) fn head(status: JobStatus) -> JobHead {
        JobHead {
            status,
            fence: (status == JobStatus::Running).then_some(FENCE),
            settled_fence: None,
            attempt: 2,
            scheduled_at: Timestamp::from_micros(500),
        }
    }

    pub(super) fn new_job(id: u128) -> NewJob {
        NewJob::new(JobId::from_uuid(Uuid::from_u128(id)), "mail", Payload::from_text("1"))
    }

    pub(super) fn settlement(authority: Authority, outcome: Outcome) -> Settlement {
        Settlement {
            job: JobId::from_uuid(Uuid::from_u128(1)),
            authority,
            outcome,
        }
    }
}
