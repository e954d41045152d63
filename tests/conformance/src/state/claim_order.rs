//! The order of claiming: by rank, ties by id.

use std::time::Duration;

use queuert::ChainId;

use crate::bench::{Bench, SHORT, has};
use crate::draft::{Draft, draft};
use crate::fixture::StateFixture;

/// Longer than it takes to create some jobs on a busy machine.
const AHEAD: Duration = Duration::from_millis(800);

fn ids(chains: &[ChainId]) -> Vec<queuert::JobId> {
    chains.iter().map(ChainId::first_job).collect()
}

/// Of two jobs the older is claimed first. (S59)
pub async fn the_older_job_is_claimed_first<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = bench.start_in_turn("mail", 5).await;
    assert_eq!(bench.claim_ids(&["mail"], 5).await, ids(&chains));
}

/// Jobs that are due at the same moment are claimed by id, in whatever order they were created. (H24)
pub async fn ties_are_claimed_by_id<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let time = bench.now().await.saturating_add(SHORT);
    let mut drafts: Vec<_> = (0..6).map(|index| draft(["a", "b"][index % 2]).at(time)).collect();
    let ordered: Vec<_> = drafts.iter().map(|draft| draft.id()).collect();
    drafts.rotate_left(2);
    drafts.swap(0, 5);
    // In one call: on a slow machine the last ones would otherwise be created after their time, and be due later.
    let chains: Vec<_> = drafts.into_iter().map(Draft::chain).collect();
    bench.create(&chains).await.expect("nothing is wrong with the batch");
    bench.elapse(SHORT * 2).await;
    let mut claimed = bench.claim_ids(&["b", "a"], 4).await;
    claimed.extend(bench.claim_ids(&["a", "b"], 4).await);
    assert_eq!(claimed, ordered);
}

/// A claim across types takes exactly the smallest ranks of all of them together. (H24)
pub async fn a_claim_across_types_is_in_exact_order<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let mut expected = Vec::new();
    for type_name in ["c", "a", "a", "b", "c", "a", "b", "b", "a", "c"] {
        expected.extend(ids(&bench.start_in_turn(type_name, 1).await));
    }
    let mut claimed = Vec::new();
    for limit in [4, 1, 3, 5] {
        claimed.extend(bench.claim_ids(&["a", "b", "c"], limit).await);
    }
    assert_eq!(claimed, expected);
}

/// A higher priority goes first, also across types and in one claim.
pub async fn a_higher_priority_goes_first<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    if !has(
        bench.fixture().ageing_step() >= Duration::from_millis(50),
        "the ageing step is too short to tell",
    ) {
        return;
    }
    let low = bench.start_as(draft("a").priority(-50)).await;
    let normal = bench.start("b").await;
    let high = bench.start_as(draft("a").priority(50)).await;
    let higher = bench.start_as(draft("b").priority(100)).await;
    assert_eq!(bench.claim_ids(&["a", "b"], 5).await, ids(&[higher, high, normal, low]));
}

/// The extremes of priority do not overflow.
pub async fn extreme_priorities_keep_their_order<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let lowest = bench.start_as(draft("a").priority(i16::MIN)).await;
    let normal = bench.start("a").await;
    let highest = bench.start_as(draft("a").priority(i16::MAX)).await;
    assert_eq!(bench.claim_ids(&["a"], 5).await, ids(&[highest, normal, lowest]));
}

/// Waiting is worth as much as priority: past the ageing step the older job goes before the more important one, and
/// not before that. (I16)
pub async fn waiting_beats_priority_past_the_ageing_step<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let step = bench.fixture().ageing_step();
    let affordable = bench.capabilities().free_time || step <= Duration::from_millis(300);
    if !has(affordable, "an ageing step would have to be slept") {
        return;
    }
    // At times to come, so that on a busy machine none waits for longer than it should.
    let first = bench.now().await.saturating_add(AHEAD);
    let second = first.saturating_add(step + step / 2);
    // Ranks in ageing steps, counted from the first time: 1.5 - 2, 0, 1.5 - 1, and 0 + 1.
    let mut drafts = vec![
        draft("mail").at(second).priority(2),
        draft("mail").at(first),
        draft("mail").at(second).priority(1),
        draft("mail").at(first).priority(-1),
    ];
    let expected: Vec<_> = drafts.iter().map(Draft::id).collect();
    drafts.rotate_left(1);
    let chains: Vec<_> = drafts.into_iter().map(Draft::chain).collect();
    bench.create(&chains).await.expect("nothing is wrong with the batch");
    bench.elapse(AHEAD + step + step / 2).await;
    assert_eq!(bench.claim_ids(&["mail"], 5).await, expected);
}

/// A failed job that is due again takes its place by its new time, not by its age.
pub async fn a_retried_job_takes_its_place_by_its_new_time<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let failing = bench.start("mail").await;
    let attempt = bench.attempt("mail").await;
    let other = bench.start_in_turn("mail", 1).await[0];
    bench
        .apply(&attempt, crate::draft::retry(queuert::Schedule::Now, "failed"))
        .await;
    assert_eq!(bench.claim_ids(&["mail"], 5).await, ids(&[other, failing]));
}
