//! What operators do to jobs and chains.

use std::collections::HashMap;

use super::change::{Change, JobHead, RankChange};
use crate::adapter::Refusal;
use crate::id::{ChainId, JobId};
use crate::job::{JobStatus, TypeName};
use crate::time::Timestamp;

/// What a trigger changes on a job: it is due now. One that is due already keeps its place.
///
/// # Errors
///
/// [`Refusal::JobNotFound`] or [`Refusal::NotPending`].
pub fn trigger(job: JobId, head: Option<&JobHead>, now: Timestamp) -> Result<Change, Refusal> {
    let head = head.ok_or(Refusal::JobNotFound(job))?;
    if head.status != JobStatus::Pending {
        return Err(Refusal::NotPending(job, head.status));
    }
    Ok(Change {
        scheduled_at: head.scheduled_at.min(now),
        rank: RankChange::Smaller,
        ..Change::of(head)
    })
}

/// What a cancellation changes on the latest job of a chain.
///
/// # Errors
///
/// [`Refusal::ChainNotFound`] or [`Refusal::NotOpen`].
pub fn cancel(chain: ChainId, latest: Option<&JobHead>, now: Timestamp) -> Result<Change, Refusal> {
    let head = latest.ok_or(Refusal::ChainNotFound(chain))?;
    if !head.status.is_open() {
        return Err(Refusal::NotOpen(chain, head.status));
    }
    Ok(Change::end(head, JobStatus::Cancelled, now))
}

/// What a retry changes on the latest job of a chain, which waits in the status `waiting` then: see
/// [`waiting_status`](super::waiting_status). [`KeysOfRetry`] decides whether the key of the chain is free.
///
/// # Errors
///
/// [`Refusal::ChainNotFound`] or [`Refusal::NotRetryable`].
pub fn retry(chain: ChainId, latest: Option<&JobHead>, waiting: JobStatus, now: Timestamp) -> Result<Change, Refusal> {
    let head = latest.ok_or(Refusal::ChainNotFound(chain))?;
    if !head.status.is_retryable() {
        return Err(Refusal::NotRetryable(chain, head.status));
    }
    Ok(Change {
        status: waiting,
        scheduled_at: now,
        rank: RankChange::OfSchedule,
        attempt: 0,
        ..Change::of(head)
    })
}

/// The deduplication keys of the chains that one call retries: a key has at most one open chain.
#[derive(Debug, Default)]
pub struct KeysOfRetry {
    chains: HashMap<(TypeName, String), ChainId>,
}

impl KeysOfRetry {
    /// Nothing has been retried yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the key for the chain, after [`retry`] has allowed the chain itself. `holder` is the open chain in the store
    /// that has the key, if there is one.
    ///
    /// # Errors
    ///
    /// [`Refusal::KeyTaken`] if an open chain has the key, or an earlier one of the call will have it.
    pub fn take(
        &mut self,
        chain: ChainId,
        type_name: &TypeName,
        key: &str,
        holder: Option<ChainId>,
    ) -> Result<(), Refusal> {
        let earlier = self.chains.insert((type_name.clone(), key.to_owned()), chain);
        let earlier = earlier.filter(|other| *other != chain);
        match holder.or(earlier) {
            Some(holder) => Err(Refusal::KeyTaken { chain, holder }),
            None => Ok(()),
        }
    }
}

/// Whether a job in this status keeps the chains that it has as blockers from being deleted, unless its own chain is
/// deleted with them.
pub fn keeps_blocker(status: JobStatus) -> bool {
    status != JobStatus::Completed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::super::change::ErrorChange;
    use super::super::tests::{NOW, head};
    use super::*;

    fn chain(id: u128) -> ChainId {
        ChainId::from_uuid(Uuid::from_u128(id))
    }

    #[test]
    fn a_pending_job_is_triggered() {
        let job = chain(1).first_job();
        for status in JobStatus::ALL {
            let triggered = trigger(job, Some(&head(status)), NOW);
            if status == JobStatus::Pending {
                let change = triggered.unwrap();
                assert_eq!((change.status, change.rank), (JobStatus::Pending, RankChange::Smaller));
            } else {
                assert_eq!(triggered, Err(Refusal::NotPending(job, status)));
            }
        }
        assert_eq!(trigger(job, None, NOW), Err(Refusal::JobNotFound(job)));
        let second = Duration::from_secs(1);
        let (past, future) = (NOW.saturating_sub(second), NOW.saturating_add(second));
        for (scheduled_at, expected) in [(past, past), (NOW, NOW), (future, NOW)] {
            let mut head = head(JobStatus::Pending);
            head.scheduled_at = scheduled_at;
            assert_eq!(trigger(job, Some(&head), NOW).unwrap().scheduled_at, expected);
        }
    }

    #[test]
    fn an_open_chain_is_cancelled() {
        for status in JobStatus::ALL {
            let cancelled = cancel(chain(1), Some(&head(status)), NOW);
            if status.is_open() {
                let change = cancelled.unwrap();
                assert_eq!((change.status, change.ended_at), (JobStatus::Cancelled, Some(NOW)));
                assert_eq!((change.attempt, change.chain_open), (2, false));
                assert_eq!(change.error, ErrorChange::Keep);
            } else {
                assert_eq!(cancelled, Err(Refusal::NotOpen(chain(1), status)));
            }
        }
        assert_eq!(cancel(chain(1), None, NOW), Err(Refusal::ChainNotFound(chain(1))));
    }

    #[test]
    fn a_dead_or_cancelled_chain_is_retried() {
        for status in JobStatus::ALL {
            for waiting in [JobStatus::Pending, JobStatus::Blocked] {
                let retried = retry(chain(1), Some(&head(status)), waiting, NOW);
                if status.is_retryable() {
                    let change = retried.unwrap();
                    assert_eq!((change.status, change.attempt), (waiting, 0));
                    assert_eq!((change.scheduled_at, change.ended_at), (NOW, None));
                    assert_eq!((change.rank, change.error), (RankChange::OfSchedule, ErrorChange::Keep));
                    assert!(change.chain_open && change.latest);
                } else {
                    assert_eq!(retried, Err(Refusal::NotRetryable(chain(1), status)));
                }
            }
        }
        let gone = retry(chain(1), None, JobStatus::Pending, NOW);
        assert_eq!(gone, Err(Refusal::ChainNotFound(chain(1))));
    }

    #[test]
    fn a_key_has_one_open_chain() {
        let mut keys = KeysOfRetry::new();
        let taken = |chain, holder| Err(Refusal::KeyTaken { chain, holder });
        let mail = TypeName::from("mail");
        assert_eq!(keys.take(chain(1), &mail, "key", None), Ok(()));
        assert_eq!(keys.take(chain(1), &mail, "key", None), Ok(()), "the same chain again");
        assert_eq!(keys.take(chain(2), &mail, "other", None), Ok(()));
        assert_eq!(keys.take(chain(3), &"page".into(), "key", None), Ok(()));
        assert_eq!(keys.take(chain(4), &mail, "key", None), taken(chain(4), chain(1)));
        assert_eq!(
            keys.take(chain(5), &mail, "free", Some(chain(9))),
            taken(chain(5), chain(9))
        );
    }

    #[test]
    fn all_but_a_completed_job_keep_their_blockers() {
        for status in JobStatus::ALL {
            assert_eq!(keeps_blocker(status), status != JobStatus::Completed);
        }
    }
}
