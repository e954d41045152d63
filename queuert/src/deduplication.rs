//! One chain per key: starting a chain whose key is taken gives the chain that has it.

use std::time::Duration;

use crate::chain::ChainHandle;
use crate::id::ChainId;

/// Which existing chains of the same type and key a new one would repeat.
///
/// The store enforces it as a constraint: of any number of concurrent starters of one key, one starts the chain and
/// the others get that chain, flagged as deduplicated. It covers the chain until it ends, not just its first job.
///
/// ```
/// # use queuert::{Client, Deduplication, Error, memory::MemoryState};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
/// # #[derive(queuert::JobTypes)] enum Orders { #[job(entry, output = ())] Charge(Charge) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::new(MemoryState::new());
/// let first = client.start(Charge { order: 7 }).dedup("order-7").await?; // while one is open
/// let again = client.start(Charge { order: 7 }).dedup(Deduplication::forever("order-7")).await?;
/// assert!(again.deduplicated() && again.id() == first.id());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deduplication {
    /// The key; unique per entry job type.
    pub key: String,
    /// Which chains count.
    pub scope: DeduplicationScope,
    /// Only chains created within this time count.
    pub window: Option<Duration>,
    /// Chains that do not count, such as the one that starts its own successor.
    pub except: Vec<ChainId>,
}

/// Which chains with the key count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeduplicationScope {
    /// Those that are blocked, pending or running.
    Open,
    /// All, also those that have ended.
    Any,
}

impl Deduplication {
    /// The longest key that is accepted, in bytes.
    pub const MAX_KEY_LENGTH: usize = 1_000;

    /// A chain with this key counts while it is open.
    pub fn while_open(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            scope: DeduplicationScope::Open,
            window: None,
            except: Vec::new(),
        }
    }

    /// Any chain with this key counts, also one that has ended.
    pub fn forever(key: impl Into<String>) -> Self {
        Self {
            scope: DeduplicationScope::Any,
            ..Self::while_open(key)
        }
    }

    /// Any chain with this key that was created within the window counts, also one that has ended.
    pub fn within(key: impl Into<String>, window: Duration) -> Self {
        Self {
            window: Some(window),
            ..Self::forever(key)
        }
    }

    /// Only chains created within this time count. Default: no limit.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Leaves a chain out, such as the one whose job starts its own successor.
    #[must_use]
    pub fn except(mut self, chain: impl ChainHandle) -> Self {
        self.except.push(chain.chain_ref().id());
        self
    }

    /// Leaves chains out by id.
    #[must_use]
    pub fn except_ids(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.except.extend(chains);
        self
    }
}

impl From<&str> for Deduplication {
    fn from(key: &str) -> Self {
        Self::while_open(key)
    }
}

impl From<String> for Deduplication {
    fn from(key: String) -> Self {
        Self::while_open(key)
    }
}
