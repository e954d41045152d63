//! Fills the statement that claims jobs.

use queuert::adapter::ClaimJobs;

use super::settle::LOCK_WAIT;
use super::{Filling, fill};

/// What a claim does about a job that another transaction has locked, most of the time because it claims the job too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockedRows {
    /// The claim skips the job. Each row is locked before it is deleted, which costs as much as deleting it.
    Skip,
    /// The claim waits for the job, for no longer than [`LOCK_WAIT`], by when another claim is over: then the statement
    /// fails. A job that the other transaction has taken meanwhile is missing. A transaction that keeps a job locked for
    /// longer costs one claim in many that much, see [`Contention`](crate::contention::Contention).
    Wait,
}

/// Whether a claim looks at how many bytes the inputs of its jobs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weighing {
    /// The size does not matter.
    None,
    /// Jobs for which there are no bytes left ($10), beyond the first ($9), are put back as they were, by the same statement.
    Bytes,
}

impl Weighing {
    pub(crate) fn of(claim: &ClaimJobs) -> Self {
        if claim.admits_all() { Self::None } else { Self::Bytes }
    }
}

/// What the text of a claim depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    types: usize,
    reach: usize,
    locked_rows: LockedRows,
    weighing: Weighing,
}

/// From how many jobs on a claim does not lock each row first. Below that a lock for each costs little, and workers that
/// want a few jobs are many that want the same ones.
pub(crate) const LARGE: usize = 100;

/// Up to how many types a claim has a branch for each. The server plans every branch, on every connection, and gives up on a
/// few thousand of them; a lazy merge of fewer reads less.
const MOST_BRANCHES: usize = 64;

const TEMPLATE: &str = include_str!("claim/claim.sql");
const BRANCH: &str = include_str!("claim/branch.sql");

/// How many entries of the index a claim that takes so many jobs has to read, of those that the statement counts.
pub(crate) fn needed_entries(types: usize, taken: usize) -> usize {
    match types {
        ..=MOST_BRANCHES => taken + types,
        // The statement itself leaves out the jobs that it has looked at.
        _ => 0,
    }
}

impl Claim {
    /// A claim of so many types that looks at so many rows.
    pub(crate) fn new(types: usize, reach: usize, locked_rows: LockedRows, weighing: Weighing) -> Self {
        Self {
            // Beyond the branches the text is the same for any number.
            types: types.min(MOST_BRANCHES + 1),
            reach,
            locked_rows,
            weighing,
        }
    }

    pub(crate) fn text(self) -> String {
        let reach = self.reach;
        let few = reach.isqrt().max(1);
        let filling = Filling::none()
            .when("waits", self.locked_rows == LockedRows::Wait)
            .when("weighs", self.weighing == Weighing::Bytes)
            .when("few_types", self.types <= MOST_BRANCHES)
            .with("lock_timeout", format_args!("{}ms", LOCK_WAIT.as_millis()))
            .with("type_place", self.type_place())
            .with("reach", reach)
            .with("few", few)
            .with("before_last", reach.saturating_sub(1))
            .with("rest", reach - few)
            .with("branches", self.branches());
        fill(TEMPLATE, &filling)
    }

    /// The place of the type of a claimed job among the types of the claim.
    fn type_place(self) -> &'static str {
        match self.types {
            1 => "1",
            ..=MOST_BRANCHES => "array_position($1::integer[], claimed.queue_type_id)",
            _ => "width_bucket(claimed.queue_type_id, $1::integer[])",
        }
    }

    fn branches(self) -> String {
        if self.types > MOST_BRANCHES {
            return String::new();
        }
        let branch = |place: usize| {
            // The first branch begins when the entries that were read before it have been counted.
            let scan_start = match place {
                1 => fill("{counted_scan_start}", &Filling::none()),
                _ => "$7::bigint".to_owned(),
            };
            let filling = Filling::none().with("place", place).with("scan_start", scan_start);
            fill(BRANCH, &filling.with("reach", self.reach))
        };
        let branches: Vec<String> = (1..=self.types).map(branch).collect();
        branches.join("\nUNION ALL\n")
    }
}
