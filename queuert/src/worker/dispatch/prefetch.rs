//! How many jobs to claim ahead: as many as the workers will begin before the next claim could be answered, or is worth it.
//!
//! The local queue bounds the bytes of waiting payloads, see
//! [`ClaimBounds`](crate::worker::dispatch::local_queue::ClaimBounds): the store ends a claim that would exceed them. The
//! sizes that are measured here only keep claims from asking for more jobs than fit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The most bytes of payloads that wait in the local queue, beyond one job for each idle worker: no claim brings more, except
/// for its first job.
pub(crate) const BYTES_AHEAD: usize = 4 << 20;

/// Measurements of jobs and claims. They decide how many jobs are claimed at once and nothing else, so they are kept without
/// locks, and a lost update does no harm.
pub(crate) struct Prefetch {
    workers: usize,
    /// How long a job occupies a worker, in nanoseconds; `UNKNOWN` until the first job has ended.
    occupied: AtomicU64,
    /// How long a claim takes, in nanoseconds, without the time for the transfer of large payloads.
    round_trip: AtomicU64,
    /// The size of a claimed job's payloads, in bytes.
    job_bytes: AtomicU64,
    /// How many jobs workers began since the last claim was answered.
    begun: AtomicUsize,
    /// How many jobs workers began between the last two answers to claims.
    begun_before: AtomicUsize,
}

const UNKNOWN: u64 = u64::MAX;

/// A claim brings jobs for at least this long, in nanoseconds, however soon the next claim would be answered: a claim costs
/// the store as much as the ends of several jobs, and this is too short a wait to matter for a job.
const WORTHWHILE: u64 = 4_000_000;

/// Only claims that brought at most this many bytes are measured for how long a claim takes. A larger claim spends its time on
/// the transfer of payloads: claims would become larger because they take long, and take long because they are large.
const SMALL_CLAIM: u64 = 64 << 10;

