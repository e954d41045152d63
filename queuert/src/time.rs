//! Points in time and schedules. The only module that reads the wall clock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time with microsecond precision, as the store's clock reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment that lies `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This moment plus `duration`, or the last moment that can be represented.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// This moment minus `duration`, or the first moment that can be represented.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The process's clock. For ids, and for adapters whose store has no clock of its own.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub(crate) fn wall_clock() -> Self {
        SystemTime::now().into()
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(micros(after)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let distance = Duration::from_micros(time.0.unsigned_abs());
        let moment = if time.0 >= 0 {
            UNIX_EPOCH.checked_add(distance)
        } else {
            UNIX_EPOCH.checked_sub(distance)
        };
        moment.unwrap_or(UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000_000);
        let within_day = self.0.rem_euclid(86_400_000_000);
        let (year, month, day) = civil_from_days(days);
        let seconds = within_day / 1_000_000;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
            seconds / 3_600,
            seconds / 60 % 60,
            seconds % 60,
            within_day % 1_000_000
        )
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The proleptic Gregorian date of a day counted from the Unix epoch (years start in March, eras have 400 years).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// When a job is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// As soon as a worker is free.
    #[default]
    Now,
    /// After a delay, measured by the store's clock from the moment of the write.
    After(Duration),
    /// At a given time. A time that has passed means now.
    At(Timestamp),
}

impl Schedule {
    /// The due time to store. It is never before `now`, so that a job with a past time overtakes no other.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::After(delay) => now.saturating_add(delay),
            Self::At(time) => time.max(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_rfc_3339() {
        assert_eq!(Timestamp::from_micros(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            Timestamp::from_micros(1_709_210_096_000_007).to_string(),
            "2024-02-29T12:34:56.000007Z"
        );
        assert_eq!(Timestamp::from_micros(-1).to_string(), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn system_time_round_trips() {
        for micros in [0, 1_709_210_096_000_007, -5_000_000] {
            let time = Timestamp::from_micros(micros);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn a_schedule_never_lies_in_the_past() {
        let now = Timestamp::from_micros(10_000_000);
        assert_eq!(Schedule::Now.resolve(now), now);
        assert_eq!(Schedule::At(Timestamp::from_micros(3)).resolve(now), now);
        assert_eq!(
            Schedule::After(Duration::from_secs(1)).resolve(now).as_micros(),
            11_000_000
        );
        assert_eq!(Schedule::After(Duration::MAX).resolve(now).as_micros(), i64::MAX);
    }
}
