//! Short plans of every fault, proof that the oracle finds bugs and doctored data, and processes that die with one job.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the times of recovery are what it measures")]

mod bites;
mod checker;
mod plans;
mod recovery;

use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_queuert-torture");

/// Runs the program to its end.
fn torture(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// Everything that it printed.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
