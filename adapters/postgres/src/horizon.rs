//! Where claims begin to look while somebody holds an old snapshot.
//!
//! A row that was taken after such a snapshot was made cannot be swept before it ends, and its index entry lies where claims
//! look first: each of them would read past all that was claimed since. So a claim counts the entries that it read in vain,
//! and when they are many the next ones begin behind them: a little before the point up to which everything had been taken.
//! How little is adjusted to what they read.
//!
//! What turns up before that point all the same (an urgent job, a chain whose transaction took long) is found by a look at
//! everything, which claims take from time to time. They give it a small part of their time, however long it takes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::core::micros;

/// Entries read in vain that are worth it: about as long as a claim takes otherwise.
const MANY: i64 = 1_000;

/// How far before the point claims begin, at first and at most. It is halved while they read much, doubled while they read
/// little.
const FIRST_MARGIN: Duration = Duration::from_secs(1);
const LARGEST_MARGIN: Duration = Duration::from_secs(60);

/// From one look at everything to the next: so many times what it took, and within these bounds.
const SHARE: u32 = 40;
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Before every key.
pub(crate) const EVERYTHING: i64 = i64::MIN;

/// The horizons of a process, by the types that are claimed together.
#[derive(Debug, Default)]
pub(crate) struct Horizons(Mutex<HashMap<Vec<i32>, Horizon>>);

/// Of the jobs that are ready, and of those that are due later.
#[derive(Debug, Default)]
pub(crate) struct Horizon {
    pub(crate) ready: Edge,
    pub(crate) later: Edge,
}

