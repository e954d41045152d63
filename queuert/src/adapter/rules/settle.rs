//! The end of an attempt: by what right, what it changes, what follows.

use super::change::{Change, ErrorChange, JobHead, RankChange};
use super::create::waiting_status;
use crate::adapter::{Authority, NewJob, Outcome, Repeated, Settled, Settlement};
use crate::id::{ChainId, Fence};
use crate::job::{AttemptError, JobRecord, JobStatus, Lease};
use crate::time::Timestamp;
use crate::worker::AbortReason;

/// Why a job does not belong to the attempt that asks, from its status; `None` if the row is gone.
pub fn lost(status: Option<JobStatus>) -> AbortReason {
    match status {
        None => AbortReason::NotFound,
        Some(JobStatus::Completed) => AbortReason::AlreadyCompleted,
        Some(JobStatus::Cancelled) => AbortReason::Cancelled,
        Some(_) => AbortReason::TakenByAnotherWorker,
    }
}

/// Whether the job runs under the fence.
///
/// # Errors
///
/// The reason why it does not.
pub fn held(head: Option<&JobHead>, fence: Fence) -> Result<(), AbortReason> {
    match head {
        Some(head) if head.status == JobStatus::Running && head.fence == Some(fence) => Ok(()),
        head => Err(lost(head.map(|head| head.status))),
    }
}

/// Whether the caller may settle the job; `None` as head if the row is gone.
///
/// # Errors
///
/// The answer that the caller gets instead. A [`Settled::Repeated`] has the status only: the store adds what the earlier
/// settlement did.
pub fn authorise(authority: &Authority, head: Option<&JobHead>) -> Result<(), Settled> {
    match (authority, head) {
        (Authority::Fence { fence, .. }, head) => held(head, *fence).map_err(|reason| match head {
            Some(head) if head.settled_fence == Some(*fence) => Settled::Repeated(Repeated::new(head.status)),
            _ => Settled::Lost(reason),
        }),
        // An open job is always the latest of its chain.
        (Authority::Outside, Some(head)) if head.status.is_open() => Ok(()),
        (Authority::Outside, head) => Err(Settled::Lost(lost(head.map(|head| head.status)))),
    }
}

/// Whether a settlement interrupts an attempt, which has to be told: it comes from outside, and the job was running.
pub fn interrupts(authority: &Authority, head: &JobHead) -> bool {
    *authority == Authority::Outside && head.status == JobStatus::Running
}

/// What an authorised settlement changes on its job.
pub fn settle(settlement: &Settlement, head: &JobHead, now: Timestamp) -> Change {
    let (fence, worker) = match &settlement.authority {
        Authority::Fence { fence, worker } => (Some(*fence), Some(worker)),
        Authority::Outside => (None, None),
    };
    let completed = || Change {
        completed_by: worker.cloned(),
        error: ErrorChange::Clear,
        ..Change::end(head, JobStatus::Completed, now)
    };
    let failed = |message: &str| {
        ErrorChange::Set(AttemptError {
            attempt: head.attempt,
            at: now,
            message: message.to_owned(),
        })
    };
    // Only a running job has an attempt that can be given back.
    let running = head.status == JobStatus::Running;
    let unspent = head.attempt.saturating_sub(u32::from(running));
    let mut change = match &settlement.outcome {
        Outcome::Finish { output } => Change {
            output: Some(output.clone()),
            ..completed()
        },
        Outcome::Continue { .. } => Change {
            latest: false,
            chain_open: true,
            ..completed()
        },
        Outcome::Retry { schedule, error } => Change {
            scheduled_at: schedule.resolve(now),
            rank: RankChange::OfSchedule,
            error: failed(error),
            ..Change::back(head)
        },
        Outcome::Bury { error } => Change {
            error: failed(error),
            ..Change::end(head, JobStatus::Dead, now)
        },
        Outcome::Release => Change {
            attempt: unspent,
            ..Change::back(head)
        },
        Outcome::Snooze { schedule } => Change {
            scheduled_at: schedule.resolve(now),
            rank: RankChange::OfSchedule,
            attempt: unspent,
            ..Change::back(head)
        },
    };
    change.settled_fence = fence;
    change
}

/// The lease under which the next job of a chain is created running, if its worker asks for it and the job, which would
/// be created in this status, is due. [`claim`] does the rest.
pub fn hand_over(authority: &Authority, next: &NewJob, status: JobStatus, now: Timestamp) -> Option<Lease> {
    let (Authority::Fence { worker, .. }, Some(hand_over)) = (authority, next.hand_over) else {
        return None;
    };
    let due = status == JobStatus::Pending && next.schedule.resolve(now) <= now;
    due.then(|| Lease {
        owner: worker.clone(),
        until: now.saturating_add(hand_over.lease),
        fence: hand_over.fence,
    })
}

/// Claims a job under this lease.
pub fn claim(job: &mut JobRecord, lease: Lease, now: Timestamp) {
    job.status = JobStatus::Running;
    job.attempt = job.attempt.saturating_add(1);
    job.claims = job.claims.saturating_add(1);
    job.started_at = Some(now);
    job.lease = Some(lease);
}

