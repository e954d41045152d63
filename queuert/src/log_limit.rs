//! Keeps an outage from flooding the log: a line about the same cause is written once per process, and then at most twice a
//! minute, with the number of lines that were left out.
//!
//! Causes are those of the process, because clients of one process mostly use one store: what one of them has told, the
//! others only count. Only the lines of `tracing` are limited. Observability adapters and the event stream hear every event,
//! so that counters are exact.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::__task::Lock;

/// How long lines about a cause are only counted after one was written.
const QUIET: Duration = Duration::from_secs(30);

/// The same after the store has answered again: what fails then is another outage, and worth a line soon.
const QUIET_AFTER_RECOVERY: Duration = Duration::from_secs(1);

/// How many lines about jobs that suffer from the same cause are written before the rest is counted.
const JOBS: u32 = 10;

/// The most causes of one kind of line that are told apart. Errors whose texts differ every time share what is left.
const CAUSES: usize = 64;

/// The causes of this process.
static PROCESS: Lock<Seen> = Lock::new(Seen::new());

/// What lines are about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    line: Line,
    /// The text of the error; empty if lines count as one cause whatever they say.
    text: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    StoreFailed,
    NotifyFailed,
    /// An attempt that the store has failed.
    AttemptFailed,
    Finding,
    Advice,
    /// One of many jobs that suffer from the same cause.
    Job(&'static str),
}

/// The lines about one cause.
#[derive(Debug)]
struct Lines {
    /// When the current quiet time began.
    since: Instant,
    quiet: Duration,
    /// How many were written since then.
    written: u32,
    left_out: u64,
}

impl Lines {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.quiet
    }
}

#[derive(Debug)]
struct Seen {
    causes: BTreeMap<Cause, Lines>,
    /// The failures of stores of which a line was written, and none since that the store answers again.
    outages: BTreeSet<Box<str>>,
    /// Lines that were left out, about causes that are not remembered any more.
    forgotten: u64,
}

/// Which lines of a client and its workers are written.
#[derive(Debug)]
pub(crate) struct LogLimit {
    seen: &'static Lock<Seen>,
    /// The failures that this client has met since its store has last answered.
    met: Lock<BTreeSet<Box<str>>>,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::of(&PROCESS)
    }
}

/// That a line may be written, with how many about the same cause were left out before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// `None` if it is none.
    pub(crate) left_out: Option<u64>,
}

impl Admitted {
    fn new(left_out: u64) -> Self {
        let left_out = Some(left_out).filter(|count| *count > 0);
        Self { left_out }
    }
}

impl LogLimit {
    const fn of(seen: &'static Lock<Seen>) -> Self {
        let met = Lock::new(BTreeSet::new());
        Self { seen, met }
    }

    /// For a line about a failure of the store.
    pub(crate) fn store_failed(&self, text: &str) -> Option<Admitted> {
        let (admitted, outage) = self.seen.lock().store_failed(text);
        self.met.lock().insert(outage);
        admitted
    }

    /// For a line that says that the store answers again: one for each that says that it does not. It is written for the first
    /// client that has met the failure and whose store answers, because the one that has told of it may be gone by then.
    pub(crate) fn store_answers(&self) -> Option<Admitted> {
        let met = std::mem::take(&mut *self.met.lock());
        if met.is_empty() {
            return None;
        }
        self.seen.lock().store_answers(&met)
    }

    /// For a line about an attempt that the store has failed.
    pub(crate) fn attempt_failed(&self, text: &str) -> Option<Admitted> {
        self.seen.lock().admit(Line::AttemptFailed, text, 1)
    }

    /// For a line about what the store's upkeep found.
    pub(crate) fn finding(&self, text: &str) -> Option<Admitted> {
        self.seen.lock().admit(Line::Finding, text, 1)
    }

    /// For a line about a failure of the notify adapter.
    pub(crate) fn notify_failed(&self, text: &str) -> Option<Admitted> {
        self.seen.lock().admit(Line::NotifyFailed, text, 1)
    }

