//! The store's clock.

use std::thread::{sleep, yield_now};
use std::time::{Duration, SystemTime};

use queuert::Timestamp;

/// The time of a statement.
///
/// SQLite has no clock of its own: what its date functions show is the machine's clock, in milliseconds. A file is
/// shared by processes of one machine, so the machine's clock *is* the store's clock. It is read here and nowhere else,
/// once per verb, on the machine that runs the statement.
#[expect(
    clippy::disallowed_methods,
    reason = "an embedded store's clock is the machine's; this is the one place that reads it"
)]
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Waits until the clock shows another time than this one, which a job was created at. Called before the commit, while this
/// transaction has the write lock: a job of the next transaction is created later, and not at the same time.
///
/// To write a job takes longer than a microsecond, so nothing is left to wait for, unless the clock of the machine goes in
/// coarse ticks. One that stands still is not waited for: then the jobs of two transactions may have one time.
pub(crate) fn outlast(time: Timestamp) {
    outlast_by(time, now);
}

/// How often the clock is looked at: first without a pause in between, then for some 100 milliseconds.
const LOOKS: u32 = LOOKS_WITHOUT_PAUSE + 100;

const LOOKS_WITHOUT_PAUSE: u32 = 1000;

const PAUSE: Duration = Duration::from_millis(1);

fn outlast_by(time: Timestamp, mut clock: impl FnMut() -> Timestamp) {
    for look in 0..LOOKS {
        if clock() != time {
            return;
        }
        // No clock tells for how long that goes on: another one of the machine may stand still with this one.
        match look < LOOKS_WITHOUT_PAUSE {
            true => yield_now(),
            false => sleep(PAUSE),
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
            assert!(looks <= LOOKS, "it is still looked at");
            Timestamp::from_micros(5)
        });
        assert_eq!(looks, LOOKS);
    }
}
