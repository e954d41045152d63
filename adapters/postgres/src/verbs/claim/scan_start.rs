//! Where claims begin to look while somebody holds an old snapshot.
//!
//! A row that was taken after such a snapshot was made cannot be swept before it ends, and its index entry lies where claims
//! look first: each of them would read past all that was claimed since. So a claim counts the entries that it read in dead_entries,
//! and when they are many the next ones begin behind them: a little before the point up to which everything had been taken.
//! How little is adjusted to what they read.
//!
//! What turns up before that point all the same (an urgent job, a chain whose transaction took long) is found by a look at
//! everything, which claims take from time to time.
//!
//! Entries are in the way without any old snapshot too: while many short jobs are drained, those of the last claims, and all
//! that were taken since somebody began a short statement. The next look at everything sweeps them. So such a look is taken
//! twice in a row. As long as the second one comes upon less, or the first that did not is younger than [`OLD`], claims look
//! at everything at least every tenth of a second. Otherwise somebody holds an old snapshot, and claims give these looks a small part
//! of their time.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::micros;
use queuert::__task::Lock;

/// Entries read in dead_entries that are worth it: about as long as a claim takes otherwise.
const MANY: i64 = 1_000;

/// How far before the point claims begin, at first and at most. It is halved while they read much, doubled while they read
/// little.
const FIRST_MARGIN: Duration = Duration::from_secs(1);
const LARGEST_MARGIN: Duration = Duration::from_secs(60);

/// What it costs to read past an entry in dead_entries.
const ENTRY: Duration = Duration::from_micros(1);

/// From when on a snapshot is old. Until then the server may be gathering statistics of a large table, or somebody counts
/// rows.
const OLD: Duration = Duration::from_secs(2);

/// From one look at everything to the next: so many times what its entries in dead_entries cost, and within these bounds, of which
/// the last one is for old snapshots. The time of the whole claim says nothing: most of it is spent on the jobs that it takes,
/// wherever it begins to look. What the last claims have left is read once more in any case, whether all at once or bit by
/// bit, so without an old snapshot short pauses cost little.
const SHARE: u32 = 40;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const USUAL_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Before every key.
pub(crate) const EVERYTHING: i64 = i64::MIN;

/// The scan_starts of a process, by the types that are claimed together.
#[derive(Debug, Default)]
pub(crate) struct ScanStarts(Lock<HashMap<Vec<i32>, ScanStart>>);

/// Of the jobs that are ready, and of those that are due later.
#[derive(Debug, Default)]
pub(crate) struct ScanStart {
    pub(crate) ready: Edge,
    pub(crate) later: Edge,
}

impl ScanStarts {
    pub(crate) fn of<T>(&self, types: &[i32], act: impl FnOnce(&mut ScanStart) -> T) -> T {
        let mut all = self.0.lock();
        if let Some(scan_start) = all.get_mut(types) {
            return act(scan_start);
        }
        act(all.entry(types.to_vec()).or_default())
    }

    /// A job of this type, with this rank, is ready: all who claim the type, alone or with others, begin before it.
    pub(crate) fn put_ready(&self, type_id: i32, rank: i64) {
        let mut all = self.0.lock();
        let scan_starts = all.iter_mut().filter(|(types, _)| types.contains(&type_id));
        scan_starts.for_each(|(_, scan_start)| scan_start.ready.put(rank));
    }
}

/// One index that is read from its beginning, by a key that grows with time in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Edge(Option<Crowd>);

#[derive(Debug)]
struct Crowd {
    /// Whatever had a smaller key was taken, as far as could be seen.
    taken: i64,
    margin: Duration,
    look_again_at: Instant,
    /// What the last look at everything read in dead_entries, until the one after it has told whether that could be swept.
    doubt: Option<i64>,
    /// Since when nothing could be swept.
    held_since: Instant,
    /// When the last look at everything that counts had ended.
    looked_at: Instant,
}

impl Crowd {
    /// A look at everything has come upon much.
    fn looked_at_everything(&mut self, dead_entries: i64, now: Instant) {
        self.look_again_at = match self.doubt.take() {
            None => {
                self.doubt = Some(dead_entries);
                now
            }
            Some(before) => {
                // What others have taken meanwhile is in the way again.
                if dead_entries < before / 4 * 3 {
                    self.held_since = now;
                }
                now + pause(dead_entries, now.saturating_duration_since(self.held_since))
            }
        };
        self.looked_at = now;
    }
}

