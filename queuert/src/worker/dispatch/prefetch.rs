//! How fast jobs go, and how many can be begun before another claim could be answered, or is worth it.
//!
//! The bytes of what waits are bounded elsewhere, see [`Bounds`](crate::worker::dispatch::local_queue::Bounds): the store ends a claim that would
//! exceed them. What jobs weighed so far only keeps claims from asking for more than that.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::worker::dispatch::local_queue::BYTES_AHEAD;

/// What a process has seen of its jobs and its store. The figures steer how much is claimed at once and nothing else, so
/// they are kept without locks, and a lost update does no harm.
pub(crate) struct Pace {
    workers: usize,
    /// How long a job has a worker, in nanoseconds; none has ended yet while it is `UNKNOWN`.
    occupied: AtomicU64,
    /// How long a claim takes, in nanoseconds, without the time that large payloads take on the way.
    round_trip: AtomicU64,
    /// What the payloads of a claimed job weigh, in bytes.
    weight: AtomicU64,
    /// Jobs begun since the last claim was answered, and in the time between the two answers before.
    begun: AtomicUsize,
    begun_before: AtomicUsize,
}

const UNKNOWN: u64 = u64::MAX;

/// For how long a claim provides the workers at least, in nanoseconds, however soon the next one would be answered: a
/// claim costs the store as much as the end of several jobs, and what waits this long in line waits for nothing else.
const WORTHWHILE: u64 = 4_000_000;

/// A claim that brought no more bytes than this tells how long a claim takes. That of a larger one is spent on its payloads:
/// claims would become larger because they take long, and take long because they are large.
const LIGHT: u64 = 64 << 10;

