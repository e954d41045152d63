//! What happened recently will happen again.

use std::sync::atomic::{AtomicU32, Ordering};

/// Whether something is to be expected, because it was met within the last `MEMORY` times. A guess, which may cost some
/// work if it is wrong, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Recently<const MEMORY: u32>(AtomicU32);

impl<const MEMORY: u32> Recently<MEMORY> {
    pub(crate) fn expected(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Takes note of one time more, and whether it was met.
    pub(crate) fn remember(&self, met: bool) {
        let next = match met {
            true => MEMORY,
            false => self.0.load(Ordering::Relaxed).saturating_sub(1),
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_met_is_expected_for_a_while() {
        let recently = Recently::<16>::default();
        assert!(!recently.expected());
        recently.remember(true);
        for _ in 0..16 {
            assert!(recently.expected());
            recently.remember(false);
        }
        assert!(!recently.expected());
        recently.remember(false);
        assert!(!recently.expected());
    }
}
