//! Claiming: what is taken, and what comes with it.

use std::time::Duration;

use queuert::JobStatus;

use crate::bench::{Attempt, Bench, LONG, SHORT, WORKER};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A claimed job runs under a lease: attempt and claims one up, owner, fence and end of the lease set. (S59, S63, I3)
pub async fn a_claimed_job_runs_under_a_lease<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let before = bench.now().await;
    let attempt = bench.attempt("mail").await;
    let after = bench.now().await;
    let job = bench.job(attempt.id()).await;
    assert_eq!(job, attempt.job, "what the claim returns is what is stored");
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Running, 1, 1));
    let started = job.started_at.expect("a claimed job has started");
    assert!(before <= started && started <= after);
    let lease = job.lease.expect("a running job has a lease");
    assert_eq!((lease.owner.as_str(), lease.fence), (WORKER, attempt.fence));
    assert!(before.saturating_add(LONG) <= lease.until && lease.until <= after.saturating_add(LONG));
    assert_eq!(bench.status(attempt.chain()).await, JobStatus::Running);
}

/// The fence and the worker are those that the claimer named, for all jobs of one claim.
pub async fn all_jobs_of_a_claim_share_its_fence<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 3).await;
    let claimed = bench.claim_as("someone", &[("mail", LONG)], 3).await;
    let attempts: Vec<_> = claimed.jobs.into_iter().map(Attempt::new).collect();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|attempt| attempt.fence == attempts[0].fence));
    assert!(attempts.iter().all(|attempt| attempt.worker.as_str() == "someone"));
}

/// What a claim took is told again by its fence, with all that came with it, and nothing else, and nothing is changed by
/// asking.
pub async fn a_claim_can_be_asked_for_again<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("part", "7").await;
    bench.start_blocked("mail", &[blocker, blocker]).await;
    bench.start_at_once("mail", 2).await;
    let claimed = bench.claim(&["mail"], 3).await;
    let mut attempts: Vec<_> = claimed.jobs.into_iter().map(Attempt::new).collect();
    attempts.sort_unstable_by_key(Attempt::id);
    bench.start("mail").await;
    let other = bench.attempt("mail").await;
    for _ in 0..2 {
        let again = bench.claimed(attempts[0].fence).await;
        assert_eq!(again.len(), 3);
        for (again, attempt) in again.iter().zip(&attempts) {
            assert_eq!((&again.job, &again.blockers), (&attempt.job, &attempt.blockers));
        }
    }
    assert_eq!(bench.claimed(other.fence).await[0].job, other.job);
    bench.finish(&attempts[0]).await;
}

/// What has ended, and what was taken back, runs under no fence any more; under one that nobody has used, nothing does.
pub async fn what_has_ended_does_not_run_under_a_fence<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 2).await;
    let claimed = bench.claim_as(WORKER, &[("mail", SHORT)], 2).await;
    let attempts: Vec<_> = claimed.jobs.into_iter().map(Attempt::new).collect();
    let fence = attempts[0].fence;
    bench.finish(&attempts[0]).await;
    let left = bench.claimed(fence).await;
    assert_eq!(left.iter().map(Attempt::id).collect::<Vec<_>>(), [attempts[1].id()]);
    bench.elapse(SHORT * 2).await;
    assert_eq!(bench.claimed(fence).await.len(), 1, "expired, but nobody has taken it");
    assert_eq!(bench.reap("mail").await.len(), 1);
    assert!(bench.claimed(fence).await.is_empty());
    let again = bench.attempt("mail").await;
    assert!(bench.claimed(fence).await.is_empty());
    assert_eq!(bench.claimed(again.fence).await.len(), 1);
    assert!(bench.claimed(identity::fence()).await.is_empty());
}

/// A claim takes as many as it may, and the next one goes on. (S60)
pub async fn a_claim_takes_up_to_its_limit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 3).await;
    assert_eq!(
        bench.claim_ids(&["mail"], 2).await,
        [chains[0].first_job(), chains[1].first_job()]
    );
    assert_eq!(bench.claim_ids(&["mail"], 2).await, [chains[2].first_job()]);
    assert!(bench.claim_ids(&["mail"], 2).await.is_empty());
}

/// Where there is no job there is nothing to claim and nothing due. (S58, S61)
pub async fn an_empty_store_has_nothing_to_claim<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let claimed = bench.claim(&["mail"], 5).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, None);
}

/// A claim of no types, or of no jobs, takes nothing.
pub async fn a_claim_of_nothing_takes_nothing<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("mail").await;
    assert!(bench.claim(&[], 5).await.jobs.is_empty());
    assert!(bench.claim(&["mail"], 0).await.jobs.is_empty());
    assert_eq!(bench.job(chain.first_job()).await.claims, 0);
}

/// Only jobs of the given types are claimed; one that nobody ever started is no error. (I17)
pub async fn only_the_given_types_are_claimed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("other").await;
    let chain = bench.start("mail").await;
    assert_eq!(
        bench.claim_ids(&["never-started", "mail"], 5).await,
        [chain.first_job()]
    );
    assert_eq!(
        bench.claim(&["mail"], 5).await.next_due,
        None,
        "the other type is not asked for"
    );
}

