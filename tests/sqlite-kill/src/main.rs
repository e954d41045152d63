//! Kills the processes of a busy SQLite queue with SIGKILL at random moments, starts them again, and checks what is left.
//!
//! ```sh
//! cargo run --release -p queuert-sqlite-kill -- torture               # 200 kills
//! cargo run -p queuert-sqlite-kill -- torture --kills 10 --seed 7
//! cargo run -p queuert-sqlite-kill -- check <directory>               # looks again at what a run has left
//! ```
#![expect(clippy::print_stdout, reason = "its report is what it is for")]

mod check;
mod facts;
mod history;
mod jobs;
mod log;
mod process;
mod tables;
mod torture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use jobs::Sabotage;
use process::Result;
use torture::Plan;

/// The database, in the directory of a run.
const FILE: &str = "queue.db";

const USAGE: &str = "usage: sqlite-kill torture [--kills n] [--seed n] [--directory path] [--sabotage effect-outside]
       sqlite-kill check <directory>";

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
        ["torture", settings @ ..] => torture::run(plan(settings)?).await,
        ["check", directory] => check::run(Path::new(directory)).await,
        ["work", directory, sabotage] => {
            process::work(Path::new(directory), sabotage_of(sabotage)?).await?;
            Ok(true)
        }
        ["enqueue", directory, name, seed] => {
            process::enqueue(Path::new(directory), name, seed.parse()?).await?;
            Ok(true)
        }
        _ => Err(USAGE.into()),
    }
}

fn plan(mut settings: &[&str]) -> Result<Plan> {
    let mut plan = Plan {
        kills: 200,
        seed: fastrand::u64(..),
        directory: None,
        sabotage: Sabotage::None,
    };
    while let [name, value, rest @ ..] = settings {
        match *name {
            "--kills" => plan.kills = value.parse()?,
            "--seed" => plan.seed = value.parse()?,
            "--directory" => plan.directory = Some(PathBuf::from(value)),
            "--sabotage" => plan.sabotage = sabotage_of(value)?,
            _ => return Err(USAGE.into()),
        }
        settings = rest;
    }
    match settings {
        [] => Ok(plan),
        _ => Err(USAGE.into()),
    }
}

fn sabotage_of(name: &str) -> Result<Sabotage> {
    match name {
        "none" => Ok(Sabotage::None),
        "effect-outside" => Ok(Sabotage::EffectOutside),
        _ => Err(USAGE.into()),
    }
}
