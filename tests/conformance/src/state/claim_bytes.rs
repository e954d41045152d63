//! Claims that are limited by the bytes of the inputs.

use std::time::Duration;

use queuert::adapter::{BlockerOutputs, Claimed};
use queuert::{ChainId, JobId, Schedule};

use crate::bench::{Attempt, Bench, LONG, SHORT, TICK, WORKER};
use crate::draft::{self, draft};
use crate::fixture::StateFixture;

/// What an input of so many bytes is.
fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

/// Starts chains of one type whose inputs have so many bytes, in this order.
async fn start<F: StateFixture>(bench: &Bench<F>, sizes: &[usize]) -> Vec<ChainId> {
    let mut chains = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        chains.push(bench.start_as(draft("mail").input(&text(*bytes))).await);
        bench.elapse(TICK).await;
    }
    chains
}

fn ids(claimed: &Claimed) -> Vec<JobId> {
    claimed.jobs.iter().map(|claimed| claimed.job.id).collect()
}

fn bytes(claimed: &Claimed) -> usize {
    claimed
        .jobs
        .iter()
        .map(|claimed| claimed.job.input.as_str().len())
        .sum()
}

fn jobs(chains: &[ChainId]) -> Vec<JobId> {
    chains.iter().map(|chain| chain.first_job()).collect()
}

/// After a thousand small jobs, the first claim of large ones is as limited as any later one, and the answer that is given
/// again is too.
pub async fn the_first_claim_of_large_jobs_is_limited<F: StateFixture>(fixture: F) {
    const LARGE: usize = 30_000;
    let bench = Bench::new(fixture).await;
    bench.start_at_once("mail", 1_000).await;
    bench.elapse(TICK).await;
    let large: Vec<_> = (0..20).map(|_| draft("mail").input(&text(LARGE)).chain()).collect();
    bench.create(&large).await.expect("nothing is wrong with the batch");
    let light = bench.claim_within(&["mail"], 1_000, 1, 5 * LARGE).await;
    assert_eq!(light.jobs.len(), 1_000);
    let mut claimed = 0;
    while claimed < 20 {
        let heavy = bench.claim_within(&["mail"], 1_000, 1, 5 * LARGE).await;
        assert_eq!(bytes(&heavy), 5 * LARGE);
        assert_eq!(bench.claimed(Attempt::new(heavy.jobs[0].clone()).fence).await.len(), 5);
        claimed += heavy.jobs.len();
        if claimed < 20 {
            assert_eq!(heavy.next_due, Some(Duration::ZERO), "after {claimed}");
        }
    }
}

/// A claim ends before the first job that does not fit, though a smaller one lies behind it, and says that there is more.
pub async fn a_claim_ends_before_the_first_job_that_does_not_fit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = start(&bench, &[10, 20, 100, 10]).await;
    let claimed = bench.claim_within(&["mail"], 10, 0, 99).await;
    assert_eq!(ids(&claimed), jobs(&chains[..2]));
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
    let claimed = bench.claim_within(&["mail"], 10, 0, 110).await;
    assert_eq!(ids(&claimed), jobs(&chains[2..]), "as many bytes as are allowed");
    assert_eq!(claimed.next_due, None);
}

/// The limit of the jobs counts too; a claim that it ends has not left a job for its bytes.
pub async fn a_claim_that_fits_ends_at_its_limit<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = start(&bench, &[10, 10, 10]).await;
    let claimed = bench.claim_within(&["mail"], 2, 0, 1_000).await;
    assert_eq!((ids(&claimed), claimed.next_due), (jobs(&chains[..2]), None));
}

/// The first job is taken whatever it weighs, or nobody could ever run it.
pub async fn the_first_job_is_taken_whatever_it_weighs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = start(&bench, &[1_000, 10]).await;
    let claimed = bench.claim_within(&["mail"], 10, 0, 0).await;
    assert_eq!(ids(&claimed), jobs(&chains[..1]));
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
}

