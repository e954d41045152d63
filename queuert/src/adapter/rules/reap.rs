//! Taking back jobs whose attempts are over without having ended: what is asked of a store, and what becomes of each job.

use std::time::Duration;

use super::change::{Change, ErrorChange, JobHead};
use crate::error::Error;
use crate::id::{JobId, WorkerId};
use crate::job::{AttemptError, JobRecord, JobStatus, Lease, TypeName};
use crate::settings::RetryPolicy;
use crate::time::Timestamp;

/// Which expired leases to take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReapLeases {
    /// The types, with the settings that decide what becomes of a job.
    pub types: Vec<ReapType>,
    /// How many at most.
    pub limit: usize,
    /// What the caller runs itself.
    pub except: Vec<JobId>,
}

impl ReapLeases {
    /// A sweep.
    pub fn new(types: Vec<ReapType>, limit: usize, except: Vec<JobId>) -> Self {
        Self { types, limit, except }
    }

    /// Takes a running job back at the time `now` of the store: changes the record to what the store has to write, and
    /// returns that change with the lease that is over. `None` if the record has no lease, and nothing has changed then.
    ///
    /// The attempt has failed, and a failure backs off, whatever the cause: a job that kills its process every time would
    /// otherwise spend all its attempts as fast as processes can be started. The backoff counts from the moment of the
    /// failure. Where the owner died, that is `now`, when the store found out. Where the lease expired, it is the last sign
    /// of life, which is the last renewal: a job whose lease is longer than its backoff has waited enough and is due at
    /// once.
    ///
    /// Its scheduled time is when it is due, and never in the past. It keeps the [`rank`](crate::adapter::rank) that it had,
    /// which is not in the record.
    pub fn take_back(&self, job: &mut JobRecord, cause: ReapCause, now: Timestamp) -> Option<TakenBack> {
        let head = JobHead::of(job, None);
        let lease = job.lease.take()?;
        let settings = self.types.iter().find(|reaped| reaped.name == job.type_name);
        let allowed = job
            .max_attempts
            .or(settings.map(|settings| settings.retry.max_attempts));
        // A row that cannot be read is not run by any worker.
        let dead = job.unreadable.is_some() || allowed.is_some_and(|allowed| job.attempt >= allowed);
        let mut change = if dead {
            Change::end(&head, JobStatus::Dead, now)
        } else {
            Change {
                scheduled_at: settings.map_or(now, |settings| settings.due_at(job, &lease, cause, now)),
                ..Change::back(&head)
            }
        };
        let error = AttemptError {
            attempt: job.attempt,
            at: now,
            message: cause.error(&lease, job),
        };
        change.error = ErrorChange::Set(error.clone());
        change.clone().apply(job);
        Some(TakenBack { lease, change, error })
    }
}

/// What was taken from a job, and what to store with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// The lease that it had.
    pub lease: Lease,
    /// What to write: what the record has now, and that the job keeps its rank.
    pub change: Change,
    /// The error of the attempt, which the record has too.
    pub error: AttemptError,
}

/// A type to sweep.
#[derive(Clone, Debug)]
pub struct ReapType {
    /// Its name.
    pub name: TypeName,
    /// How failed attempts are retried. A number of attempts of the job's own goes before that of the policy.
    pub retry: RetryPolicy,
    /// How long its leases last.
    pub lease: Duration,
}

impl ReapType {
    /// A type with these settings.
    pub fn new(name: impl Into<TypeName>, retry: RetryPolicy, lease: Duration) -> Self {
        Self {
            name: name.into(),
            retry,
            lease,
        }
    }

    /// When the job may run again, now at the earliest.
    fn due_at(&self, job: &JobRecord, lease: &Lease, cause: ReapCause, now: Timestamp) -> Timestamp {
        let failed_at = match cause {
            ReapCause::LeaseExpired => lease.until.saturating_sub(self.lease).min(now),
            ReapCause::OwnerDied => now,
        };
        failed_at.saturating_add(self.backoff(job)).max(now)
    }

    /// The delay after this attempt, with a jitter that follows from the job and the attempt: many jobs of one process that
    /// died do not come back at one moment, and every store comes to the same result.
    fn backoff(&self, job: &JobRecord) -> Duration {
        let delay = self.retry.delay_after(job.attempt);
        let (high, low) = job.id.as_uuid().as_u64_pair();
        let unit = fastrand::Rng::with_seed(high ^ low ^ u64::from(job.attempt)).f64();
        let factor = 1.0 + self.retry.jitter * (2.0 * unit - 1.0);
        Duration::try_from_secs_f64(delay.as_secs_f64() * factor).unwrap_or(delay)
    }
}

/// A job whose lease was taken back.
#[derive(Clone, Debug)]
pub struct ReapedJob {
    /// The job, as it is now: pending or dead.
    pub job: JobRecord,
    /// Who had it.
    pub owner: WorkerId,
    /// Until when the lease would have lasted: in the past, unless its owner died.
    pub expired_at: Timestamp,
    /// Why it was taken.
    pub cause: ReapCause,
}

