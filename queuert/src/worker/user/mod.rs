//! The types that processors and middlewares touch. Nothing here knows how jobs are claimed or how ends are written.

pub(crate) mod abort;
pub(crate) mod attempt;
pub(crate) mod completion;
pub(crate) mod diagnostics;
pub(crate) mod extensions;
pub(crate) mod hooks;
pub(crate) mod middleware;
pub(crate) mod processor;
pub(crate) mod shared;
pub(crate) mod transaction;
