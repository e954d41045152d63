//! The decisions that every store makes alike, as pure functions.

mod cycle;
mod keys_of_call;
mod reap;

pub use cycle::closing_blocker;
pub use keys_of_call::KeysOfCall;
pub use reap::{ReapCause, ReapLeases, ReapType, ReapedJob, TakenBack};
