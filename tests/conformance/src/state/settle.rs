//! Ending attempts: finishing, batches, repetitions.

use std::pin::pin;

use queuert::adapter::{Applied, Repeated, Settled};
use queuert::{AbortReason, JobStatus, Schedule};

use crate::bench::{Bench, TICK};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A finished job ends its chain: output, end and worker stored, lease gone. (S75)
pub async fn a_finished_job_ends_its_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    bench.elapse(TICK).await;
    assert_eq!(bench.apply(&attempt, draft::finish("42")).await, Applied::default());
    let job = bench.job(attempt.id()).await;
    assert_eq!((job.status, job.lease), (JobStatus::Completed, None));
    assert_eq!(job.output.as_ref().map(|output| output.as_str()), Some("42"));
    assert_eq!(job.completed_by.as_ref(), Some(&attempt.worker));
    assert!(job.ended_at > job.started_at);
    assert_eq!((job.attempt, job.claims), (1, 1));
    let chain = bench.chain(attempt.chain()).await;
    assert_eq!(
        (chain.status, chain.output, chain.ended_at),
        (JobStatus::Completed, job.output, job.ended_at)
    );
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
}

/// Completion wipes the error of an earlier attempt. (S76)
pub async fn completion_wipes_the_error<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    bench
        .apply(&bench.attempt("mail").await, draft::retry(Schedule::Now, "failed"))
        .await;
    let attempt = bench.attempt("mail").await;
    assert!(attempt.job.last_error.is_some(), "the next attempt can read it");
    bench.finish(&attempt).await;
    assert_eq!(bench.job(attempt.id()).await.last_error, None);
    assert_eq!(bench.chain(attempt.chain()).await.last_error, None);
}

/// The end of a job is the time of the statement, not of its transaction. (H15, I12)
pub async fn the_end_is_the_time_of_the_statement<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let mut open = bench.begin().await;
    open.hold(&attempt).await.expect("the attempt holds its job");
    bench.elapse(TICK * 5).await;
    open.finish(&attempt).await;
    open.commit().await;
    let job = bench.job(attempt.id()).await;
    let ran = job
        .ended_at
        .expect("ended")
        .saturating_duration_since(job.started_at.expect("started"));
    assert!(ran >= TICK * 5, "{ran:?}");
}

/// An attempt whose lease expired may still end if nobody took its job.
pub async fn an_expired_lease_that_nobody_took_still_settles<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    bench.finish(&attempt).await;
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Completed);
}

/// Items of a batch stand alone, in the order of the request: one that is lost or refused keeps no other back.
pub async fn every_settlement_of_a_batch_stands_alone<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let taken = bench.start("taken").await.first_job();
    bench.start_at_once("mail", 5).await;
    let mut attempts = Vec::new();
    for _ in 0..5 {
        attempts.push(bench.attempt("mail").await);
    }
    bench.cancel(&[attempts[1].chain()]).await.expect("the chain is open");
    let settled = bench
        .settle_all(&[
            attempts[4].settlement(draft::finish("4")),
            attempts[1].settlement(draft::finish("1")),
            attempts[3].settlement(draft("next").with_id(taken).next()),
            attempts[0].settlement(draft::bury("fatal")),
            attempts[2].settlement(draft("next").next()),
        ])
        .await;
    assert_eq!(settled[0], Settled::Applied(Applied::default()));
    assert_eq!(settled[1], Settled::Lost(AbortReason::Cancelled));
    assert!(matches!(settled[2], Settled::Refused(_)), "{:?}", settled[2]);
    assert!(matches!(settled[3], Settled::Applied(_)));
    assert!(matches!(&settled[4], Settled::Applied(applied) if applied.next == Some(JobStatus::Pending)));
    let mut statuses = Vec::new();
    for attempt in &attempts {
        statuses.push(bench.status(attempt.chain()).await);
    }
    use JobStatus::{Cancelled, Completed, Dead, Pending, Running};
    assert_eq!(statuses, [Dead, Cancelled, Pending, Running, Completed]);
    assert!(bench.settle_all(&[]).await.is_empty());
}

/// A large batch is settled in one call.
pub async fn a_large_batch_is_settled_in_one_call<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_at_once("mail", 200).await;
    let claimed = bench.claim(&["mail"], 200).await;
    assert_eq!(claimed.jobs.len(), 200);
    let attempts: Vec<_> = claimed.jobs.into_iter().map(crate::bench::Attempt::new).collect();
    let settlements: Vec<_> = attempts
        .iter()
        .enumerate()
        .map(|(index, attempt)| match index % 2 {
            0 => attempt.settlement(draft::finish("1")),
            _ => attempt.settlement(draft("next").next()),
        })
        .collect();
    let settled = bench.settle_all(&settlements).await;
    assert!(settled.iter().all(|settled| matches!(settled, Settled::Applied(_))));
    let chains = bench.chains(&chains).await;
    assert_eq!(
        chains
            .iter()
            .filter(|chain| chain.status == JobStatus::Completed)
            .count(),
        100
    );
    assert_eq!(chains.iter().filter(|chain| chain.length == 2).count(), 100);
}

