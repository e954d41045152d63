//! The job types of the workload, and what their chains must come to.

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

macro_rules! inputs {
    ($($name:ident),+) => {$(
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name {
            pub(crate) n: u64,
        }
    )+};
}

inputs!(
    Single, Fork, Left, Right, Gather, Root, Spread, Collect, Keyed, Staged, Slow, Transfer, Approval, Contested,
    Doomed, Failing, Panicking, Hanging, Canary, Recent, Newer
);

/// A step of a long chain, which is a loop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Long {
    pub(crate) n: u64,
    /// Steps that follow.
    pub(crate) left: u64,
}

#[derive(JobTypes)]
pub(crate) enum Jobs {
    /// The first attempt of some fails, and some snooze.
    #[job(entry, output = u64)]
    Single(Single),
    #[job(entry, continues = [Long], output = u64)]
    Long(Long),
    #[job(entry, continues = [Left, Right])]
    Fork(Fork),
    #[job(output = u64)]
    Left(Left),
    #[job(output = u64)]
    Right(Right),
    #[job(entry, output = u64, blockers = [Single])]
    Gather(Gather),
    /// The top of a tree: waits for jobs that wait.
    #[job(entry, output = u64, blockers = [Gather])]
    Root(Root),
    /// Starts chains in the transaction in which it completes, and continues with a job that waits for them.
    #[job(entry, continues = [Collect])]
    Spread(Spread),
    #[job(output = u64, blockers = [Single])]
    Collect(Collect),
    #[job(entry, output = u64)]
    Keyed(Keyed),
    /// Long enough for its lease to be renewed, or to be lost while its process is frozen.
    #[job(entry, output = u64)]
    Staged(Staged),
    /// The same without a transaction.
    #[job(entry, output = u64)]
    Slow(Slow),
    /// Moves money between two accounts.
    #[job(entry, output = u64)]
    Transfer(Transfer),
    /// Only completed from outside.
    #[job(entry, output = u64)]
    Approval(Approval),
    /// Completed by a worker, or from outside while it runs.
    #[job(entry, output = u64)]
    Contested(Contested),
    /// Cancelled, retried or deleted, or completed before.
    #[job(entry, output = u64)]
    Doomed(Doomed),
    /// Never succeeds.
    #[job(entry, output = u64)]
    Failing(Failing),
    /// Panics at first.
    #[job(entry, output = u64)]
    Panicking(Panicking),
    /// Never ends by itself at first.
    #[job(entry, output = u64, timeout = "300ms")]
    Hanging(Hanging),
}

/// Run by a process of its own, which has nothing else to do: only a wake-up or its poll lets it look.
#[derive(JobTypes)]
pub(crate) enum Canaries {
    #[job(entry, output = u64)]
    Canary(Canary),
}

/// A type that is new when the server dies: a standby that lags behind has never heard of it. Run by processes of their own,
/// which were there before and are not told.
#[derive(JobTypes)]
pub(crate) enum RecentJobs {
    /// Odd ones take long enough for whoever runs them to be killed meanwhile.
    #[job(entry, output = u64)]
    Recent(Recent),
}

/// A type that nobody has heard of before the standby has taken over, and the process of the version that brings it.
#[derive(JobTypes)]
pub(crate) enum NewerJobs {
    #[job(entry, output = u64)]
    Newer(Newer),
}

/// What every input carries.
#[derive(Debug, Deserialize)]
pub(crate) struct Number {
    pub(crate) n: u64,
}

/// The types whose processors write to the user's tables when they complete.
pub(crate) const WITH_EFFECT: [&str; 8] = [
    "fork",
    "left",
    "gather",
    "spread",
    "keyed",
    "staged",
    "transfer",
    "contested",
];

/// The types that wait for other chains.
pub(crate) const WAITING: [&str; 3] = ["gather", "root", "collect"];

/// The types that only processes of their own run.
pub(crate) const BY_FEW: [&str; 3] = ["canary", "recent", "newer"];

/// How many chains a `Spread` starts.
pub(crate) fn parts(n: u64) -> u64 {
    1 + n % 3
}

/// How many jobs a long chain has after its first.
pub(crate) fn length(n: u64) -> u64 {
    n % 12
}

/// What a chain that starts with `n` ends with, unless it adds up others.
pub(crate) fn result(n: u64) -> u64 {
    n * 2 + 1
}

/// The same by the type of the job that ends it: a `Newer` that was run as something else is seen.
pub(crate) fn result_of(type_name: &str, n: u64) -> u64 {
    match type_name {
        "newer" => result(n) + 1_000_000,
        _ => result(n),
    }
}

/// What the output is if it was completed from outside.
pub(crate) fn from_outside(n: u64) -> u64 {
    n * 2 + 2
}

/// After how many attempts a `Failing` is dead.
pub(crate) const LIVES: u32 = 2;

/// The types of a chain, from its first to its last job.
pub(crate) fn path(entry: &str, n: u64) -> Vec<&str> {
    match entry {
        "long" => (0..=length(n)).map(|_| "long").collect(),
        "fork" if n.is_multiple_of(2) => vec!["fork", "left"],
        "fork" => vec!["fork", "right"],
        "spread" => vec!["spread", "collect"],
        single => vec![single],
    }
}
