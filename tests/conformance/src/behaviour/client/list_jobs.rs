//! Listing jobs: all of them, those of a chain, and those that wait for one.

use std::time::Duration;

use queuert::{Error, JobStatus, JobType, Timestamp};

use super::assert_error;
use super::jobs::{AfterOne, Count, First, Greet, Second, Third, greet, run_all};
use super::probe::{claim, job, job_ids, own_id, unknown_chain};
use crate::behaviour::PairFixture;

/// An empty store has no jobs. (Q21)
pub async fn an_empty_store_has_none<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let page = client.list_jobs().await.expect("they can be listed");
    assert!(page.items.is_empty() && page.next.is_none());
}

/// All jobs of all chains are listed, newest first; the other way round on request. (Q22, Q27)
pub async fn the_newest_comes_first<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    client.start(greet("a")).await.expect("it starts");
    let newest = client.list_jobs().await.expect("they can be listed");
    let types: Vec<_> = newest.items.iter().map(|job| job.type_name.as_str()).collect();
    assert_eq!(types, [Greet::NAME, Third::NAME, Second::NAME, First::NAME]);
    let oldest = client.list_jobs().oldest_first().await.expect("they can be listed");
    let mut mirrored = job_ids(&oldest);
    mirrored.reverse();
    assert_eq!(mirrored, job_ids(&newest));
}

/// Jobs are filtered by their type, and by the type of their chain. (Q23, Q24)
pub async fn jobs_are_filtered_by_type<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(First { number: 1 }).await.expect("it starts");
    client.start(greet("a")).await.expect("it starts");
    run_all(&client).await;
    let page = client
        .list_jobs()
        .of_type::<Second>()
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].type_name.as_str(), Second::NAME);
    let page = client
        .list_jobs()
        .of_type::<Second>()
        .of_type::<Greet>()
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 2);
    let page = client
        .list_jobs()
        .types([Third::NAME])
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 1);
    let page = client
        .list_jobs()
        .chain_types([First::NAME])
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 3);
    assert!(page.items.iter().all(|job| job.chain_type.as_str() == First::NAME));
    let page = client
        .list_jobs()
        .chain_types([Second::NAME])
        .await
        .expect("they can be listed");
    assert!(page.items.is_empty(), "no chain starts with a later step");
}

/// A filter may name types that no job type can have, as a person types them: it matches nothing, on every store.
pub async fn a_name_that_no_type_has_matches_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("a")).await.expect("it starts");
    let long = "n".repeat(100_000);
    for name in ["\0", "gr\0eet", "", &long] {
        let jobs = client.list_jobs().types([name.to_owned()]);
        assert!(jobs.await.expect("they can be listed").items.is_empty(), "{name:?}");
        let jobs = client.list_jobs().chain_types([name.to_owned()]);
        assert!(jobs.await.expect("they can be listed").items.is_empty(), "{name:?}");
        let chains = client.list_chains().types([name.to_owned()]);
        assert!(chains.await.expect("they can be listed").items.is_empty(), "{name:?}");
        let both = client.list_jobs().types([name, Greet::NAME].map(str::to_owned));
        assert_eq!(both.await.expect("they can be listed").items.len(), 1, "{name:?}");
    }
}

/// Jobs are filtered by their ids and by their chains. (Q25)
pub async fn jobs_are_filtered_by_id<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let (a, b, _) = client
        .start_each((First { number: 1 }, greet("b"), greet("c")))
        .await
        .expect("they start");
    run_all(&client).await;
    let page = client
        .list_jobs()
        .chains([a.id(), unknown_chain()])
        .await
        .expect("they can be listed");
    assert_eq!(page.items.len(), 3);
    assert!(page.items.iter().all(|job| job.chain_id == a.id()));
    let named = [b.id().first_job(), own_id(9)];
    let page = client.list_jobs().ids(named).await.expect("they can be listed");
    assert_eq!(job_ids(&page), [b.id().first_job()]);
    let page = client
        .list_jobs()
        .ids(named)
        .chains([a.id()])
        .await
        .expect("they can be listed");
    assert!(page.items.is_empty(), "filters narrow one another");
}

/// Jobs are filtered by their own status, not by that of their chain. (Q26)
pub async fn jobs_are_filtered_by_status<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    let mut tx = client.begin().await.expect("a transaction opens");
    let open = client
        .open::<First>(&chain)
        .within(&mut tx)
        .await
        .expect("it can be opened");
    open.continue_with(Second { number: 2 }).await.expect("it continues");
    tx.commit().await.expect("it commits");
    client.start(greet("a")).await.expect("it starts");
    claim(&client, Greet::NAME).await;
    for (status, expected) in [
        (JobStatus::Completed, First::NAME),
        (JobStatus::Pending, Second::NAME),
        (JobStatus::Running, Greet::NAME),
    ] {
        let page = client.list_jobs().statuses([status]).await.expect("they can be listed");
        assert_eq!(page.items.len(), 1, "{status}");
        assert_eq!(page.items[0].type_name.as_str(), expected);
    }
    let none = client
        .list_jobs()
        .statuses([JobStatus::Dead])
        .await
        .expect("they can be listed");
    assert!(none.items.is_empty());
}

