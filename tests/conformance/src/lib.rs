//! The contract of queuert's adapters, as named tests that any adapter can run, also one that lives elsewhere.
//!
//! An adapter's test file implements a fixture and calls a macro; every rule then is a test of its own, so that the
//! test runner names the rule that is broken:
//!
//! ```
//! use std::time::Duration;
//!
//! use queuert::Timestamp;
//! use queuert::memory::{MemoryClock, MemoryState};
//! use queuert_conformance::{Capabilities, StateFixture, state_conformance};
//!
//! struct Memory;
//!
//! impl StateFixture for Memory {
//!     type State = MemoryState;
//!
//!     async fn state(&self) -> MemoryState {
//!         MemoryState::with_clock(MemoryClock::manual(Timestamp::from_micros(0)))
//!     }
//!
//!     async fn elapse(&self, state: &MemoryState, time: Duration) {
//!         state.clock().advance(time);
//!     }
//!
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::none().concurrent_writers().free_time()
//!     }
//! }
//!
//! state_conformance!(Memory);
//! ```
//!
//! What a store cannot do is declared in the fixture's capabilities. The cases read them, and say so on standard error
//! when they leave something out; they never ask which database it is. `CASES.md` in this crate says which case covers
//! which rule.

pub mod behaviour;
mod bench;
mod cut;
mod draft;
mod faulty;
mod faulty_notify;
mod fixture;
mod identity;
mod list;
pub mod notify;
mod run;
pub mod state;

pub use behaviour::PairFixture;
pub use faulty::{Fault, Faults, Faulty, Verb};
pub use faulty_notify::{FaultyNotify, NotifyFault};
pub use fixture::{Capabilities, NotifyCapabilities, NotifyFixture, StateFixture};
#[doc(hidden)]
pub use run::run;
