//! A bug that can be switched on in the repository's own debug builds, so that the torture can show that it finds it: with
//! the environment variable `QUEUERT_SABOTAGE=fencing`.

use queuert::Fence;
use queuert::adapter::rules::JobHead;

/// Whether the switches were compiled in: only in debug builds inside the repository, whose `.cargo/config.toml` sets this
/// variable for the compiler. The users' builds never read the environment.
const BUILT: bool = cfg!(debug_assertions) && option_env!("QUEUERT_SABOTAGE_BUILD").is_some();

/// Whether any attempt may write as long as the job runs, under whatever fence.
pub(crate) fn fencing_is_off() -> bool {
    static OFF: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var("QUEUERT_SABOTAGE").is_ok_and(|bug| bug == "fencing"));
    BUILT && *OFF
}

/// The head as the rules see it that are asked about this fence: with the bug, every fence is the right one.
pub(crate) fn seen_by(head: JobHead, fence: Fence) -> JobHead {
    if fencing_is_off() {
        return JobHead {
            fence: Some(fence),
            ..head
        };
    }
    head
}
