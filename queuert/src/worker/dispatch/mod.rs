//! From a claim to a worker: which jobs are claimed, where they wait, and which worker runs them.

pub(crate) mod claimer;
pub(crate) mod local_queue;
pub(crate) mod pool;
pub(crate) mod prefetch;
