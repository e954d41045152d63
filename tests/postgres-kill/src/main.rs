//! ```sh
//! cargo run --release -p queuert-postgres-kill -- torture             # 20 processes, 50,000 jobs, 60 kills, 2 restarts
//! cargo run -p queuert-postgres-kill -- torture --processes 3 --jobs 660 --kills 3
//! ```

use std::path::Path;
use std::process::ExitCode;

use postgres_support::ClusterOptions;
use queuert_postgres_kill::{Plan, Result, torture, work};

const USAGE: &str = "usage: postgres-kill torture [--processes n] [--jobs n] [--kills n] [--restarts n] [--seed n]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{} failed: {error}", arguments.first().map_or("it", String::as_str));
            ExitCode::from(2)
        }
    }
}

/// Whether all is well.
async fn dispatch(arguments: &[String]) -> Result<bool> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["torture", settings @ ..] => {
            let plan = plan(settings)?;
            let cluster = ClusterOptions::default()
                .setting("max_connections", "400")
                .start()
                .await;
            let directory = tempfile::Builder::new().prefix("postgres-kill-").tempdir()?;
            torture(&cluster, directory.path(), &std::env::current_exe()?, &plan).await
        }
        ["work", url, directory, name] => {
            work(url, Path::new(directory), name).await?;
            Ok(true)
        }
        _ => Err(USAGE.into()),
    }
}

fn plan(mut settings: &[&str]) -> Result<Plan> {
    let mut plan = Plan::default();
    while let [name, value, rest @ ..] = settings {
        match *name {
            "--processes" => plan.processes = value.parse()?,
            "--jobs" => plan.jobs = value.parse()?,
            "--kills" => plan.kills = value.parse()?,
            "--restarts" => plan.restarts = value.parse()?,
            "--seed" => plan.seed = value.parse()?,
            _ => return Err(USAGE.into()),
        }
        settings = rest;
    }
    match settings {
        [] => Ok(plan),
        _ => Err(USAGE.into()),
    }
}
