//! What a set of workers knows of paused job types, and when it asks the store.
//!
//! An idle set asks nothing: the knowledge is needed only when a claim has brought jobs. A claim leaves out the types that
//! are known to be paused. If it brings jobs and the knowledge is old, the store is asked before they are queued, and jobs
//! of paused types go back, with their attempt unspent. While a type is known to be paused, the store is also asked before
//! a claim if the knowledge is old, so that a resumed type is found without a notice. A notice makes the set ask before its
//! next claim.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::__task::Lock;
use crate::adapter::{Pauses, StateAdapter};
use crate::client::{Client, report};
use crate::event::Event;
use crate::job::TypeName;
use crate::worker::contained::contained;

/// The knowledge may be as old as the poll interval, within these bounds: a busy set need not ask more often than the first,
/// and the default poll interval of a set with a notify adapter, half a minute, is too long for a notice that was lost.
const AGES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The least age at which the knowledge is too old for the next job of a chain to begin without a claim.
const BETWEEN_STEPS: Duration = Duration::from_secs(1);
/// How long claimed jobs wait for an answer. A store that does not give one keeps no job from running.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a set of workers knows of paused job types.
pub(crate) struct KnownPauses {
    /// How old the knowledge may be.
    longest_age: Duration,
    known: Lock<Known>,
}

#[derive(Default)]
struct Known {
    /// Paused types, and when the pause of each ends by itself.
    paused: BTreeMap<TypeName, Option<Instant>>,
    /// When the store was asked last.
    asked_at: Option<Instant>,
    /// Notices may have been lost since then.
    doubted: bool,
    /// A notice has come since then.
    noticed: bool,
    /// How often the knowledge was doubted: an answer to a question from before the last doubt does not count.
    doubts: u64,
}

impl Known {
    fn is_paused(&self, type_name: &TypeName, now: Instant) -> bool {
        let end = self.paused.get(type_name);
        end.is_some_and(|end| end.is_none_or(|end| now < end))
    }

    /// Whether the store was asked within this time.
    fn is_recent(&self, longest_age: Duration) -> bool {
        self.asked_at.is_some_and(|asked_at| asked_at.elapsed() < longest_age)
    }
}

impl KnownPauses {
    /// Knows nothing yet.
    pub(crate) fn new(poll_interval: Duration) -> Self {
        Self {
            longest_age: poll_interval.clamp(AGES.0, AGES.1),
            known: Lock::default(),
        }
    }

    /// Whether the type is known to be paused.
    pub(crate) fn is_paused(&self, type_name: &TypeName) -> bool {
        self.known.lock().is_paused(type_name, Instant::now())
    }

    /// Whether the next job of a chain may begin without a claim. A doubt does not prevent it: after a few steps in a row
    /// there is a claim, which asks.
    pub(crate) fn allow_hand_over(&self, type_name: &TypeName) -> bool {
        let known = self.known.lock();
        known.is_recent(self.longest_age.max(BETWEEN_STEPS))
            && !known.noticed
            && !known.is_paused(type_name, Instant::now())
    }

    /// Whether the knowledge is too old to let claimed jobs begin.
    fn is_old(&self) -> bool {
        let known = self.known.lock();
        known.doubted || !known.is_recent(self.longest_age)
    }

    /// Whether to ask the store before a claim.
    fn is_asked_before_claim(&self) -> bool {
        let old = self.is_old();
        let known = self.known.lock();
        known.noticed || (old && !known.paused.is_empty())
    }

    /// When the first of the known pauses ends by itself.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        let now = Instant::now();
        let known = self.known.lock();
        let ends = known.paused.values().flatten().filter(|end| now < **end);
        ends.min().map(|end| end.duration_since(now))
    }

    /// Notices may have been lost.
    pub(crate) fn doubt(&self) {
        let mut known = self.known.lock();
        known.doubts += 1;
        known.doubted = true;
    }

    /// Another process has paused or resumed a type.
    pub(crate) fn notice(&self) {
        self.doubt();
        self.known.lock().noticed = true;
    }

    fn learn(&self, pauses: &Pauses, asked_at: Instant, doubts: u64) {
        let mut known = self.known.lock();
        let in_force = pauses.pauses.iter().filter(|pause| pause.is_in_force(pauses.now));
        let paused = in_force.map(|pause| {
            let left = pause.until.map(|until| until.saturating_duration_since(pauses.now));
            // An end that is too far for a clock is none.
            (
                pause.type_name.clone(),
                left.and_then(|left| asked_at.checked_add(left)),
            )
        });
        known.paused = paused.collect();
        known.asked_at = Some(asked_at);
        if known.doubts == doubts {
            known.doubted = false;
            known.noticed = false;
        }
    }
}