/// What the end of one of its blockers changes on a job: if it is blocked, and all of its blockers have completed now, it
/// is pending, with its scheduled time raised to now.
pub fn unblock(
    head: &JobHead,
    blockers: &[ChainId],
    completed: impl Fn(ChainId) -> bool,
    now: Timestamp,
) -> Option<Change> {
    let unblocked = head.status == JobStatus::Blocked && waiting_status(blockers, completed) == JobStatus::Pending;
    unblocked.then(|| Change {
        status: JobStatus::Pending,
        scheduled_at: head.scheduled_at.max(now),
        rank: RankChange::OfSchedule,
        ..Change::of(head)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::super::tests::{FENCE, NOW, OTHER, head, new_job, settlement, worker};
    use super::*;
    use crate::adapter::HandOver;
    use crate::payload::Payload;
    use crate::time::Schedule;

    const PENDING: JobStatus = JobStatus::Pending;
    const BLOCKED: JobStatus = JobStatus::Blocked;
    const RUNNING: JobStatus = JobStatus::Running;
    const COMPLETED: JobStatus = JobStatus::Completed;
    const DEAD: JobStatus = JobStatus::Dead;
    const CANCELLED: JobStatus = JobStatus::Cancelled;

    fn by_fence() -> Authority {
        Authority::Fence {
            fence: FENCE,
            worker: worker(),
        }
    }

    #[test]
    fn who_may_settle_and_why_not() {
        let repeated = |status| Err(Settled::Repeated(Repeated::new(status)));
        let lost = |reason| Err(Settled::Lost(reason));
        // Status, fence of the lease, fence of the last settlement; the answer to the fence, and the answer from outside.
        for (status, fence, settled, by_attempt, from_outside) in [
            (RUNNING, Some(FENCE), None, Ok(()), Ok(())),
            (RUNNING, Some(FENCE), Some(OTHER), Ok(()), Ok(())),
            (
                RUNNING,
                Some(OTHER),
                None,
                lost(AbortReason::TakenByAnotherWorker),
                Ok(()),
            ),
            (RUNNING, Some(OTHER), Some(FENCE), repeated(RUNNING), Ok(())),
            (PENDING, None, None, lost(AbortReason::TakenByAnotherWorker), Ok(())),
            (PENDING, None, Some(FENCE), repeated(PENDING), Ok(())),
            (BLOCKED, None, None, lost(AbortReason::TakenByAnotherWorker), Ok(())),
            (
                COMPLETED,
                None,
                None,
                lost(AbortReason::AlreadyCompleted),
                lost(AbortReason::AlreadyCompleted),
            ),
            (
                COMPLETED,
                None,
                Some(FENCE),
                repeated(COMPLETED),
                lost(AbortReason::AlreadyCompleted),
            ),
            (
                CANCELLED,
                None,
                None,
                lost(AbortReason::Cancelled),
                lost(AbortReason::Cancelled),
            ),
            (
                DEAD,
                None,
                None,
                lost(AbortReason::TakenByAnotherWorker),
                lost(AbortReason::TakenByAnotherWorker),
            ),
            (
                DEAD,
                None,
                Some(FENCE),
                repeated(DEAD),
                lost(AbortReason::TakenByAnotherWorker),
            ),
        ] {
            let mut head = head(status);
            (head.fence, head.settled_fence) = (fence, settled);
            assert_eq!(authorise(&by_fence(), Some(&head)), by_attempt, "{head:?}");
            assert_eq!(authorise(&Authority::Outside, Some(&head)), from_outside, "{head:?}");
            assert_eq!(held(Some(&head), FENCE).is_ok(), by_attempt.is_ok(), "{head:?}");
        }
        let gone = lost(AbortReason::NotFound);
        assert_eq!(authorise(&by_fence(), None), gone);
        assert_eq!(authorise(&Authority::Outside, None), gone);
    }

    #[test]
    fn what_an_outcome_changes() {
        let later = NOW.saturating_add(Duration::from_secs(9));
        let at = Schedule::At(later);
        let output = Payload::from_text("7");
        let next = Box::new(new_job(2));
        let error = || "oh".to_owned();
        let (retry, bury) = (
            Outcome::Retry {
                schedule: at,
                error: error(),
            },
            Outcome::Bury { error: error() },
        );
        let finish = Outcome::Finish { output: output.clone() };
        let (go_on, snooze) = (Outcome::Continue { next }, Outcome::Snooze { schedule: at });
        let (kept, of_schedule) = (RankChange::Keep, RankChange::OfSchedule);
        // Status before, outcome; status after, attempts spent of two, whether it is scheduled anew, the rank, whether the
        // error is kept, whether the job is the latest of its chain, and whether the chain is open.
        for (before, outcome, after, attempt, anew, rank, keeps, latest, open) in [
            (RUNNING, &finish, COMPLETED, 2, false, kept, false, true, false),
            (PENDING, &finish, COMPLETED, 2, false, kept, false, true, false),
            (BLOCKED, &finish, COMPLETED, 2, false, kept, false, true, false),
            (RUNNING, &go_on, COMPLETED, 2, false, kept, false, false, true),
            (RUNNING, &retry, PENDING, 2, true, of_schedule, false, true, true),
            (BLOCKED, &retry, BLOCKED, 2, true, of_schedule, false, true, true),
            (RUNNING, &bury, DEAD, 2, false, kept, false, true, false),
            (RUNNING, &Outcome::Release, PENDING, 1, false, kept, true, true, true),
            (PENDING, &Outcome::Release, PENDING, 2, false, kept, true, true, true),
            (BLOCKED, &Outcome::Release, BLOCKED, 2, false, kept, true, true, true),
            (RUNNING, &snooze, PENDING, 1, true, of_schedule, true, true, true),
            (PENDING, &snooze, PENDING, 2, true, of_schedule, true, true, true),
        ] {
            for authority in [by_fence(), Authority::Outside] {
                let by_attempt = authority != Authority::Outside;
                let head = head(before);
                let change = settle(&settlement(authority, outcome.clone()), &head, NOW);
                let told = format!("{before} {outcome:?}");
                assert_eq!((change.status, change.attempt), (after, attempt), "{told}");
                assert_eq!(
                    change.scheduled_at,
                    if anew { later } else { head.scheduled_at },
                    "{told}"
                );
                assert_eq!(change.rank, rank, "{told}");
                assert_eq!(change.ended_at, (!after.is_open()).then_some(NOW), "{told}");
                assert_eq!((change.latest, change.chain_open), (latest, open), "{told}");
                assert_eq!(change.error == ErrorChange::Keep, keeps, "{told}");
                assert_eq!(change.settled_fence, by_attempt.then_some(FENCE), "{told}");
                let completed_by = (by_attempt && after == COMPLETED).then(worker);
                assert_eq!(change.completed_by, completed_by, "{told}");
                let finishes = matches!(outcome, Outcome::Finish { .. });
                assert_eq!(change.output, finishes.then(|| output.clone()), "{told}");
            }
        }
        let failed = AttemptError {
            attempt: 2,
            at: NOW,
            message: error(),
        };
        let change = |outcome| settle(&settlement(by_fence(), outcome), &head(RUNNING), NOW);
        assert_eq!(change(retry).error, ErrorChange::Set(failed.clone()));
        assert_eq!(change(bury).error, ErrorChange::Set(failed));
        assert_eq!(change(finish).error, ErrorChange::Clear);
    }

    #[test]
    fn only_an_end_from_outside_interrupts_an_attempt() {
        for status in JobStatus::ALL {
            assert_eq!(interrupts(&Authority::Outside, &head(status)), status == RUNNING);
            assert!(!interrupts(&by_fence(), &head(status)));
        }
    }

    #[test]
    fn a_due_job_is_handed_over_to_the_worker_that_asks_for_it() {
        let wanted = Some(HandOver {
            fence: OTHER,
            lease: Duration::from_secs(5),
        });
        let later = Schedule::At(NOW.saturating_add(Duration::from_secs(1)));
        for (authority, wanted, status, schedule, expected) in [
            (by_fence(), wanted, PENDING, Schedule::Now, true),
            (by_fence(), wanted, PENDING, Schedule::At(NOW), true),
            (by_fence(), wanted, PENDING, later, false),
            (by_fence(), wanted, BLOCKED, Schedule::Now, false),
            (by_fence(), None, PENDING, Schedule::Now, false),
            (Authority::Outside, wanted, PENDING, Schedule::Now, false),
        ] {
            let mut next = new_job(2);
            (next.hand_over, next.schedule) = (wanted, schedule);
            let lease = hand_over(&authority, &next, status, NOW);
            assert_eq!(lease.is_some(), expected, "{authority:?} {next:?}");
            if let Some(lease) = lease {
                assert_eq!((lease.owner, lease.fence), (worker(), OTHER));
                assert_eq!(lease.until, NOW.saturating_add(Duration::from_secs(5)));
            }
        }
    }

    #[test]
    fn the_last_blocker_makes_a_blocked_job_pending() {
        let chains = [1, 2].map(|id| ChainId::from_uuid(Uuid::from_u128(id)));
        let later = NOW.saturating_add(Duration::from_secs(9));
        for (status, open, scheduled_at, expected) in [
            (BLOCKED, None, Timestamp::from_micros(0), Some(NOW)),
            (BLOCKED, None, later, Some(later)),
            (BLOCKED, Some(chains[1]), later, None),
            (PENDING, None, later, None),
            (CANCELLED, None, later, None),
        ] {
            let mut head = head(status);
            head.scheduled_at = scheduled_at;
            let change = unblock(&head, &chains, |chain| Some(chain) != open, NOW);
            assert_eq!(change.as_ref().map(|change| change.scheduled_at), expected, "{head:?}");
            if let Some(change) = change {
                assert_eq!((change.status, change.rank), (PENDING, RankChange::OfSchedule));
                assert_eq!((change.attempt, change.error), (head.attempt, ErrorChange::Keep));
            }
        }
    }
}
