//! From a worker to the commit: runs one attempt, and writes its end.

pub(crate) mod behind;
pub(crate) mod claim_next;
pub(crate) mod end;
pub(crate) mod executor;
pub(crate) mod in_flight;
pub(crate) mod settler;
