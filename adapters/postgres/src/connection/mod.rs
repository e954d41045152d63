//! How statements reach the database: how connections are made, who may have one when, and how a statement is sent.

pub(crate) mod budget;
pub(crate) mod connect;
pub(crate) mod hidden;
mod per_runtime;
mod reserve;
pub(crate) mod session;
pub(crate) mod url;
