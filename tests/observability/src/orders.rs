//! A branching chain with a retry, a fan-in, and a job that is completed from outside.

use queuert::JobTypes;
use serde::{Deserialize, Serialize};

/// Fails once, then goes one way or the other.
#[derive(Debug, Serialize, Deserialize)]
pub struct Check {
    /// Whether the order is good.
    pub good: bool,
}

/// The way of good orders.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ship;

/// The way of bad orders.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refuse;

/// Awaited by [`Invoice`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Pack;

/// Awaited by [`Invoice`], and completed by a person.
#[derive(Debug, Serialize, Deserialize)]
pub struct Approve;

/// Waits for two chains.
#[derive(Debug, Serialize, Deserialize)]
pub struct Invoice;

/// The job types.
#[derive(Debug, JobTypes)]
pub enum Orders {
    /// See [`Check`].
    #[job(entry, continues = [Ship, Refuse], retry(initial = "10ms", maximum = "10ms"))]
    Check(Check),
    /// See [`Ship`].
    #[job(output = String)]
    Ship(Ship),
    /// See [`Refuse`].
    #[job(output = String)]
    Refuse(Refuse),
    /// See [`Pack`].
    #[job(entry, output = u32)]
    Pack(Pack),
    /// See [`Approve`].
    #[job(entry, output = bool)]
    Approve(Approve),
    /// See [`Invoice`].
    #[job(entry, output = u32, blockers = (Pack, Approve))]
    Invoice(Invoice),
}
