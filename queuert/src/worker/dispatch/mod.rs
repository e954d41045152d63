//! From a claim to a worker: which jobs are claimed, where they wait, and which worker runs them.
//!
//! The claimer asks the local queue how many jobs the workers can take, claims them, and queues them. The pool has a task for
//! each worker, which takes jobs from the local queue and executes them.

pub(crate) mod claimer;
pub(crate) mod local_queue;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod prefetch;
