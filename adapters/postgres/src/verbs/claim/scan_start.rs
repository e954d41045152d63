//! Where claims begin to read the index while a transaction holds an old snapshot.
//!
//! The server cannot remove the row of a job that was claimed after such a snapshot was made before the snapshot ends, and
//! the dead index entry lies where claims read first: each claim would read past all jobs that were claimed since. So a
//! claim counts the dead entries that it reads, and if they are many the next claims begin behind them: a little before the
//! key up to which all jobs had been taken. How little is adjusted to what the claims read.
//!
//! A job that appears before that key all the same (an urgent job, a chain whose transaction took long) is found by a full
//! scan, which claims make from time to time.
//!
//! There are dead entries without any old snapshot too: while many short jobs are drained, those of the last claims, and all
//! since another session began a short statement. The next full scan lets the server remove them. So a full scan is made
//! twice in a row. As long as the second one meets fewer dead entries, or the first that did not is younger than [`OLD`],
//! claims make a full scan at least every tenth of a second. Otherwise a transaction holds an old snapshot, and claims give
//! full scans a small part of their time.

use std::collections::HashMap;
use std::time::Duration;

use queuert::__task::Lock;
use tokio::time::Instant;

use crate::store::micros;

/// From how many dead entries on claims begin behind them: to read so many takes about as long as a claim takes otherwise.
const MANY: i64 = 1_000;

/// How far before the key up to which all jobs were taken claims begin, at first and at most. The margin is halved while
/// claims read many dead entries, and doubled while they read few.
const FIRST_MARGIN: Duration = Duration::from_secs(1);
const LARGEST_MARGIN: Duration = Duration::from_secs(60);

/// What it costs to read past a dead entry.
const ENTRY: Duration = Duration::from_micros(1);

/// From when on a snapshot is old. Until then the server may be gathering statistics of a large table, or a report counts
/// rows.
const OLD: Duration = Duration::from_secs(2);

/// From one full scan to the next: so many times what its dead entries cost, and within these bounds, of which the last one
/// is for old snapshots. The time of the whole claim says nothing: most of it is spent on the jobs that it takes, wherever it
/// begins to read. The dead entries of the last claims are read once more in any case, whether all at once or bit by bit, so
/// without an old snapshot short pauses cost little.
const SHARE: u32 = 40;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const USUAL_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A key before every other one: a scan that begins here is a full scan.
pub(crate) const EVERYTHING: i64 = i64::MIN;

/// Where the claims of a process begin, by the types that are claimed together.
#[derive(Debug, Default)]
pub(crate) struct ScanStarts(Lock<HashMap<Vec<i32>, ScanStart>>);

/// Where claims of the same types begin to read `ready` and `later`.
#[derive(Debug, Default)]
pub(crate) struct ScanStart {
    pub(crate) ready: IndexStart,
    pub(crate) later: IndexStart,
}

impl ScanStarts {
    pub(crate) fn of<T>(&self, types: &[i32], act: impl FnOnce(&mut ScanStart) -> T) -> T {
        let mut all = self.0.lock();
        if let Some(start) = all.get_mut(types) {
            return act(start);
        }
        act(all.entry(types.to_vec()).or_default())
    }

    /// A job of this type, with this rank, is ready: all claims of the type, alone or with others, begin before it.
    pub(crate) fn put_ready(&self, type_id: i32, rank: i64) {
        let mut all = self.0.lock();
        let starts = all.iter_mut().filter(|(types, _)| types.contains(&type_id));
        starts.for_each(|(_, start)| start.ready.put(rank));
    }
}

/// Where claims begin to read one index, whose key grows with time in microseconds. `None`: every scan is a full scan.
#[derive(Debug, Default)]
pub(crate) struct IndexStart(Option<DeadEntries>);

/// Dead entries that lie before the jobs that are left.
#[derive(Debug)]
struct DeadEntries {
    /// All jobs with a smaller key were taken, as far as claims could see.
    taken: i64,
    margin: Duration,
    next_full_scan: Instant,
    /// How many dead entries the last full scan read, until the one after it has told whether the server removed them.
    unconfirmed: Option<i64>,
    /// Since when the server could remove nothing.
    held_since: Instant,
    /// When the last full scan that counts had ended.
    scanned_at: Instant,
}

