//! The contract of queuert's adapters, as named tests that any adapter can run, also one that lives elsewhere.
//!
//! An adapter's test file implements a fixture and calls a macro; every rule then is a test of its own, so that the
//! test runner names the rule that is broken:
//!
//! ```text
//! struct Memory;
//!
//! impl StateFixture for Memory {
//!     type State = MemoryState;
//!
//!     async fn state(&self) -> MemoryState { .. }
//!     async fn elapse(&self, state: &MemoryState, time: Duration) { .. }
//! }
//!
//! queuert_conformance::state_conformance!(Memory);
//! ```
//!
//! What a store cannot do is declared in the fixture's capabilities. The cases read them, and say so on standard error
//! when they leave something out; they never ask which database it is.
#![expect(
    clippy::expect_used,
    reason = "this library is test code: a case fails by panicking with the rule that was broken"
)]

pub mod behaviour;
mod bench;
mod draft;
mod fixture;
mod identity;
mod list;
pub mod notify;
mod run;
pub mod state;

pub use behaviour::PairFixture;
pub use fixture::{Capabilities, NotifyCapabilities, NotifyFixture, StateFixture};
#[doc(hidden)]
pub use run::run;