/// What one look came upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) begun_at: Instant,
    /// Where it began.
    pub(crate) from: i64,
    /// Entries that it read in dead_entries.
    pub(crate) dead_entries: i64,
    /// Nothing that could be taken is left before this key; unknown if it could not tell.
    pub(crate) taken: Option<i64>,
}

impl Edge {
    /// Where to begin.
    pub(crate) fn from(&self, now: Instant) -> i64 {
        match &self.0 {
            Some(crowd) if now < crowd.look_again_at => crowd.taken.saturating_sub(micros(crowd.margin)),
            _ => EVERYTHING,
        }
    }

    pub(crate) fn looked(&mut self, look: Look, now: Instant) {
        let many = look.dead_entries > MANY;
        match &mut self.0 {
            // One that began before others changed their mind says nothing new.
            None if look.from != EVERYTHING => {}
            None if !many => {}
            None => {
                self.0 = look.taken.map(|taken| Crowd {
                    taken,
                    margin: FIRST_MARGIN,
                    look_again_at: now,
                    doubt: Some(look.dead_entries),
                    held_since: now,
                    looked_at: now,
                });
            }
            Some(_) if look.from == EVERYTHING && !many => self.0 = None,
            // What it came upon behind the point is gone on with from there. One that could not tell is to be repeated.
            Some(crowd) if look.from == EVERYTHING => match look.taken {
                None => {}
                // One that was under way together with the last one has seen the same, and tells nothing about what was swept.
                Some(taken) if look.begun_at < crowd.looked_at => crowd.taken = crowd.taken.min(taken),
                Some(taken) => {
                    crowd.taken = taken;
                    crowd.looked_at_everything(look.dead_entries, now);
                }
            },
            Some(crowd) => {
                crowd.taken = look.taken.map_or(crowd.taken, |taken| taken.max(crowd.taken));
                if many {
                    crowd.margin /= 2;
                } else if look.dead_entries < MANY / 4 {
                    crowd.margin = (crowd.margin * 2).clamp(Duration::from_millis(1), LARGEST_MARGIN);
                }
            }
        }
    }

    /// How long it is until everything is looked at again, if that is not always so.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Duration> {
        let crowd = self.0.as_ref()?;
        Some(crowd.look_again_at.saturating_duration_since(now))
    }

    /// Something with this key has been put there.
    pub(crate) fn put(&mut self, key: i64) {
        if let Some(crowd) = &mut self.0 {
            crowd.taken = crowd.taken.min(key);
        }
    }
}