/// A job due later is not claimed; the claim tells how long it takes. (S57, S62)
pub async fn a_job_due_later_is_not_claimed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_as(draft("mail").after(Duration::from_secs(60))).await;
    let claimed = bench.claim(&["mail"], 5).await;
    assert!(claimed.jobs.is_empty());
    let due = claimed.next_due.expect("a job is pending");
    assert!(
        due <= Duration::from_secs(60) && due > Duration::from_secs(30),
        "{due:?}"
    );
}

/// A job is claimed once its time has come.
pub async fn a_job_is_claimed_when_it_is_due<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start_as(draft("mail").after(SHORT)).await;
    bench.elapse(SHORT * 2).await;
    assert_eq!(bench.attempt("mail").await.chain(), chain);
}

/// A job that is due in weeks, or in years, is told as such. (H16)
pub async fn a_job_due_in_years_is_told_as_such<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let day = Duration::from_secs(86_400);
    for days in [60, 3_650] {
        let chain = bench.start_as(draft("mail").after(day * days)).await;
        let due = bench.claim(&["mail"], 1).await.next_due.expect("a job is pending");
        assert!(due <= day * days && due > day * (days - 1), "{due:?}");
        bench.delete(&[chain]).await.expect("nothing depends on it");
    }
}

/// The next due job is the earliest of all types that were asked for, whatever was claimed.
pub async fn the_next_due_job_is_the_earliest_of_all_types<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let minute = Duration::from_secs(60);
    bench.start_as(draft("a").after(minute * 30)).await;
    bench.start_as(draft("b").after(minute * 10).priority(-100)).await;
    bench.start_as(draft("c").after(minute * 20).priority(100)).await;
    bench.start("a").await;
    let claimed = bench.claim(&["a", "b", "c"], 5).await;
    assert_eq!(claimed.jobs.len(), 1);
    let due = claimed.next_due.expect("three jobs are pending");
    assert!(due <= minute * 10 && due > minute * 9, "{due:?}");
}

/// Jobs that are blocked, running or ended are not due. (S58)
pub async fn only_pending_jobs_are_due<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    bench.start_blocked("mail", &[blocker]).await;
    bench.start_dead("mail").await;
    bench.start_completed("mail", "null").await;
    let cancelled = bench.start_as(draft("mail").after(LONG)).await;
    bench.cancel(&[cancelled]).await.expect("the chain is open");
    bench.start("mail").await;
    bench.attempt("mail").await;
    let claimed = bench.claim(&["mail"], 5).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, None);
}

/// An expired lease is the reaper's: nobody claims the job before it was taken back.
pub async fn an_expired_lease_is_not_claimed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    let attempt = bench.expired_attempt("mail").await;
    assert!(bench.claim(&["mail"], 5).await.jobs.is_empty());
    assert_eq!(bench.job(attempt.id()).await.lease, attempt.job.lease);
}

/// Every type has a lease of its own.
pub async fn every_type_has_its_own_lease<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("fast").await;
    bench.start("slow").await;
    let hour = Duration::from_secs(3_600);
    let claimed = bench.claim_as(WORKER, &[("slow", hour * 2), ("fast", hour)], 5).await;
    let leases: Vec<_> = claimed
        .jobs
        .iter()
        .map(|claimed| {
            let started = claimed.job.started_at.expect("started");
            let until = claimed.job.lease.as_ref().expect("leased").until;
            (
                claimed.job.type_name.as_str(),
                until.saturating_duration_since(started).as_secs_f64().round(),
            )
        })
        .collect();
    assert_eq!(leases, [("fast", 3_600.0), ("slow", 7_200.0)]);
}

/// Every claim counts: the second attempt is number two.
pub async fn every_claim_counts<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("mail").await;
    for number in 1..=3 {
        let attempt = bench.attempt("mail").await;
        assert_eq!((attempt.job.attempt, attempt.job.claims), (number, number));
        bench
            .apply(&attempt, draft::retry(queuert::Schedule::Now, "failed"))
            .await;
    }
}

/// A claim skips a job whose chain is locked instead of waiting for it, and says that there is something to come back
/// for. (S56)
pub async fn a_claim_skips_what_is_locked<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let chains = bench.start_in_turn("mail", 2).await;
    let mut open = bench.begin().await;
    open.lock(chains[0]).await.expect("the chain is there");
    let claimed = bench.claim(&["mail"], 5).await;
    assert_eq!(
        claimed.jobs.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(),
        [chains[1].first_job()]
    );
    let due = claimed.next_due.expect("what is locked is still pending, and due");
    assert!(due <= Duration::from_secs(1), "{due:?}");
    open.rollback().await;
    assert_eq!(bench.claim_ids(&["mail"], 5).await, [chains[0].first_job()]);
}

/// A locked job does not use up the limit of a claim.
pub async fn what_is_locked_does_not_use_up_the_limit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !bench.has_concurrent_writers() {
        return;
    }
    let chains = bench.start_in_turn("mail", 4).await;
    let mut open = bench.begin().await;
    open.lock(chains[0]).await.expect("the chain is there");
    open.lock(chains[2]).await.expect("the chain is there");
    assert_eq!(
        bench.claim_ids(&["mail"], 2).await,
        [chains[1].first_job(), chains[3].first_job()]
    );
    open.rollback().await;
}