impl KnownPauses {
    /// Asks the store which types are paused. If it fails, the set goes on with what it knows.
    pub(crate) async fn ask<S: StateAdapter>(&self, client: &Client<S>) {
        let (asked_at, doubts) = (Instant::now(), self.known.lock().doubts);
        let answer = tokio::time::timeout(PATIENCE, contained(client.state().list_pauses(None))).await;
        match answer {
            Ok(Ok(pauses)) => self.learn(&pauses, asked_at, doubts),
            // Not recorded as bad health: an idle set does not ask again, so it would stay bad.
            Ok(Err(error)) => client.hub().emit_with(|| Event::StateFailed {
                operation: "pauses",
                error: report(&error),
            }),
            Err(_) => {}
        }
    }

    /// Asks the store, if a claim should not begin with what is known.
    pub(crate) async fn ask_before_claim<S: StateAdapter>(&self, client: &Client<S>) {
        if self.is_asked_before_claim() {
            self.ask(client).await;
        }
    }

    /// Asks the store, if the jobs that a claim has brought should not begin with what is known.
    pub(crate) async fn ask_after_claim<S: StateAdapter>(&self, client: &Client<S>) {
        if self.is_old() {
            self.ask(client).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pause::Pause;
    use crate::time::Timestamp;

    fn pauses(now: i64, until: &[Option<i64>]) -> Pauses {
        let pauses = until.iter().zip(["a", "b", "c"]).map(|(until, name)| {
            let mut pause = Pause::new(name, Timestamp::from_micros(0));
            pause.until = until.map(Timestamp::from_micros);
            pause
        });
        Pauses::new(Timestamp::from_micros(now), pauses.collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_by_itself_and_one_that_is_over_is_none() {
        let known = KnownPauses::new(Duration::from_secs(1));
        known.learn(&pauses(10, &[None, Some(3_000_010), Some(10)]), Instant::now(), 0);
        let paused = || ["a", "b", "c"].map(|name| known.is_paused(&name.into()));
        assert_eq!(paused(), [true, true, false]);
        assert_eq!(known.next_end(), Some(Duration::from_secs(3)));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(paused(), [true, false, false]);
        assert_eq!(known.next_end(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn knowledge_is_old_after_the_poll_interval_within_bounds() {
        for (poll, age) in [(1, 100), (1_000, 1_000), (60_000, 10_000)] {
            let known = KnownPauses::new(Duration::from_millis(poll));
            assert!(
                known.is_old() && !known.is_asked_before_claim(),
                "nothing is known, and nothing needed"
            );
            known.learn(&pauses(0, &[None]), Instant::now(), 0);
            tokio::time::advance(Duration::from_millis(age - 1)).await;
            assert!(!known.is_old() && !known.is_asked_before_claim());
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(
                known.is_old() && known.is_asked_before_claim(),
                "the type may have been resumed"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_is_followed_before_the_next_claim_and_an_answer_from_before_it_does_not_count() {
        let known = KnownPauses::new(Duration::from_secs(1));
        known.notice();
        assert!(known.is_asked_before_claim());
        known.learn(&pauses(0, &[]), Instant::now(), 0);
        assert!(known.is_asked_before_claim(), "the question is older than the notice");
        known.learn(&pauses(0, &[]), Instant::now(), 1);
        assert!(!known.is_asked_before_claim() && !known.is_old());
        known.doubt();
        assert!(known.is_old() && !known.is_asked_before_claim());
        assert!(known.allow_hand_over(&"a".into()), "a claim comes soon, and asks");
        known.notice();
        assert!(!known.allow_hand_over(&"a".into()));
        known.learn(&pauses(0, &[None]), Instant::now(), 3);
        assert!(!known.allow_hand_over(&"a".into()) && known.allow_hand_over(&"b".into()));
    }
}