/// Jobs are filtered by when they were created, both ends included. (Q29)
pub async fn jobs_are_filtered_by_time<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        let started = client.start(greet(name)).await.expect("it starts");
        jobs.push(job(&client, started.id().first_job()).await);
        fixture.elapse(client.state(), Duration::from_millis(3)).await;
    }
    let at = jobs[1].created_at;
    let list = || client.list_jobs().oldest_first();
    assert_eq!(
        list().created_from(at).await.expect("they can be listed").items,
        jobs[1..]
    );
    assert_eq!(
        list().created_to(at).await.expect("they can be listed").items,
        jobs[..2]
    );
    let page = list()
        .created_from(at)
        .created_to(at)
        .await
        .expect("they can be listed");
    assert_eq!(page.items, jobs[1..2]);
    let future = at.saturating_add(Duration::from_secs(3_600));
    assert!(
        list()
            .created_from(future)
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
    let past = Timestamp::from_micros(0);
    assert!(
        list()
            .created_to(past)
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
}

/// A filter that admits nothing gives nothing: an empty list is not the absence of a filter. (9.5 H24)
pub async fn an_empty_filter_admits_nothing<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    client.start(greet("a")).await.expect("it starts");
    let list = || client.list_jobs();
    for (request, what) in [
        (list().ids([]), "ids"),
        (list().chains([]), "chains"),
        (list().types([] as [&'static str; 0]), "types"),
        (list().chain_types([] as [&'static str; 0]), "chain types"),
        (list().statuses([]), "statuses"),
    ] {
        assert!(request.await.expect("they can be listed").items.is_empty(), "{what}");
    }
}

/// The jobs of a chain come in their order, with their inputs, and no others. (Q32, Q33, Q35)
pub async fn the_jobs_of_a_chain_come_in_order<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    let other = client.start(First { number: 10 }).await.expect("it starts");
    run_all(&client).await;
    let page = client.list_chain_jobs(&chain).await.expect("they can be listed");
    let seen: Vec<_> = page
        .items
        .iter()
        .map(|job| (job.type_name.as_str(), job.chain_index))
        .collect();
    assert_eq!(seen, [(First::NAME, 0), (Second::NAME, 1), (Third::NAME, 2)]);
    let inputs: Vec<_> = page.items.iter().map(|job| job.input.as_str()).collect();
    assert_eq!(inputs, [r#"{"number":1}"#, r#"{"number":2}"#, r#"{"number":3}"#]);
    assert!(
        page.items
            .iter()
            .all(|job| job.status == JobStatus::Completed && job.chain_id == chain.id())
    );
    let mut backwards = job_ids(
        &client
            .list_chain_jobs(&chain)
            .newest_first()
            .await
            .expect("they can be listed"),
    );
    backwards.reverse();
    assert_eq!(backwards, job_ids(&page));
    let others = client.list_chain_jobs(&other).await.expect("they can be listed");
    assert!(others.items.iter().all(|job| job.chain_id == other.id()));
}

/// A chain that does not exist has no jobs, and nobody waits for it. (Q31, Q43)
pub async fn an_unknown_chain_has_no_jobs<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let started = client.start(greet("a")).await.expect("it starts");
    assert!(
        client
            .list_chain_jobs(unknown_chain())
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
    assert!(
        client
            .list_blocked_jobs(unknown_chain())
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
    assert!(
        client
            .list_blocked_jobs(&started)
            .await
            .expect("they can be listed")
            .items
            .is_empty()
    );
}

/// The jobs of a chain read with their types; another type is refused. (Q36, Q37)
pub async fn listed_jobs_read_typed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let chain = client.start(First { number: 1 }).await.expect("it starts");
    run_all(&client).await;
    let second = client
        .list_chain_jobs(&chain)
        .await
        .expect("they can be listed")
        .items
        .remove(1);
    assert_error!(second.clone().typed::<Count>(), Error::TypeMismatch { id, .. } if id == second.id);
    assert_eq!(second.typed::<Second>().expect("it is one").input.number, 2);
}

/// The jobs that wait for a chain are listed, also when they wait no more, newest first. (Q44, Q46, Q47, Q48)
pub async fn blocked_jobs_are_listed<F: PairFixture>(fixture: F) {
    let client = fixture.client().await;
    let blocker = client.start(greet("a")).await.expect("it starts");
    let unrelated = client.start(greet("b")).await.expect("it starts");
    client.start(AfterOne.blocked_by(&unrelated)).await.expect("it starts");
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let waiting = client.start(AfterOne.blocked_by(&blocker)).await.expect("it starts");
        jobs.push(waiting.id().first_job());
    }
    for expected in [JobStatus::Blocked, JobStatus::Completed] {
        let page = client
            .list_blocked_jobs(&blocker)
            .oldest_first()
            .await
            .expect("they can be listed");
        assert_eq!(job_ids(&page), jobs);
        assert!(page.items.iter().all(|job| job.status == expected));
        let page = client
            .list_blocked_jobs(&blocker)
            .statuses([expected])
            .await
            .expect("they can be listed");
        assert_eq!(job_ids(&page), [jobs[2], jobs[1], jobs[0]]);
        run_all(&client).await;
    }
}