/// A second settlement under the same fence is repeated, whatever the first one was, and changes nothing: the answer
/// to the first may have been lost. (I5, H30)
pub async fn a_second_settlement_under_the_same_fence_is_repeated<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    use JobStatus::{Completed, Dead, Pending};
    let expected = [Completed, Completed, Pending, Dead, Pending, Pending];
    for (outcome, status) in draft::every_outcome().into_iter().zip(expected) {
        let chain = bench.start("mail").await;
        let attempt = bench.attempt("mail").await;
        bench.apply(&attempt, outcome.clone()).await;
        let before = (bench.job(attempt.id()).await, bench.chain(chain).await);
        bench.elapse(TICK).await;
        for again in [
            outcome.clone(),
            draft::finish("2"),
            draft("next").next(),
            draft::bury("again"),
        ] {
            let settled = bench.settle(&attempt, again).await;
            assert_eq!(settled, Settled::Repeated(Repeated::new(status)), "after {outcome:?}");
        }
        assert_eq!((bench.job(attempt.id()).await, bench.chain(chain).await), before);
        bench.delete(&[chain]).await.expect("nothing depends on it");
    }
}

/// A repetition unblocks nobody a second time. (I6)
pub async fn a_repetition_unblocks_nobody_again<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    let dependant = bench.start_blocked("dependant", &[blocker]).await;
    let attempt = bench.attempt("blocker").await;
    assert_eq!(bench.finish(&attempt).await.unblocked.len(), 1);
    let running = bench.attempt("dependant").await;
    let settled = bench.settle(&attempt, draft::finish("1")).await;
    assert!(matches!(settled, Settled::Repeated(_)), "{settled:?}");
    assert_eq!(
        bench.job(dependant.first_job()).await,
        running.job,
        "the dependant runs on undisturbed"
    );
}

/// A job that does not exist cannot be settled.
pub async fn a_job_that_does_not_exist_is_lost<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let mut attempt = bench.attempt("mail").await;
    attempt.job.id = identity::job_id();
    for outcome in draft::every_outcome() {
        assert_eq!(
            bench.settle(&attempt, outcome).await,
            Settled::Lost(AbortReason::NotFound)
        );
    }
}

/// A job that was never claimed cannot be settled under any fence.
pub async fn a_pending_job_has_no_fence<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let mut attempt = bench.attempt("mail").await;
    let other = bench.start("mail").await;
    attempt.job.id = other.first_job();
    let settled = bench.settle(&attempt, draft::finish("1")).await;
    assert_eq!(settled, Settled::Lost(AbortReason::TakenByAnotherWorker));
    assert_eq!(bench.status(other).await, JobStatus::Pending);
}

/// A settlement in a transaction that rolls back never was: the attempt still holds its job. (S31, I1)
pub async fn a_rolled_back_settlement_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for outcome in draft::every_outcome() {
        let chain = bench.start("mail").await;
        let attempt = bench.attempt("mail").await;
        let before = bench.chain(chain).await;
        let mut open = bench.begin().await;
        open.apply(&attempt, outcome).await;
        open.rollback().await;
        assert_eq!(
            (bench.job(attempt.id()).await, bench.chain(chain).await),
            (attempt.job.clone(), before)
        );
        bench.finish(&attempt).await;
    }
}

/// A settlement by itself never waits: a chain that another transaction has locked is busy, and the others are settled.
pub async fn a_locked_chain_is_busy_and_does_not_hold_up_the_others<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    bench.start_at_once("mail", 2).await;
    let (held, free) = (bench.attempt("mail").await, bench.attempt("mail").await);
    let mut open = bench.begin().await;
    open.lock(held.chain()).await.expect("the chain is there");
    let settlements = [&held, &free].map(|attempt| attempt.settlement(draft::finish("1")));
    let mut settling = pin!(bench.settle_at_once(&settlements));
    let settled = bench
        .watch(settling.as_mut())
        .await
        .expect("a settlement by itself does not wait");
    assert_eq!(settled, [Settled::Busy, Settled::Applied(Applied::default())]);
    assert_eq!(bench.status(held.chain()).await, JobStatus::Running);
    open.rollback().await;
    bench.finish(&held).await;
}
