//! Every interleaving of the protocol, and proof that the model finds what is wrong with others.
#![expect(
    clippy::print_stdout,
    reason = "how much was explored, and what was found, is worth reading"
)]

use queuert_model::{Bounds, Creation, Fencing, Protocol, Unblocking};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

const BOUNDS: Bounds = Bounds {
    claims: 2,
    memory: 1,
    disturbances: 2,
    steps: 1,
    outside: true,
};

/// Explores everything: no rule is broken, and no situation is missed for which the rules are there.
fn explore(name: &str, protocol: Protocol) {
    let missed = explored(name, protocol);
    assert!(missed.is_empty(), "never came up: {missed:?}");
}

/// The same within bounds in which not every situation can come up.
fn explore_some(name: &str, protocol: Protocol) {
    let missed = explored(name, protocol);
    assert!(missed.len() < 3, "never came up: {missed:?}");
}

/// The situations that never came up.
fn explored(name: &str, protocol: Protocol) -> Vec<&'static str> {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} steps, {} different states, the longest way {} steps",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done());
    let mut missed = Vec::new();
    for property in protocol.properties() {
        match property.expectation {
            Expectation::Sometimes if checker.discovery(property.name).is_none() => missed.push(property.name),
            Expectation::Sometimes => {}
            Expectation::Always | Expectation::Eventually => checker.assert_no_discovery(property.name),
        }
    }
    missed
}

/// The shortest way to break the rule.
fn broken(rule: &'static str, protocol: Protocol) {
    let checker = protocol
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([rule].into()))
        .spawn_bfs()
        .join();
    let way = checker.assert_any_discovery(rule);
    println!("{rule}, broken by {protocol:?}:");
    for action in way.into_actions() {
        println!("  {action:?}");
    }
}

/// Everybody at once, and any two things that go wrong.
#[test]
fn the_protocol_keeps_every_rule_in_every_interleaving() {
    explore("everybody", Protocol::right(BOUNDS));
}

/// With a blocker of two steps, so that a chain goes on while somebody begins to wait for it.
#[test]
fn a_chain_that_goes_on_keeps_every_rule() {
    let bounds = Bounds {
        disturbances: 1,
        steps: 2,
        ..BOUNDS
    };
    explore_some("two steps", Protocol::right(bounds));
}

/// With more that goes wrong, and nobody from outside.
#[test]
fn three_disturbances_break_no_rule() {
    let bounds = Bounds {
        disturbances: 3,
        outside: false,
        ..BOUNDS
    };
    explore("three disturbances", Protocol::right(bounds));
}

const STALE: &str = "only the attempt that has a job ends it";
const LOST: &str = "a job does not stay blocked by what has completed";

#[test]
fn without_fences_a_stale_attempt_ends_a_job() {
    let fencing = Fencing::None;
    broken(
        STALE,
        Protocol {
            fencing,
            ..Protocol::right(BOUNDS)
        },
    );
    broken(
        "a job completes once",
        Protocol {
            fencing,
            ..Protocol::right(BOUNDS)
        },
    );
}

/// A worker with two attempts in its memory: one that it has lost, and one of the same job that it has claimed again.
#[test]
fn the_name_of_the_worker_is_no_fence() {
    let bounds = Bounds { memory: 2, ..BOUNDS };
    broken(
        STALE,
        Protocol {
            fencing: Fencing::WorkerName,
            ..Protocol::right(bounds)
        },
    );
}

#[test]
fn the_number_of_the_attempt_is_no_fence() {
    broken(
        STALE,
        Protocol {
            fencing: Fencing::AttemptNumber,
            ..Protocol::right(BOUNDS)
        },
    );
}

#[test]
fn unblocking_in_the_completing_statement_leaves_a_job_blocked_for_ever() {
    let unblocking = Unblocking::InTheCompletingStatement;
    broken(
        LOST,
        Protocol {
            unblocking,
            ..Protocol::right(BOUNDS)
        },
    );
}

#[test]
fn a_dependant_that_does_not_lock_its_blockers_is_forgotten() {
    let creation = Creation::LooksOnly;
    broken(
        LOST,
        Protocol {
            creation,
            ..Protocol::right(BOUNDS)
        },
    );
}
