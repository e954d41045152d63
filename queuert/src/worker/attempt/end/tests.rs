//! The steps that follow each end of a processor and each answer of the store.

use super::*;
use crate::adapter::{HandOver, NewJob, Refusal, Repeated};
use crate::error::StateErrorKind;
use crate::event_hub::EventHub;
use crate::memory::MemoryState;
use crate::payload::Payload;

const RETRY: RetryPolicy = RetryPolicy::new().jitter(0.0);

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn job() -> JobId {
    JobId::from_uuid(uuid(1))
}

fn fence() -> Fence {
    Fence::from_uuid(uuid(2))
}

/// A fence under which a next job is claimed.
fn next_fence() -> Fence {
    Fence::from_uuid(uuid(3))
}

fn with_facts<T>(aborted: Option<AbortReason>, is_last_attempt: bool, decide: impl FnOnce(&Facts<'_>) -> T) -> T {
    decide(&Facts {
        job: job(),
        fence: fence(),
        attempt: 1,
        is_last_attempt,
        retry: &RETRY,
        entropy: &Entropy::seeded(1),
        aborted,
    })
}

fn payload() -> Payload {
    Payload::encode(&()).unwrap()
}

fn finish() -> Outcome {
    Outcome::Finish { output: payload() }
}

fn continue_with(claim_next: bool) -> Outcome {
    let mut next = NewJob::new(JobId::from_uuid(uuid(4)), "next", payload());
    next.hand_over = claim_next.then(|| HandOver {
        fence: next_fence(),
        lease: Duration::from_secs(60),
    });
    Outcome::Continue { next: Box::new(next) }
}

fn continued() -> CompletionKind {
    CompletionKind::Continue {
        next: JobId::from_uuid(uuid(4)),
        next_type: "next".into(),
    }
}

fn completion(fence: Fence, kind: CompletionKind, outcome: Outcome) -> JobResult<MemoryState> {
    Ok(Completion {
        job: job(),
        fence,
        kind,
        how: How::Grouped(outcome, None),
    })
}

fn pending_completion(kind: CompletionKind) -> Pending {
    Pending::Completion { kind, span: None }
}

fn pending_doubt(kind: CompletionKind, completion: Unanswered) -> Pending {
    Pending::Doubt(Box::new(Doubt {
        kind,
        completion,
        failed: AttemptOutcome::Died { error: "unsure".into() },
    }))
}

fn state_error() -> StateError {
    StateError::new(StateErrorKind::Corrupt, "bad row")
}

fn answers() -> [(&'static str, Answer); 7] {
    [
        ("applied", Answer::Applied(Applied::default(), Instant::now())),
        ("completed before", Answer::Repeated(JobStatus::Completed)),
        ("pending before", Answer::Repeated(JobStatus::Pending)),
        ("dead before", Answer::Repeated(JobStatus::Dead)),
        ("lost", Answer::Lost(AbortReason::Cancelled)),
        ("refused", Answer::Refused(Refusal::IdTaken(job()).into())),
        ("failed", Answer::Failed(state_error())),
    ]
}

/// A step in words.
fn told(next: NextStep) -> String {
    match next {
        NextStep::Write(outcome, pending) => {
            let outcome = match outcome {
                Outcome::Finish { .. } => "finish".to_owned(),
                Outcome::Continue { .. } => "continue".to_owned(),
                Outcome::Retry { schedule, error } => format!("retry {schedule:?} {error}"),
                Outcome::Bury { error } => format!("bury {error}"),
                Outcome::Release => "release".to_owned(),
                Outcome::Snooze { .. } => "snooze".to_owned(),
            };
            let pending = match pending {
                Pending::Completion { .. } => "completion",
                Pending::Failure(_) => "failure",
                Pending::Doubt(_) => "doubt",
                Pending::Release => "release",
            };
            format!("write {outcome} as {pending}")
        }
        NextStep::Recover(outcome, fence) => {
            assert_eq!(fence, next_fence());
            format!("recover, {}", ended(outcome))
        }
        NextStep::Lost(reason) => format!("lost: {reason}"),
        NextStep::Done(outcome, None) => ended(outcome),
        NextStep::Done(outcome, Some(_)) => format!("{} and has the next job", ended(outcome)),
    }
}

fn ended(outcome: AttemptOutcome) -> String {
    match outcome {
        AttemptOutcome::Finished => "finished".into(),
        AttemptOutcome::Continued { .. } => "continued".into(),
        AttemptOutcome::Failed { error, .. } => format!("failed: {error}"),
        AttemptOutcome::Died { error } => format!("died: {error}"),
        AttemptOutcome::Snoozed => "snoozed".into(),
        AttemptOutcome::Aborted(reason) => format!("aborted: {reason}"),
    }
}

fn begun(aborted: Option<AbortReason>, is_last: bool, end: ProcessorEnd<MemoryState>) -> String {
    with_facts(aborted, is_last, |facts| match begin(facts, end) {
        Begun::Next(next) => told(next),
        Begun::Commit(..) => "commit".into(),
    })
}

#[test]
fn every_end_of_a_processor_has_its_first_step() {
    use ProcessorEnd::{Dropped, Killed, Panicked, Returned, TimedOut};
    let retry = "write retry After(10s)";
    let lost = Error::LeaseLost {
        job: job(),
        reason: AbortReason::NotFound,
    };
    let later = JobError::retry_after(Duration::from_secs(3), "later");
    let cases: Vec<(ProcessorEnd<MemoryState>, String)> = vec![
        (
            Returned(completion(fence(), CompletionKind::Finish, finish())),
            "write finish as completion".into(),
        ),
        (
            Returned(completion(fence(), continued(), continue_with(false))),
            "write continue as completion".into(),
        ),
        (
            Returned(completion(next_fence(), CompletionKind::Finish, finish())),
            format!(
                "{retry} the processor returned the completion of another attempt, of job {} as failure",
                job()
            ),
        ),
        (Returned(Err("oh".into())), format!("{retry} oh as failure")),
        (Returned(Err(JobError::fatal("no"))), "write bury no as failure".into()),
        (Returned(Err(later)), "write retry After(3s) later as failure".into()),
        (Returned(Err(lost.into())), "lost: deleted".into()),
        (Panicked("ouch".into()), format!("{retry} panicked: ouch as failure")),
        (
            TimedOut(Duration::from_secs(2)),
            format!("{retry} timed out after 2s as failure"),
        ),
        (Dropped(AbortReason::Cancelled), "lost: cancelled".into()),
        (Dropped(AbortReason::Shutdown), "write release as release".into()),
        (Killed, "write release as release".into()),
    ];
    for (end, expected) in cases {
        assert_eq!(begun(None, false, end), expected);
    }
}

#[test]
fn the_abort_signal_decides_about_a_failure() {
    for (aborted, expected) in [
        (None, "write retry After(10s) oh as failure"),
        (Some(AbortReason::TimedOut), "write retry After(10s) oh as failure"),
        (Some(AbortReason::Error), "write retry After(10s) oh as failure"),
        (Some(AbortReason::Shutdown), "write release as release"),
        (Some(AbortReason::Cancelled), "lost: cancelled"),
        (Some(AbortReason::TakenByAnotherWorker), "lost: taken by another worker"),
    ] {
        let end = ProcessorEnd::Returned(Err("oh".into()));
        assert_eq!(begun(aborted, false, end), expected);
        // A completion is written all the same: the fence decides.
        let end = ProcessorEnd::Returned(completion(fence(), CompletionKind::Finish, finish()));
        assert_eq!(begun(aborted, false, end), "write finish as completion");
    }
}

#[test]
fn the_last_attempt_that_fails_buries_the_job() {
    let end = ProcessorEnd::Returned(Err("oh".into()));
    assert_eq!(begun(None, true, end), "write bury oh as failure");
}

#[test]
fn a_commit_is_done_or_failed_or_in_doubt() {
    let effects = || Effects::new(&EventHub::new(None));
    let cases = [
        (CommitAnswer::Committed, "finished"),
        (
            CommitAnswer::RolledBack("no".into()),
            "write retry After(10s) no as failure",
        ),
        (
            CommitAnswer::Unknown("silence".into(), effects()),
            "write retry After(10s) silence as doubt",
        ),
    ];
    for (answer, expected) in cases {
        let next = with_facts(None, false, |facts| committed(facts, CompletionKind::Finish, answer));
        assert_eq!(told(next), expected);
    }
}

/// One line per pending state, one column per answer of [`answers`].
#[test]
fn every_answer_to_a_write_has_its_next_step() {
    let bad_row = "write retry After(10s) bad row as doubt";
    type State = (fn() -> Pending, fn() -> Outcome);
    let cases: [(State, [&str; 7]); 7] = [
        (
            (|| pending_completion(CompletionKind::Finish), finish),
            [
                "finished",
                "finished",
                "lost: the worker is stopping",
                "lost: the worker is stopping",
                "lost: cancelled",
                "REFUSED",
                bad_row,
            ],
        ),
        (
            (|| pending_completion(continued()), || continue_with(true)),
            [
                "continued",
                "recover, continued",
                "lost: the worker is stopping",
                "lost: the worker is stopping",
                "lost: cancelled",
                "REFUSED",
                bad_row,
            ],
        ),
        (
            (
                || pending_completion(CompletionKind::Snooze),
                || Outcome::Snooze {
                    schedule: Schedule::Now,
                },
            ),
            [
                "snoozed",
                "lost: the worker is stopping",
                "snoozed",
                "snoozed",
                "lost: cancelled",
                "REFUSED",
                bad_row,
            ],
        ),
        (
            (
                || Pending::Failure(AttemptOutcome::Died { error: "oh".into() }),
                || Outcome::Bury { error: "oh".into() },
            ),
            [
                "died: oh",
                "died: oh",
                "died: oh",
                "died: oh",
                "lost: cancelled",
                "aborted: its lease could not be renewed",
                "aborted: its lease could not be renewed",
            ],
        ),
        (
            (
                || pending_doubt(continued(), Unanswered::Settlement(continue_with(true), None)),
                || Outcome::Bury { error: "oh".into() },
            ),
            [
                "died: unsure",
                "recover, continued",
                "died: unsure",
                "died: unsure",
                "lost: cancelled",
                "aborted: its lease could not be renewed",
                "aborted: its lease could not be renewed",
            ],
        ),
        (
            (
                || pending_doubt(CompletionKind::Finish, Unanswered::Commit(None)),
                || Outcome::Bury { error: "oh".into() },
            ),
            [
                "died: unsure",
                "finished",
                "died: unsure",
                "died: unsure",
                "lost: cancelled",
                "aborted: its lease could not be renewed",
                "aborted: its lease could not be renewed",
            ],
        ),
        (
            (|| Pending::Release, || Outcome::Release),
            [
                "aborted: the worker is stopping",
                "aborted: the worker is stopping",
                "aborted: the worker is stopping",
                "aborted: the worker is stopping",
                "lost: cancelled",
                "aborted: the worker is stopping",
                "aborted: the worker is stopping",
            ],
        ),
    ];
    for (number, ((pending, wrote), expected)) in cases.into_iter().enumerate() {
        for ((name, answer), expected) in answers().into_iter().zip(expected) {
            let next = with_facts(None, false, |facts| resume(facts, pending(), wrote(), answer));
            let told = told(next);
            if expected == "REFUSED" {
                // The text is the refusal's own.
                assert!(
                    told.starts_with("write ") && told.ends_with(" as failure"),
                    "{number}, {name}: {told}"
                );
            } else {
                assert_eq!(told, expected, "{number}, {name}");
            }
        }
    }
}

#[test]
fn the_next_job_comes_with_the_answer_if_the_store_has_claimed_it() {
    let claimed = Applied {
        next: Some(JobStatus::Running),
        handed_over: Some(crate::time::Timestamp::from_micros(1)),
        ..Applied::default()
    };
    for (asked, applied, expected) in [
        (true, claimed.clone(), "continued and has the next job"),
        (true, Applied::default(), "continued"),
        (false, claimed, "continued"),
    ] {
        let answer = Answer::Applied(applied, Instant::now());
        let next = with_facts(None, false, |facts| {
            resume(facts, pending_completion(continued()), continue_with(asked), answer)
        });
        assert_eq!(told(next), expected);
    }
}

#[test]
fn a_write_that_another_transaction_holds_up_has_no_answer_yet() {
    let at = Instant::now();
    assert!(Answer::new(Settled::Busy, at).is_none());
    let repeated = Settled::Repeated(Repeated::new(JobStatus::Completed));
    assert!(matches!(
        Answer::new(repeated, at),
        Some(Answer::Repeated(JobStatus::Completed))
    ));
}
