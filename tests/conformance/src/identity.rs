//! Ids and fences that nobody used before.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use queuert::{ChainId, Fence, JobId, WorkerId};
use uuid::Uuid;

/// Ascending within the process, so that "ties by id" has a known answer; shaped like the library's own UUIDv7.
fn uuid() -> Uuid {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = u128::from(COUNTER.fetch_add(1, Ordering::SeqCst));
    let process = u128::from(*PROCESS >> 16);
    Uuid::from_u128((process << 80) | (7 << 76) | (0b10 << 62) | count)
}

pub(crate) fn job_id() -> JobId {
    JobId::from_uuid(uuid())
}

pub(crate) fn chain_id() -> ChainId {
    job_id().as_chain()
}

pub(crate) fn fence() -> Fence {
    Fence::from_uuid(uuid())
}

pub(crate) fn worker(name: &'static str) -> WorkerId {
    WorkerId::new(name)
}
