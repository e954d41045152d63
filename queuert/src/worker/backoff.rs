//! Growing pauses between calls to a store that fails.

use std::time::Duration;

use crate::id::Entropy;

/// Growing pauses between calls to a store that fails; a success resets them.
#[derive(Debug)]
pub(crate) struct Backoff {
    entropy: Entropy,
    failures: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(10);

    pub(crate) fn new(entropy: &Entropy) -> Self {
        Self {
            entropy: entropy.clone(),
            failures: 0,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = Self::FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(Self::LONGEST);
        self.failures += 1;
        self.entropy.jittered(pause, 0.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_success_resets_them() {
        let mut backoff = Backoff::new(&Entropy::seeded(3));
        let pauses: Vec<_> = (0..40).map(|_| backoff.next_pause()).collect();
        assert!(pauses[0] < Duration::from_millis(70));
        assert!(pauses[39] > Duration::from_secs(7) && pauses[39] <= Duration::from_secs(12));
        backoff.reset();
        assert!(backoff.next_pause() < Duration::from_millis(70));
    }
}
