//! The verbs of the state adapter, one file per group. They run on either kind of [`Connection`](crate::connection::Connection),
//! in a transaction that the caller of the verb has begun and ends.

pub(crate) mod claim;
pub(crate) mod create;
pub(crate) mod operate;
pub(crate) mod query;
pub(crate) mod settle;
