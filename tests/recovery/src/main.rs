//! A worker process that is about to be killed: `recovery <store> <role>`. It says what it does on its standard output,
//! and is told to finish on its standard input.

use std::process::ExitCode;

use queuert_recovery::{Role, work};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, role] = arguments.as_slice() else {
        eprintln!("usage: recovery <store> finishes|hangs|writes|aborts");
        return ExitCode::from(2);
    };
    match work(store, Role::named(role)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