impl DeadEntries {
    /// A full scan has read many dead entries.
    fn scanned_everything(&mut self, dead_entries: i64, now: Instant) {
        self.next_full_scan = match self.unconfirmed.take() {
            None => {
                self.unconfirmed = Some(dead_entries);
                now
            }
            Some(before) => {
                // Some of them are of jobs that other claims have taken meanwhile.
                if dead_entries < before / 4 * 3 {
                    self.held_since = now;
                }
                now + pause(dead_entries, now.saturating_duration_since(self.held_since))
            }
        };
        self.scanned_at = now;
    }
}

/// What one claim has read of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    pub(crate) begun_at: Instant,
    /// Where it began.
    pub(crate) from: i64,
    /// How many dead entries it read.
    pub(crate) dead_entries: i64,
    /// No job that could be taken is left before this key; `None` if the claim could not tell.
    pub(crate) taken: Option<i64>,
}

impl IndexStart {
    /// Where to begin.
    pub(crate) fn from(&self, now: Instant) -> i64 {
        match &self.0 {
            Some(dead) if now < dead.next_full_scan => dead.taken.saturating_sub(micros(dead.margin)),
            _ => EVERYTHING,
        }
    }

    pub(crate) fn scanned(&mut self, scan: Scan, now: Instant) {
        let many = scan.dead_entries > MANY;
        match &mut self.0 {
            // A scan that began before another one changed the start says nothing new.
            None if scan.from != EVERYTHING => {}
            None if !many => {}
            None => {
                self.0 = scan.taken.map(|taken| DeadEntries {
                    taken,
                    margin: FIRST_MARGIN,
                    next_full_scan: now,
                    unconfirmed: Some(scan.dead_entries),
                    held_since: now,
                    scanned_at: now,
                });
            }
            Some(_) if scan.from == EVERYTHING && !many => self.0 = None,
            // The next claims go on with what the full scan met behind the key. One that could not tell is to be repeated.
            Some(dead) if scan.from == EVERYTHING => match scan.taken {
                None => {}
                // A scan that was under way together with the last one has read the same entries, and tells nothing about
                // what the server has removed.
                Some(taken) if scan.begun_at < dead.scanned_at => dead.taken = dead.taken.min(taken),
                Some(taken) => {
                    dead.taken = taken;
                    dead.scanned_everything(scan.dead_entries, now);
                }
            },
            Some(dead) => {
                dead.taken = scan.taken.map_or(dead.taken, |taken| taken.max(dead.taken));
                if many {
                    dead.margin /= 2;
                } else if scan.dead_entries < MANY / 4 {
                    dead.margin = (dead.margin * 2).clamp(Duration::from_millis(1), LARGEST_MARGIN);
                }
            }
        }
    }

    /// How long it is until the next full scan, unless every scan is one.
    pub(crate) fn next_full_scan(&self, now: Instant) -> Option<Duration> {
        let dead = self.0.as_ref()?;
        Some(dead.next_full_scan.saturating_duration_since(now))
    }

    /// A job with this key has been put there.
    pub(crate) fn put(&mut self, key: i64) {
        if let Some(dead) = &mut self.0 {
            dead.taken = dead.taken.min(key);
        }
    }
}

