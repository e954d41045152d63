//! A short plan of each kind of fault on both databases. The seed is another one each time; a failure prints it.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Nothing breaks, and the fault did happen, or it is said why it cannot on this machine.
fn holds(database: &str, faults: &str, happened: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_queuert-torture"))
        .args([database, "--seconds", "2", "--faults", faults])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all well"), "{text}");
    let left_out = text.lines().find(|line| line.starts_with("left out"));
    assert!(text.contains(happened) || left_out.is_some(), "{text}");
    if let Some(reason) = left_out {
        eprintln!("{reason}");
    }
}

macro_rules! plans {
    ($($name:ident: $faults:literal, $happened:literal, $postgres_only:tt;)+) => {
        mod on_postgres {
            $(#[test]
            fn $name() {
                super::holds("postgres", $faults, $happened);
            })+
        }
        mod on_sqlite {
            plans!(@sqlite $($name, $faults, $happened, $postgres_only;)+);
        }
    };
    (@sqlite $name:ident, $faults:literal, $happened:literal, both; $($rest:tt)*) => {
        #[test]
        fn $name() {
            super::holds("sqlite", $faults, $happened);
        }
        plans!(@sqlite $($rest)*);
    };
    (@sqlite $name:ident, $faults:literal, $happened:literal, server; $($rest:tt)*) => {
        plans!(@sqlite $($rest)*);
    };
    (@sqlite) => {};
}

plans! {
    killed_processes: "kill", "kills", both;
    frozen_processes_that_go_on: "freeze", "freezes", both;
    wrong_clocks: "clock", "wrong clocks", both;
    a_held_snapshot: "snapshot", "held snapshots", both;
    a_full_disk: "disk", "full disks", both;
    lost_and_doubled_wake_ups: "wake-ups", "nothing happened", both;
    a_restarted_server: "restart", "restarts of the server", server;
    a_crashed_server: "crash", "crashes of the server", server;
    ended_sessions: "connections", "sessions ended", server;
    refused_logins: "login", "refused logins", server;
    a_bad_network: "network", "disturbed", server;
    deaf_listeners: "deaf", "deaf listeners", server;
    a_synchronous_standby_is_promoted_under_load: "failover", "failovers under load", server;
    a_standby_that_lags_behind_is_promoted_under_load: "lossy-failover", "failovers under load that lost", server;
}

/// What cannot befall a file, or is no fault at all, is said instead of done.
#[test]
fn plans_that_make_no_sense_are_refused() {
    for (arguments, said) in [
        (["sqlite", "--faults", "restart"], "cannot befall a file"),
        (["postgres", "--faults", "rain"], "usage"),
        (["postgres", "--rounds", "chess"], "the rounds are"),
        (["mysql", "--seconds", "1"], "usage"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_queuert-torture"))
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
}
