//! Calls that name ten thousand job types.

use std::time::Duration;

use queuert::adapter::{Order, SampleQueues, StateAdapter};
use queuert::{JobId, TypeName};

use super::{list_chains, list_jobs};
use crate::bench::{Bench, LONG, MANY_ATTEMPTS, SHORT, TICK, answer};
use crate::draft::{Draft, draft};
use crate::fixture::StateFixture;

const TYPES: usize = 10_000;

/// The types at the beginning, in the middle and at the end.
const PLACES: [usize; 3] = [TYPES - 1, 0, TYPES / 2];

fn names() -> Vec<String> {
    (0..TYPES).map(|number| format!("type-{number}")).collect()
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

async fn create<F: StateFixture>(bench: &Bench<F>, drafts: impl IntoIterator<Item = Draft>) {
    let chains: Vec<_> = drafts.into_iter().map(Draft::chain).collect();
    bench.create(&chains).await.expect("nothing is wrong with the batch");
}

/// A claim of ten thousand types finds the jobs of each, gives each its own lease, and tells when the next one is due.
pub async fn a_claim_of_many_types_finds_each<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    let lease = |place: usize| LONG + Duration::from_secs(u64::try_from(place).expect("small"));
    let types: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(place, name)| (name.as_str(), lease(place)))
        .collect();
    let none = bench.claim_as("worker", &types, 10).await;
    assert!(none.jobs.is_empty() && none.next_due.is_none(), "{none:?}");
    for place in PLACES {
        bench.start(&names[place]).await;
        bench.start_as(draft(&names[place]).after(LONG)).await;
        let claimed = bench.claim_as("worker", &types, 10).await;
        let [taken] = &claimed.jobs[..] else {
            panic!("one job of type {place}: {claimed:?}");
        };
        let job = &taken.job;
        assert_eq!(job.type_name.as_str(), names[place]);
        let until = job.lease.as_ref().expect("leased").until;
        let started = job.started_at.expect("it runs");
        assert_eq!(until.saturating_duration_since(started), lease(place));
        let next = claimed.next_due.expect("a job is due later");
        assert!(next <= LONG && next > Duration::ZERO, "{next:?}");
    }
}

/// A claim of ten thousand types takes exactly the smallest ranks of all of them together, ties by id, whatever types they
/// are of: many jobs of one type, and one job of many types.
pub async fn a_claim_of_many_types_is_in_exact_order<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    // By their ids the later ones come first.
    let group = |first: usize| -> Vec<Draft> {
        let spread = (0..300).map(|number| draft(&names[(first + number * 7_919) % TYPES]));
        let crowded = (0..300).map(|number| draft(&names[first + number % 3]));
        spread.chain(crowded).collect()
    };
    let (third, second, first) = (group(0), group(5_000), group(1));
    let mut expected: Vec<JobId> = Vec::new();
    for drafts in [first, second, third] {
        expected.extend(drafts.iter().map(Draft::id));
        create(&bench, drafts).await;
        bench.elapse(TICK).await;
    }
    let mut claimed = Vec::new();
    for limit in [1, 1, 3, 50, 100, 7, 700, 2_000] {
        claimed.extend(bench.claim_ids(&refs(&names), limit).await);
    }
    assert_eq!(claimed.len(), expected.len());
    let wrong = claimed.iter().zip(&expected).position(|(got, wanted)| got != wanted);
    assert_eq!(wrong, None, "the place of the first job out of order");
}

/// What has become due is claimed, of whichever of ten thousand types it is, and in its order.
pub async fn a_claim_of_many_types_takes_what_has_become_due<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    let time = bench.now().await.saturating_add(SHORT * 4);
    let later: Vec<_> = PLACES.map(|place| draft(&names[place]).at(time)).into();
    let expected: Vec<JobId> = later.iter().map(Draft::id).collect();
    create(&bench, later).await;
    bench.elapse(SHORT * 8).await;
    bench.start(&names[77]).await;
    assert_eq!(bench.claim_ids(&refs(&names), 3).await, expected);
    assert_eq!(bench.claim_ids(&refs(&names), 3).await.len(), 1);
}

/// A sweep of ten thousand types takes back the jobs of each.
pub async fn a_sweep_of_many_types_finds_each<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    for place in PLACES {
        bench.start(&names[place]).await;
        bench.expired_attempt(&names[place]).await;
    }
    let types: Vec<_> = names.iter().map(|name| (name.as_str(), MANY_ATTEMPTS)).collect();
    let reaped = bench.reap_with(&types, 100, &[]).await;
    let found: Vec<_> = reaped.iter().map(|reaped| reaped.job.type_name.as_str()).collect();
    assert_eq!(found, PLACES.map(|place| names[place].as_str()));
}

/// The samples of ten thousand types come in the order given.
pub async fn many_types_are_sampled<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    for (count, place) in PLACES.into_iter().enumerate() {
        bench.start_at_once(&names[place], count + 1).await;
    }
    let types: Vec<TypeName> = names.iter().map(|name| TypeName::from(name.clone())).collect();
    let samples = answer(bench.state().sample_queues(&SampleQueues::new(types, 10)).await);
    if samples.is_empty() {
        eprintln!("left out: the store does not tell how much is ready");
        return;
    }
    assert_eq!(samples.len(), TYPES);
    for (place, sample) in samples.iter().enumerate() {
        let wanted = PLACES.iter().position(|one| *one == place).map_or(0, |count| count + 1);
        assert_eq!(
            (sample.type_name.as_str(), sample.ready),
            (names[place].as_str(), wanted)
        );
    }
}

/// Lists of jobs and of chains take ten thousand types as a filter, and lists without a filter a store that has as many.
pub async fn many_types_are_listed<F: StateFixture>(fixture: F) {
    let bench = Bench::new(fixture).await;
    let names = names();
    // A chain of each type, so that the store has them all.
    create(&bench, names.iter().map(|name| draft(name))).await;
    bench.elapse(TICK).await;
    let mut newest = Vec::new();
    for place in PLACES {
        newest.extend(bench.start_in_turn(&names[place], 1).await);
    }
    newest.reverse();
    let filter: Vec<TypeName> = names.iter().map(|name| TypeName::from(name.clone())).collect();
    for types in [None, Some(filter)] {
        let mut query = list_chains::query();
        (query.limit, query.types) = (3, types.clone());
        let chains = bench.list_chains(&query).await;
        assert_eq!(chains.iter().map(|chain| chain.id).collect::<Vec<_>>(), newest);
        let mut query = list_jobs::query();
        (query.limit, query.types) = (3, types.clone());
        let jobs = bench.list_jobs(&query).await;
        assert_eq!(jobs.iter().map(|job| job.chain_id).collect::<Vec<_>>(), newest);
        (query.order, query.chain_types) = (Order::OldestFirst, types);
        let jobs = bench.list_jobs(&query).await;
        let first: Vec<&str> = jobs.iter().map(|job| job.type_name.as_str()).collect();
        assert_eq!(first, refs(&names[..3]), "created at one moment, so by id");
    }
}
