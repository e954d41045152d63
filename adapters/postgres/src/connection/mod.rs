//! How statements reach the database: how connections are made, which part of the library may have one when, and how a
//! statement is sent.

pub(crate) mod borrowed;
pub(crate) mod budget;
pub(crate) mod connect;
pub(crate) mod hidden;
pub(crate) mod kept_for_library;
mod per_runtime;
pub(crate) mod reserve;
pub(crate) mod session;
mod settings;
pub(crate) mod url;

use std::time::Duration;

use queuert::adapter::Backoff;

/// The longest pause between two tries to reach the server.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Growing pauses between tries to reach the server.
pub(crate) fn retry_pauses() -> Backoff {
    Backoff::up_to(LONGEST_PAUSE)
}
