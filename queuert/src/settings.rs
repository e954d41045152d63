//! Retry, lease, timeout and priority: the settings of a type, which a worker may override.

use std::time::Duration;

/// How failed attempts are retried: exponential backoff with jitter, up to a number of attempts.
///
/// ```
/// use std::time::Duration;
/// use queuert::RetryPolicy;
///
/// let policy = RetryPolicy::new().max_attempts(5).initial(Duration::from_secs(2));
/// assert_eq!(policy.delay_after(1), Duration::from_secs(2));
/// assert_eq!(policy.delay_after(4), Duration::from_secs(16)); // give or take the jitter
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The number of attempts after which the job is dead. Default: 25.
    pub max_attempts: u32,
    /// The delay after the first failure. Default: 10 seconds.
    pub initial: Duration,
    /// The longest delay. Default: 5 minutes.
    pub maximum: Duration,
    /// The factor by which each delay is longer than the one before. Default: 2.
    pub multiplier: f64,
    /// How far a delay may deviate, as a share of the delay. Default: 0.1.
    pub jitter: f64,
}

impl RetryPolicy {
    /// The default policy.
    pub const DEFAULT: Self = Self {
        max_attempts: 25,
        initial: Duration::from_secs(10),
        maximum: Duration::from_secs(300),
        multiplier: 2.0,
        jitter: 0.1,
    };

    /// The default policy, to be changed by its setters.
    pub const fn new() -> Self {
        Self::DEFAULT
    }

    /// Sets the number of attempts after which a job is dead. Default: 25.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the delay after the first failure. Default: 10 seconds.
    #[must_use]
    pub const fn initial(mut self, delay: Duration) -> Self {
        self.initial = delay;
        self
    }

    /// Sets the longest delay. Default: 5 minutes.
    #[must_use]
    pub const fn maximum(mut self, delay: Duration) -> Self {
        self.maximum = delay;
        self
    }

    /// Sets the factor by which each delay is longer than the one before. Default: 2.
    #[must_use]
    pub const fn multiplier(mut self, factor: f64) -> Self {
        self.multiplier = factor;
        self
    }

    /// Sets how far a delay may deviate, as a share of the delay. Default: 0.1.
    #[must_use]
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// The delay after the failure of attempt number `attempt`, without jitter.
    pub fn delay_after(&self, attempt: u32) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.multiplier.powi(exponent);
        // Infinity and values that no `Duration` can hold end at the maximum too.
        Duration::try_from_secs_f64(seconds).map_or(self.maximum, |delay| delay.min(self.maximum))
    }

    /// What is wrong with the policy, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.max_attempts == 0 {
            return Some("max_attempts is 0: a job needs at least one attempt".into());
        }
        if !(self.multiplier.is_finite() && self.multiplier >= 1.0) {
            return Some(format!(
                "multiplier is {}: it must be a finite number of at least 1",
                self.multiplier
            ));
        }
        if !(self.jitter.is_finite() && (0.0..1.0).contains(&self.jitter)) {
            return Some(format!("jitter is {}: it must be at least 0 and below 1", self.jitter));
        }
        if self.initial.is_zero() {
            return Some("the initial delay is zero: a failing job would be retried in a hot loop".into());
        }
        if self.initial > self.maximum {
            return Some(format!(
                "initial delay {:?} is longer than the maximum {:?}",
                self.initial, self.maximum
            ));
        }
        None
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long an attempt keeps its job without renewing its lease. After that the reaper of another process takes the job
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// How long a lease lasts. Default: 60 seconds.
    pub duration: Duration,
    /// How often the lease is renewed while the attempt runs. Default: a third of the duration.
    pub renew_every: Duration,
}

impl LeaseSettings {
    /// The default: 60 seconds, renewed every 20.
    pub const DEFAULT: Self = Self::new(Duration::from_secs(60));

    /// A lease of the given duration, renewed after every third of it.
    pub const fn new(duration: Duration) -> Self {
        Self {
            duration,
            renew_every: Duration::from_micros((duration.as_micros() / 3) as u64),
        }
    }

