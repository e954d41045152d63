//! The store's clock.

use std::time::SystemTime;

use queuert::Timestamp;

/// The time of a statement.
///
/// SQLite has no clock of its own: what its date functions show is the machine's clock, in milliseconds. A file is
/// shared by processes of one machine, so the machine's clock *is* the store's clock. It is read here and nowhere else,
/// once per verb, on the machine that runs the statement.
#[expect(
    clippy::disallowed_methods,
    reason = "an embedded store's clock is the machine's; this is the one place that reads it"
)]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}
