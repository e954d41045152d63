//! Which faults happen, how often, and a count of those that did.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

/// What a run may do to the code under test. Drawn per seed, so that some runs are calm and some are storms.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Chances in a thousand.
    pub slow: u32,
    /// A delay longer than a lease.
    pub stall: u32,
    /// A store error without effect.
    pub error_before: u32,
    /// A store error after the effect: the answer is lost.
    pub error_after: u32,
    /// A store error that trying again will not mend, though it will.
    pub error_permanent: u32,
    /// A lost wake-up.
    pub notice_lost: u32,
    /// A repeated wake-up.
    pub notice_repeated: u32,
    /// A late wake-up.
    pub notice_late: u32,
    /// A call whose future is dropped after some polls.
    pub cut: u32,
    /// A middleware that fails the attempt.
    pub meddle: u32,
    /// Per round of the chaos task: a worker is killed, stopped, an outage begins, the clock jumps.
    pub kill: u32,
    /// See [`kill`](Self::kill).
    pub stop: u32,
    /// See [`kill`](Self::kill).
    pub outage: u32,
    /// See [`kill`](Self::kill).
    pub jump: u32,
    /// How long leases last.
    pub lease: Duration,
}

impl Weather {
    /// The weather of a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut some = |most: u32| if rng.u8(..3) == 0 { 0 } else { rng.u32(..=most) };
        Self {
            slow: some(500),
            stall: some(25),
            error_before: some(60),
            error_after: some(60),
            error_permanent: some(8),
            notice_lost: some(600),
            notice_repeated: some(300),
            notice_late: some(400),
            cut: some(300),
            meddle: some(30),
            kill: some(200),
            stop: some(150),
            outage: some(120),
            jump: some(100),
            lease: Duration::from_millis([500, 1_000, 3_000][rng.usize(..3)]),
        }
    }

    /// No faults at all, for the time after the storm.
    #[must_use]
    pub fn cleared(&self) -> Self {
        Self {
            slow: 0,
            stall: 0,
            error_before: 0,
            error_after: 0,
            error_permanent: 0,
            notice_lost: 0,
            notice_repeated: 0,
            notice_late: 0,
            cut: 0,
            meddle: 0,
            kill: 0,
            stop: 0,
            outage: 0,
            jump: 0,
            lease: self.lease,
        }
    }

    /// How long a call takes, before or after its effect.
    pub fn delay(&self, rng: &mut Rng) -> Delay {
        if hits(rng, self.stall) {
            return Delay::Stall(self.lease.mul_f64(1.1 + 2.0 * rng.f64()));
        }
        if !hits(rng, self.slow) {
            return Delay::None;
        }
        match rng.u8(..10) {
            0..=4 => Delay::Yield(rng.u8(1..4)),
            5..=8 => Delay::Sleep(Duration::from_micros(rng.u64(..20_000))),
            _ => Delay::Sleep(Duration::from_millis(rng.u64(20..300))),
        }
    }
}

/// How long something takes.
#[derive(Clone, Copy, Debug)]
pub enum Delay {
    /// No time, and nobody else runs meanwhile.
    None,
    /// No time, but others run meanwhile.
    Yield(u8),
    /// Some time.
    Sleep(Duration),
    /// Longer than a lease.
    Stall(Duration),
}

/// Whether something with a chance of `permille` in a thousand happens.
pub fn hits(rng: &mut Rng, permille: u32) -> bool {
    permille > 0 && rng.u32(..1_000) < permille
}

/// How often each thing happened.
pub type Coverage = BTreeMap<&'static str, u64>;
