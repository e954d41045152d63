//! How long to wait before the next try.

use std::time::Duration;

use crate::id::Entropy;

/// Growing pauses between calls that fail: they double up to a limit, and each deviates by up to a fifth, so that the
/// processes of a fleet do not come back at one moment. Success resets them.
#[derive(Debug)]
pub struct Backoff {
    entropy: Entropy,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    /// The longest pause of a worker.
    const LONGEST: Duration = Duration::from_secs(10);

    /// Pauses from 50 ms up to `longest`.
    pub fn up_to(longest: Duration) -> Self {
        Self {
            entropy: Entropy::system(),
            longest,
            failures: 0,
        }
    }

    /// The pauses of a worker, with its own source of randomness.
    pub(crate) fn new(entropy: &Entropy) -> Self {
        Self {
            entropy: entropy.clone(),
            ..Self::up_to(Self::LONGEST)
        }
    }

    /// Begins again with the shortest pause.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause before the next try.
    pub fn next_pause(&mut self) -> Duration {
        let pause = Self::FIRST.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        self.entropy.jittered(pause, 0.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_differ_and_start_again() {
        let longest = Duration::from_secs(5);
        for mut backoff in [Backoff::up_to(longest), Backoff::new(&Entropy::seeded(3))] {
            for base in [50, 100, 200, 400, 800] {
                let pause = backoff.next_pause();
                let base = Duration::from_millis(base);
                assert!(pause >= base * 8 / 10 && pause <= base * 12 / 10, "{pause:?}");
            }
            let limit = backoff.longest;
            let late: Vec<_> = (0..100).map(|_| backoff.next_pause()).skip(50).collect();
            let in_range = |pause: &Duration| *pause >= limit * 8 / 10 && *pause <= limit * 12 / 10;
            assert!(late.iter().all(in_range), "{late:?}");
            assert!(late.iter().any(|pause| *pause != late[0]));
            backoff.reset();
            assert!(backoff.next_pause() <= Backoff::FIRST * 12 / 10);
        }
    }
}
