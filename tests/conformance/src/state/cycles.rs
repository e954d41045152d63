//! Chains that would wait for each other for ever. Only a continuation can close a circle.

use std::pin::pin;

use queuert::adapter::{Refusal, Settled};
use queuert::{ChainId, JobStatus};

use crate::bench::{Attempt, Bench, End};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

async fn assert_refused<F: StateFixture>(bench: &Bench<F>, attempt: &Attempt, blocker: ChainId) {
    let next = draft("next").blocked_by(&[blocker]);
    let job = next.id();
    let settled = bench.settle(attempt, next.next()).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: blocker }));
    assert!(bench.jobs(&[job]).await.is_empty());
    assert_eq!(
        bench.job(attempt.id()).await,
        attempt.job,
        "the attempt still holds its job"
    );
}

/// A continuation cannot wait for its own chain. (H18)
pub async fn a_continuation_cannot_wait_for_its_own_chain<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    assert_refused(&bench, &bench.attempt("first").await, chain).await;
}

/// A continuation cannot wait for a chain that waits for its own. (H18)
pub async fn a_continuation_cannot_wait_for_who_waits_for_it<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let waiting = bench.start_blocked("waiting", &[chain]).await;
    let attempt = bench.attempt("first").await;
    assert_refused(&bench, &attempt, waiting).await;
    assert_eq!(bench.finish(&attempt).await.unblocked.len(), 1);
    assert_eq!(bench.status(waiting).await, JobStatus::Pending);
}

/// A circle through several chains is found, also one that goes through a continuation's blockers. (H18)
pub async fn a_circle_through_others_is_found<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let near = bench.start("near").await;
    let next = draft("near-next").blocked_by(&[chain]);
    bench.apply(&bench.attempt("near").await, next.next()).await;
    let innocent = bench.start("innocent").await;
    let middle = bench.start_blocked("middle", &[innocent, near]).await;
    let far = bench.start_blocked("far", &[middle]).await;
    assert_refused(&bench, &bench.attempt("first").await, far).await;
}

/// One blocker that closes a circle refuses the continuation, whatever the others are.
pub async fn one_of_many_blockers_closes_the_circle<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let waiting = bench.start_blocked("waiting", &[chain]).await;
    let innocent = bench.start("innocent").await;
    let attempt = bench.attempt("first").await;
    let next = draft("next").blocked_by(&[innocent, waiting]);
    let job = next.id();
    let settled = bench.settle(&attempt, next.next()).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: waiting }));
}

/// What looks like a circle and is none is allowed: a shared blocker, a chain that waited before and does no more, and
/// one whose first job waits for the same thing.
pub async fn what_is_no_circle_is_allowed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let shared = bench.start("shared").await;
    let other = bench.start_blocked("other", &[shared]).await;
    let earlier = bench.start_completed("earlier", "1").await;
    let chain = bench.start_blocked("first", &[earlier]).await;
    let next = draft("next").blocked_by(&[other, shared, earlier]);
    let applied = bench.apply(&bench.attempt("first").await, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Blocked));
    bench.finish(&bench.attempt("shared").await).await;
    bench.finish(&bench.attempt("other").await).await;
    assert_eq!(bench.attempt("next").await.chain(), chain);
}

/// A circle is found from outside, too.
pub async fn a_circle_from_outside_is_found<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let waiting = bench.start_blocked("waiting", &[chain]).await;
    let mut open = bench.begin().await;
    let current = open.lock(chain).await.expect("the chain is there");
    let next = draft("next").blocked_by(&[waiting]);
    let job = next.id();
    let settled = open.settle_outside(current.id, next.next()).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: waiting }));
    let settled = open.settle_outside(current.id, draft::finish("1")).await;
    assert!(matches!(settled, Settled::Applied(applied) if applied.unblocked.len() == 1));
    open.commit().await;
}

/// Two continuations in overlapping transactions that would close a circle together: the second is refused, unless the
/// first rolls back. (H18)
pub async fn two_continuations_cannot_close_a_circle_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for end in [End::Commit, End::Rollback] {
        let (left, right) = (bench.start("left").await, bench.start("right").await);
        let (to_left, to_right) = (bench.attempt("left").await, bench.attempt("right").await);
        let mut first = bench.begin().await;
        first.apply(&to_left, draft("next").blocked_by(&[right]).next()).await;
        let next = draft("next").blocked_by(&[left]);
        let job = next.id();
        let mut second = pin!(bench.settle(&to_right, next.next()));
        let settled = bench.overlap_waiting(first, end, second.as_mut()).await;
        match end {
            End::Commit => assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: left })),
            End::Rollback => assert!(matches!(settled, Settled::Applied(_)), "{settled:?}"),
        }
    }
}

