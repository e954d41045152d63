//! From a worker to the commit: runs one attempt, and writes its end.
//!
//! The executor runs the processor. `end` decides, without I/O, what its end is and what follows each answer of the store.
//! The settler writes the ends of many attempts at once and carries out those decisions.

pub(crate) mod announce;
pub(crate) mod attempts;
pub(crate) mod claim_next;
pub(crate) mod claimed;
pub(crate) mod dispatcher;
pub(crate) mod end;
pub(crate) mod executor;
pub(crate) mod in_flight;
pub(crate) mod recover;
pub(crate) mod run_report;
pub(crate) mod settle_queue;
pub(crate) mod settler;