impl Horizons {
    pub(crate) fn of<T>(&self, types: &[i32], act: impl FnOnce(&mut Horizon) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(horizon) = all.get_mut(types) {
            return act(horizon);
        }
        act(all.entry(types.to_vec()).or_default())
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
}

/// What one look came upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Where it began.
    pub(crate) from: i64,
    /// Entries that it read in vain.
    pub(crate) vain: i64,
    /// Nothing that could be taken is left before this key; unknown if it could not tell.
    pub(crate) taken: Option<i64>,
    pub(crate) took: Duration,
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
        let many = look.vain > MANY;
        match &mut self.0 {
            // One that began before others changed their mind says nothing new.
            None if look.from != EVERYTHING => {}
            None if !many => {}
            None => {
                self.0 = look.taken.map(|taken| Crowd {
                    taken,
                    margin: FIRST_MARGIN,
                    look_again_at: now + pause(look.took),
                });
            }
            Some(_) if look.from == EVERYTHING && !many => self.0 = None,
            // What it came upon behind the point is gone on with from there. One that could not tell is to be repeated.
            Some(crowd) if look.from == EVERYTHING => {
                if let Some(taken) = look.taken {
                    crowd.taken = taken;
                    crowd.look_again_at = now + pause(look.took);
                }
            }
            Some(crowd) => {
                crowd.taken = look.taken.map_or(crowd.taken, |taken| taken.max(crowd.taken));
                if many {
                    crowd.margin /= 2;
                } else if look.vain < MANY / 4 {
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

fn pause(took: Duration) -> Duration {
    (took * SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const TOOK: Duration = Duration::from_millis(20);

    fn look(from: i64, vain: i64, taken: i64) -> Look {
        Look {
            from,
            vain,
            taken: Some(taken),
            took: TOOK,
        }
    }

    fn crowded(now: Instant) -> Edge {
        let mut edge = Edge::default();
        edge.looked(look(EVERYTHING, 100_000, 100 * SECOND), now);
        edge
    }

    #[test]
    fn claims_look_at_everything_while_that_is_little() {
        let now = Instant::now();
        let mut edge = Edge::default();
        assert_eq!(edge.from(now), EVERYTHING);
        edge.looked(look(EVERYTHING, MANY, 100 * SECOND), now);
        assert_eq!(edge.from(now), EVERYTHING);
    }

    #[test]
    fn they_begin_behind_a_crowd_and_go_on_with_what_they_take() {
        let now = Instant::now();
        let mut edge = crowded(now);
        assert_eq!(edge.from(now), 99 * SECOND);
        edge.looked(look(99 * SECOND, MANY / 2, 107 * SECOND), now);
        assert_eq!(edge.from(now), 106 * SECOND);
        edge.looked(look(106 * SECOND, MANY / 2, 103 * SECOND), now);
        assert_eq!(
            edge.from(now),
            106 * SECOND,
            "an answer that came late takes nothing back"
        );
    }

    #[test]
    fn the_margin_follows_what_they_read() {
        let now = Instant::now();
        let mut edge = crowded(now);
        edge.looked(look(99 * SECOND, MANY + 1, 100 * SECOND), now);
        assert_eq!(edge.from(now), 100 * SECOND - SECOND / 2);
        for _ in 0..100 {
            edge.looked(look(0, MANY + 1, 100 * SECOND), now);
        }
        assert_eq!(edge.from(now), 100 * SECOND);
        for _ in 0..100 {
            edge.looked(look(0, 0, 100 * SECOND), now);
        }
        assert_eq!(edge.from(now), 40 * SECOND);
    }

    #[test]
    fn everything_is_looked_at_from_time_to_time_and_when_the_crowd_has_gone_always() {
        let now = Instant::now();
        let mut edge = crowded(now);
        let later = now + TOOK * SHARE;
        assert_eq!(edge.from(later - Duration::from_millis(1)), 99 * SECOND);
        assert_eq!(edge.from(later), EVERYTHING);
        edge.looked(look(EVERYTHING, 100_000, 101 * SECOND), later);
        assert_eq!(edge.from(later), 100 * SECOND);
        let last = later + TOOK * SHARE;
        edge.looked(look(EVERYTHING, 10, 102 * SECOND), last);
        assert_eq!(edge.from(last), EVERYTHING);
        edge.looked(look(100 * SECOND, 100_000, 102 * SECOND), last);
        assert_eq!(edge.from(last), EVERYTHING, "an answer that came late changes nothing");
    }

    #[test]
    fn what_a_look_at_everything_comes_upon_is_gone_on_with() {
        let now = Instant::now();
        let mut edge = crowded(now);
        let later = now + TOOK * SHARE;
        edge.looked(look(EVERYTHING, 100_000, 30 * SECOND), later);
        assert_eq!(
            edge.from(later),
            29 * SECOND,
            "it took as many as it was asked for, and there may be more"
        );
        assert_eq!(edge.next_look(later), Some(TOOK * SHARE));
        assert_eq!(Edge::default().next_look(later), None);
    }

    #[test]
    fn what_is_put_before_the_point_is_in_sight() {
        let now = Instant::now();
        let mut edge = crowded(now);
        edge.put(50 * SECOND);
        assert_eq!(edge.from(now), 49 * SECOND);
        edge.put(70 * SECOND);
        assert_eq!(edge.from(now), 49 * SECOND);
        edge.looked(look(49 * SECOND, MANY / 2, 108 * SECOND), now);
        assert_eq!(edge.from(now), 107 * SECOND);
    }

    #[test]
    fn who_could_not_see_everything_moves_nothing() {
        let now = Instant::now();
        let mut edge = Edge::default();
        let blind = |from| Look {
            taken: None,
            ..look(from, 100_000, 0)
        };
        edge.looked(blind(EVERYTHING), now);
        assert_eq!(edge.from(now), EVERYTHING);
        let mut edge = crowded(now);
        edge.looked(blind(99 * SECOND), now);
        assert_eq!(edge.from(now), 100 * SECOND - SECOND / 2);
        let later = now + TOOK * SHARE;
        edge.looked(blind(EVERYTHING), later);
        assert_eq!(edge.from(later), EVERYTHING, "it is still to be done");
    }
}
