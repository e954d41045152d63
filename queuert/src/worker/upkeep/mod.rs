//! Services that keep leases alive, take back jobs of dead processes, and look after the store.

pub(crate) mod listener;
pub(crate) mod maintenance;
pub(crate) mod queue_depth;
pub(crate) mod reaper;
pub(crate) mod renewer;
