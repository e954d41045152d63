//! Values that may hold the key of an encrypted file.

use std::fmt;
use std::ops::Deref;

/// A value that is never printed. Every field that holds connect options has this type.
#[derive(Clone)]
pub(crate) struct Hidden<T>(pub(crate) T);

impl<T> Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
