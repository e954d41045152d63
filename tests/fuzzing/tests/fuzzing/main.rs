//! What comes from outside, in every shape.

mod cursors;
mod identifiers;
mod notifications;
mod stored;
mod values;
