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
    let first = from_environment("QUEUERT_FIRST_SEED").unwrap_or(0);
    let sweep = sweep(first..first + seeds(), Setup::default());
    println!("{sweep}");
    if let Some(report) = sweep.failure {
        panic!("{report}");
    }
    // A fault that never happens is a fault that nobody survived.
    if sweep.runs >= 100 {
        let missing: Vec<_> = EXPECTED
            .iter()
            .filter(|name| !sweep.coverage.contains_key(*name))
            .collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// What must have happened in a sweep.
const EXPECTED: &[&str] = &[
    "call during an outage",
    "call that lets others run",
    "call that stalls past the lease",
    "chain cancelled",
    "chain completed",
    "chain deduplicated",
    "chain deleted",
    "chain died",
    "chain retried",
    "clock jump",
    "completion from outside",
    "dropped future",
    "dropped transaction",
    "failed announcement",
    "failed statement undone by a savepoint",
    "failed subscription",
    "job reaped",
    "job triggered",
    "job unblocked",
    "late wake-up",
    "lease lost",
    "lost wake-up",
    "middleware fails",
    "outage",
    "processor chooses its retry",
    "processor fails",
    "processor fails for good",
    "processor panics",
    "processor snoozes",
    "processor times out",
    "refused continuation",
    "renewal of a locked job",
    "renewal of a lost lease",
    "repeated settlement",
    "repeated wake-up",
    "rolled back transaction",
    "same blocker twice",
    "savepoint rolled back",
    "settled by fresh workers",
    "settled by survivors",
    "settlement of a locked chain",
    "slow call",
    "stale settlement refused",
    "stopped during an outage",
    "store error after the effect",
    "store error before the effect",
    "store error of a permanent kind",
    "transaction held open",
    "worker asked to stop",
    "worker degraded",
    "worker killed",
    "worker recovered",
    "worker stopped",
];

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
    eprintln!(
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
