//! The library with a bug that is switched on: the torture reports it. Release builds have no such switches.
#![cfg(all(unix, debug_assertions))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Whoever hits the moment does so at random: a run that does not is followed by another one.
const RUNS: usize = 6;

/// The torture with this bug ends with a violation of one of these rules, and its history.
fn finds(database: &str, bug: &str, settings: &[&str], rules: &[&str]) {
    let mut texts = String::new();
    for _ in 0..RUNS {
        let output = Command::new(env!("CARGO_BIN_EXE_queuert-torture"))
            .arg(database)
            .args(settings)
            .env("QUEUERT_SABOTAGE", bug)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        remove_what_is_left(&text);
        match output.status.code() {
            Some(0) => texts.push_str(&text),
            Some(1) => {
                let found = |rule: &&str| text.contains(&format!("BROKEN: {rule}"));
                assert!(rules.iter().any(found), "none of {rules:?}: {text}");
                return;
            }
            _ => panic!("{text}"),
        }
    }
    panic!("not found in {RUNS} runs: {texts}");
}

/// The logs of a run that failed are kept for whoever looks for the bug; this one is known.
fn remove_what_is_left(text: &str) {
    if let Some(directory) = text
        .split("the logs are in ")
        .nth(1)
        .and_then(|rest| rest.lines().next())
    {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

const ZOMBIES: [&str; 8] = [
    "--seconds",
    "5",
    "--faults",
    "freeze",
    "--rounds",
    "slow",
    "--workers",
    "8",
];

/// What a frozen process writes when it goes on counts, although another one has the job.
const STALE: [&str; 4] = [
    "completed once",
    "only the last attempt counts",
    "events match state",
    "an attempt ends once",
];

#[test]
fn fencing_off_on_sqlite_is_found() {
    finds("sqlite", "fencing", &ZOMBIES, &STALE);
}

#[test]
fn fencing_off_on_postgres_is_found() {
    finds("postgres", "fencing", &ZOMBIES, &STALE);
}

/// A dependant that is committed while the statement that ends its blocker waits for the row.
#[test]
fn unblocking_folded_into_the_completing_statement_is_found() {
    let settings = ["--seconds", "4", "--faults", "", "--enqueuers", "4", "--rounds", "late"];
    finds(
        "postgres",
        "unblocking",
        &settings,
        &["fan-in is exact", "every chain ends"],
    );
}

#[test]
fn a_listener_that_does_not_look_again_is_found() {
    let settings = ["--seconds", "1", "--faults", "deaf"];
    finds("postgres", "listener", &settings, &["listen again, then look again"]);
}

/// A standby that lags behind gives the number of a type that it has lost to the next new one.
#[test]
fn numbers_of_types_that_nobody_checks_are_found() {
    let settings = ["--seconds", "1", "--faults", "lossy-failover"];
    finds("postgres", "types", &settings, &["a row is of its type"]);
}

#[test]
fn deduplication_by_looking_only_is_found() {
    let settings = [
        "--seconds",
        "2",
        "--faults",
        "",
        "--enqueuers",
        "4",
        "--rounds",
        "keyed,storm",
    ];
    finds("postgres", "deduplication", &settings, &["deduplication"]);
}
