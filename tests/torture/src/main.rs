//! ```sh
//! cargo run --release -p queuert-torture -- postgres --minutes 60
//! cargo run -p queuert-torture -- sqlite --seconds 10 --faults kill,freeze --seed 7
//! ```

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match queuert_torture::run(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}", queuert_torture::report(&*error));
            ExitCode::from(2)
        }
    }
}
