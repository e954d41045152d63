//! Runs a program of `benches/peers`: each is a process of its own that reports as ours do.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::Command;

use crate::measure::{BoxError, Report};

/// Where `scripts/bench` has put them.
const DIRECTORY: &str = "QUEUERT_PEERS";

pub(crate) async fn run(program: &str, arguments: &[(&str, String)]) -> Result<Report, BoxError> {
    let directory = std::env::var_os(DIRECTORY);
    let directory =
        directory.ok_or_else(|| format!("{DIRECTORY} does not say where the peers are: use scripts/bench"))?;
    let mut command = Command::new(PathBuf::from(directory).join(program));
    for (name, value) in arguments {
        command.arg(format!("--{name}")).arg(value);
    }
    command.stderr(Stdio::inherit()).kill_on_drop(true);
    let output = command.output().await;
    let output = output.map_err(|error| format!("`{program}` cannot be run: {error}; scripts/bench builds it"))?;
    if !output.status.success() {
        return Err(format!("`{program}` failed").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
