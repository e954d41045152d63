//! Services beside the way of a job: they keep leases alive, take back the jobs of dead processes, listen for notices, and look
//! after the store. The supervisor lists them; a new one is a file here and a line there.

pub(crate) mod listener;
pub(crate) mod maintenance;
pub(crate) mod queue_depth;
pub(crate) mod reaper;
pub(crate) mod renewer;
