//! A limit on how many attempts run at once in this process.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::__task::{Lock, LockGuard};
use crate::adapter::{Outcome, StateAdapter};
use crate::job::JobRecord;
use crate::job_type::JobType;
use crate::time::Schedule;
use crate::worker::{AttemptContext, Completion, CompletionKind, How, JobResult, Middleware, Next, SHORTEST_SNOOZE};

/// Limits the number of attempts of a type, or with a key, that run inside it at the same time, in this process.
///
/// An attempt above the limit waits, in the order of arrival, and occupies its worker and its lease meanwhile. If a few
/// slow types or keys could occupy all workers in this way, let the attempt snooze instead, with
/// [`snooze`](Self::snooze). Clones share their limits, so one limit can hold for several sets of workers.
///
/// ```
/// use std::time::Duration;
/// use queuert::middleware::LimitConcurrency;
///
/// let each_type = LimitConcurrency::per_type(4);
/// let each_customer = LimitConcurrency::per_key(1, |job| {
///     let input: serde_json::Value = serde_json::from_str(job.input.as_str()).ok()?;
///     Some(input["customer"].to_string())
/// })
/// .snooze(Duration::from_secs(1));
/// ```
#[derive(Clone)]
#[must_use]
pub struct LimitConcurrency {
    limit: usize,
    key: Arc<ReadKey>,
    snooze: Option<Duration>,
    line: Line,
}

impl LimitConcurrency {
    /// At most `limit` attempts of each type at a time.
    pub fn per_type(limit: usize) -> Self {
        Self::per_key(limit, |job| Some(job.type_name.as_str().to_owned()))
    }

    /// At most `limit` attempts of one type at a time; other types are not limited.
    pub fn of<J: JobType>(limit: usize) -> Self {
        Self::per_key(limit, |job| (job.type_name.as_str() == J::NAME).then(String::new))
    }

    /// At most `limit` attempts at a time for each key that `key` returns for the job. Jobs for which it returns `None`
    /// are not limited.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: no attempt would ever run.
    pub fn per_key(limit: usize, key: impl Fn(&JobRecord) -> Option<String> + Send + Sync + 'static) -> Self {
        assert!(limit > 0, "a limit of zero would never let an attempt through");
        Self {
            limit,
            key: Arc::new(key),
            snooze: None,
            line: Line::default(),
        }
    }

    /// Snoozes an attempt above the limit for this long, without spending it, instead of letting it wait. A delay of
    /// less than 100 milliseconds counts as 100 milliseconds. Default: the attempt waits.
    pub fn snooze(mut self, delay: Duration) -> Self {
        self.snooze = Some(delay.max(SHORTEST_SNOOZE));
        self
    }
}

impl fmt::Debug for LimitConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitConcurrency")
            .field("limit", &self.limit)
            .field("snooze", &self.snooze)
            .finish_non_exhaustive()
    }
}

impl<S: StateAdapter> Middleware<S> for LimitConcurrency {
    async fn attempt(&self, job: &mut AttemptContext<S>, next: Next<'_, S>) -> JobResult<S> {
        let Some(key) = (self.key)(job.job()) else {
            return next.run(job).await;
        };
        let mut place = self.line.stand(key, self.limit);
        if let Some(delay) = self.snooze {
            if !place.try_enter() {
                let schedule = Schedule::After(delay);
                let how = How::Grouped(Outcome::Snooze { schedule }, None);
                return Ok(Completion::new(&job.shared, CompletionKind::Snooze, how));
            }
        } else {
            let signal = job.signal();
            tokio::select! {
                biased;
                () = place.enter() => {}
                // Nothing that it did could be committed; the worker knows what that means for the job.
                reason = signal.aborted() => return Err(format!("it was still in the line: {reason}").into()),
            }
        }
        next.run(job).await
    }
}

/// Reads the key off a job.
type ReadKey = dyn Fn(&JobRecord) -> Option<String> + Send + Sync;

type Places = HashMap<String, Arc<Semaphore>>;

/// The attempts inside, by key. Keys without attempts are removed.
#[derive(Clone, Default)]
struct Line(Arc<Lock<Places>>);

impl Line {
    fn stand(&self, key: String, limit: usize) -> Place {
        let mut places = self.places();
        let semaphore = places
            .entry(key.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(limit)));
        Place {
            semaphore: Arc::clone(semaphore),
            permit: None,
            key,
            line: self.clone(),
        }
    }

    fn places(&self) -> LockGuard<'_, Places> {
        self.0.lock()
    }
}

/// A place in the queue of waiting attempts, and then inside.
struct Place {
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    key: String,
    line: Line,
}

impl Place {
    async fn enter(&mut self) {
        // It is never closed.
        self.permit = Arc::clone(&self.semaphore).acquire_owned().await.ok();
    }

    fn try_enter(&mut self) -> bool {
        self.permit = Arc::clone(&self.semaphore).try_acquire_owned().ok();
        self.permit.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut places = self.line.places();
        // The map's own, and this one: everybody else who is interested would have one too.
        if Arc::strong_count(&self.semaphore) == 2 {
            places.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_that_nobody_uses_is_forgotten() {
        let line = Line::default();
        let mut inside = line.stand("a".into(), 1);
        inside.enter().await;
        let mut next = line.stand("a".into(), 1);
        assert!(!next.try_enter(), "one is inside");
        assert!(line.stand("b".into(), 1).try_enter(), "keys do not meet");
        assert_eq!(line.places().len(), 1);
        drop(inside);
        assert!(next.try_enter(), "its place is free");
        drop(next);
        assert!(line.places().is_empty());
    }
}
