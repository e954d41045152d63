//! SQLite.

mod claim;
mod clock;
mod core;
mod create;
mod error;
mod json;
mod migrate;
mod operate;
mod options;
mod query;
mod row;
mod settle;
mod sql;
mod state;
mod transaction;
mod writer;

pub use migrate::Migration;
pub use options::{SqliteOptions, Synchronous};
pub use state::SqliteState;
pub use transaction::SqliteTransaction;
