//! Looking at how much is ready, which a store may be able to do or not.

use std::time::Duration;

use queuert::TypeName;
use queuert::adapter::{QueueSample, SampleQueues, StateAdapter};

use crate::bench::{Bench, LONG, answer};
use crate::draft::draft;
use crate::fixture::StateFixture;

const STEP: Duration = Duration::from_millis(20);

/// The samples of these types; `None` from a store that cannot tell.
async fn sample<F: StateFixture>(bench: &Bench<F>, types: &[&str], limit: usize) -> Option<Vec<QueueSample>> {
    let names: Vec<TypeName> = types.iter().map(|name| TypeName::from((*name).to_owned())).collect();
    let sample = SampleQueues::new(names.clone(), limit);
    let samples = answer(bench.state().sample_queues(&sample).await);
    if samples.is_empty() {
        eprintln!("left out: the store does not tell how much is ready");
        return None;
    }
    let told: Vec<_> = samples.iter().map(|sample| sample.type_name.clone()).collect();
    assert_eq!(told, names, "one answer per type, in order");
    Some(samples)
}

fn counts(samples: &[QueueSample]) -> Vec<usize> {
    samples.iter().map(|sample| sample.ready).collect()
}

/// Pending jobs that are due count, and no others, also those that have become due since anybody looked.
pub async fn what_is_ready_is_counted_by_type<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    bench.start_completed("mail", "1").await;
    bench.start_dead("mail").await;
    bench.start("mail").await;
    bench.attempt("mail").await;
    let later = bench.start_as(draft("mail").after(LONG)).await;
    bench.start_blocked("mail", &[later]).await;
    let Some(none) = sample(&bench, &["mail", "print", "unknown"], 100).await else {
        return;
    };
    assert_eq!(counts(&none), [0, 0, 0]);
    assert!(none.iter().all(|sample| sample.oldest.is_none()), "{none:?}");
    for _ in 0..3 {
        bench.start("mail").await;
    }
    bench.start("print").await;
    bench.start_as(draft("print").after(STEP)).await;
    bench.elapse(STEP * 2).await;
    let samples = sample(&bench, &["print", "mail"], 100)
        .await
        .expect("it could tell before");
    assert_eq!(counts(&samples), [2, 3]);
    bench.claim_ids(&["print"], 10).await;
    let samples = sample(&bench, &["print"], 100).await.expect("it could tell before");
    assert_eq!(counts(&samples), [0]);
}

/// No more than the limit is counted.
pub async fn a_count_ends_with_its_limit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    for _ in 0..5 {
        bench.start("mail").await;
        bench.start_as(draft("mail").after(STEP)).await;
    }
    bench.elapse(STEP * 2).await;
    for (limit, expected) in [(1, 1), (3, 3), (7, 7), (10, 10), (50, 10)] {
        let Some(samples) = sample(&bench, &["mail"], limit).await else {
            return;
        };
        assert_eq!(counts(&samples), [expected], "limit {limit}");
        assert!(samples[0].oldest.is_some());
    }
}

/// The age is that of the job that has been due longest, whatever its priority.
pub async fn the_oldest_is_the_one_that_was_due_first<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let begun = bench.now().await;
    bench.start("mail").await;
    bench.elapse(STEP * 3).await;
    bench.start_as(draft("mail").priority(100)).await;
    bench.elapse(STEP).await;
    let Some(samples) = sample(&bench, &["mail"], 100).await else {
        return;
    };
    let oldest = samples[0].oldest.expect("two are ready");
    let most = bench.now().await.saturating_duration_since(begun);
    assert!(oldest >= STEP * 4 && oldest <= most, "{oldest:?}, at most {most:?}");
}

/// Whoever looks takes nothing, and is in nobody's way.
pub async fn a_sample_changes_nothing_and_waits_for_no_lock<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let first = bench.start("mail").await;
    let second = bench.start("mail").await;
    if bench.has_concurrent_writers() {
        let mut open = bench.begin().await;
        open.lock(first).await;
        sample(&bench, &["mail"], 100).await;
        open.commit().await;
    }
    sample(&bench, &["mail"], 100).await;
    assert_eq!(
        bench.claim_ids(&["mail"], 10).await,
        [first.first_job(), second.first_job()]
    );
}
