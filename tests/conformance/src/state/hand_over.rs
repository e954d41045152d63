//! The next job of a chain, claimed by the worker that creates it.

use std::time::Duration;

use queuert::adapter::{HandOver, Repeated, Settled};
use queuert::{Fence, JobStatus, Lease};

use crate::bench::{Attempt, Bench, LONG, SHORT};
use crate::draft::{Draft, draft};
use crate::fixture::StateFixture;
use crate::identity;

/// A job that is to be handed over under a new fence.
fn wanted(draft: Draft, lease: Duration) -> (Draft, Fence) {
    let fence = identity::fence();
    (draft.hand_over(HandOver { fence, lease }), fence)
}

/// A job that is handed over is as a claim would have left it, and what the answer says of it is true.
pub async fn a_handed_over_job_is_as_a_claim_leaves_it<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let (next, fence) = wanted(
        draft("second").input("2").priority(9).max_attempts(4).trace("step"),
        LONG,
    );
    let id = next.id();
    let applied = bench.apply(&attempt, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Running));
    let at = applied.handed_over.expect("it says when");
    let job = bench.job(id).await;
    assert_eq!((job.chain_id, job.chain_index), (chain, 1));
    assert_eq!((job.status, job.attempt, job.claims), (JobStatus::Running, 1, 1));
    assert_eq!(
        (job.created_at, job.scheduled_at, job.started_at),
        (at, at, Some(at)),
        "all at the time of the answer"
    );
    let lease = Lease {
        owner: attempt.worker.clone(),
        until: at.saturating_add(LONG),
        fence,
    };
    assert_eq!(job.lease, Some(lease));
    assert_eq!((job.priority, job.max_attempts), (9, Some(4)));
    assert_eq!((job.input.as_str(), job.trace_context.as_deref()), ("2", Some("step")));
    assert_eq!(bench.chain(chain).await.status, JobStatus::Running);
    assert_eq!(bench.claim_ids(&["second"], 5).await, [], "nobody else can have it");
}

/// It can be asked for again by its fence, and ended under it: the whole chain without another claim.
pub async fn a_handed_over_job_is_settled_under_its_fence<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let first = bench.attempt("first").await;
    let (next, fence) = wanted(draft("second"), LONG);
    bench.apply(&first, next.clone().next()).await;
    assert_eq!(
        bench.settle(&first, next.next()).await,
        Settled::Repeated(Repeated::new(JobStatus::Completed)),
        "the answer may have been lost"
    );
    let [second] = bench.claimed(fence).await.try_into().expect("one job runs under it");
    let (next, fence) = wanted(draft("third"), LONG);
    bench.apply(&second, next.next()).await;
    let [third] = bench.claimed(fence).await.try_into().expect("one job runs under it");
    bench.finish(&third).await;
    let chain = bench.chain(chain).await;
    assert_eq!((chain.status, chain.length), (JobStatus::Completed, 3));
}

/// One whose lease expires comes back like any other.
pub async fn a_handed_over_job_can_be_reaped<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let attempt = bench.attempt("first").await;
    let (next, _) = wanted(draft("second"), SHORT);
    let id = next.id();
    bench.apply(&attempt, next.next()).await;
    bench.elapse(SHORT * 2).await;
    assert_eq!(bench.reap("second").await.len(), 1);
    let again = bench.attempt("second").await;
    assert_eq!((again.id(), again.job.attempt), (id, 2));
}

/// What is due later, or waits for others, is not handed over.
pub async fn what_cannot_run_now_is_not_handed_over<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start("blocker").await;
    for (draft, status) in [
        (draft("second").after(LONG), JobStatus::Pending),
        (draft("second").blocked_by(&[blocker]), JobStatus::Blocked),
    ] {
        bench.start("first").await;
        let attempt = bench.attempt("first").await;
        let (next, fence) = wanted(draft, LONG);
        let id = next.id();
        let applied = bench.apply(&attempt, next.next()).await;
        assert_eq!((applied.next, applied.handed_over), (Some(status), None));
        let job = bench.job(id).await;
        assert_eq!((job.status, job.attempt, job.claims, job.lease), (status, 0, 0, None));
        assert_eq!(bench.claimed(fence).await.len(), 0);
    }
}

/// Nothing is handed over by an attempt that has lost its job, nor by one that is refused.
pub async fn a_lost_or_refused_end_hands_nothing_over<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start("first").await;
    let zombie = bench.expired_attempt("first").await;
    bench.reap("first").await;
    let attempt = bench.attempt("first").await;
    let (next, fence) = wanted(draft("second"), LONG);
    assert!(matches!(bench.settle(&zombie, next.next()).await, Settled::Lost(_)));
    assert_eq!(bench.claimed(fence).await.len(), 0);
    let (next, fence) = wanted(draft("second").with_id(attempt.id()), LONG);
    assert!(matches!(bench.settle(&attempt, next.next()).await, Settled::Refused(_)));
    assert_eq!(bench.claimed(fence).await.len(), 0);
    bench.finish(&attempt).await;
}

/// In one call some are handed over and others are not; each is as its own end says.
pub async fn ends_of_one_call_are_handed_over_one_by_one<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for _ in 0..4 {
        bench.start("first").await;
    }
    let claimed = bench.claim(&["first"], 4).await;
    let attempts: Vec<Attempt> = claimed.jobs.into_iter().map(Attempt::new).collect();
    let (now, fence) = wanted(draft("second"), LONG);
    let (later, _) = wanted(draft("second").after(LONG), LONG);
    let drafts = [now, draft("second"), later];
    let ids: Vec<_> = drafts.iter().map(Draft::id).collect();
    let mut ends: Vec<_> = attempts
        .iter()
        .zip(drafts)
        .map(|(attempt, draft)| attempt.settlement(draft.next()))
        .collect();
    ends.push(attempts[3].settlement(crate::draft::finish("1")));
    let settled = bench.settle_all(&ends).await;
    assert!(
        settled.iter().all(|settled| matches!(settled, Settled::Applied(_))),
        "{settled:?}"
    );
    let [taken] = bench.claimed(fence).await.try_into().expect("one job runs under it");
    assert_eq!(taken.id(), ids[0]);
    assert_eq!(bench.claim_ids(&["second"], 5).await, [ids[1]]);
    assert_eq!(bench.job(ids[2]).await.status, JobStatus::Pending);
}
