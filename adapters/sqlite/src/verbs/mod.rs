//! The verbs of the state adapter, one file or folder for each group. They run on either kind of
//! [`Connection`](crate::connection::Connection), in a transaction that the caller of the verb begins and ends.

pub(crate) mod claim;
pub(crate) mod create;
pub(crate) mod lease;
pub(crate) mod operate;
pub(crate) mod pause;
pub(crate) mod query;
pub(crate) mod settle;
pub(crate) mod transition;