/// From one look at everything to the next, by what it read in dead_entries and for how long nothing could be swept.
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
    /// Entries in dead_entries of a look at everything, and the pause after it.
    const VAIN: i64 = 20_000;
    const PAUSE: Duration = Duration::from_millis(800);

    fn look(begun_at: Instant, from: i64, dead_entries: i64, taken: i64) -> Look {
        Look {
            begun_at,
            from,
            dead_entries,
            taken: Some(taken),
        }
    }

    /// Two looks at everything, one after the other, and nothing is swept.
    fn look_twice(edge: &mut Edge, now: Instant, taken: i64) {
        for _ in 0..2 {
            assert_eq!(edge.from(now), EVERYTHING);
            edge.looked(look(now, EVERYTHING, VAIN, taken), now);
        }
    }

    /// Behind a snapshot that has become old just now.
    fn crowded() -> (Edge, Instant) {
        let begun = Instant::now();
        let mut edge = Edge::default();
        look_twice(&mut edge, begun, 90 * SECOND);
        let now = begun + OLD;
        look_twice(&mut edge, now, 100 * SECOND);
        (edge, now)
    }

    #[test]
    fn claims_look_at_everything_while_that_is_little() {
        let now = Instant::now();
        let mut edge = Edge::default();
        assert_eq!(edge.from(now), EVERYTHING);
        edge.looked(look(now, EVERYTHING, MANY, 100 * SECOND), now);
        assert_eq!(edge.from(now), EVERYTHING);
    }

    #[test]
    fn they_begin_behind_a_crowd_and_go_on_with_what_they_take() {
        let (mut edge, now) = crowded();
        assert_eq!(edge.from(now), 99 * SECOND);
        edge.looked(look(now, 99 * SECOND, MANY / 2, 107 * SECOND), now);
        assert_eq!(edge.from(now), 106 * SECOND);
        edge.looked(look(now, 106 * SECOND, MANY / 2, 103 * SECOND), now);
        assert_eq!(
            edge.from(now),
            106 * SECOND,
            "an answer that came late takes nothing back"
        );
    }

    #[test]
    fn the_margin_follows_what_they_read() {
        let (mut edge, now) = crowded();
        edge.looked(look(now, 99 * SECOND, MANY + 1, 100 * SECOND), now);
        assert_eq!(edge.from(now), 100 * SECOND - SECOND / 2);
        for _ in 0..100 {
            edge.looked(look(now, 0, MANY + 1, 100 * SECOND), now);
        }
        assert_eq!(edge.from(now), 100 * SECOND);
        for _ in 0..100 {
            edge.looked(look(now, 0, 0, 100 * SECOND), now);
        }
        assert_eq!(edge.from(now), 40 * SECOND);
    }

    #[test]
    fn everything_is_looked_at_from_time_to_time_and_when_the_crowd_has_gone_always() {
        let (mut edge, now) = crowded();
        let later = now + PAUSE;
        assert_eq!(edge.from(later - Duration::from_millis(1)), 99 * SECOND);
        assert_eq!(edge.from(later), EVERYTHING);
        look_twice(&mut edge, later, 101 * SECOND);
        assert_eq!(edge.from(later), 100 * SECOND);
        let last = later + PAUSE;
        edge.looked(look(last, EVERYTHING, 10, 102 * SECOND), last);
        assert_eq!(edge.from(last), EVERYTHING);
        edge.looked(look(last, 100 * SECOND, VAIN, 102 * SECOND), last);
        assert_eq!(edge.from(last), EVERYTHING, "an answer that came late changes nothing");
    }

    #[test]
    fn looks_at_everything_are_rare_only_behind_an_old_snapshot() {
        let young = OLD - Duration::from_millis(1);
        assert_eq!(pause(MANY + 1, young), SHORTEST_PAUSE);
        assert_eq!(pause(VAIN, young), USUAL_PAUSE);
        assert_eq!(pause(i64::MAX, young), USUAL_PAUSE);
        assert_eq!(pause(MANY + 1, OLD), SHORTEST_PAUSE);
        assert_eq!(pause(VAIN, OLD), PAUSE);
        assert_eq!(
            pause(180_000, OLD),
            Duration::from_secs(5),
            "ten minutes behind a snapshot"
        );
        assert_eq!(pause(i64::MAX, OLD), Duration::from_secs(5));
    }

    #[test]
    fn a_second_look_tells_whether_a_snapshot_is_held() {
        let (mut edge, now) = crowded();
        let later = now + PAUSE;
        edge.looked(look(later, EVERYTHING, VAIN, 101 * SECOND), later);
        assert_eq!(edge.from(later), EVERYTHING, "it is not known yet");
        edge.looked(look(later, EVERYTHING, VAIN / 2, 101 * SECOND), later);
        assert_eq!(edge.from(later), 100 * SECOND);
        assert_eq!(edge.next_look(later), Some(USUAL_PAUSE), "half of it was swept");
        // From then on it takes as long as at first until a snapshot is old.
        let young = later + OLD - Duration::from_millis(1);
        look_twice(&mut edge, young, 102 * SECOND);
        assert_eq!(edge.next_look(young), Some(USUAL_PAUSE));
        let old = young + USUAL_PAUSE;
        look_twice(&mut edge, old, 103 * SECOND);
        assert_eq!(edge.next_look(old), Some(PAUSE));
    }

    #[test]
    fn looks_that_are_under_way_together_tell_nothing_about_each_other() {
        let (mut edge, now) = crowded();
        let later = now + PAUSE;
        let ended = later + Duration::from_millis(20);
        edge.looked(look(later, EVERYTHING, VAIN, 101 * SECOND), ended);
        edge.looked(look(later, EVERYTHING, VAIN, 101 * SECOND), ended);
        assert_eq!(
            edge.from(ended),
            EVERYTHING,
            "the second began before the first had swept anything"
        );
        edge.looked(look(ended, EVERYTHING, MANY + 1, 102 * SECOND), ended);
        assert_eq!(edge.next_look(ended), Some(SHORTEST_PAUSE));
        // One more that began with the last one is not the first of two again; what it came upon is gone on with.
        let late = ended + Duration::from_millis(20);
        edge.looked(look(later, EVERYTHING, VAIN, 50 * SECOND), late);
        assert_eq!(edge.from(late), 49 * SECOND);
    }

    #[test]
    fn what_a_look_at_everything_comes_upon_is_gone_on_with() {
        let (mut edge, now) = crowded();
        let later = now + PAUSE;
        look_twice(&mut edge, later, 30 * SECOND);
        assert_eq!(
            edge.from(later),
            29 * SECOND,
            "it took as many as it was asked for, and there may be more"
        );
        assert_eq!(edge.next_look(later), Some(PAUSE));
        assert_eq!(Edge::default().next_look(later), None);
    }

    #[test]
    fn what_is_put_before_the_point_is_in_sight() {
        let (mut edge, now) = crowded();
        edge.put(50 * SECOND);
        assert_eq!(edge.from(now), 49 * SECOND);
        edge.put(70 * SECOND);
        assert_eq!(edge.from(now), 49 * SECOND);
        edge.looked(look(now, 49 * SECOND, MANY / 2, 108 * SECOND), now);
        assert_eq!(edge.from(now), 107 * SECOND);
    }

    #[test]
    fn who_could_not_see_everything_moves_nothing() {
        let now = Instant::now();
        let mut edge = Edge::default();
        let blind = |begun_at, from| Look {
            taken: None,
            ..look(begun_at, from, VAIN, 0)
        };
        edge.looked(blind(now, EVERYTHING), now);
        assert_eq!(edge.from(now), EVERYTHING);
        let (mut edge, now) = crowded();
        edge.looked(blind(now, 99 * SECOND), now);
        assert_eq!(edge.from(now), 100 * SECOND - SECOND / 2);
        let later = now + PAUSE;
        edge.looked(blind(later, EVERYTHING), later);
        assert_eq!(edge.from(later), EVERYTHING, "it is still to be done");
    }

    /// Claims of short jobs one after the other, and what the server does with the entries that they leave.
    struct Drain {
        edge: Edge,
        begun: Instant,
        now: Duration,
        /// Jobs taken so far, in the order of their keys.
        taken: i64,
        /// Of those, the ones whose entries are still there, with the time at which they were taken.
        left: Vec<(i64, Duration)>,
        /// Entries that were read in dead_entries.
        read: i64,
    }

    impl Drain {
        const CLAIMED: i64 = 250;
        const EVERY: Duration = Duration::from_millis(5);
        /// How long a statement takes: what was taken since the oldest one began cannot be swept.
        const STATEMENT: Duration = Duration::from_millis(30);

        fn begin() -> Self {
            Self {
                edge: Edge::default(),
                begun: Instant::now(),
                now: Duration::ZERO,
                taken: 0,
                left: Vec::new(),
                read: 0,
            }
        }

        /// Goes on for so long; somebody may hold a snapshot from its beginning on. Gives the longest time in which nobody
        /// looked at everything, and the part of its time that claims spent on what they read in dead_entries.
        fn go_on(&mut self, time: Duration, held: bool) -> (Duration, f64) {
            let (start, end) = (self.now, self.now + time);
            let read = self.read;
            let (mut looked, mut longest) = (self.now, Duration::ZERO);
            while self.now < end {
                let began = self.begun + self.now;
                let from = self.edge.from(began);
                if from == EVERYTHING {
                    longest = longest.max(self.now - looked);
                    looked = self.now;
                }
                let seen_by_somebody = match held {
                    true => start.min(self.now.saturating_sub(Self::STATEMENT)),
                    false => self.now.saturating_sub(Self::STATEMENT),
                };
                // Jobs were started as fast as they are drained.
                let step = micros(Self::EVERY) / Self::CLAIMED;
                let first = self.left.partition_point(|(job, _)| job.saturating_mul(step) < from);
                let rest = self.left.split_off(first);
                let dead_entries = i64::try_from(rest.len()).expect("there are not so many");
                self.left
                    .extend(rest.into_iter().filter(|(_, taken_at)| *taken_at >= seen_by_somebody));
                self.read += dead_entries;
                self.left
                    .extend((0..Self::CLAIMED).map(|job| (self.taken + job, self.now)));
                self.taken += Self::CLAIMED;
                let ended = self.begun + self.now + Self::EVERY / 2;
                self.edge
                    .looked(look(began, from, dead_entries, self.taken * step), ended);
                self.now += Self::EVERY;
            }
            let spent = ENTRY.as_secs_f64() * (self.read - read) as f64;
            (longest.max(self.now - looked), spent / time.as_secs_f64())
        }
    }

    #[test]
    fn everything_is_looked_at_often_while_short_jobs_are_drained() {
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
    fn everything_is_looked_at_rarely_behind_an_old_snapshot_and_often_again_when_it_has_gone() {
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