/// The same for a circle of four, in which neither continuation touches a chain of the other: a store has to hold the
/// whole way that it has looked at. (H18)
pub async fn two_continuations_cannot_close_a_long_circle_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let (a, c) = (bench.start("a").await, bench.start("c").await);
    let (b, d) = (
        bench.start_blocked("b", &[c]).await,
        bench.start_blocked("d", &[a]).await,
    );
    let (to_a, to_c) = (bench.attempt("a").await, bench.attempt("c").await);
    let mut first = bench.begin().await;
    first.apply(&to_a, draft("next").blocked_by(&[b]).next()).await;
    let next = draft("next").blocked_by(&[d]);
    let job = next.id();
    let mut second = pin!(bench.settle(&to_c, next.next()));
    let settled = bench.overlap(first, End::Commit, second.as_mut()).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: d }));
}

/// Of several blockers that close a circle, the one that stands first is named, whatever its id is and however long its way.
pub async fn the_first_blocker_that_closes_a_circle_is_named<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let near = bench.start_blocked("near", &[chain]).await;
    let middle = bench.start_blocked("middle", &[near]).await;
    let far = bench.start_blocked("far", &[middle, near]).await;
    let innocent = bench.start("innocent").await;
    let attempt = bench.attempt("first").await;
    for blockers in [
        [innocent, far, near, middle],
        [near, far, middle, innocent],
        [innocent, middle, middle, far],
    ] {
        let next = draft("next").blocked_by(&blockers);
        let job = next.id();
        let named = *blockers
            .iter()
            .find(|blocker| **blocker != innocent)
            .expect("one of them");
        let settled = bench.settle(&attempt, next.next()).await;
        assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: named }));
    }
}

/// Ways that part and meet again are no circle, unless they lead back to the chain.
pub async fn ways_that_meet_again_are_no_circle<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let bottom = bench.start("bottom").await;
    let (left, right) = (
        bench.start_blocked("left", &[bottom]).await,
        bench.start_blocked("right", &[bottom]).await,
    );
    let top = bench.start_blocked("top", &[left, right, bottom]).await;
    let next = draft("next").blocked_by(&[top, left, right, bottom]);
    let applied = bench.apply(&bench.attempt("first").await, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Blocked));
    // The chain waits for all of them now: whatever the bottom waits for must not lead to it.
    assert_refused(&bench, &bench.attempt("bottom").await, chain).await;
}

/// Many blockers that all wait for the same chains: the search visits each of these once, so a graph that has this many
/// edges is no matter.
pub async fn a_wide_graph_is_searched<F: StateFixture>(fixture: F) {
    const WIDE: usize = 300;
    const SHARED: usize = 50;
    let bench = Bench::new(fixture).await;
    let chain = bench.start("first").await;
    let shared = bench.start_at_once("shared", SHARED).await;
    let drafts: Vec<_> = (0..WIDE).map(|_| draft("wide").blocked_by(&shared)).collect();
    let wide: Vec<ChainId> = drafts.iter().map(|draft| draft.chain_id()).collect();
    let chains: Vec<_> = drafts.into_iter().map(|draft| draft.chain()).collect();
    bench.create(&chains).await.expect("nothing is wrong with the batch");
    let attempt = bench.attempt("first").await;
    let applied = bench.apply(&attempt, draft("next").blocked_by(&wide).next()).await;
    assert_eq!(applied.next, Some(JobStatus::Blocked));
    // Each of them waits for the shared ones, the chain for each of them.
    let attempt = bench.attempt("shared").await;
    let mut blockers = wide[..WIDE / 2].to_vec();
    blockers.push(chain);
    let next = draft("next").blocked_by(&blockers);
    let job = next.id();
    let settled = bench.settle(&attempt, next.next()).await;
    assert_eq!(settled, Settled::Refused(Refusal::BlockerCycle { job, chain: wide[0] }));
}

/// A way of ten thousand chains is followed to its end.
pub async fn a_deep_graph_is_searched<F: StateFixture>(fixture: F) {
    const DEEP: usize = 10_000;
    let bench = Bench::new(fixture).await;
    let (chain, other) = (bench.start("first").await, bench.start("other").await);
    let mut chains = Vec::with_capacity(DEEP);
    let mut last = chain;
    for _ in 0..DEEP {
        let next = draft("deep").blocked_by(&[last]);
        last = next.chain_id();
        chains.push(next.chain());
    }
    bench.create(&chains).await.expect("nothing is wrong with the batch");
    assert_refused(&bench, &bench.attempt("first").await, last).await;
    let next = draft("next").blocked_by(&[last]);
    let applied = bench.apply(&bench.attempt("other").await, next.next()).await;
    assert_eq!(applied.next, Some(JobStatus::Blocked));
    assert_eq!(bench.status(other).await, JobStatus::Blocked);
}