/// From one full scan to the next, by how many dead entries it read and for how long the server could remove nothing.
fn pause(dead_entries: i64, held: Duration) -> Duration {
    let entries = u32::try_from(dead_entries).unwrap_or(u32::MAX);
    let longest = if held < OLD { USUAL_PAUSE } else { LONGEST_PAUSE };
    ENTRY
        .saturating_mul(entries)
        .saturating_mul(SHARE)
        .clamp(SHORTEST_PAUSE, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    /// Dead entries of a full scan, and the pause after it.
    const MANY_DEAD: i64 = 20_000;
    const PAUSE: Duration = Duration::from_millis(800);

    fn scan(begun_at: Instant, from: i64, dead_entries: i64, taken: i64) -> Scan {
        Scan {
            begun_at,
            from,
            dead_entries,
            taken: Some(taken),
        }
    }

    /// Two full scans, one after the other, and the server removes nothing.
    fn scan_twice(start: &mut IndexStart, now: Instant, taken: i64) {
        for _ in 0..2 {
            assert_eq!(start.from(now), EVERYTHING);
            start.scanned(scan(now, EVERYTHING, MANY_DEAD, taken), now);
        }
    }

    /// Behind a snapshot that has become old just now.
    fn behind_old_snapshot() -> (IndexStart, Instant) {
        let begun = Instant::now();
        let mut start = IndexStart::default();
        scan_twice(&mut start, begun, 90 * SECOND);
        let now = begun + OLD;
        scan_twice(&mut start, now, 100 * SECOND);
        (start, now)
    }

    #[test]
    fn claims_scan_everything_while_there_are_few_dead_entries() {
        let now = Instant::now();
        let mut start = IndexStart::default();
        assert_eq!(start.from(now), EVERYTHING);
        start.scanned(scan(now, EVERYTHING, MANY, 100 * SECOND), now);
        assert_eq!(start.from(now), EVERYTHING);
    }

    #[test]
    fn claims_begin_behind_dead_entries_and_go_on_with_what_they_take() {
        let (mut start, now) = behind_old_snapshot();
        assert_eq!(start.from(now), 99 * SECOND);
        start.scanned(scan(now, 99 * SECOND, MANY / 2, 107 * SECOND), now);
        assert_eq!(start.from(now), 106 * SECOND);
        start.scanned(scan(now, 106 * SECOND, MANY / 2, 103 * SECOND), now);
        assert_eq!(
            start.from(now),
            106 * SECOND,
            "an answer that came late takes nothing back"
        );
    }

    #[test]
    fn the_margin_follows_what_claims_read() {
        let (mut start, now) = behind_old_snapshot();
        start.scanned(scan(now, 99 * SECOND, MANY + 1, 100 * SECOND), now);
        assert_eq!(start.from(now), 100 * SECOND - SECOND / 2);
        for _ in 0..100 {
            start.scanned(scan(now, 0, MANY + 1, 100 * SECOND), now);
        }
        assert_eq!(start.from(now), 100 * SECOND);
        for _ in 0..100 {
            start.scanned(scan(now, 0, 0, 100 * SECOND), now);
        }
        assert_eq!(start.from(now), 40 * SECOND);
    }

    #[test]
    fn a_full_scan_comes_from_time_to_time_and_always_when_the_dead_entries_are_gone() {
        let (mut start, now) = behind_old_snapshot();
        let later = now + PAUSE;
        assert_eq!(start.from(later - Duration::from_millis(1)), 99 * SECOND);
        assert_eq!(start.from(later), EVERYTHING);
        scan_twice(&mut start, later, 101 * SECOND);
        assert_eq!(start.from(later), 100 * SECOND);
        let last = later + PAUSE;
        start.scanned(scan(last, EVERYTHING, 10, 102 * SECOND), last);
        assert_eq!(start.from(last), EVERYTHING);
        start.scanned(scan(last, 100 * SECOND, MANY_DEAD, 102 * SECOND), last);
        assert_eq!(start.from(last), EVERYTHING, "an answer that came late changes nothing");
    }

    #[test]
    fn full_scans_are_rare_only_behind_an_old_snapshot() {
        let young = OLD - Duration::from_millis(1);
        assert_eq!(pause(MANY + 1, young), SHORTEST_PAUSE);
        assert_eq!(pause(MANY_DEAD, young), USUAL_PAUSE);
        assert_eq!(pause(i64::MAX, young), USUAL_PAUSE);
        assert_eq!(pause(MANY + 1, OLD), SHORTEST_PAUSE);
        assert_eq!(pause(MANY_DEAD, OLD), PAUSE);
        assert_eq!(
            pause(180_000, OLD),
            Duration::from_secs(5),
            "ten minutes behind a snapshot"
        );
        assert_eq!(pause(i64::MAX, OLD), Duration::from_secs(5));
    }

    #[test]
    fn a_second_scan_tells_whether_a_snapshot_is_held() {
        let (mut start, now) = behind_old_snapshot();
        let later = now + PAUSE;
        start.scanned(scan(later, EVERYTHING, MANY_DEAD, 101 * SECOND), later);
        assert_eq!(start.from(later), EVERYTHING, "it is not known yet");
        start.scanned(scan(later, EVERYTHING, MANY_DEAD / 2, 101 * SECOND), later);
        assert_eq!(start.from(later), 100 * SECOND);
        assert_eq!(
            start.next_full_scan(later),
            Some(USUAL_PAUSE),
            "half of them were removed"
        );
        // From then on it takes as long as at first until a snapshot is old.
        let young = later + OLD - Duration::from_millis(1);
        scan_twice(&mut start, young, 102 * SECOND);
        assert_eq!(start.next_full_scan(young), Some(USUAL_PAUSE));
        let old = young + USUAL_PAUSE;
        scan_twice(&mut start, old, 103 * SECOND);
        assert_eq!(start.next_full_scan(old), Some(PAUSE));
    }

    #[test]
    fn scans_that_are_under_way_together_tell_nothing_about_each_other() {
        let (mut start, now) = behind_old_snapshot();
        let later = now + PAUSE;
        let ended = later + Duration::from_millis(20);
        start.scanned(scan(later, EVERYTHING, MANY_DEAD, 101 * SECOND), ended);
        start.scanned(scan(later, EVERYTHING, MANY_DEAD, 101 * SECOND), ended);
        assert_eq!(
            start.from(ended),
            EVERYTHING,
            "the second began before the server could remove anything"
        );
        start.scanned(scan(ended, EVERYTHING, MANY + 1, 102 * SECOND), ended);
        assert_eq!(start.next_full_scan(ended), Some(SHORTEST_PAUSE));
        // One more that began with the last one is not the first of two again; claims go on with what it met.
        let late = ended + Duration::from_millis(20);
        start.scanned(scan(later, EVERYTHING, MANY_DEAD, 50 * SECOND), late);
        assert_eq!(start.from(late), 49 * SECOND);
    }

    #[test]
    fn claims_go_on_with_what_a_full_scan_has_met() {
        let (mut start, now) = behind_old_snapshot();
        let later = now + PAUSE;
        scan_twice(&mut start, later, 30 * SECOND);
        assert_eq!(
            start.from(later),
            29 * SECOND,
            "it took as many as it was asked for, and there may be more"
        );
        assert_eq!(start.next_full_scan(later), Some(PAUSE));
        assert_eq!(IndexStart::default().next_full_scan(later), None);
    }

    #[test]
    fn a_job_that_is_put_before_the_start_moves_it_back() {
        let (mut start, now) = behind_old_snapshot();
        start.put(50 * SECOND);
        assert_eq!(start.from(now), 49 * SECOND);
        start.put(70 * SECOND);
        assert_eq!(start.from(now), 49 * SECOND);
        start.scanned(scan(now, 49 * SECOND, MANY / 2, 108 * SECOND), now);
        assert_eq!(start.from(now), 107 * SECOND);
    }

    #[test]
    fn a_scan_that_could_not_tell_moves_nothing() {
        let now = Instant::now();
        let mut start = IndexStart::default();
        let blind = |begun_at, from| Scan {
            taken: None,
            ..scan(begun_at, from, MANY_DEAD, 0)
        };
        start.scanned(blind(now, EVERYTHING), now);
        assert_eq!(start.from(now), EVERYTHING);
        let (mut start, now) = behind_old_snapshot();
        start.scanned(blind(now, 99 * SECOND), now);
        assert_eq!(start.from(now), 100 * SECOND - SECOND / 2);
        let later = now + PAUSE;
        start.scanned(blind(later, EVERYTHING), later);
        assert_eq!(start.from(later), EVERYTHING, "it is still to be done");
    }

    /// Claims of short jobs one after the other, and what the server does with the entries that they leave.
    struct Drain {
        start: IndexStart,
        begun: Instant,
        now: Duration,
        /// Jobs taken so far, in the order of their keys.
        taken: i64,
        /// Of those, the ones whose entries are still there, with the time at which they were taken.
        left: Vec<(i64, Duration)>,
        /// Dead entries that were read.
        read: i64,
    }

    impl Drain {
        const CLAIMED: i64 = 250;
        const EVERY: Duration = Duration::from_millis(5);
        /// How long a statement takes: what was taken since the oldest one began cannot be swept.
        const STATEMENT: Duration = Duration::from_millis(30);

        fn begin() -> Self {
            Self {
                start: IndexStart::default(),
                begun: Instant::now(),
                now: Duration::ZERO,
                taken: 0,
                left: Vec::new(),
                read: 0,
            }
        }

        /// Goes on for so long; another session may hold a snapshot from its beginning on. Gives the longest time
        /// without a full scan, and the part of their time that claims spent on dead entries.
        fn go_on(&mut self, time: Duration, held: bool) -> (Duration, f64) {
            let (begin, end) = (self.now, self.now + time);
            let read = self.read;
            let (mut looked, mut longest) = (self.now, Duration::ZERO);
            while self.now < end {
                let began = self.begun + self.now;
                let from = self.start.from(began);
                if from == EVERYTHING {
                    longest = longest.max(self.now - looked);
                    looked = self.now;
                }
                let oldest_snapshot = if held {
                    begin.min(self.now.saturating_sub(Self::STATEMENT))
                } else {
                    self.now.saturating_sub(Self::STATEMENT)
                };
                // Jobs were started as fast as they are drained.
                let step = micros(Self::EVERY) / Self::CLAIMED;
                let first = self.left.partition_point(|(job, _)| job.saturating_mul(step) < from);
                let rest = self.left.split_off(first);
                let dead_entries = i64::try_from(rest.len()).expect("there are not so many");
                self.left
                    .extend(rest.into_iter().filter(|(_, taken_at)| *taken_at >= oldest_snapshot));
                self.read += dead_entries;
                self.left
                    .extend((0..Self::CLAIMED).map(|job| (self.taken + job, self.now)));
                self.taken += Self::CLAIMED;
                let ended = self.begun + self.now + Self::EVERY / 2;
                self.start
                    .scanned(scan(began, from, dead_entries, self.taken * step), ended);
                self.now += Self::EVERY;
            }
            let spent = ENTRY.as_secs_f64() * (self.read - read) as f64;
            (longest.max(self.now - looked), spent / time.as_secs_f64())
        }
    }

    #[test]
    fn full_scans_are_frequent_while_short_jobs_are_drained() {
        let soon = USUAL_PAUSE + Drain::EVERY * 2;
        let mut drain = Drain::begin();
        let (longest, spent) = drain.go_on(Duration::from_secs(16), false);
        assert!(longest <= soon, "{longest:?}");
        assert!(spent < 0.3, "{spent}");
        // The server gathers statistics.
        let (longest, _) = drain.go_on(Duration::from_millis(1_500), true);
        assert!(longest <= soon, "{longest:?}");
        let (longest, _) = drain.go_on(Duration::from_secs(5), false);
        assert!(longest <= soon, "{longest:?}");
    }

    #[test]
    fn full_scans_are_rare_behind_an_old_snapshot_and_frequent_again_when_it_has_gone() {
        let mut drain = Drain::begin();
        drain.go_on(Duration::from_secs(1), false);
        let (longest, _) = drain.go_on(Duration::from_secs(15), true);
        assert!(longest > Duration::from_secs(4), "{longest:?}");
        assert!(longest <= LONGEST_PAUSE + Drain::EVERY * 2, "{longest:?}");
        let (longest, _) = drain.go_on(Duration::from_secs(6), false);
        assert!(longest <= LONGEST_PAUSE + Drain::EVERY * 2, "{longest:?}");
        let (longest, _) = drain.go_on(Duration::from_secs(6), false);
        assert!(longest <= USUAL_PAUSE + Drain::EVERY * 2, "{longest:?}");
    }
}
