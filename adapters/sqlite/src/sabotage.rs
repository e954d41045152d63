//! A bug that can be switched on in debug builds, so that the torture can show that it finds it: with the environment
//! variable `QUEUERT_SABOTAGE=fencing`. A release build has no such switch.

/// Whether any attempt may write as long as the job runs, under whatever fence.
#[cfg(debug_assertions)]
pub(crate) fn fencing_is_off() -> bool {
    static OFF: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var("QUEUERT_SABOTAGE").is_ok_and(|bug| bug == "fencing"));
    *OFF
}

/// Never.
#[cfg(not(debug_assertions))]
pub(crate) const fn fencing_is_off() -> bool {
    false
}
