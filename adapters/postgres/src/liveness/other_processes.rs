//! What a process knows of the other processes, and when it looks at them again. This module does no I/O and reads no clock.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// How long a lock must be free. A process whose connection was cut has another one long before that.
const GRACE: Duration = Duration::from_secs(1);

/// How often a process looks: alone; with others, times their number; and in any case.
const ALONE: Duration = Duration::from_secs(10);
const PER_PROCESS: Duration = Duration::from_millis(400);
const LEAST: Duration = Duration::from_millis(1_000);
const MOST: Duration = Duration::from_secs(15);

/// How often a process looks while a lock is free and its owner is not known to be dead.
pub(crate) const SUSPECTED: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(crate) struct OtherProcesses {
    pub(crate) looked_at: Option<Instant>,
    pub(crate) count: usize,
    /// The processes whose locks are free.
    pub(crate) missed: BTreeMap<i64, Absence>,
    /// The processes that are taken for dead, and since when.
    pub(crate) deaths: HashMap<i64, Instant>,
    /// Whether another process misses one of which nothing is known here.
    told: bool,
}

/// Another process, as a look has found it.
#[derive(Debug)]
pub(crate) struct FoundProcess {
    pub(crate) key: i64,
    pub(crate) renewed_at: i64,
    pub(crate) is_free: bool,
}

/// The absence of a process whose lock is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    /// Since when it gave no sign of life.
    pub(crate) since: Instant,
    /// The last sign.
    pub(crate) renewed_at: i64,
    /// Whether it gave a sign of life without its lock.
    pub(crate) vouched: bool,
}

impl OtherProcesses {
    /// When to look next.
    pub(crate) fn due(&self) -> Option<Instant> {
        let interval = match u32::try_from(self.count).unwrap_or(u32::MAX) {
            _ if self.told => Duration::ZERO,
            _ if self.has_suspects() => SUSPECTED,
            0 => ALONE,
            others => PER_PROCESS.saturating_mul(others.saturating_add(1)).clamp(LEAST, MOST),
        };
        self.looked_at.map(|looked_at| looked_at + interval)
    }

    /// Whether the lock of a process is free that is not known to be dead or alive.
    pub(crate) fn has_suspects(&self) -> bool {
        let suspect = |(key, absence): (&i64, &Absence)| !absence.vouched && !self.deaths.contains_key(key);
        self.missed.iter().any(suspect)
    }

    /// Takes note that another process has looked. This process still has to follow up its own suspicion.
    pub(crate) fn relieve(&mut self, now: Instant) {
        if !self.has_suspects() && !self.told {
            self.looked_at = Some(now);
        }
    }

    /// Takes note that another process misses the one with this key. Returns whether this process must look at once.
    pub(crate) fn suspect(&mut self, key: i64) -> bool {
        let news = !self.missed.contains_key(&key);
        self.told |= news;
        news
    }

    pub(crate) fn saw(&mut self, found: &[FoundProcess], now: Instant) {
        self.looked_at = Some(now);
        self.told = false;
        self.count = found.len();
        let free: BTreeMap<i64, i64> = found
            .iter()
            .filter(|other| other.is_free)
            .map(|other| (other.key, other.renewed_at))
            .collect();
        self.missed.retain(|key, _| free.contains_key(key));
        for (key, renewed_at) in free {
            let absence = self.missed.entry(key).or_insert(Absence {
                since: now,
                renewed_at,
                vouched: false,
            });
            if absence.renewed_at != renewed_at {
                *absence = Absence {
                    since: now,
                    renewed_at,
                    vouched: true,
                };
                self.deaths.remove(&key);
            }
            if now.saturating_duration_since(absence.since) >= GRACE {
                self.deaths.entry(key).or_insert(now);
            }
        }
        self.deaths.retain(|key, _| self.missed.contains_key(key));
    }

    /// Forgets what was seen before.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.looked_at = Some(now);
        self.told = false;
        self.missed.clear();
        self.deaths.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(300);