    /// Sets how often the lease is renewed. Default: a third of its duration.
    #[must_use]
    pub const fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = interval;
        self
    }

    pub(crate) fn problem(&self) -> Option<String> {
        if self.duration < Duration::from_millis(10) {
            return Some(format!(
                "a lease of {:?} is too short: it must last at least 10 ms",
                self.duration
            ));
        }
        if self.duration > LONGEST_LEASE {
            return Some(format!(
                "a lease of {:?} is too long: it must end within a year, and is renewed while the attempt runs",
                self.duration
            ));
        }
        if self.renew_every.is_zero() {
            return Some("the renewal interval is zero".into());
        }
        if self.renew_every >= self.duration {
            return Some(format!(
                "the lease of {:?} ends before its renewal after {:?}: renew at least twice per lease",
                self.duration, self.renew_every
            ));
        }
        None
    }
}

/// A year: longer than an operator would wait for the job of a dead process.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 86_400);

impl Default for LeaseSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The settings of the jobs of one type: declared by the type with `#[job(..)]`, or overridden by a worker with
/// [`settings`](crate::WorkerBuilder::settings). `None` leaves a setting to the next one that has it: that of one type on
/// the worker, that of the whole worker, that of the type, then the library's default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct JobSettings {
    /// How failed attempts are retried. Default of the library: [`RetryPolicy::DEFAULT`].
    pub retry: Option<RetryPolicy>,
    /// How long a lease lasts. Default of the library: [`LeaseSettings::DEFAULT`].
    pub lease: Option<LeaseSettings>,
    /// How long an attempt may run. Default of the library: no limit.
    pub timeout: Option<Duration>,
    /// The priority of new jobs; jobs with a larger one go first. Default of the library: 0. Only the type can set it: a job
    /// has its priority before a worker meets it.
    pub priority: Option<i16>,
}

impl JobSettings {
    /// Nothing is set.
    pub const fn new() -> Self {
        Self {
            retry: None,
            lease: None,
            timeout: None,
            priority: None,
        }
    }

    /// Sets how failed attempts are retried. Default: not set.
    pub const fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sets how long a lease lasts. Default: not set.
    pub const fn lease(mut self, lease: LeaseSettings) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets how long an attempt may run. Default: not set.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the priority of new jobs. Default: not set.
    pub const fn priority(mut self, priority: i16) -> Self {
        self.priority = Some(priority);
        self
    }

    /// These settings, and those of `fallback` where nothing is set.
    pub(crate) fn or(self, fallback: Self) -> Self {
        Self {
            retry: self.retry.or(fallback.retry),
            lease: self.lease.or(fallback.lease),
            timeout: self.timeout.or(fallback.timeout),
            priority: self.priority.or(fallback.priority),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_grow_to_the_maximum_and_stay_there() {
        let policy = RetryPolicy::new().initial(SECOND).maximum(SECOND * 10).multiplier(3.0);
        let delays: Vec<_> = [1, 2, 3, 4, 1_000_000]
            .map(|attempt| policy.delay_after(attempt))
            .into();
        assert_eq!(delays, [SECOND, SECOND * 3, SECOND * 9, SECOND * 10, SECOND * 10]);
    }

    #[test]
    fn a_multiplier_of_one_keeps_the_delay() {
        let policy = RetryPolicy::new().initial(SECOND).multiplier(1.0);
        assert_eq!(policy.delay_after(1), policy.delay_after(50));
    }

    #[test]
    fn settings_that_are_set_win_over_a_fallback_one_by_one() {
        let fallback = JobSettings::new().timeout(SECOND).priority(3);
        let settings = JobSettings::new().timeout(SECOND * 2).lease(LeaseSettings::DEFAULT);
        let merged = settings.or(fallback);
        assert_eq!(merged.timeout, Some(SECOND * 2));
        assert_eq!(merged.lease, Some(LeaseSettings::DEFAULT));
        assert_eq!(merged.priority, Some(3));
        assert_eq!(merged.retry, None);
    }

    #[test]
    fn absurd_settings_are_named() {
        assert!(RetryPolicy::new().max_attempts(0).problem().is_some());
        assert!(RetryPolicy::new().multiplier(f64::NAN).problem().is_some());
        assert!(RetryPolicy::new().jitter(1.5).problem().is_some());
        assert!(RetryPolicy::new().initial(SECOND * 900).problem().is_some());
        assert!(RetryPolicy::new().initial(Duration::ZERO).problem().is_some());
        assert!(RetryPolicy::new().problem().is_none());
        assert!(LeaseSettings::new(SECOND).renew_every(SECOND).problem().is_some());
        assert!(LeaseSettings::new(Duration::from_millis(1)).problem().is_some());
        assert!(LeaseSettings::DEFAULT.problem().is_none());
    }
}
