//! What keeps the file small.

mod retention;
mod vacuum;
