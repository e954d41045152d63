//! The sweep, the replay of a seed, and the proof that the simulation bites.

use queuert::memory::Sabotage;
use queuert_simulation::{Breakage, Invariant, Setup, simulate, sweep};

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds() -> u64 {
    from_environment("QUEUERT_SEEDS").unwrap_or(1_000)
}

#[test]
fn the_invariants_hold_for_every_seed() {
    let sweep = sweep(0..seeds(), Setup::default());
    println!("{sweep}");
    if let Some(report) = sweep.failure {
        panic!("{report}");
    }
}

#[test]
fn replay() {
    let Some(seed) = from_environment("QUEUERT_SEED") else {
        return;
    };
    let report = simulate(Setup {
        seed,
        ..Setup::default()
    });
    for line in &report.lines {
        println!("{line}");
    }
    assert!(report.violation.is_none(), "{report}");
}

#[test]
fn a_seed_gives_the_same_history_twice() {
    for seed in 0..20 {
        let setup = Setup {
            seed,
            ..Setup::default()
        };
        let (first, second) = (simulate(setup), simulate(setup));
        let differs = first.lines.iter().zip(&second.lines).find(|(one, two)| one != two);
        assert_eq!(first.hash, second.hash, "seed {seed}: {differs:?}");
    }
}

/// What a bug breaks first, within the seeds that CI runs.
fn caught(setup: Setup) -> Invariant {
    let sweep = sweep(0..seeds().max(1_000), setup);
    let Some(report) = sweep.failure else {
        panic!("{setup:?} was not caught by {} seeds", sweep.runs);
    };
    let Some(violation) = report.violation else {
        panic!("a failure without a violation");
    };
    println!(
        "{setup:?} is caught by seed {} ({} runs): {violation}",
        report.seed, sweep.runs
    );
    violation.invariant
}

fn sabotaged(bug: Sabotage) -> Invariant {
    caught(Setup {
        sabotage: Some(bug),
        ..Setup::default()
    })
}

fn broken(breakage: Breakage) -> Invariant {
    caught(Setup {
        breakage: Some(breakage),
        ..Setup::default()
    })
}

#[test]
fn a_store_without_fencing_is_caught() {
    assert_eq!(sabotaged(Sabotage::NoFencing), Invariant::Fence);
}

#[test]
fn a_store_that_races_while_unblocking_is_caught() {
    assert_eq!(sabotaged(Sabotage::UnblockRace), Invariant::FanIn);
}

#[test]
fn a_forgotten_dependant_is_caught() {
    assert_eq!(broken(Breakage::ForgetsUnblocked), Invariant::FanIn);
}

#[test]
fn a_settlement_that_is_applied_twice_is_caught() {
    assert_eq!(broken(Breakage::SettlesTwice), Invariant::Fence);
}

#[test]
fn an_announcement_before_the_commit_is_caught() {
    assert_eq!(broken(Breakage::AnnouncesEarly), Invariant::Announcement);
}

#[test]
fn a_lost_commit_is_caught() {
    let invariant = broken(Breakage::LosesCommits);
    assert!(matches!(invariant, Invariant::Transactional | Invariant::Announcement));
}

#[test]
fn a_lost_write_is_caught() {
    let invariant = broken(Breakage::LosesWrites);
    assert!(matches!(invariant, Invariant::Money | Invariant::Transactional));
}

#[test]
fn a_forgotten_key_is_caught() {
    assert_eq!(broken(Breakage::ForgetsKeys), Invariant::Deduplication);
}

#[test]
fn an_idle_reaper_is_caught() {
    assert_eq!(broken(Breakage::NeverReaps), Invariant::Liveness);
}
