//! How long to wait before the next try.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double up to a limit, with jitter, so that a fleet does not come back all at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.tries.min(16)).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_differ_and_start_again() {
        let mut backoff = Backoff::default();
        for limit in [50, 100, 200, 400, 800] {
            let pause = backoff.next_pause();
            assert!(pause >= Duration::from_millis(limit / 2) && pause <= Duration::from_millis(limit));
        }
        let late: Vec<_> = (0..100).map(|_| backoff.next_pause()).collect();
        assert!(late.iter().all(|pause| *pause <= LONGEST));
        assert!(late[50..].iter().all(|pause| *pause >= LONGEST / 2));
        assert!(late[50..].iter().any(|pause| *pause != late[50]));
        backoff.reset();
        assert!(backoff.next_pause() <= FIRST);
    }
}