impl Pace {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers,
            occupied: AtomicU64::new(UNKNOWN),
            round_trip: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            begun: AtomicUsize::new(0),
            begun_before: AtomicUsize::new(0),
        }
    }

    /// How many jobs, beyond those for idle workers, would be begun by the time a claim could be answered, or in the time
    /// that makes one worthwhile. Never more than twice of what was begun between the last two answers, because a worker
    /// shares its processor with others; and, if the jobs weigh as much as those before, no more bytes than may wait.
    pub(crate) fn ahead(&self) -> usize {
        let occupied = self.occupied.load(Ordering::Relaxed);
        if occupied == UNKNOWN {
            return 0;
        }
        let workers = u64::try_from(self.workers).unwrap_or(u64::MAX);
        let time = self.round_trip.load(Ordering::Relaxed).max(WORTHWHILE);
        let free_by_then = time.saturating_mul(workers) / occupied.max(1);
        let possible = usize::try_from(free_by_then).unwrap_or(usize::MAX);
        let weight = usize::try_from(self.weight.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let bearable = BYTES_AHEAD / weight.max(1);
        possible
            .min(2 * self.begun_before.load(Ordering::Relaxed))
            .min(bearable)
    }

    /// A job has a worker now.
    pub(crate) fn begun(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// It had it for this long.
    pub(crate) fn ended(&self, occupied: Duration) {
        update(&self.occupied, occupied);
    }

    /// A claim has been answered after this time, with so many jobs whose payloads have so many bytes.
    pub(crate) fn claimed(&self, round_trip: Duration, jobs: usize, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let known = Duration::from_nanos(self.round_trip.load(Ordering::Relaxed));
        if bytes <= LIGHT {
            update(&self.round_trip, round_trip);
        } else if known.is_zero() || round_trip < known {
            self.round_trip.store(nanoseconds(round_trip), Ordering::Relaxed);
        }
        if let Ok(jobs @ 1..) = u64::try_from(jobs) {
            // Heavier jobs count at once, lighter ones by and by: a claim that asks for too many jobs costs the store more
            // than one that asks for too few.
            let (before, now) = (self.weight.load(Ordering::Relaxed), bytes / jobs);
            self.weight.store(now.max(before - before / 8), Ordering::Relaxed);
        }
        let begun = self.begun.swap(0, Ordering::Relaxed);
        self.begun_before.store(begun, Ordering::Relaxed);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(UNKNOWN).min(UNKNOWN - 1)
}

/// A mean in which what was long ago counts less and less.
fn update(mean: &AtomicU64, measured: Duration) {
    let measured = nanoseconds(measured);
    let before = mean.load(Ordering::Relaxed);
    let after = match before {
        UNKNOWN | 0 => measured,
        before => before - before / 8 + measured / 8,
    };
    mean.store(after, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(workers: usize, occupied: Duration, round_trip: Duration, begun: usize) -> Pace {
        let pace = Pace::new(workers);
        pace.ended(occupied);
        for _ in 0..begun {
            pace.begun();
        }
        pace.claimed(round_trip, begun, 0);
        pace
    }

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn nothing_is_claimed_ahead_of_jobs_of_which_none_ends_during_a_claim() {
        assert_eq!(Pace::new(10).ahead(), 0, "before anything is known");
        assert_eq!(pace(10, micros(40_001), micros(1_000), 100).ahead(), 0);
        assert_eq!(pace(10, micros(100_001), micros(10_000), 100).ahead(), 0);
    }

    #[test]
    fn of_longer_ones_as_many_are_claimed_ahead_as_end_during_a_claim() {
        assert_eq!(pace(10, micros(50_000), micros(10_000), 100).ahead(), 2);
    }

    #[test]
    fn a_claim_provides_for_four_milliseconds_even_if_the_next_one_is_answered_sooner() {
        assert_eq!(pace(10, micros(2_000), micros(1_000), 100).ahead(), 20);
    }

    #[test]
    fn what_would_be_begun_during_a_claim_is_claimed_ahead() {
        assert_eq!(pace(10, micros(100), micros(5_000), 1_000).ahead(), 500);
    }

    #[test]
    fn it_is_at_most_twice_of_what_was_begun_in_the_round_before() {
        let pace = pace(10, micros(1), micros(1_000), 30);
        assert_eq!(pace.ahead(), 60);
        pace.claimed(micros(1_000), 0, 0);
        assert_eq!(pace.ahead(), 0, "nothing was begun since");
    }

    /// A worker set of ten whose jobs take no time, with inputs of 300 kB over a network of 12 MB/s.
    #[test]
    fn large_payloads_are_claimed_ahead_by_their_bytes_and_not_by_the_time_that_they_take() {
        const INPUT: usize = 300_000;
        const FIT: usize = BYTES_AHEAD / INPUT;
        let pace = pace(10, micros(100), micros(1_000), 1_000);
        let small = pace.ahead();
        let mut refused = Vec::new();
        for _ in 0..100 {
            let wanted = 10 + pace.ahead();
            // The store brings no more than fit, once the ten workers have one each.
            let brought = wanted.min(FIT.max(10));
            refused.push(wanted - brought);
            for _ in 0..brought {
                pace.begun();
                pace.ended(micros(100));
            }
            pace.claimed(micros(brought as u64 * 25_000), brought, brought * INPUT);
        }
        assert_eq!(refused[0], 10 + small - FIT, "their size was not known");
        assert!(
            refused[1..].iter().all(|refused| *refused <= 10),
            "now it is: {refused:?}"
        );
        assert_eq!(pace.ahead(), FIT);
        for _ in 0..100 {
            (0..1_000).for_each(|_| pace.begun());
            pace.claimed(micros(1_000), 1_000, 1_000 * 20);
        }
        assert_eq!(pace.ahead(), small, "light ones are claimed as before");
    }

    #[test]
    fn one_long_job_ends_it() {
        let pace = pace(10, micros(10), micros(1_000), 1_000);
        assert_eq!(pace.ahead(), 2_000);
        pace.ended(Duration::from_secs(1));
        assert_eq!(pace.ahead(), 0);
        for _ in 0..150 {
            pace.ended(micros(10));
        }
        assert!(pace.ahead() > 500, "and many short ones begin it again");
    }
}
