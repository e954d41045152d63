//! Bugs that can be switched on in debug builds, so that the torture can show that it finds them: with the environment
//! variable `QUEUERT_SABOTAGE` and the name of one. A release build has no such switches.

/// A bug to switch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Any attempt may write as long as the job runs, under whatever fence.
    Fencing,
    /// Whether anybody waits for a chain is decided by the statement that ends it: it does not see a dependant that was
    /// committed after it began, and nobody unblocks that one.
    Unblocking,
    /// A listener that has lost its connection listens again, and tells nobody to look for what was missed.
    Listener,
    /// A key is looked up, and nothing keeps two starters from not finding it at the same time.
    Deduplication,
}

impl Bug {
    #[cfg(debug_assertions)]
    pub(crate) fn is_on(self) -> bool {
        static ON: std::sync::LazyLock<Option<String>> =
            std::sync::LazyLock::new(|| std::env::var("QUEUERT_SABOTAGE").ok());
        let name = match self {
            Self::Fencing => "fencing",
            Self::Unblocking => "unblocking",
            Self::Listener => "listener",
            Self::Deduplication => "deduplication",
        };
        ON.as_deref() == Some(name)
    }

    /// Never.
    #[cfg(not(debug_assertions))]
    pub(crate) const fn is_on(self) -> bool {
        false
    }
}
