//! What the tests share: the job types of an order, the telemetry of a process, and a receiver of OTLP.

pub mod orders;
pub mod receiver;
pub mod telemetry;
