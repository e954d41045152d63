//! The repository's documents: their samples are doctests.

#[doc = include_str!("../../../README.md")]
pub mod readme {}

#[doc = include_str!("../../../ARCHITECTURE.md")]
pub mod architecture {}

#[doc = include_str!("../../../DESIGN.md")]
pub mod design {}

#[doc = include_str!("../../../docs/guide.md")]
pub mod guide {}

#[doc = include_str!("../../../docs/sqlite.md")]
pub mod sqlite {}
#[doc = include_str!("../../../docs/postgres.md")]
pub mod postgres {}

#[doc = include_str!("../../../docs/reliability.md")]
pub mod reliability {}

#[doc = include_str!("../../../docs/writing-an-adapter.md")]
pub mod writing_an_adapter {}
