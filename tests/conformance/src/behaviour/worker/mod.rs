//! What workers promise.
