//! Races, forced: each test holds one connection at a chosen point, lets another run into it, proves from the server's
//! own books that it waits there, lets the first one go on, and looks at what is left. A deadlock anywhere would surface
//! as an error of a verb and fail the test.

#[path = "../support/mod.rs"]
mod support;

mod arena;
mod awaited_ends;
mod blockers;
mod claims;
mod deadlocks;
mod dependants;
mod fencing;
mod frozen;
mod frozen_keys;
mod keys;
mod leases;
mod lost_answers;
mod operators;
