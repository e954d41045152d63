//! The store's clock.

use std::thread::{sleep, yield_now};
use std::time::{Duration, SystemTime};

use queuert::Timestamp;

/// The time.
///
/// SQLite has no clock: its date functions return the time of the machine, in milliseconds. Only processes of one machine
/// share a file, so the machine's clock *is* the store's clock. It is read here and nowhere else, once per verb.
#[expect(
    clippy::disallowed_methods,
    reason = "an embedded store's clock is the machine's; this is the one place that reads it"
)]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Waits until the clock shows another time than this one, at which a job was created. Called before the commit, while the
/// transaction has the write lock, so that a job of the next transaction has a later time of creation.
///
/// To write a job takes longer than a microsecond, so there is usually nothing to wait for, unless the clock of the machine has
/// coarse ticks. If the clock stands still, the wait ends all the same, and the jobs of two transactions may have the same
/// time.
pub(crate) fn outlast(time: Timestamp) {
    outlast_by(time, now);
}

/// How often the clock is read: first without pauses, then for some 100 milliseconds.
const LOOKS: u32 = LOOKS_WITHOUT_PAUSE + 100;

const LOOKS_WITHOUT_PAUSE: u32 = 1000;

const PAUSE: Duration = Duration::from_millis(1);

fn outlast_by(time: Timestamp, mut clock: impl FnMut() -> Timestamp) {
    for look in 0..LOOKS {
        if clock() != time {
            return;
        }
        // A count, because another clock of the machine might stand still too.
        if look < LOOKS_WITHOUT_PAUSE {
            yield_now();
        } else {
            sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_outlasted_when_the_clock_shows_another_one() {
        for after in [6, 4] {
            let mut shown = [5, 5, 5, after, 5].into_iter();
            outlast_by(Timestamp::from_micros(5), || {
                Timestamp::from_micros(shown.next().unwrap_or(5))
            });
            assert_eq!(
                shown.collect::<Vec<_>>(),
                [5],
                "the clock is read until it shows {after}"
            );
        }
    }

    #[test]
    fn a_clock_that_stands_still_is_not_waited_for() {
        let mut looks = 0;
        outlast_by(Timestamp::from_micros(5), || {
            looks += 1;
            assert!(looks <= LOOKS, "the clock is still read");
            Timestamp::from_micros(5)
        });
        assert_eq!(looks, LOOKS);
    }
}
