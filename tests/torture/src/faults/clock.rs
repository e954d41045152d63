//! Clocks that are wrong, with libfaketime.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::Command;

use crate::clock::SKEW;
use crate::plan::{Database, Fault, Plan};

/// What shows a process another time than the machine's.
#[derive(Debug)]
pub(crate) struct WrongClock {
    library: PathBuf,
}

/// Finds or installs libfaketime; where that cannot be done the fault is left out, and it is said why.
pub(crate) async fn prepare(plan: &mut Plan) -> Option<WrongClock> {
    if !plan.faults.contains(&Fault::Clock) {
        return None;
    }
    let mut found = find();
    if found.is_none() {
        install().await;
        found = find();
    }
    if found.is_none() {
        println!("left out   clock: there is no libfaketime, and Debian's package `libfaketime` cannot be installed");
        plan.faults.remove(&Fault::Clock);
    }
    found.map(|library| WrongClock { library })
}

fn find() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let libraries = directories.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    libraries.into_iter().find(|library| library.exists())
}

async fn install() {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"as=; [ "$(id -u)" = 0 ] || as="sudo -n"; $as env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
               -o DPkg::Lock::Timeout=300 install --no-install-recommends libfaketime"#,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Whether it worked is seen from the library.
    let _ = command.status().await;
}

impl WrongClock {
    /// Sets the clock of a process that is about to be started; says by how many milliseconds it is ahead.
    pub(crate) fn set(&self, command: &mut Command, number: usize, database: Database) -> i64 {
        let sign = if number.is_multiple_of(4) { 1 } else { -1 };
        let ahead = sign
            * match database {
                // A server has a clock of its own, and those of the processes must not matter at all.
                Database::Postgres => 3 * 3_600_000,
                // The clock of a file is the machine's: this is a step of it, as when it is set.
                Database::Sqlite => SMALL_STEP,
            };
        let seconds = ahead as f64 / 1_000.0;
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME", format!("{seconds:+.3}"))
            // Durations are measured by a clock that is never set.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_NO_CACHE", "1")
            .env(SKEW, ahead.to_string());
        ahead
    }
}

/// How far apart from the others' a clock may be where the machine's is the store's, in milliseconds.
pub(crate) const SMALL_STEP: i64 = 300;
