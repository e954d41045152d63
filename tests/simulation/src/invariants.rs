//! What must hold, by name, so that a test can say which rule a bug breaks.

use std::fmt;

/// A rule of the design, section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// 1: what was committed is there, what was rolled back is not, and the parts of a transaction stay together.
    Transactional,
    /// 2: nothing is announced or emitted that is not committed.
    Announcement,
    /// 3: what runs has a lease, and only what waits, is due and is unblocked can be claimed.
    Claim,
    /// 4: only the current fence writes.
    Fence,
    /// 5: at most one job per place in a chain, and one end.
    Successor,
    /// 6: unblocked once and only once, by the end of the last blocker.
    FanIn,
    /// 7: one chain per key.
    Deduplication,
    /// 8: every failed attempt is counted, stored with an error, and backed off from.
    Failure,
    /// 10: only expired leases are reaped.
    Reap,
    /// Outputs and continuations are what the processors computed from what they were given.
    Output,
    /// Money moved by processors and callers is neither made nor lost.
    Money,
    /// Whatever can end has ended after the storm, and workers live until they are stopped.
    Liveness,
    /// 14: stop is prompt.
    Stop,
    /// Locks go with their transactions.
    Lock,
    /// The store holds exactly what the model says was committed.
    Store,
    /// Nothing spins.
    HotLoop,
}

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// What was seen.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.message)
    }
}

/// The outcome of a check.
pub type Checked<T = ()> = Result<T, Violation>;

/// A violation with a formatted message.
macro_rules! broken {
    ($invariant:ident, $($message:tt)+) => {
        Err($crate::invariants::Violation {
            invariant: $crate::invariants::Invariant::$invariant,
            message: format!($($message)+),
        })
    };
}

/// Checks a condition.
macro_rules! ensure {
    ($condition:expr, $invariant:ident, $($message:tt)+) => {
        if !$condition {
            return $crate::invariants::broken!($invariant, $($message)+);
        }
    };
}

pub(crate) use {broken, ensure};
