//! Deterministic simulation: the shipping client and worker over the memory store, on a paused clock, under faults
//! that a seed chooses. See the README of this folder.
//!
//! One run is one seed and one thread. [`store`] and [`notify`] wrap the real adapters: they delay, fail and forget,
//! and they tell the [`model`] what was committed. The model knows the rules by itself and refuses what breaks them.

pub mod connection;
pub mod faults;
pub mod history;
pub mod invariants;
pub mod jobs;
pub mod model;
pub mod notify;
pub mod observe;
pub mod run;
pub mod store;
pub mod sweep;
pub mod workload;
pub mod world;

pub use invariants::{Invariant, Violation};
pub use run::{Breakage, Report, Setup, simulate};
pub use sweep::{Sweep, sweep};
