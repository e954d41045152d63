//! The clock of the memory store: the wall's, tokio's, or one that a test holds and moves.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::time::Timestamp;

/// What a memory store takes for the time. Clones share one clock.
#[derive(Clone)]
pub struct MemoryClock(Arc<Source>);

enum Source {
    System,
    Manual {
        micros: AtomicI64,
        moved: Arc<Notify>,
    },
    Tokio {
        origin: Timestamp,
        start: Instant,
        ahead: AtomicI64,
    },
}

/// Where [`MemoryClock::tokio`] starts: a fixed moment, because a run on a paused clock must be the same every time.
const TOKIO_ORIGIN: Timestamp = Timestamp::from_micros(946_684_800_000_000);

impl MemoryClock {
    /// The wall clock.
    pub fn system() -> Self {
        Self(Arc::new(Source::System))
    }

    /// A clock that stands still until [`advance`](Self::advance) or [`set`](Self::set) moves it.
    pub fn manual(start: Timestamp) -> Self {
        Self(Arc::new(Source::Manual {
            micros: AtomicI64::new(start.as_micros()),
            moved: Arc::new(Notify::new()),
        }))
    }

    /// A clock that shows midnight of 1 January 2000 (UTC) now and goes on with [`tokio::time::Instant`]: when tokio's
    /// clock is paused or advanced, the store's is too.
    pub fn tokio() -> Self {
        Self(Arc::new(Source::Tokio {
            origin: TOKIO_ORIGIN,
            start: Instant::now(),
            ahead: AtomicI64::new(0),
        }))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::System => Timestamp::wall_clock(),
            Source::Manual { micros, .. } => Timestamp::from_micros(micros.load(Ordering::SeqCst)),
            Source::Tokio { origin, start, ahead } => {
                let ahead = Duration::from_micros(ahead.load(Ordering::SeqCst).unsigned_abs());
                origin.saturating_add(start.elapsed()).saturating_add(ahead)
            }
        }
    }

    /// Moves a manual clock forward. One made by [`tokio`](Self::tokio) jumps ahead of tokio's and goes on from there:
    /// that is how a test sees a store whose clock is corrected while processes run.
    ///
    /// # Panics
    ///
    /// On the wall clock.
    pub fn advance(&self, duration: Duration) {
        if let Source::Tokio { ahead, .. } = &*self.0 {
            let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
            ahead.fetch_add(micros, Ordering::SeqCst);
            return;
        }
        self.move_to(|now| now.saturating_add(duration));
    }

    /// Sets a manual clock, also back: that is how a test sees what a clock that jumps does.
    ///
    /// # Panics
    ///
    /// On a clock that was not made by [`manual`](Self::manual).
    pub fn set(&self, time: Timestamp) {
        self.move_to(|_| time);
    }

    /// Completes when a manual clock is moved; never on another clock. Moves are seen from the call on, not from the
    /// first poll: take the future, read the clock, then wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let moved = match &*self.0 {
            Source::Manual { moved, .. } => Some(Arc::clone(moved).notified_owned()),
            Source::System | Source::Tokio { .. } => None,
        };
        async move {
            match moved {
                Some(moved) => moved.await,
                None => std::future::pending().await,
            }
        }
    }

    fn move_to(&self, time: impl Fn(Timestamp) -> Timestamp) {
        let Source::Manual { micros, moved } = &*self.0 else {
            panic!("only a clock made by `MemoryClock::manual` can be moved, this is {self:?}");
        };
        let target = |micros| Some(time(Timestamp::from_micros(micros)).as_micros());
        let _ = micros.fetch_update(Ordering::SeqCst, Ordering::SeqCst, target);
        moved.notify_waiters();
    }
}

impl Default for MemoryClock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for MemoryClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &*self.0 {
            Source::System => "system",
            Source::Manual { .. } => "manual",
            Source::Tokio { .. } => "tokio",
        };
        write!(f, "MemoryClock({source}, {})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_stands_still_and_tells_when_it_is_moved() {
        let clock = MemoryClock::manual(Timestamp::from_micros(5));
        assert_eq!(clock.now().as_micros(), 5);
        let changed = clock.changed();
        clock.clone().advance(Duration::from_micros(7));
        changed.await;
        assert_eq!(clock.now().as_micros(), 12);
        clock.set(Timestamp::from_micros(1));
        assert_eq!(clock.now().as_micros(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tokio_clock_follows_a_paused_one() {
        let clock = MemoryClock::tokio();
        let before = clock.now();
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(
            clock.now().saturating_duration_since(before),
            Duration::from_secs(3_600)
        );
        clock.advance(Duration::from_secs(5));
        assert_eq!(
            clock.now().saturating_duration_since(before),
            Duration::from_secs(3_605)
        );
    }
}