/// As many jobs as there are idle workers are taken whatever they weigh, and no more if these have used up the bytes.
pub async fn every_idle_worker_has_a_job_whatever_it_weighs<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = start(&bench, &[1_000, 1_000, 1_000, 10]).await;
    let claimed = bench.claim_within(&["mail"], 10, 3, 100).await;
    assert_eq!(ids(&claimed), jobs(&chains[..3]));
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
}

/// A claim across many types counts them all, in their common order.
pub async fn the_bytes_of_all_types_count_together<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let types: Vec<String> = (0..100).map(|number| format!("type-{number:03}")).collect();
    let mut chains = Vec::new();
    for name in types.iter().rev() {
        chains.push(bench.start_as(draft(name).input(&text(100))).await);
        bench.elapse(TICK).await;
    }
    let few: Vec<&str> = types.iter().rev().take(3).map(String::as_str).collect();
    let claimed = bench.claim_within(&few, 10, 1, 250).await;
    assert_eq!(ids(&claimed), jobs(&chains[..2]));
    let all: Vec<&str> = types.iter().map(String::as_str).collect();
    let claimed = bench.claim_within(&all, 90, 1, 1_050).await;
    assert_eq!(ids(&claimed), jobs(&chains[2..12]));
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
}

/// A job with blockers counts for as many bytes more as the worker expects of jobs of its type; one without counts for its
/// input.
pub async fn the_outputs_of_blockers_count_as_expected<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let blocker = bench.start_completed("blocker", &text(100)).await;
    let mut chains = Vec::new();
    for _ in 0..6 {
        let job = draft("mail").input(&text(10)).blocked_by(&[blocker]);
        chains.push(bench.start_as(job).await);
        bench.elapse(TICK).await;
    }
    chains.extend(start(&bench, &[10, 10]).await);
    let mut outputs = BlockerOutputs::unknown(1_000);
    let claimed = bench.claim_expecting("mail", 2, 500, &outputs).await;
    assert_eq!(ids(&claimed), jobs(&chains[..2]), "it is not known how many there are");
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
    outputs.note(&"mail".into(), 100);
    let claimed = bench.claim_expecting("mail", 1, 330, &outputs).await;
    assert_eq!(ids(&claimed), jobs(&chains[2..5]));
    assert_eq!(claimed.next_due, Some(Duration::ZERO));
    let claimed = bench.claim_expecting("mail", 1, 130, &outputs).await;
    assert_eq!(ids(&claimed), jobs(&chains[5..]));
    assert_eq!(claimed.next_due, None);
}

/// A job that did not fit is as it was, with its history and its place, also one that it had kept from an attempt that was
/// taken back, and is claimed next.
pub async fn a_job_that_did_not_fit_is_as_it_was<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let chains = start(&bench, &[100, 100, 100, 100]).await;
    let (retried, reaped) = (chains[1].first_job(), chains[2].first_job());
    let claimed = bench.claim_as(WORKER, &[("mail", LONG)], 2).await;
    let mut attempts = claimed.jobs.into_iter().map(Attempt::new);
    let (first, second) = (attempts.next().expect("two"), attempts.next().expect("two"));
    bench.expired_attempt("mail").await;
    assert_eq!(bench.reap("mail").await[0].job.id, reaped);
    bench.elapse(SHORT).await;
    bench.apply(&second, draft::retry(Schedule::Now, "failed")).await;
    bench.apply(&first, queuert::adapter::Outcome::Release).await;
    bench.elapse(SHORT).await;
    let mut before = Vec::new();
    for chain in &chains[1..] {
        before.push(bench.job(chain.first_job()).await);
    }
    let claimed = bench.claim_within(&["mail"], 10, 1, 150).await;
    assert_eq!(ids(&claimed), jobs(&chains[..1]));
    for job in &before {
        assert_eq!(&bench.job(job.id).await, job);
    }
    let claimed = bench.claim_within(&["mail"], 10, 1, 1_000).await;
    assert_eq!(ids(&claimed), [reaped, chains[3].first_job(), retried]);
    let numbers: Vec<_> = claimed
        .jobs
        .iter()
        .map(|claimed| (claimed.job.attempt, claimed.job.claims))
        .collect();
    assert_eq!(numbers, [(2, 2), (1, 1), (2, 2)]);
}