    /// For a line about a likely mistake.
    pub(crate) fn advice(&self, text: &str) -> Option<Admitted> {
        self.seen.lock().admit(Line::Advice, text, 1)
    }

    /// For a line about one of many jobs that suffer from the same cause.
    pub(crate) fn job_suffers(&self, line: &'static str) -> Option<Admitted> {
        self.seen.lock().admit(Line::Job(line), "", JOBS)
    }

    /// For the last line of a worker.
    pub(crate) fn stopped(&self) -> Admitted {
        Admitted::new(self.seen.lock().conclude())
    }
}

impl Seen {
    const fn new() -> Self {
        Self {
            causes: BTreeMap::new(),
            outages: BTreeSet::new(),
            forgotten: 0,
        }
    }

    /// Whether a line about a failure of the store is written, and the name under which it is remembered.
    fn store_failed(&mut self, text: &str) -> (Option<Admitted>, Box<str>) {
        let admitted = self.admit(Line::StoreFailed, text, 1);
        let mut outage: Box<str> = text.into();
        if !self.outages.contains(&outage) {
            // One whose text is not told apart any more, or a client that comes after the recovery.
            if self.outages.len() >= CAUSES {
                outage = "".into();
            }
            if admitted.is_some() {
                self.outages.insert(outage.clone());
            }
        }
        (admitted, outage)
    }

    fn store_answers(&mut self, met: &BTreeSet<Box<str>>) -> Option<Admitted> {
        let before = self.outages.len();
        self.outages.retain(|outage| !met.contains(outage));
        (self.outages.len() < before).then(|| Admitted::new(self.recovered()))
    }

    /// `burst` is how many lines are written before the rest is counted.
    fn admit(&mut self, line: Line, text: &str, burst: u32) -> Option<Admitted> {
        let now = Instant::now();
        let mut cause = Cause {
            line,
            text: text.into(),
        };
        if self.of_kind(line) >= CAUSES && !self.causes.contains_key(&cause) {
            self.forget(now);
            if self.of_kind(line) >= CAUSES {
                cause.text = "".into();
            }
        }
        let lines = self.causes.entry(cause).or_insert(Lines {
            since: now,
            quiet: QUIET,
            written: 0,
            left_out: 0,
        });
        if lines.is_over(now) {
            (lines.since, lines.quiet, lines.written) = (now, QUIET, 0);
        }
        if lines.written < burst {
            lines.written += 1;
            return Some(Admitted::new(std::mem::take(&mut lines.left_out)));
        }
        lines.left_out += 1;
        None
    }

    fn of_kind(&self, line: Line) -> usize {
        self.causes.keys().filter(|cause| cause.line == line).count()
    }

    /// Forgets the causes whose quiet time is over, and counts the lines that were left out about them.
    fn forget(&mut self, now: Instant) {
        let forgotten = &mut self.forgotten;
        self.causes.retain(|_, lines| {
            let over = lines.is_over(now);
            *forgotten += if over { lines.left_out } else { 0 };
            !over
        });
    }

    /// How many lines were left out in all.
    fn conclude(&mut self) -> u64 {
        self.forget(Instant::now());
        let left_out = self
            .causes
            .values_mut()
            .map(|lines| std::mem::take(&mut lines.left_out));
        std::mem::take(&mut self.forgotten) + left_out.sum::<u64>()
    }

