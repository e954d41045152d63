//! Random jobs.

use std::time::Duration;

use fastrand::Rng;

use super::ACCOUNTS;
use crate::jobs::{Act, Approval, Heir, Leaf, Mode, Script, Transfer, Walk};

/// What the attempts of a job will do: mostly nothing special.
pub(super) fn script(rng: &mut Rng, lease: Duration) -> Script {
    let lease = u64::try_from(lease.as_millis()).unwrap_or(1_000);
    let length = if rng.u8(..3) == 0 { rng.usize(1..4) } else { 0 };
    let acts = (0..length).map(|_| match rng.u8(..20) {
        0..=2 => Act::Listen(rng.u64(1..lease * 2)),
        3..=5 => Act::Ignore(rng.u64(1..lease * 3)),
        6..=10 => Act::Fail,
        11 => Act::FailFor(rng.u64(270..2_000)),
        12 => Act::Fatal,
        13..=14 => Act::Panic,
        15 => Act::Hang,
        16..=17 => Act::Snooze(rng.u64(1..1_500)),
        _ => Act::Work,
    });
    Script(acts.collect())
}

pub(super) fn leaf(rng: &mut Rng, lease: Duration) -> Leaf {
    Leaf {
        value: rng.u64(..1_000),
        script: script(rng, lease),
    }
}

pub(super) fn walk(rng: &mut Rng, lease: Duration) -> Walk {
    Walk {
        steps: rng.u8(..6),
        acc: rng.u64(..1_000),
        transactional: rng.bool(),
        children: rng.u8(..4),
        mode: [Mode::Plain, Mode::Within, Mode::Prepared][rng.usize(..3)],
        key: rng.bool().then(|| format!("shared-{}", rng.u8(..2))),
        script: script(rng, lease),
    }
}

pub(super) fn transfer(rng: &mut Rng, lease: Duration) -> Transfer {
    let from = rng.u8(..ACCOUNTS);
    Transfer {
        from,
        to: (from + rng.u8(1..ACCOUNTS)) % ACCOUNTS,
        amount: rng.i64(1..100),
        savepoint: rng.bool(),
        script: script(rng, lease),
    }
}

pub(super) fn approval(rng: &mut Rng, lease: Duration) -> Approval {
    Approval {
        patience: rng.u8(..4),
        script: script(rng, lease),
    }
}

pub(super) fn heir(rng: &mut Rng, lease: Duration) -> Heir {
    Heir {
        generation: rng.u8(..3),
        key: format!("heir-{}", rng.u8(..2)),
        script: script(rng, lease),
    }
}
