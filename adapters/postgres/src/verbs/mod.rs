//! The verbs of the state adapter, one file or folder for each group.

pub(crate) mod claim;
pub(crate) mod create;
pub(crate) mod lease;
pub(crate) mod operate;
pub(crate) mod pause;
pub(crate) mod query;
pub(crate) mod settle;
pub(crate) mod snapshot;
pub(crate) mod transition;
