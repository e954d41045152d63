//! Middlewares, and what leaves the process over OTLP. Tests that install a subscriber of `tracing` have binaries of their
//! own: some of its state belongs to the whole process.

mod exporters;
mod middlewares;
mod otlp;
