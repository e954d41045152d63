//! Triggering pending jobs.

use queuert::JobStatus;
use queuert::adapter::Refusal;

use crate::bench::{Bench, LONG};
use crate::draft::draft;
use crate::fixture::StateFixture;
use crate::identity;

/// A triggered job is due now, and can be claimed. (S68, S69)
pub async fn a_triggered_job_is_due_now<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").after(LONG)).await;
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
    let before = bench.now().await;
    let triggered = bench.trigger(&[chain.first_job()]).await.expect("the job is pending");
    let after = bench.now().await;
    assert_eq!(triggered.len(), 1);
    assert!(before <= triggered[0].scheduled_at && triggered[0].scheduled_at <= after);
    assert_eq!(bench.job(chain.first_job()).await, triggered[0]);
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}

/// Nothing but the time changes. (S70)
pub async fn a_trigger_changes_nothing_else<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench
        .start_as(
            draft("mail")
                .after(LONG)
                .input("1")
                .priority(4)
                .trace("t")
                .deduplicate("k"),
        )
        .await;
    let mut expected = bench.job(chain.first_job()).await;
    let triggered = bench
        .trigger(&[chain.first_job()])
        .await
        .expect("the job is pending")
        .remove(0);
    expected.scheduled_at = triggered.scheduled_at;
    assert_eq!(triggered, expected);
}

/// Results come in the order of the request. (S71)
pub async fn triggered_jobs_come_in_the_order_of_the_request<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(bench.start_as(draft("mail").after(LONG)).await.first_job());
    }
    for _ in 0..2 {
        let triggered = bench.trigger(&jobs).await.expect("the jobs are pending");
        assert_eq!(triggered.iter().map(|job| job.id).collect::<Vec<_>>(), jobs);
        jobs.reverse();
    }
}

/// Triggering nothing does nothing. (S72)
pub async fn triggering_nothing_does_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    assert_eq!(bench.trigger(&[]).await, Ok(Vec::new()));
}

/// An id that is given twice is triggered once and returned twice. (H24)
pub async fn an_id_given_twice_is_returned_twice<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let job = bench.start_as(draft("mail").after(LONG)).await.first_job();
    let other = bench.start_as(draft("mail").after(LONG)).await.first_job();
    let triggered = bench.trigger(&[job, other, job]).await.expect("the jobs are pending");
    assert_eq!(
        triggered.iter().map(|job| job.id).collect::<Vec<_>>(),
        [job, other, job]
    );
    assert_eq!(triggered[0], triggered[2]);
}

/// One job that does not exist refuses the whole call. (S73)
pub async fn a_missing_job_refuses_the_whole_call<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let job = bench.start_as(draft("mail").after(LONG)).await.first_job();
    let before = bench.job(job).await;
    let missing = identity::job_id();
    assert_eq!(bench.trigger(&[job, missing]).await, Err(Refusal::JobNotFound(missing)));
    assert_eq!(bench.job(job).await, before);
}

/// One job that is not pending refuses the whole call, with its status. (S74)
pub async fn a_job_that_is_not_pending_refuses_the_whole_call<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let completed = bench.start_completed("other", "1").await;
    let blocker = bench.start("blocker").await;
    let blocked = bench.start_blocked("other", &[blocker]).await;
    let running = bench.start("running").await;
    bench.attempt("running").await;
    let dead = bench.start_dead("dead").await;
    let job = bench.start_as(draft("mail").after(LONG)).await.first_job();
    let before = bench.job(job).await;
    use JobStatus::{Blocked, Completed, Dead, Running};
    for (chain, status) in [
        (completed, Completed),
        (blocked, Blocked),
        (running, Running),
        (dead, Dead),
    ] {
        let other = chain.first_job();
        let refused = bench.trigger(&[job, other]).await;
        assert_eq!(refused, Err(Refusal::NotPending(other, status)));
        assert_eq!(bench.job(other).await.status, status);
    }
    assert_eq!(bench.job(job).await, before);
}

/// A later job of a chain can be triggered; a chain's id is not enough once it went on.
pub async fn a_continuation_can_be_triggered<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let next = draft("second").after(LONG);
    let id = next.id();
    bench.apply(&bench.attempt("first").await, next.next()).await;
    let refused = bench.trigger(&[chain.first_job()]).await;
    assert_eq!(
        refused,
        Err(Refusal::NotPending(chain.first_job(), JobStatus::Completed))
    );
    bench.trigger(&[id]).await.expect("the job is pending");
    assert_eq!(bench.attempt("second").await.id(), id);
}

/// A trigger in a transaction that rolls back never was.
pub async fn a_rolled_back_trigger_never_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let job = bench.start_as(draft("mail").after(LONG)).await.first_job();
    let before = bench.job(job).await;
    let mut open = bench.begin().await;
    open.trigger(&[job]).await.expect("the job is pending");
    open.rollback().await;
    assert_eq!(bench.job(job).await, before);
    assert!(bench.claim(&["mail"], 1).await.jobs.is_empty());
}
