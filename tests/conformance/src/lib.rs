//! The contract of queuert's adapters, as named tests that any adapter can run, also one that lives elsewhere.
#![expect(
    clippy::expect_used,
    reason = "this library is test code: a case fails by panicking with the rule that was broken"
)]

pub mod behaviour;
mod faulty;
mod faulty_notify;
mod fixture;
mod run;

pub use behaviour::PairFixture;
pub use faulty::{Fault, Faults, Faulty, Verb};
pub use faulty_notify::{FaultyNotify, NotifyFault};
pub use fixture::{Capabilities, NotifyCapabilities, NotifyFixture, StateFixture};
#[doc(hidden)]
pub use run::run;