    /// The same; and new failures of the store are heard of soon.
    fn recovered(&mut self) -> u64 {
        let left_out = self.conclude();
        for (cause, lines) in &mut self.causes {
            if cause.line == Line::StoreFailed {
                lines.quiet = QUIET_AFTER_RECOVERY;
            }
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that shares nothing with other tests of the process.
    fn limit() -> LogLimit {
        LogLimit::of(Box::leak(Box::new(Lock::new(Seen::new()))))
    }

    fn after(count: u64) -> Option<Admitted> {
        Some(Admitted::new(count))
    }

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_written_once_and_its_repetitions_are_counted() {
        let limit = limit();
        assert_eq!(limit.store_failed("down"), after(0));
        for _ in 0..500 {
            assert_eq!(limit.store_failed("down"), None);
        }
        assert_eq!(limit.store_failed("full"), after(0));
        assert_eq!(limit.notify_failed("down"), after(0));
        tokio::time::advance(QUIET).await;
        assert_eq!(limit.store_failed("down"), after(500));
        assert_eq!(limit.store_failed("down"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_outage_is_told_once_and_the_next_one_is_heard_of_soon() {
        let limit = limit();
        assert_eq!(limit.store_answers(), None);
        for _ in 0..3 {
            limit.store_failed("down");
        }
        assert_eq!(limit.store_answers(), after(2));
        assert_eq!(limit.store_answers(), None, "another set of workers");
        assert_eq!(limit.store_failed("down"), None, "a late answer");
        assert_eq!(limit.store_answers(), None);
        tokio::time::advance(QUIET_AFTER_RECOVERY).await;
        assert_eq!(limit.store_failed("down"), after(1));
        assert_eq!(limit.store_answers(), after(0));
    }

    #[tokio::test(start_paused = true)]
    async fn texts_that_always_differ_are_one_cause_after_some() {
        let limit = limit();
        let written = (0..10_000).filter(|n| limit.store_failed(&format!("port {n}")).is_some());
        assert_eq!(written.count(), CAUSES + 1);
        assert!(limit.seen.lock().causes.len() <= CAUSES + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_jobs_some_are_written() {
        let limit = limit();
        let written = (0..50).filter(|_| limit.job_suffers("lease lost").is_some());
        assert_eq!(written.count(), JOBS as usize);
        assert_eq!(Some(limit.stopped()), after(40));
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_client_has_told_another_only_counts_and_the_first_to_recover_tells() {
        let (first, second, idle) = {
            let limit = limit();
            (LogLimit::of(limit.seen), LogLimit::of(limit.seen), limit)
        };
        assert_eq!(first.store_failed("down"), after(0));
        assert_eq!(second.store_failed("down"), None);
        assert_eq!(idle.store_answers(), None, "a client of another store");
        assert_eq!(second.store_answers(), after(1));
        assert_eq!(first.store_answers(), None, "it has been told");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_outage_is_told_although_the_client_that_told_of_it_has_gone() {
        let other = limit();
        let gone = LogLimit::of(other.seen);
        assert_eq!(gone.store_failed("down"), after(0));
        assert_eq!(other.store_failed("down"), None);
        drop(gone);
        assert_eq!(other.store_answers(), after(1));
        assert_eq!(other.store_answers(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn every_kind_of_line_has_its_own_causes() {
        let limit = limit();
        for n in 0..CAUSES {
            assert_eq!(limit.advice(&format!("advice {n}")), after(0));
            assert_eq!(limit.finding(&format!("finding {n}")), after(0));
            assert_eq!(limit.attempt_failed(&format!("port {n}")), after(0));
        }
        assert_eq!(limit.store_failed("down"), after(0));
        assert_eq!(limit.store_failed("full"), after(0), "it is another cause");
        assert_eq!(limit.notify_failed("down"), after(0));
        assert_eq!(limit.attempt_failed("port 1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stops_does_not_make_others_repeat_themselves() {
        let limit = limit();
        assert_eq!(limit.store_failed("down"), after(0));
        assert_eq!(limit.store_failed("down"), None);
        assert_eq!(Some(limit.stopped()), after(1));
        tokio::time::advance(QUIET - Duration::from_secs(1)).await;
        assert_eq!(limit.store_failed("down"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn causes_of_long_ago_make_room_and_their_lines_are_counted() {
        let limit = limit();
        for n in 0..CAUSES {
            for _ in 0..2 {
                limit.store_failed(&format!("port {n}"));
            }
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(limit.store_failed("full"), after(0));
        assert_eq!(limit.store_failed("down"), after(0));
        assert_eq!(limit.seen.lock().causes.len(), 2);
        assert_eq!(Some(limit.stopped()), after(CAUSES as u64));
    }
}
