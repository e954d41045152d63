//! The library with a bug that is switched on, or a user's mistake: the torture reports it. Release builds have no such
//! switches.
#![cfg(debug_assertions)]

use std::process::Command;

use crate::{PROGRAM, text};

/// The moment that shows the bug is met at random: a run that does not meet it is followed by another one.
const RUNS: usize = 6;

/// The torture with this bug of the library ends with a violation of one of these rules, and its history.
fn finds(database: &str, bug: &str, settings: &[&str], rules: &[&str]) {
    let mut command = Command::new(PROGRAM);
    command.arg(database).args(settings).env("QUEUERT_SABOTAGE", bug);
    finds_with(command, rules);
}

/// The same with a mistake that is not one of the library's own code.
fn finds_mistake(database: &str, mistake: &str, settings: &[&str], rules: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg(database).args(settings).args(["--sabotage", mistake]);
    finds_with(command, rules)
}

/// Returns the report of the run that found it.
fn finds_with(mut command: Command, rules: &[&str]) -> String {
    let mut texts = String::new();
    for _ in 0..RUNS {
        let output = command.output().unwrap();
        let text = text(&output);
        remove_what_is_left(&text);
        match output.status.code() {
            Some(0) => texts.push_str(&text),
            Some(1) => {
                let found = |rule: &&str| text.contains(&format!("BROKEN: {rule}"));
                assert!(rules.iter().any(found), "none of {rules:?}: {text}");
                return text;
            }
            _ => panic!("{text}"),
        }
    }
    panic!("not found in {RUNS} runs: {texts}");
}

/// The logs of a run that failed are kept, so that the bug can be found; this one is known.
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

const LATE_DEPENDANTS: [&str; 8] = ["--seconds", "4", "--faults", "", "--enqueuers", "4", "--rounds", "late"];

const FORGOTTEN: [&str; 2] = ["fan-in is exact", "every chain ends"];

/// A dependant that is committed while the statement that ends its blocker waits for the row.
#[test]
fn unblocking_folded_into_the_completing_statement_is_found() {
    finds("postgres", "unblocking", &LATE_DEPENDANTS, &FORGOTTEN);
}

/// The same in the functions in the database, which do not lock the chain any more.
#[test]
fn unblocking_without_a_lock_in_the_functions_of_postgres_is_found() {
    finds_mistake("postgres", "function-locks", &LATE_DEPENDANTS, &FORGOTTEN);
}

#[test]
fn a_listener_that_does_not_look_again_is_found() {
    let settings = ["--seconds", "1", "--faults", "deaf"];
    finds("postgres", "listener", &settings, &["listen again, then look again"]);
}

/// A user's mistake: an effect that is committed apart from its job's completion is there twice if the process dies in
/// between. The kills do hit that moment.
#[test]
fn effects_apart_from_their_jobs_are_found() {
    let settings = ["--faults", "kill", "--kills", "15", "--rounds", "keyed,slow"];
    let text = finds_mistake("sqlite", "effects-apart", &settings, &["effects once"]);
    assert!(text.contains("2 rows"), "{text}");
    assert!(text.contains("row in `effect`"), "the history is shown: {text}");
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
