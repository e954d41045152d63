//! A short plan of each kind of fault on both databases. The seed is another one each time; a failure prints it. The run
//! fails if one of its faults never happened.

use crate::{text, torture};

/// Nothing breaks, and every fault did happen, or the program says why it cannot on this machine.
fn holds(database: &str, settings: &str) {
    let mut arguments = vec![database];
    arguments.extend(settings.split(' '));
    let output = torture(&arguments);
    let text = text(&output);
    assert!(output.status.success() && text.contains("all well"), "{text}");
    for reason in text.lines().filter(|line| line.starts_with("left out")) {
        eprintln!("{reason}");
    }
}

macro_rules! plans {
    ($database:literal: $($name:ident: $settings:literal;)+) => {
        $(#[test]
        fn $name() {
            super::holds($database, $settings);
        })+
    };
}

/// Faults share a run if the same is excused after them: where no call to the store may fail, none does.
mod on_postgres {
    plans! {
        "postgres":
        killed_processes: "--faults kill --kills 10";
        frozen_processes_that_go_on: "--faults freeze --seconds 2";
        wrong_clocks_a_held_snapshot_bad_wake_ups_and_deaf_listeners: "--faults clock,snapshot,wake-ups,deaf --seconds 2";
        a_full_disk: "--faults disk --seconds 2";
        a_restarted_and_a_crashed_server: "--faults restart,crash --seconds 2";
        ended_sessions_refused_logins_and_a_bad_network: "--faults connections,login,network --seconds 3";
        a_synchronous_standby_is_promoted_under_load: "--faults failover --seconds 1";
        a_standby_that_lags_behind_is_promoted_under_load: "--faults lossy-failover --seconds 1";
        a_backlog_with_kills_and_a_restart: "--jobs 550 --kills 3 --faults kill,restart --processes 4";
    }
}

mod on_sqlite {
    plans! {
        "sqlite":
        killed_and_frozen_processes: "--faults kill,freeze --kills 10";
        wrong_clocks_a_held_snapshot_and_bad_wake_ups: "--faults clock,snapshot,wake-ups --seconds 2";
        a_full_disk: "--faults disk --seconds 2";
        a_backlog_with_kills: "--jobs 300 --kills 3 --faults kill --processes 4";
    }
}

/// What cannot befall a file, or is no fault at all, is refused.
#[test]
fn plans_that_make_no_sense_are_refused() {
    for (arguments, said) in [
        (["sqlite", "--faults", "restart"], "cannot befall a file"),
        (["postgres", "--faults", "rain"], "usage"),
        (["postgres", "--rounds", "chess"], "the rounds are"),
        (["postgres", "--sabotage", "sand"], "usage"),
        (["mysql", "--seconds", "1"], "usage"),
    ] {
        let output = torture(&arguments);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
}