impl Prefetch {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers,
            occupied: AtomicU64::new(UNKNOWN),
            round_trip: AtomicU64::new(0),
            job_bytes: AtomicU64::new(0),
            begun: AtomicUsize::new(0),
            begun_before: AtomicUsize::new(0),
        }
    }

    /// How many jobs, beyond those for idle workers, the workers will begin by the time a claim could be answered, or in the
    /// time that makes a claim worthwhile. At most twice the number that they began between the last two answers, because a
    /// worker shares its processor core with others; and, if the jobs are as large as those before, no more bytes than may
    /// wait.
    pub(crate) fn ahead(&self) -> usize {
        let occupied = self.occupied.load(Ordering::Relaxed);
        if occupied == UNKNOWN {
            return 0;
        }
        let workers = u64::try_from(self.workers).unwrap_or(u64::MAX);
        let time = self.round_trip.load(Ordering::Relaxed).max(WORTHWHILE);
        let free_by_then = time.saturating_mul(workers) / occupied.max(1);
        let possible = usize::try_from(free_by_then).unwrap_or(usize::MAX);
        let job_bytes = usize::try_from(self.job_bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let fitting = BYTES_AHEAD / job_bytes.max(1);
        possible.min(2 * self.begun_before.load(Ordering::Relaxed)).min(fitting)
    }

    /// Records that a worker has begun a job.
    pub(crate) fn job_begun(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Records how long a job occupied a worker.
    pub(crate) fn job_ended(&self, occupied: Duration) {
        update(&self.occupied, occupied);
    }

    /// Records how long a claim took, how many jobs it brought, and the size of their payloads.
    pub(crate) fn claim_answered(&self, round_trip: Duration, jobs: usize, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let known = Duration::from_nanos(self.round_trip.load(Ordering::Relaxed));
        if bytes <= SMALL_CLAIM {
            update(&self.round_trip, round_trip);
        } else if known.is_zero() || round_trip < known {
            self.round_trip.store(nanoseconds(round_trip), Ordering::Relaxed);
        }
        if let Ok(jobs @ 1..) = u64::try_from(jobs) {
            // Larger jobs count at once, smaller ones gradually: a claim that asks for too many jobs costs the store more
            // than one that asks for too few.
            let (before, now) = (self.job_bytes.load(Ordering::Relaxed), bytes / jobs);
            self.job_bytes.store(now.max(before - before / 8), Ordering::Relaxed);
        }
        let begun = self.begun.swap(0, Ordering::Relaxed);
        self.begun_before.store(begun, Ordering::Relaxed);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(UNKNOWN).min(UNKNOWN - 1)
}

/// Updates a mean in which older measurements count less and less.
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

    fn measured(workers: usize, occupied: Duration, round_trip: Duration, begun: usize) -> Prefetch {
        let prefetch = Prefetch::new(workers);
        prefetch.job_ended(occupied);
        for _ in 0..begun {
            prefetch.job_begun();
        }
        prefetch.claim_answered(round_trip, begun, 0);
        prefetch
    }

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn nothing_is_claimed_ahead_of_jobs_of_which_none_ends_during_a_claim() {
        assert_eq!(Prefetch::new(10).ahead(), 0, "before anything is known");
        assert_eq!(measured(10, micros(40_001), micros(1_000), 100).ahead(), 0);
        assert_eq!(measured(10, micros(100_001), micros(10_000), 100).ahead(), 0);
    }

    #[test]
    fn as_many_long_jobs_are_claimed_ahead_as_end_during_a_claim() {
        assert_eq!(measured(10, micros(50_000), micros(10_000), 100).ahead(), 2);
    }

    #[test]
    fn a_claim_provides_for_four_milliseconds_even_if_the_next_one_is_answered_sooner() {
        assert_eq!(measured(10, micros(2_000), micros(1_000), 100).ahead(), 20);
    }

    #[test]
    fn as_many_jobs_as_would_begin_during_a_claim_are_claimed_ahead() {
        assert_eq!(measured(10, micros(100), micros(5_000), 1_000).ahead(), 500);
    }

    #[test]
    fn at_most_twice_the_number_that_began_in_the_round_before_is_claimed_ahead() {
        let prefetch = measured(10, micros(1), micros(1_000), 30);
        assert_eq!(prefetch.ahead(), 60);
        prefetch.claim_answered(micros(1_000), 0, 0);
        assert_eq!(prefetch.ahead(), 0, "nothing was begun since");
    }

    /// A worker set of ten whose jobs take no time, with inputs of 300 kB over a network of 12 MB/s.
    #[test]
    fn large_payloads_are_claimed_ahead_by_their_bytes_and_not_by_the_time_that_they_take() {
        const INPUT: usize = 300_000;
        const FIT: usize = BYTES_AHEAD / INPUT;
        let prefetch = measured(10, micros(100), micros(1_000), 1_000);
        let small = prefetch.ahead();
        let mut refused = Vec::new();
        for _ in 0..100 {
            let wanted = 10 + prefetch.ahead();
            // The store brings no more than fit, once the ten workers have one each.
            let brought = wanted.min(FIT.max(10));
            refused.push(wanted - brought);
            for _ in 0..brought {
                prefetch.job_begun();
                prefetch.job_ended(micros(100));
            }
            prefetch.claim_answered(micros(brought as u64 * 25_000), brought, brought * INPUT);
        }
        assert_eq!(refused[0], 10 + small - FIT, "their size was not known");
        assert!(
            refused[1..].iter().all(|refused| *refused <= 10),
            "now it is: {refused:?}"
        );
        assert_eq!(prefetch.ahead(), FIT);
        for _ in 0..100 {
            (0..1_000).for_each(|_| prefetch.job_begun());
            prefetch.claim_answered(micros(1_000), 1_000, 1_000 * 20);
        }
        assert_eq!(prefetch.ahead(), small, "small jobs are claimed as before");
    }

    #[test]
    fn one_long_job_ends_claiming_ahead() {
        let prefetch = measured(10, micros(10), micros(1_000), 1_000);
        assert_eq!(prefetch.ahead(), 2_000);
        prefetch.job_ended(Duration::from_secs(1));
        assert_eq!(prefetch.ahead(), 0);
        for _ in 0..150 {
            prefetch.job_ended(micros(10));
        }
        assert!(prefetch.ahead() > 500, "and many short ones begin it again");
    }
}