/// Why a lease was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReapCause {
    /// Nobody had renewed it in time.
    LeaseExpired,
    /// The process of its owner is known to have died.
    OwnerDied,
}

impl ReapCause {
    /// What to store as the error of the attempt that had the lease of this job.
    pub fn error(self, lease: &Lease, job: &JobRecord) -> String {
        let Lease { owner, until, .. } = lease;
        let cause = match self {
            Self::LeaseExpired => format!("the lease of worker {owner} expired at {until}"),
            Self::OwnerDied => format!("the process of worker {owner} died while it ran the job"),
        };
        match job.unreadable.clone() {
            Some(problem) => format!("{cause}, and {}", Error::Unreadable { id: job.id, problem }),
            None => cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::id::{ChainId, Fence};
    use crate::payload::Payload;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn running(id: u128, attempt: u32, until: Timestamp) -> JobRecord {
        JobRecord {
            id: JobId::from_uuid(Uuid::from_u128(id)),
            type_name: "mail".into(),
            chain_id: ChainId::from_uuid(Uuid::from_u128(id)),
            chain_type: "mail".into(),
            chain_index: 0,
            input: Payload::from_text("null"),
            output: None,
            status: JobStatus::Running,
            priority: 0,
            attempt,
            claims: attempt,
            max_attempts: None,
            created_at: Timestamp::from_micros(0),
            scheduled_at: Timestamp::from_micros(0),
            started_at: Some(Timestamp::from_micros(1)),
            ended_at: None,
            completed_by: None,
            last_error: None,
            lease: Some(Lease {
                owner: WorkerId::new("worker"),
                until,
                fence: Fence::from_uuid(Uuid::nil()),
            }),
            deduplication_key: None,
            trace_context: None,
            unreadable: None,
        }
    }

    fn sweep(retry: RetryPolicy, lease: Duration) -> ReapLeases {
        ReapLeases::new(vec![ReapType::new("mail", retry, lease)], 10, Vec::new())
    }

    fn waits(reap: &ReapLeases, cause: ReapCause, attempt: u32, until: Timestamp) -> Duration {
        let mut job = running(7, attempt, until);
        assert!(reap.take_back(&mut job, cause, NOW).is_some());
        assert_eq!((job.status, job.lease), (JobStatus::Pending, None));
        job.scheduled_at.saturating_duration_since(NOW)
    }

    #[test]
    fn the_job_of_a_dead_owner_backs_off_from_when_the_store_found_out() {
        let reap = sweep(RetryPolicy::new().initial(SECOND).jitter(0.0), SECOND * 60);
        let until = NOW.saturating_add(SECOND * 50);
        for (attempt, delay) in [(1, SECOND), (2, SECOND * 2), (4, SECOND * 8)] {
            assert_eq!(waits(&reap, ReapCause::OwnerDied, attempt, until), delay);
        }
    }

    #[test]
    fn an_expired_lease_counts_as_backoff() {
        let reap = sweep(RetryPolicy::new().initial(SECOND).jitter(0.0), SECOND * 5);
        let expired = |ago: Duration| NOW.saturating_sub(ago);
        for (attempt, ago, delay) in [
            (1, Duration::ZERO, Duration::ZERO),
            (3, SECOND, Duration::ZERO),
            (4, Duration::ZERO, SECOND * 3),
            (4, SECOND, SECOND * 2),
            (4, SECOND * 60, Duration::ZERO),
        ] {
            assert_eq!(waits(&reap, ReapCause::LeaseExpired, attempt, expired(ago)), delay);
        }
    }

    #[test]
    fn the_last_attempt_is_the_last() {
        let reap = sweep(RetryPolicy::new().max_attempts(2), SECOND);
        let mut job = running(7, 2, NOW);
        let taken = reap.take_back(&mut job, ReapCause::OwnerDied, NOW).unwrap();
        assert_eq!((job.status, job.ended_at), (JobStatus::Dead, Some(NOW)));
        assert_eq!(job.last_error, Some(taken.error));
        assert!(reap.take_back(&mut job, ReapCause::OwnerDied, NOW).is_none());
        let mut own = running(7, 2, NOW);
        own.max_attempts = Some(3);
        reap.take_back(&mut own, ReapCause::OwnerDied, NOW);
        assert_eq!(own.status, JobStatus::Pending);
    }

    #[test]
    fn many_jobs_of_one_process_do_not_come_back_at_one_moment() {
        let reap = sweep(RetryPolicy::new().initial(SECOND).jitter(0.1), SECOND);
        let mut times: Vec<Timestamp> = (0..100)
            .map(|id| {
                let mut job = running(id, 1, NOW);
                reap.take_back(&mut job, ReapCause::OwnerDied, NOW);
                job.scheduled_at
            })
            .collect();
        times.sort_unstable();
        times.dedup();
        assert!(times.len() > 90, "{} different times", times.len());
        let waits = times.iter().map(|time| time.saturating_duration_since(NOW));
        assert!(
            waits
                .into_iter()
                .all(|wait| wait >= SECOND * 9 / 10 && wait <= SECOND * 11 / 10)
        );
    }
}
