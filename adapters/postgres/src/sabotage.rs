//! Bugs that can be switched on in the repository's own debug builds, so that the torture can show that it finds them: with
//! the environment variable `QUEUERT_SABOTAGE` and the name of one.

/// Whether the switches were compiled in: only in debug builds inside the repository, whose `.cargo/config.toml` sets this
/// variable for the compiler. The users' builds never read the environment.
const BUILT: bool = cfg!(debug_assertions) && option_env!("QUEUERT_SABOTAGE_BUILD").is_some();

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
    /// A new type gets the next number, and nobody checks that the database still has the types that a process knows.
    Types,
}

impl Bug {
    pub(crate) fn is_on(self) -> bool {
        if !BUILT {
            return false;
        }
        static ON: std::sync::LazyLock<Option<String>> =
            std::sync::LazyLock::new(|| std::env::var("QUEUERT_SABOTAGE").ok());
        let name = match self {
            Self::Fencing => "fencing",
            Self::Unblocking => "unblocking",
            Self::Listener => "listener",
            Self::Deduplication => "deduplication",
            Self::Types => "types",
        };
        ON.as_deref() == Some(name)
    }
}
