//! Bugs that can be switched on in the repository's own debug builds, so that the simulation can show that it finds them.

use std::collections::BTreeSet;

use super::store::Row;
use crate::adapter::rules::JobHead;
use crate::id::{ChainId, Fence};

/// Whether the switches were compiled in: only in debug builds inside the repository, whose `.cargo/config.toml` sets this
/// variable for the compiler. In the users' builds a switch does nothing.
const BUILT: bool = cfg!(debug_assertions) && option_env!("QUEUERT_SABOTAGE_BUILD").is_some();

/// A bug to switch on.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Any attempt may write as long as the job runs, under whatever fence: the zombie of a lost lease settles the job
    /// of its successor.
    NoFencing,
    /// Whether the other blockers of a dependant have completed is decided before the dependant is locked: two
    /// overlapping completions both miss each other, and nobody unblocks it.
    UnblockRace,
}

/// Which bugs are on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saboteur {
    bug: Option<Sabotage>,
}

impl Saboteur {
    pub(super) fn switch_on(&mut self, bug: Sabotage) {
        self.bug = Some(bug);
    }

    pub(super) fn fencing(self) -> Fencing {
        if BUILT && self.bug == Some(Sabotage::NoFencing) {
            return Fencing { exact: false };
        }
        Fencing { exact: true }
    }

    pub(super) fn races_unblocking(self) -> bool {
        BUILT && self.bug == Some(Sabotage::UnblockRace)
    }
}

/// How fences are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fencing {
    exact: bool,
}

impl Fencing {
    /// What the rules are told of a job that a caller with this fence asks for.
    pub(super) fn head(self, row: &Row, caller: Fence) -> JobHead {
        let mut head = row.head();
        if !self.exact && head.fence.is_some() {
            head.fence = Some(caller);
        }
        head
    }
}

/// What a sabotaged settlement believes about other chains.
#[derive(Clone, Debug, Default)]
pub(super) struct StaleCompletions {
    /// The chains that had completed when it looked, and those that it has completed itself since.
    pub(super) completed: BTreeSet<ChainId>,
    /// The chains that it is about to complete.
    pub(super) finishing: BTreeSet<ChainId>,
}
