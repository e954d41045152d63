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
