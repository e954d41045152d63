//! What the client promises.
