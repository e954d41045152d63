//! The clock of the logs, which all processes share also where their own clocks are set wrong on purpose.

use std::sync::LazyLock;
use std::time::SystemTime;

/// Says by how many milliseconds the clock of a process is ahead.
pub(crate) const SKEW: &str = "QUEUERT_TORTURE_SKEW";

static AHEAD: LazyLock<i64> = LazyLock::new(|| {
    let ahead = std::env::var(SKEW).ok().and_then(|ahead| ahead.parse().ok());
    ahead.unwrap_or(0)
});

/// Milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "logs of several processes need a clock that all of them have"
)]
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |since| since.as_millis());
    i64::try_from(now).unwrap_or(i64::MAX) - *AHEAD
}