    fn saw(others: &mut OtherProcesses, free: &[i64], held: &[i64], now: Instant) {
        let of = |keys: &[i64], is_free| {
            keys.iter()
                .map(move |key| FoundProcess {
                    key: *key,
                    renewed_at: 0,
                    is_free,
                })
                .collect::<Vec<_>>()
        };
        let found: Vec<FoundProcess> = of(free, true).into_iter().chain(of(held, false)).collect();
        others.saw(&found, now);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_missed_for_the_grace_is_dead_and_who_comes_back_is_not() {
        let mut others = OtherProcesses::default();
        let begun = Instant::now();
        saw(&mut others, &[1], &[2], begun);
        assert!(others.deaths.is_empty());
        assert_eq!(others.due(), Some(begun + SUSPECTED));
        saw(&mut others, &[], &[1, 2], begun + STEP);
        saw(&mut others, &[1], &[2], begun + STEP * 2);
        saw(&mut others, &[1], &[2], begun + STEP * 4);
        assert!(others.deaths.is_empty(), "it was there in between");
        let end = begun + STEP * 2 + GRACE;
        saw(&mut others, &[1], &[2], end);
        assert_eq!(others.deaths, HashMap::from([(1, end)]));
        saw(&mut others, &[1], &[2], end + STEP);
        assert_eq!(others.deaths, HashMap::from([(1, end)]), "found out once");
        assert_eq!(others.due(), Some(end + STEP + PER_PROCESS * 3), "no hurry any more");
        saw(&mut others, &[], &[2], end + STEP * 2);
        assert!(others.deaths.is_empty(), "its row has gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_in_what_is_known_starts_the_grace_again() {
        let mut others = OtherProcesses::default();
        let begun = Instant::now();
        saw(&mut others, &[1], &[], begun);
        others.forget(begun + STEP);
        saw(&mut others, &[1], &[], begun + GRACE);
        assert!(others.deaths.is_empty());
        saw(&mut others, &[1], &[], begun + GRACE * 2);
        assert_eq!(others.deaths.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_without_a_lock_keep_a_process_alive_until_they_end() {
        let mut others = OtherProcesses::default();
        let begun = Instant::now();
        let mut look = |renewed_at, now| {
            let found = FoundProcess {
                key: 1,
                renewed_at,
                is_free: true,
            };
            others.saw(&[found], now);
            (others.deaths.len(), others.due())
        };
        for step in 0..10 {
            let (deaths, _) = look(i64::from(step), begun + GRACE * step);
            assert_eq!(deaths, 0, "it has given a sign since the last look");
        }
        let last = begun + GRACE * 9;
        assert_eq!(
            look(9, last + GRACE / 2),
            (0, Some(last + GRACE / 2 + LEAST)),
            "no hurry"
        );
        assert_eq!(look(9, last + GRACE).0, 1, "no more signs");
        assert_eq!(look(10, last + GRACE * 2).0, 0, "one that came late counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_of_another_process_counts_unless_somebody_is_suspected() {
        let mut others = OtherProcesses::default();
        let begun = Instant::now();
        saw(&mut others, &[], &[1, 2], begun);
        others.relieve(begun + STEP);
        assert_eq!(others.due(), Some(begun + STEP + PER_PROCESS * 3));
        saw(&mut others, &[1], &[2], begun + STEP * 2);
        others.relieve(begun + STEP * 3);
        assert_eq!(
            others.due(),
            Some(begun + STEP * 2 + SUSPECTED),
            "it follows up what it has found"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_missed_by_another_process_is_looked_for_at_once() {
        let mut others = OtherProcesses::default();
        let begun = Instant::now();
        saw(&mut others, &[], &[1, 2], begun);
        assert!(others.suspect(1));
        others.relieve(begun + STEP);
        assert_eq!(others.due(), Some(begun), "a look of the other process is not enough");
        saw(&mut others, &[1], &[2], begun + STEP);
        assert!(!others.suspect(1), "it is known");
        assert_eq!(others.due(), Some(begun + STEP + SUSPECTED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_fleet_looks_no_more_often_than_a_small_one() {
        let now = Instant::now();
        for (size, interval) in [
            (0, ALONE),
            (1, LEAST),
            (3, PER_PROCESS * 4),
            (19, PER_PROCESS * 20),
            (500, MOST),
        ] {
            let mut others = OtherProcesses::default();
            assert_eq!(others.due(), None, "the first look comes at once");
            saw(&mut others, &[], &Vec::from_iter(0..size), now);
            assert_eq!(others.due(), Some(now + interval), "{size} others");
        }
    }
}
