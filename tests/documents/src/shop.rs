//! What the samples share, so that each needs one hidden line: a few job types on the memory store.

pub use queuert::memory::{Attempt, JobResult, MemoryClock, MemoryState};
pub use queuert::{Client, Error, JobError, JobTypes, Timestamp};
pub use serde::{Deserialize, Serialize};

/// Charges an order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Charge {
    /// Which.
    pub order: u64,
}

/// Ships an order that was charged.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ship {
    /// Which.
    pub order: u64,
}

/// Orders.
#[derive(Debug, JobTypes)]
pub enum Orders {
    /// Charges, and ends there or ships.
    #[job(entry, output = u64, continues = [Ship])]
    Charge(Charge),
    /// Ships.
    #[job(output = u64)]
    Ship(Ship),
}

/// Charges, and gives the order's number.
pub async fn charge(job: Attempt<Charge>) -> JobResult {
    job.finish(job.order)
}

/// Runs a sample: its statements may await, and fail with `?`.
#[macro_export]
macro_rules! run {
    ($($body:tt)*) => {{
        #[allow(unused_imports, reason = "a sample uses what it needs")]
        use $crate::shop::*;
        $crate::shop::block_on(async {
            $($body)*
            Ok(())
        })
    }};
}

/// Runs a sample to its end.
///
/// # Panics
///
/// If it fails.
pub fn block_on(sample: impl Future<Output = Result<(), Box<dyn std::error::Error>>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = runtime.expect("a runtime can be built").block_on(sample);
    ended.expect("the sample runs");
}
