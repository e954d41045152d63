//! One chain per key: a start whose key is taken returns the existing chain.

use std::time::Duration;

use crate::chain::ChainHandle;
use crate::id::ChainId;
use crate::time::Timestamp;

/// Which existing chains of the same type and key make a start return the existing chain instead of starting one.
///
/// The store enforces it as a constraint: of any number of callers that start with one key at the same moment, one
/// starts the chain and the others get that chain, flagged as deduplicated. It covers the chain until it ends, not just
/// its first job: an open chain counts in every scope, however old it is. A scope decides only which *ended* chains
/// count as well.
///
/// The constraint holds at every isolation level of the caller's transaction. Where the transaction reads an older
/// snapshot of the store than the constraint needs (`REPEATABLE READ` and `SERIALIZABLE` on Postgres), the start fails
/// with a [`Conflict`](crate::StateErrorKind::Conflict): roll the transaction back and run it again.
///
/// ```
/// # use queuert::{Client, Deduplication, Error, memory::MemoryState};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { order: u64 }
/// # #[derive(queuert::JobTypes)] enum Orders { #[job(entry, output = ())] Charge(Charge) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::new(MemoryState::new());
/// let first = client.start(Charge { order: 7 }).deduplicate("order-7").await?; // while one is open
/// let again = client.start(Charge { order: 7 }).deduplicate(Deduplication::forever("order-7")).await?;
/// assert!(again.deduplicated() && again.id() == first.id());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deduplication {
    /// The key. Keys of different entry job types are independent.
    pub key: String,
    /// Which chains with the key count.
    pub scope: DeduplicationScope,
    /// Chains that do not count, such as the chain that starts its own successor. The new chain may be open beside
    /// these, and beside no others.
    pub except: Vec<ChainId>,
}

/// Which chains with the same key count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeduplicationScope {
    /// Chains that are blocked, pending or running.
    Open,
    /// Open chains, and ended chains that were created within this time.
    Within(Duration),
    /// All chains that are stored, open or ended.
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
            except: Vec::new(),
        }
    }

    /// Every stored chain with this key counts, also an ended one.
    pub fn forever(key: impl Into<String>) -> Self {
        Self {
            scope: DeduplicationScope::Any,
            ..Self::while_open(key)
        }
    }

    /// An open chain with this key counts, and an ended one if it was created within the window.
    pub fn within(key: impl Into<String>, window: Duration) -> Self {
        Self {
            scope: DeduplicationScope::Within(window),
            ..Self::while_open(key)
        }
    }

    /// Excludes a chain, such as the one whose job starts its own successor.
    #[must_use]
    pub fn except(mut self, chain: impl ChainHandle) -> Self {
        self.except.push(chain.chain_ref().id());
        self
    }

    /// Excludes chains by id.
    #[must_use]
    pub fn except_ids(mut self, chains: impl IntoIterator<Item = ChainId>) -> Self {
        self.except.extend(chains);
        self
    }
}

impl DeduplicationScope {
    /// The earliest time of creation at which an ended chain counts, for a start at `now`; `None` if no ended chain counts.
    /// Open chains count whatever it is. For adapters.
    pub fn ended_since(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Open => None,
            Self::Within(window) => Some(now.saturating_sub(window)),
            Self::Any => Some(Timestamp::from_micros(i64::MIN)),
        }
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
