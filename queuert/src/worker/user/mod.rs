//! The types that processors and middlewares touch.

pub(crate) mod abort;
pub(crate) mod attempt;
pub(crate) mod completion;
pub(crate) mod diagnostics;
pub(crate) mod extensions;
pub(crate) mod middleware;
pub(crate) mod processor;
pub(crate) mod transaction;
